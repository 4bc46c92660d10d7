// A whole foreign Hugging Face folder: config.json, weights, tokenizer. After the import, generates text.
#include <filesystem>

#include "checkpoint/store/vfs.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/sealed_step.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFiles[] = {"config.json", "model.safetensors", "tokenizer.model"};

void run(std::string_view input) {
  static const ScratchFile scratch("import");
  const std::string from = scratch.path() + "-from", to = scratch.path() + "-to";
  Parts parts = split_parts(input);
  fs::create_directory(from);
  Vfs vfs;
  for (const char* name : kFiles) {
    vfs.unlink(from + "/" + name);
    if (parts.count(name) != 0) write_synced(vfs, from + "/" + name, parts[name]);
  }
  if (accepts({"import", "--from", from, "--output", to}))
    accepts({"generate", "--load", to, "--prompt", "the", "--max-tokens", "2", "--device.kind", "cpu"});
  fs::remove_all(to);
}

std::vector<std::string> seeds() {
  SealedStep step(16);
  step.aux["tokenizer.model"] = tokenizer_model().seeds().back();
  step.seal();
  const std::string folder = step.path() + "-hf", native = step.path() + "-native";
  GT_CHECK(accepts({"export", "--load", step.path(), "--output", folder}), outcome().refusals);
  GT_CHECK(accepts({"export", "--load", step.path(), "--output", native, "--naming", "native", "--dtype", "int8"}));
  std::vector<std::string> out;
  Vfs vfs;
  for (const std::string& dir : {folder, native}) {
    Parts parts;
    for (const char* name : kFiles)
      if (fs::exists(dir + "/" + name)) parts[name] = read_file(vfs, dir + "/" + name, 1 << 20);
    out.push_back(join_parts(parts));
  }
  return out;
}

}  // namespace

Target import_folder() {
  std::vector<std::string> words = safetensors_header().words;
  for (const Target& t : {hf_config(), tokenizer_model()}) words.insert(words.end(), t.words.begin(), t.words.end());
  return {"import_folder", run, seeds, words, 400};
}

}  // namespace gt::fuzz
