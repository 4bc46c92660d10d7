// What an optimizer's rule is applied to. Mostly the ranges of the store as they are. Where bf16 values have no masters
// and are rounded at random: slices of one tensor each, widened into scratch before the rule and rounded out of it
// behind. What is drawn belongs to the logical element and the step, so no layout changes it.
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/ops.h"
#include "optim/optimizer.h"

namespace gt {

struct UpdateSlice {
  const UpdateRange& range;
  int64_t at;            // first element in the range
  Tensor master, grad;   // master: what the rule reads and writes
  Tensor value;          // to be written beside it; may be empty
  int64_t count() const { return master.numel(); }
};

class Updates {
 public:
  Updates(const OptimizerOptions&, const ParamStore&, const Mesh&, const Backend&, Stream);

  // rule(UpdateSlice) for everything that this rank updates.
  template <class Rule>
  void each(const ParamStore& store, Tensor scalars, Stream stream, Rule rule) const {
    for (const UpdateRange& r : store.ranges())
      if (!at_random(r)) rule(UpdateSlice{r, 0, r.master, r.grad, r.rounded()});
    for (const UpdatePiece& p : store.pieces())
      if (at_random(store.ranges()[static_cast<size_t>(p.range)])) each_of(store, p, scalars, stream, rule);
  }

  // The same for one piece.
  template <class Rule>
  void each_of(const ParamStore& store, const UpdatePiece& p, Tensor scalars, Stream stream, Rule rule) const {
    const UpdateRange& r = store.ranges()[static_cast<size_t>(p.range)];
    const auto slice = [&](int64_t at, int64_t n, Tensor master, Tensor value) {
      return UpdateSlice{r, at, master, r.grad.slice(at, n), value};
    };
    if (!at_random(r))
      return rule(slice(p.at, p.count, r.master.slice(p.at, p.count),
                        r.rounded() ? r.value.slice(p.at, p.count) : Tensor{}));
    for (int64_t done = 0; done < p.count; done += kRoom) {
      const int64_t at = p.at + done, n = std::min(kRoom, p.count - done);
      const Tensor value = r.value.slice(at, n), wide = room_.tensor({n}, DType::kF32);
      ops_.cast({.src = value, .dst = wide}, stream);
      rule(slice(at, n, wide, {}));
      round(places_[static_cast<size_t>(p.tensor)], p.begin + done, wide, value, scalars, stream);
    }
  }

  int64_t bytes() const { return room_.bytes(); }

 private:
  static constexpr int64_t kRoom = 1 << 16;  // elements widened at a time
  // Elements [begin, begin + count) of what a rank holds of a tensor, where they are in the logical one: rows of `cols`
  // neighbours, every `stride` from `base` on (ops.h, StochasticRound).
  struct Run {
    int64_t begin, count, base, cols, stride;
  };
  struct Place {
    uint64_t key;  // of the tensor's stream
    std::vector<Run> runs;
  };
  static Place place_of(const Parameter&, uint64_t seed, int tp_rank, int tp_size);
  // wide, value: elements of the tensor from `begin` on.
  void round(const Place&, int64_t begin, Tensor wide, Tensor value, Tensor scalars, Stream) const;
  bool at_random(const UpdateRange& r) const { return !places_.empty() && r.master.dtype == DType::kBF16; }

  const OpTable& ops_;
  std::vector<Place> places_;  // by store.tensors(); empty: nothing is rounded at random
  Buffer room_;
};

}  // namespace gt
