#include "launch/train/training_data.h"

#include "data/index_store.h"
#include "kernels/core/check.h"
#include "kernels/core/sha256.h"

namespace gt {

DatasetOptions training_data(const Config& c, bool builder) {
  DatasetOptions o;
  o.sources = c.data.train;
  o.split = c.data.split;
  o.whole = !c.data.valid.empty();
  o.seq = c.model.seq;
  o.seed = static_cast<uint64_t>(c.train.seed);
  o.order = sample_order_from(c.data.order);
  o.num_samples = c.train.steps * c.train.global_batch;
  o.dp = c.parallel.dp;
  o.micro_batch = c.train.micro_batch;
  o.vocab = c.model.vocab;
  if (!c.data.tokenizer.empty()) o.tokenizer_sha256 = sha256_file_hex(c.data.tokenizer);
  o.cache_dir = default_cache_dir();
  o.builder = builder;
  return o;
}

std::unique_ptr<Dataset> open_training_data(const DatasetOptions& o, const LoadedConfig& loaded) {
  try {
    return open_dataset(o);
  } catch (const Error& e) {
    const auto origin = loaded.origin.find("data.train");
    if (origin == loaded.origin.end()) throw;
    throw Error(std::string(e.what()) + "\ndata.train was set by " + origin->second, e.code());
  }
}

LoaderConfig training_loader(const Config& c, const Mesh& mesh) {
  LoaderConfig l;
  l.seq = c.model.seq;
  l.micro_batch = c.train.micro_batch;
  l.microbatches = static_cast<int>(c.train.grad_accum);
  l.dp_rank = mesh.coord(Axis::kDp);
  l.dp_size = mesh.size(Axis::kDp);
  l.need_tokens = mesh.first_stage();
  l.need_targets = mesh.last_stage();
  return l;
}

}  // namespace gt
