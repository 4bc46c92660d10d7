#include "launch/ranks/start/elastic.h"

#include <algorithm>

#include "launch/config/config_check.h"

namespace gt {
namespace {

bool is_legal(const LoadedConfig& loaded, const Replicas& r) {
  Config c = loaded.config;
  c.parallel.dp = r.dp, c.train.micro_batch = r.micro_batch, c.train.grad_accum = r.grad_accum;
  Problems problems;
  std::vector<std::string> notes;
  resolve_and_check(c, {.origin = loaded.origin, .model_folder = c.model.lora_base}, problems, notes);
  return problems.empty();
}

}  // namespace

std::optional<Replicas> fewer_replicas(const LoadedConfig& loaded, int slots) {
  const Config& c = loaded.config;
  if (c.launch.min_dp == 0) return std::nullopt;
  const int64_t most = std::min(c.parallel.dp - 1, slots / (c.parallel.tp * c.parallel.pp));
  for (int64_t dp = most; dp >= c.launch.min_dp; --dp) {
    if (c.train.global_batch % dp != 0) continue;
    const int64_t share = c.train.global_batch / dp;
    for (int64_t micro = std::min(c.train.micro_batch, share); micro >= 1; --micro)
      if (const Replicas r{dp, micro, share / micro}; share % micro == 0 && is_legal(loaded, r)) return r;
  }
  return std::nullopt;
}

std::vector<std::string> replica_flags(const Config& c, const Replicas& r) {
  return {"--parallel.dp",        std::to_string(r.dp),
          "--train.global_batch", std::to_string(c.train.global_batch),
          "--train.micro_batch",  std::to_string(r.micro_batch),
          "--train.grad_accum",   std::to_string(r.grad_accum)};
}

}  // namespace gt
