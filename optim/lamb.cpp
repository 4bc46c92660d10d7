// LAMB (You et al. 2020) in the forms of the paper, of apex and of DeepSpeed. The trust ratio belongs to the logical
// tensor: each rank sums squares over the elements that it alone stands for (its ZeRO shard at every stage; tp-split,
// or tp place 0; padding is 0), one vector goes once around the ranks of the pipeline stage, and then all hold the
// norms that a single rank would.
#include "optim/families.h"
#include "optim/flat_state.h"

namespace gt {
namespace {

// The rule of a variant, without weight decay, which is a matter of the range.
LambRule rule_of(const OptimizerOptions& o) {
  LambRule r{.eps = o.eps};
  if (o.lamb_variant == "paper") {
    r.min_norm = o.min_norm;
    r.max_norm = o.max_norm;
  } else if (o.lamb_variant == "apex") {
    r.l2 = !o.adam_w_mode;
    r.grad_averaging = o.grad_averaging;
  } else {
    GT_REQUIRE(o.lamb_variant == "deepspeed", Exit::kUsage, "optim.lamb_variant: unknown \"", o.lamb_variant,
               "\"; there are paper, apex, deepspeed");
    r.corrected = false;
    r.eps_inside_sqrt = o.eps_inside_sqrt;
    r.min_ratio = o.min_coeff;
    r.max_ratio = o.max_coeff;
  }
  return r;
}

class LambOptimizer : public Optimizer {
 public:
  LambOptimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
                Stream stream)
      : options_(o),
        rule_(rule_of(o)),
        group_(mesh.stage()),
        backend_(backend),
        updates_(o, store, mesh, backend, stream),
        tensors_(store.tensors()),
        m_(store, backend, stream),
        v_(store, backend, stream),
        norms_(2 * count() * size_of(DType::kF64), stream.device, *backend.device),
        ratios_(count() * size_of(DType::kF32), stream.device, *backend.device) {
    backend.device->zero(ratios_.data(), ratios_.bytes(), stream);
    here_.resize(tensors_.size());
    for (const UpdatePiece& p : store.pieces()) here_[static_cast<size_t>(p.tensor)] = true;
    last_.assign(tensors_.size(), 0);
    for (size_t i = 0; i < store.pieces().size(); ++i) last_[static_cast<size_t>(store.pieces()[i].tensor)] = i;
  }

  // A single rank knows a tensor's norms as soon as it has made its moments, which are still in the cache then: of most
  // tensors the second pass costs no memory traffic. Several ranks exchange all norms at once in between.
  void step(ParamStore& store, Tensor scalars, Stream stream) override {
    const Tensor norms = norms_.tensor({2 * count()}, DType::kF64);
    backend_.device->zero(norms.data, norms.bytes(), stream);
    const std::span<const UpdatePiece> pieces = store.pieces();
    for (size_t i = 0, first = 0; i < pieces.size(); ++i) {
      make_moments(store, pieces[i], norms, scalars, stream);
      if (group_.size() > 1 || !all_made(pieces, first, i)) continue;
      for (; first <= i; ++first) apply(store, pieces[first], norms, scalars, stream);
    }
    if (group_.size() == 1) return;
    group_.all_reduce(norms, ReduceOp::kSum, stream).wait(stream);
    for (const UpdatePiece& p : pieces) apply(store, p, norms, scalars, stream);
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    m_.append_views("exp_avg", store, out);
    v_.append_views("exp_avg_sq", store, out);
    return out;
  }

  int64_t state_bytes() const override {
    return m_.bytes() + v_.bytes() + norms_.bytes() + ratios_.bytes() + updates_.bytes();
  }

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

  // Whether no tensor of pieces [first, i] has a piece behind i.
  bool all_made(std::span<const UpdatePiece> pieces, size_t first, size_t i) const {
    for (size_t k = first; k <= i; ++k)
      if (last_[static_cast<size_t>(pieces[k].tensor)] > i) return false;
    return true;
  }

  void make_moments(ParamStore& store, const UpdatePiece& p, Tensor norms, Tensor scalars, Stream stream) {
    const UpdateRange& r = store.ranges()[static_cast<size_t>(p.range)];
    backend_.ops->lamb_moments({.master = r.master.slice(p.at, p.count),
                                .grad = r.grad.slice(p.at, p.count),
                                .m = m_.of(r, p.at, p.count),
                                .v = v_.of(r, p.at, p.count),
                                .scalars = scalars,
                                .norms = p.owned ? norms.slice(2 * int64_t{p.tensor}, 2) : Tensor{},
                                .rule = rule(r),
                                .accumulate = true},
                               stream);
  }

  void apply(ParamStore& store, const UpdatePiece& p, Tensor norms, Tensor scalars, Stream stream) {
    updates_.each_of(store, p, scalars, stream, [&](const UpdateSlice& u) {
      backend_.ops->lamb_apply({.master = u.master,
                                .m = m_.of(u),
                                .v = v_.of(u),
                                .value = u.value,
                                .scalars = scalars,
                                .norms = norms.slice(2 * int64_t{p.tensor}, 2),
                                .ratio = ratios_.tensor({count()}, DType::kF32).slice(p.tensor, 1),
                                .rule = rule(u.range)},
                               stream);
    });
  }
  LambRule rule(const UpdateRange& r) const {
    LambRule out = rule_;
    out.weight_decay = r.decay ? options_.weight_decay : 0;
    if (options_.lamb_variant == "apex") out.adapt = options_.nvlamb || out.weight_decay != 0;
    return out;
  }

  OptimizerOptions options_;
  LambRule rule_;
  ProcessGroup& group_;
  const Backend& backend_;
  Updates updates_;
  std::vector<const Parameter*> tensors_;
  std::vector<bool> here_;    // this rank updates some of the tensor, and so knows its ratio
  std::vector<size_t> last_;  // of the tensor's pieces, in store.pieces()
  FlatState m_, v_;
  Buffer norms_, ratios_;  // f64 [tensors, 2]: sums of squares of weights and updates; f32 [tensors]
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                     const Backend& backend, Stream stream) {
  return std::make_unique<LambOptimizer>(o, store, mesh, backend, stream);
}

}  // namespace gt
