// Optimizers over flat tensor ranges and device scalars, independent of layers and ZeRO stages. Equations:
// kernels/optimizer_ops.h; sources: optim/README.md.
#pragma once
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "optim/lr_schedule.h"
#include "optim/param_group.h"
#include "parallel/mesh.h"
#include "parallel/zero/param_store.h"

namespace gt {

// Every rule, in the order in which the rules of a run have their rows of scalars.
inline constexpr std::string_view kOptimizerRules[] = {"adamw", "adam", "lamb", "sgd", "lion", "muon"};

struct OptimizerOptions {
  std::string type = "adamw";  // optimizer_names(); rule of parameters whose group sets none
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  std::vector<ParamGroup> groups;  // the first that matches a parameter applies; no match: the options here
  // By store.tensors(): those that an optimizer updates; empty: all. Set for each rule by make_optimizer.
  std::vector<bool> tensors;
  // Whether parameters may have this rule. Muon leaves all but weights of linear layers to AdamW.
  bool uses(std::string_view rule) const;
  int64_t group_rows() const { return 1 + static_cast<int64_t>(groups.size()); }
  // Rows of scalars of a rule, and of all: one for parameters in no group and one per group. Muon has them twice, for
  // its momentum and for its step.
  int64_t rows_of(std::string_view rule) const { return group_rows() * (rule == "muon" ? 2 : 1); }
  int64_t scalar_rows() const;
  bool bias_correction = true;  // adamw, adam, lamb deepspeed
  // bf16 values without master weights are rounded stochastically, by streams "sr/<parameter>" of this seed; nullopt:
  // to nearest even.
  std::optional<uint64_t> rounding_seed;
  // sgd, muon
  float momentum = 0, dampening = 0;
  bool nesterov = false;
  bool momentum_varies = false;  // set by the schedule: keep the buffer even while momentum is 0
  // muon
  float muon_lr_scale = 1;                   // of the learning rate of matrices
  std::string muon_scale = "adamw";          // of an orthogonalized update: adamw | original
  std::string muon_coefficients = "simple";  // of Newton-Schulz: simple | quintic | polar_express
  int64_t muon_iterations = 5;
  DType muon_dtype = DType::kF32;  // of its GEMMs
  // lamb
  std::string lamb_variant = "paper";                                     // paper | apex | deepspeed
  float min_coeff = 0.01f, max_coeff = 10;                                // deepspeed: limits of the trust ratio
  bool eps_inside_sqrt = false;                                           // deepspeed
  bool grad_averaging = true, adam_w_mode = true, nvlamb = false;         // apex
  float min_norm = 0, max_norm = std::numeric_limits<float>::infinity();  // paper: phi, bounds of |p|
};

// LAMB's trust ratio of one logical tensor, as of the last step.
struct TrustRatio {
  std::string tensor;
  float ratio = 1;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every tensor range of the store it was made for. `scalars`: f32 [scalar_rows(), kNumScalars] on the device
  // (kernels/ops.h StepScalar). If kSkip is nonzero, nothing is written. Collective over the pipeline stage for
  // optimizers that need whole tensors (LAMB).
  virtual void step(Tensor scalars, Stream) = 0;
  // Views of all state, group names "optim/<state>".
  virtual std::vector<ShardView> state_views(const ParamStore&) const = 0;
  virtual int64_t state_bytes() const = 0;
  // Bytes of other device memory: segment tables, workspace.
  virtual int64_t work_bytes() const = 0;
  // Fills the scalars of applied step t = 1, 2, …: lr, betas and values derived from them. Betas are those of the
  // point, or the optimizer's own if the schedule sets none.
  virtual void fill_scalars(int64_t t, const LrPoint&, float* scalars) const = 0;
  // Trust ratios of the last applied step, for the tensors that this rank updates (ZeRO: some of them). Blocks until
  // the device is idle. Empty except for LAMB.
  virtual std::vector<TrustRatio> trust_ratios(Stream) const { return {}; }
};

std::vector<std::string> optimizer_names();

// Throws kUsage on an unknown type or LAMB variant, listing the known ones. The mesh and the store must outlive the
// result.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions&, const ParamStore&, const Mesh&, const Backend&,
                                          Stream);

}  // namespace gt
