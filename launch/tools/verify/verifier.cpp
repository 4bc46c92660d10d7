#include "launch/tools/verify/verifier.h"

#include <algorithm>
#include <utility>

#include "launch/engine/engine_options.h"
#include "launch/tools/verify/layouts.h"

namespace gt {
namespace {

constexpr double kLaterOfExperts = 1e-4;
constexpr int64_t kKeep = int64_t{1} << 29;  // memory limit of cached references

int64_t bytes_of(const std::map<std::string, MeshResult>& known) {
  int64_t n = 0;
  for (const auto& [key, r] : known)
    for (const Snapshot& s : r.steps)
      for (const Logical* l : {&s.grads, &s.weights, &s.state})
        for (const auto& [name, values] : *l) n += static_cast<int64_t>(values.size() * sizeof(float));
  return n;
}

DType computes_in(const Config& c) {
  if (c.precision.fp8 != Fp8Recipe::kOff) return DType::kF8E5M2;
  if (c.precision.grad_dtype == DType::kBF16) return DType::kBF16;
  // A value near the midpoint of two int8 levels changes level with a rounding error. TF32 has as many mantissa bits as
  // fp16.
  const bool coarse = c.precision.qat != Qat::kOff || c.precision.reduce_dtype != DType::kF32 || c.precision.tf32;
  if (c.precision.amp == AmpLevel::kO0) return coarse ? DType::kBF16 : DType::kF32;
  return c.precision.dtype;
}

}  // namespace

const Difference* VerifyResult::bad() const {
  const Difference* first = first_bad(close);
  return first != nullptr ? first : first_bad(exact);
}

MeshRun Verifier::plain_run(const Config& c) const {
  MeshRun run;
  run.engine = engine_options(c, 1);
  run.mesh = mesh_shape(c);
  run.global_batch = c.train.global_batch;
  run.curriculum = c.data.curriculum;
  run.steps = options_.steps;
  run.stir = true;
  run.every_step = options_.follow;
  run.activations = true;
  run.deadline = std::chrono::minutes(5);
  run.samples = synthetic_samples(c.model, static_cast<int>(run.global_batch) * options_.steps,
                                  static_cast<uint64_t>(c.train.seed));
  return run;
}

const MeshResult& Verifier::single(const Config& layout) {
  const Config c = one_rank(layout);
  const std::string key = config_json(c);
  const auto it = one_rank_runs_.find(key);
  if (it != one_rank_runs_.end()) return it->second;
  if (bytes_of(one_rank_runs_) > kKeep) one_rank_runs_.clear();
  ++runs_;
  return one_rank_runs_.emplace(key, run_mesh(plain_run(c))).first->second;
}

// From the states of single(), where runs follow it.
MeshResult Verifier::single_in_f32(const Config& layout) {
  Config c = one_rank(layout);
  const PrecisionConfig given = std::exchange(c.precision, {});
  c.precision.frozen_weights = given.frozen_weights;
  MeshRun run = plain_run(c);
  const MeshResult& right = single(layout);
  if (options_.follow) run.follow = &right.steps;
  ++runs_;
  return run_mesh(run);
}

const MeshResult& Verifier::flat_run(const Config& layout) {
  const Config c = flat(layout);
  const std::string key = config_json(c);
  const auto it = flat_runs_.find(key);
  if (it != flat_runs_.end()) return it->second;
  if (bytes_of(flat_runs_) > kKeep) flat_runs_.clear();
  ++runs_;
  MeshRun run = run_of(c);
  run.derive_calls = false;
  return flat_runs_.emplace(key, run_mesh(run)).first->second;
}

MeshRun Verifier::run_of(const Config& layout) {
  MeshRun run = plain_run(layout);
  const MeshResult& right = single(layout);
  if (options_.follow) run.follow = &right.steps;
  run.derive_calls = true;
  return run;
}

VerifyResult Verifier::check(const Config& layout, const MeshHooks* hooks) {
  MeshRun run = run_of(layout);
  run.hooks = hooks;
  return compare_run(layout, run_mesh(run));
}

VerifyResult Verifier::compare_run(const Config& layout, const MeshResult& run) {
  VerifyResult v;
  Limits limits = limits_for(computes_in(layout));
  limits.free = !options_.follow;
  // In later steps a rounding error may choose other experts, where two have nearly the same logit.
  if (layout.model.moe.experts > 0) limits.later = std::max(limits.later, kLaterOfExperts);
  v.close = compare(run, single(layout), limits);
  if (first_bad(v.close) != nullptr && limits.cosine > 0)
    v.forgiven = forgive_rounding(v.close, compare(single(layout), single_in_f32(layout), limits));
  for (Difference& d : compare(run, flat_run(layout), exact_limits()))
    if (d.bad) v.exact.push_back(std::move(d));
  v.calls = run.derived_calls;
  for (const WrongCall& w : run.wrong_calls)
    v.close.push_back({.quantity = Quantity::kCalls,
                       .name = cat("rank ", w.rank),
                       .step = w.step,
                       .bad = true,
                       .missed = w.text,
                       .ranks = {w.rank}});
  return v;
}

}  // namespace gt
