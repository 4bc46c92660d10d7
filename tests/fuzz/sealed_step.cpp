#include "tests/fuzz/sealed_step.h"

#include "checkpoint/checkpoint.h"
#include "kernels/backend.h"
#include "kernels/core/hash/sha256.h"
#include "launch/config/config.h"
#include "launch/tools/weights/model_weights.h"
#include "parallel/comm/self_group.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void write(const std::string& path, const std::string& bytes) {
  Vfs vfs;
  vfs.unlink(path);
  write_synced(vfs, path, bytes);
}

std::vector<ShardView> views_of(const ModelConfig& model) {
  std::vector<ShardView> out;
  for (const ModelWeight& w : model_weights(model)) {
    ShardView v;
    v.name = "master/" + w.native;
    for (const int64_t d : w.shape) v.full.dim[static_cast<size_t>(v.full.rank++)] = d;
    v.local = v.full;
    v.shard = w.shard.tp().blocks > 1 ? w.shard : ShardSpec::replicate();
    v.data = {nullptr, {v.full.numel()}, DType::kF32, {}};
    out.push_back(v);
  }
  return out;
}

}  // namespace

SealedStep::SealedStep(int vocab, float weight) {
  static const ScratchFile folder("sealed");  // removed with the process
  static int count = 0;
  const std::string dir = folder.path() + cat("-", count++);
  const Config config = load_config({.flags = {"--model.layers", "1", "--model.hidden", "8", "--model.heads", "2",
                                               "--model.vocab", std::to_string(vocab), "--model.seq", "8",
                                               "--data.train", "mock", "--train.micro_batch", "2"}})
                            .config;
  SelfFactory factory;
  const Mesh mesh(MeshShape{}, factory);
  const std::vector<ShardView> views = views_of(config.model);
  const auto values = [&](const std::string&, int64_t, int64_t count) {
    return std::vector<float>(static_cast<size_t>(count), weight);
  };
  SaveOptions options;
  options.require_finite = false;  // as an author of hostile files would
  path_ = save_streamed(dir, {}, views, values, {{.name = "config.json", .path = "", .text = config_json(config)}},
                        options, mesh, *cpu_backend().device)
              .path;
  Vfs vfs;
  manifest = parse_manifest(read_file(vfs, path_ + "/manifest.json", kManifestLimit), path_);
  aux["config.json"] = config_json(config);
  index = read_file(vfs, path_ + "/rank-00000.idx", kManifestLimit);
}

void SealedStep::seal() {
  manifest.aux.clear();
  for (const auto& [name, bytes] : aux) {
    write(path_ + "/" + name, bytes);
    manifest.aux.push_back({name, static_cast<int64_t>(bytes.size()), sha256_hex(bytes)});
  }
  write(path_ + "/rank-00000.idx", index);
  for (ShardFile& f : manifest.files)
    if (f.name == "rank-00000.h5") f.idx_bytes = static_cast<int64_t>(index.size()), f.idx_sha256 = sha256_hex(index);
  write(path_ + "/manifest.json", to_text(manifest));
}

}  // namespace gt::fuzz
