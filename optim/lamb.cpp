// LAMB (You et al. 2020) in the variants of the paper, apex and DeepSpeed. The trust ratio is per logical tensor. Each
// rank sums squares over the elements it owns: its ZeRO shard at every stage, replicated elements on TP rank 0 only;
// padding is 0. One all-reduce over the ranks of the pipeline stage yields the same norms as on a single rank.
#include "optim/families.h"
#include "optim/optimizer_rules.h"
#include "optim/updates.h"

namespace gt {
namespace {

// Parameters of a variant.
LambRule rule_of(const OptimizerOptions& o) {
  LambRule r{.eps = o.eps};
  switch (o.lamb_variant) {
    case LambVariant::kPaper:
      r.min_norm = o.lamb_min_norm;
      if (o.lamb_max_norm > 0) r.max_norm = o.lamb_max_norm;
      break;
    case LambVariant::kApex:
      r.l2 = !o.lamb_adam_w_mode;
      r.grad_averaging = o.lamb_grad_averaging;
      r.adapt_undecayed = o.lamb_nvlamb;
      break;
    case LambVariant::kDeepSpeed:
      r.corrected = false;
      r.eps_inside_sqrt = o.lamb_eps_inside_sqrt;
      r.min_ratio = o.lamb_min_coeff;
      r.max_ratio = o.lamb_max_coeff;
  }
  return r;
}

// A single CPU rank needs no all-reduce. Tables of this many elements stay in its cache between the two passes, so the
// second pass causes no memory traffic. Other devices get one launch per pass.
UpdateTables::TableSplit split_for(const ProcessGroup& group, const Backend& backend) {
  if (group.size() > 1 || backend.kind != DeviceKind::kCpu) return {.by_tensor = true};
  return {.by_tensor = true, .elements = 1 << 19};
}

class LambOptimizer : public Optimizer {
 public:
  LambOptimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
                Stream stream)
      : options_(o),
        rule_(rule_of(o)),
        group_(mesh.stage()),
        backend_(backend),
        tensors_(store.tensors()),
        moments_(optimizer_rule(o.type).kept(o), store, backend, stream, o.tensors),
        updates_(o, store, moments_.all(), mesh, backend, stream, split_for(group_, backend)),
        norms_(2 * count() * size_of(DType::kF64), stream.device, *backend.device),
        ratios_(count() * size_of(DType::kF32), stream.device, *backend.device) {
    backend.device->zero(ratios_.data(), ratios_.bytes(), stream);
    here_.resize(tensors_.size());
    for (const TensorRangePart& p : store.pieces()) {
      const auto tensor = static_cast<size_t>(p.tensor);
      here_[tensor] = o.tensors.empty() || o.tensors[tensor];
    }
  }

  // A single rank has all norms of a table once its moments are computed, so it proceeds table by table. Several ranks
  // all-reduce all norms at once between the two passes.
  void step(Tensor scalars, Stream stream) override {
    const Tensor norms = norms_.tensor({2 * count()}, DType::kF64);
    const bool alone = group_.size() == 1;
    const auto moments = [&](const SegmentTable& t) {
      const Tensor row = updates_.row_of(t, scalars);
      backend_.ops->lamb_moments({.table = t, .scalars = row, .norms = norms, .rule = rule_}, stream);
    };
    const auto apply = [&](const SegmentTable& t, Tensor row) {
      const Tensor ratio = ratios_.tensor({count()}, DType::kF32);
      backend_.ops->lamb_apply({.table = t, .scalars = row, .norms = norms, .ratio = ratio, .rule = rule_}, stream);
    };
    updates_.share_verdict(scalars, stream);
    if (!alone) backend_.device->zero(norms.data, norms.bytes(), stream);
    for (const SegmentTable& t : updates_.in_place()) {
      moments(t);
      if (alone) apply(t, updates_.row_of(t, scalars));
    }
    for (const SegmentTable& t : updates_.unrounded()) moments(t);
    if (!alone) {
      group_.all_reduce(norms, ReduceOp::kSum, stream).wait(stream);
      for (const SegmentTable& t : updates_.in_place()) apply(t, updates_.row_of(t, scalars));
    }
    updates_.each_slice(scalars, stream, apply);
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override { return moments_.views(store); }
  int64_t state_bytes() const override { return moments_.bytes(); }
  int64_t work_bytes() const override { return updates_.bytes() + norms_.bytes() + ratios_.bytes(); }

  void fill_scalars(int64_t t, const LrPoint& p, float* s) const override { fill_adam_scalars(options_, t, p, s); }

  std::vector<TrustRatio> trust_ratios(Stream stream) const override {
    std::vector<float> host(tensors_.size());
    backend_.device->copy(host.data(), ratios_.data(), count() * size_of(DType::kF32), stream);
    backend_.device->synchronize(stream);
    std::vector<TrustRatio> out;
    for (size_t i = 0; i < host.size(); ++i) {
      if (!here_[i]) continue;
      const Parameter& p = *tensors_[i];
      out.push_back({p.tied_to.empty() ? p.name : p.tied_to, host[i]});
    }
    return out;
  }

 private:
  int64_t count() const { return static_cast<int64_t>(tensors_.size()); }

  OptimizerOptions options_;
  LambRule rule_;
  ProcessGroup& group_;
  const Backend& backend_;
  std::vector<const Parameter*> tensors_;
  std::vector<bool> here_;  // whether this rank updates part of the tensor and has its ratio
  FlatStates moments_;
  UpdateTables updates_;
  Buffer norms_, ratios_;  // f64 [tensors, 2]: sums of squares of weights and updates; f32 [tensors]
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                     const Backend& backend, Stream stream) {
  return std::make_unique<LambOptimizer>(o, store, mesh, backend, stream);
}

}  // namespace gt
