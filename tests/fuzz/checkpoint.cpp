// A whole foreign checkpoint with valid hashes and seal, passed to generate, eval and export.
#include <filesystem>
#include <limits>

#include "checkpoint/store/vfs.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/sealed_step.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

constexpr int kVocab = 16;

// Selected by the part "weights": all equal, or not finite.
SealedStep& step_of(const Parts& parts) {
  static SealedStep plain(kVocab), nan(kVocab, std::numeric_limits<float>::quiet_NaN()), huge(kVocab, 3e38f);
  const auto kind = parts.find("weights");
  if (kind == parts.end()) return plain;
  return kind->second.starts_with("nan") ? nan : huge;
}

void run(std::string_view input) {
  Parts parts = split_parts(input);
  SealedStep& step = step_of(parts);
  const auto take = [&](const char* name) { return parts.count(name) != 0 ? parts[name] : std::string(); };
  if (refused([&] { step.manifest = parse_manifest(sealed_manifest(take("manifest.json")), "fuzz/manifest.json"); }))
    return;
  step.index = repaired_index(take("rank-00000.idx"));
  step.aux.clear();
  for (const char* name : {"config.json", "tokenizer.model", "hf-config.json"})
    if (parts.count(name) != 0) step.aux[name] = parts[name];
  step.seal();
  const std::string out = step.path() + "-out";
  accepts({"generate", "--load", step.path(), "--prompt", take("prompt"), "--max-tokens", "3", "--device.kind", "cpu"});
  accepts({"eval", "--load", step.path(), "--data.train", "mock", "--steps", "1", "--device.kind", "cpu"});
  accepts({"export", "--load", step.path(), "--output", out});
  std::filesystem::remove_all(out);
}

std::vector<std::string> seeds() {
  SealedStep step(kVocab);
  const std::string manifest = to_text(step.manifest), model = tokenizer_model().seeds().back();
  Parts parts{{"config.json", step.aux["config.json"]},
              {"manifest.json", manifest.substr(0, manifest.size() - 78)},
              {"rank-00000.idx", step.index},
              {"tokenizer.model", model},
              {"prompt", "the"}};
  std::vector<std::string> out{join_parts(parts)};
  parts["weights"] = "nan", parts["prompt"] = "";
  out.push_back(join_parts(parts));
  parts["weights"] = "huge", parts["hf-config.json"] = R"({"model_type": "gpt2", "n_layer": 1, "eos_token_id": 2})";
  out.push_back(join_parts(parts));
  return out;
}

}  // namespace

Target checkpoint() {
  std::vector<std::string> words = checkpoint_config().words;
  for (const Target& t : {ckpt_manifest(), ckpt_index(), tokenizer_model()})
    words.insert(words.end(), t.words.begin(), t.words.end());
  return {"checkpoint", run, seeds, words, 300};
}

}  // namespace gt::fuzz
