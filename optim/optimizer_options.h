// Options of the optimizers. Plain values.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/tensor.h"

namespace gt {

// Texts of options that name optimizers, from their table (optim/optimizer_rules.h).
std::string optimizer_domain();  // "adamw|adam|..."
std::string weight_decay_help();
// Returns the meaning of an option after the names of the optimizers that read it.
std::string help_with_readers(std::string_view key, std::string_view meaning);

enum class LambVariant : uint8_t { kPaper, kApex, kDeepSpeed };
enum class MuonScale : uint8_t { kAdamW, kOriginal };                        // of an orthogonalized update
enum class MuonCoefficients : uint8_t { kSimple, kQuintic, kPolarExpress };  // of Newton-Schulz

constexpr std::array<const char*, 3> names_of(LambVariant) { return {"paper", "apex", "deepspeed"}; }
constexpr std::array<const char*, 2> names_of(MuonScale) { return {"adamw", "original"}; }
constexpr std::array<const char*, 3> names_of(MuonCoefficients) { return {"simple", "quintic", "polar_express"}; }

// Overrides of optimizer settings for some parameters, like param_groups of torch.optim.
struct ParamGroup {
  std::string match;                  // regular expression, searched in the logical parameter name
  std::string rule;                   // optimizer_names(); empty: OptimizerOptions::type
  double lr_scale = 1;                // factor of the schedule's learning rate
  std::optional<float> weight_decay;  // for all matching parameters; nullopt: the optimizer's, where Parameter::decay
  std::optional<std::array<float, 2>> betas;  // nullopt: the optimizer's; a schedule that varies them takes precedence
};

// Section `optim` of a run's options, described in fields(), and the values that the run derives.
struct OptimizerOptions {
  std::string type = "adamw";  // optimizer_names(); rule of parameters whose group sets none
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  std::vector<ParamGroup> groups;  // the first that matches a parameter applies; no match: the options here
  // By store.tensors(): those that an optimizer updates; empty: all. Set for each rule by make_optimizer.
  std::vector<bool> tensors;
  bool bias_correction = true;
  // bf16 values without master weights are rounded stochastically, by streams "sr/<parameter>" of this seed; nullopt:
  // to nearest even.
  std::optional<uint64_t> rounding_seed;
  float momentum = 0, dampening = 0;
  bool nesterov = false;
  bool momentum_varies = false;  // set by the schedule: keep the buffer even while momentum is 0
  float muon_lr_scale = 1;
  MuonScale muon_scale = MuonScale::kAdamW;
  MuonCoefficients muon_coefficients = MuonCoefficients::kSimple;
  int muon_iterations = 5;
  DType muon_gemms = DType::kF32;  // dtype of Newton-Schulz
  LambVariant lamb_variant = LambVariant::kPaper;
  float lamb_min_coeff = 0.01f, lamb_max_coeff = 10, lamb_min_norm = 0, lamb_max_norm = 0;
  bool lamb_eps_inside_sqrt = false, lamb_grad_averaging = true, lamb_adam_w_mode = true, lamb_nvlamb = false;

  // Whether parameters may have this rule. Muon leaves all but weights of linear layers to AdamW.
  bool uses(std::string_view rule) const;
  int64_t group_rows() const { return 1 + static_cast<int64_t>(groups.size()); }
  int64_t scalar_rows() const;  // of all rules: for parameters in no group and for each group
  template <class V>
  void fields(V& v) {
    v("type", type, optimizer_domain().c_str(), "optimizer; it sets defaults of eps, betas and weight_decay");
    v("eps", eps, ">0..1",
      help_with_readers("eps", "added to the square root of the mean or sum of squared gradients").c_str());
    v("weight_decay", weight_decay, "0..10", weight_decay_help().c_str());
    v("bias_correction", bias_correction, "",
      help_with_readers("bias_correction", "bias correction of the moments; lamb: of variant deepspeed").c_str());
    v("momentum", momentum, "0..<1", help_with_readers("momentum", "momentum coefficient").c_str());
    v("dampening", dampening, "0..1",
      help_with_readers("dampening", "dampening of the gradient in the momentum").c_str());
    v("nesterov", nesterov, "", help_with_readers("nesterov", "Nesterov momentum").c_str());
    v("muon_lr_scale", muon_lr_scale, ">0..1e6",
      "muon: factor of the learning rate of matrices; parameters under AdamW use lr");
    v("muon_scale", muon_scale, "",
      "muon: factor of an orthogonalized update: 0.2 sqrt(max(rows, cols)), the RMS of AdamW's, or "
      "sqrt(max(1, rows / cols))");
    v("muon_iterations", muon_iterations, "1..20", "muon: Newton-Schulz iterations of a step");
    v("muon_coefficients", muon_coefficients, "",
      "muon: polynomials of Newton-Schulz: simple: Jordan's, the same in all iterations; quintic: modded-nanogpt's "
      "five in turn; polar_express: Amsel's, one for each iteration");
    v("lamb_variant", lamb_variant, "", "LAMB variant; their step sizes differ up to threefold");
    v("lamb_min_norm", lamb_min_norm, "0..", "lamb paper: lower limit of a weight's norm in its trust ratio");
    v("lamb_max_norm", lamb_max_norm, "0..", "lamb paper: upper limit of that norm; 0: none");
    v("lamb_min_coeff", lamb_min_coeff, "0..", "lamb deepspeed: lower limit of the trust ratio");
    v("lamb_max_coeff", lamb_max_coeff, ">0..", "lamb deepspeed: upper limit of the trust ratio");
    v("lamb_eps_inside_sqrt", lamb_eps_inside_sqrt, "", "lamb deepspeed: eps inside the square root");
    v("lamb_grad_averaging", lamb_grad_averaging, "", "lamb apex: scale the gradient by 1 - beta1 in the first moment");
    v("lamb_adam_w_mode", lamb_adam_w_mode, "", "lamb apex: decoupled weight decay; off: added to the gradient");
    v("lamb_nvlamb", lamb_nvlamb, "", "lamb apex: apply the trust ratio also to parameters without weight decay");
  }
};

}  // namespace gt
