#include "launch/engine/engine_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "kernels/replay.h"
#include "launch/config/config_optim.h"
#include "launch/config/config_precision.h"
#include "launch/hosts/rank_env.h"
#include "launch/ranks/start/spawn.h"

namespace gt {

MeshShape mesh_shape(const Config& c) {
  MeshShape s;
  s.pp = static_cast<int>(c.parallel.pp);
  s.dp = static_cast<int>(c.parallel.dp);
  s.ep = static_cast<int>(c.parallel.ep);
  s.cp = static_cast<int>(c.parallel.cp);
  s.tp = static_cast<int>(c.parallel.tp);
  s.kv_ranks = c.model.kv_ranks(s.tp);
  return s;
}

namespace {
ZeroOptions zero_options(const ZeroConfig& c, const PrecisionConfig& p, int64_t dp) {
  ZeroOptions z = c;
  z.scale_before = 1 / (c.prescale ? static_cast<double>(dp) : c.predivide_factor);
  z.reduce = p.reduce_dtype;
  z.grad = p.grad_dtype;
  return z;
}

bool may_use_gpu(const Config& c) {
  std::string why;
  return c.device.kind == DeviceChoice::kCuda || (c.device.kind != DeviceChoice::kCpu && cuda_backend(&why) != nullptr);
}
}  // namespace

int64_t large_loss_chunk(const TransformerConfig& m, const Precision& p, int tp) {
  constexpr int64_t kLogitBytes = int64_t{1} << 30;
  const int64_t row = padded_vocab(m.vocab, tp) / tp * size_of(p.linear());
  int64_t rows = 64;
  while (2 * rows * row <= kLogitBytes) rows *= 2;
  return rows;
}

EngineOptions engine_options(const Config& c, int threads) {
  EngineOptions o;
  static_cast<LayoutOptions&>(o) = c.parallel;
  o.model = c.model;
  o.loss_chunk = c.model.loss_chunk;
  o.zero = zero_options(c.zero, c.precision, c.parallel.dp);
  o.optim = optimizer_options(c);
  o.lr = lr_options(c);
  o.loss_scale = loss_scale_options(c);
  o.precision = precision_of(c);
  if (o.loss_chunk == 0 && may_use_gpu(c))
    o.loss_chunk = large_loss_chunk(o.model, o.precision, static_cast<int>(c.parallel.tp));
  if (c.optim.type == "lamb" && c.optim.lamb_variant == LambVariant::kApex) o.clip_slack = 0;  // as apex
  if (c.precision.stochastic_rounding) o.optim.rounding_seed = static_cast<uint64_t>(c.train.seed);
  o.no_decay = c.optim.no_decay;
  o.sequence_parallel = c.sequence_parallel();
  if (c.data.curriculum) o.lengths = c.data.curriculum.all_lengths();
  o.documents = c.data.pack == Packing::kDocuments;
  o.micro_batch = c.train.micro_batch;
  o.microbatches = static_cast<int>(c.train.grad_accum);
  o.grad_clip = static_cast<float>(c.optim.grad_clip);
  o.grad_sum = c.zero.grad_op == GradOp::kSum;
  o.mean_of_microbatches = c.train.loss_mean == LossMean::kMicrobatch;
  o.seed = static_cast<uint64_t>(c.train.seed);
  o.layer_drop = c.train.layer_drop;
  o.torch_init = c.model.init == WeightInit::kTorch42;
  o.threads = threads;
  o.evaluates = c.train.eval_every > 0;
  return o;
}

namespace {

// Ranks that share the cores of this process; with launch.bind_cores each has its own.
int cores_shared_by(const Config& c, int local_ranks) {
  const bool own = c.launch.bind_cores && started_by_launch_ranks() && c.launch.ranks == RankKind::kProcesses;
  return own ? 1 : std::max(1, local_ranks);
}

}  // namespace

int threads_per_rank(const Config& c, int local_ranks) {
  if (c.device.threads > 0) return static_cast<int>(c.device.threads);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::max(1, cores / cores_shared_by(c, local_ranks));
}

bool ranks_may_spin(const Config& c, int local_ranks, int threads) {
  return cores_shared_by(c, local_ranks) * threads <= static_cast<int>(std::thread::hardware_concurrency());
}

const Backend& choose_backend(const Config& c) {
  set_cpu_isa(c.device.isa);
  const auto on_cpu = [&]() -> const Backend& {
    GT_REQUIRE(c.device.attention != AttentionBy::kCudnn, Exit::kUsage,
               "device.attention: cudnn was requested, but this run uses the CPU. Use auto");
    return cpu_backend();
  };
  if (c.device.kind == DeviceChoice::kCpu) return on_cpu();
  std::string why;
  const Backend* cuda = cuda_backend(&why);
  if (cuda != nullptr) {
    GT_REQUIRE(c.zero.offload == Offload::kNone, Exit::kUsage, "zero.offload: ", name_of(c.zero.offload),
               " is not built yet on GPUs; use none, or --device.kind cpu, where the state is always in host memory");
    if (c.precision.fp8 != Fp8Recipe::kOff && cuda->fp8_unsupported != nullptr) {
      const std::string obstacle = cuda->fp8_unsupported(0);
      GT_REQUIRE(obstacle.empty(), Exit::kUsage, "precision.fp8: ", name_of(c.precision.fp8),
                 " needs other hardware: ", obstacle, "; use precision.fp8 off");
    }
    if (cuda->tune_gemm != nullptr) {
      const std::string note = cuda->tune_gemm({.time = c.device.gemm_tune == GemmTune::kAuto,
                                                .file = c.device.gemm_plans,
                                                .tf32 = c.precision.tf32,
                                                .fp8_fast_accum = c.precision.fp8_fast_accum});
      if (!note.empty()) fmt::print(stderr, "warning: {}\n", note);
    }
    if (cuda->tune_attention != nullptr)
      cuda->tune_attention({.by = c.device.attention, .deterministic = c.train.deterministic});
    return c.device.graphs == OnOff::kOff || c.parallel.dynamic_shapes ? *cuda : replayable(*cuda);
  }
  GT_REQUIRE(c.device.kind != DeviceChoice::kCuda, Exit::kUsage, "device.kind: cuda was requested, but ", why,
             ". Use --device.kind cpu, or auto to use what is available");
  GT_REQUIRE(!c.precision.tf32, Exit::kUsage, "precision.tf32: no GPU available (", why,
             "), and CPUs have no TF32 GEMMs. Leave it out");
  GT_REQUIRE(c.device.graphs != OnOff::kOn, Exit::kUsage,
             "device.graphs: on was requested, but no GPU is available: ", why,
             ". Use auto, which enables graphs if there is a GPU");
  return on_cpu();
}

}  // namespace gt
