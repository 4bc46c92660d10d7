// Dropout masks: the module path names the random stream, the microbatch supplies the sample indices. Applied in
// training only (MicroBatch::train).
#pragma once
#include <string>

#include "autograd/tape.h"
#include "kernels/core/batch.h"
#include "kernels/core/dropout.h"
#include "kernels/core/rng.h"
#include "model/module.h"

namespace gt {

// Returns the mask for the samples of a microbatch.
inline DropMask mask_of(DropMask mask, const MicroBatch& mb) {
  mask.first_sample = mb.first_sample_at != nullptr ? 0 : mb.first_sample;
  mask.first_sample_at = mb.first_sample_at;
  return mask;
}

// Dropout of rows of the residual stream.
class ResidualDropout {
 public:
  ResidualDropout(const std::string& path, double p, const Build& b)
      : axis_(b.tensor()), mask_(drop_mask(stream_key(b.seed, "dropout/" + path), p)) {}
  // Returns the mask of x: all rows of the microbatch, equal on every TP rank, or the rows that this rank holds. Kept
  // elements are multiplied by `scale` in addition to dropout's own factor.
  RowDrop operator()(const Var& x, const MicroBatch& mb, float scale = 1) const {
    if (!mb.train) return {};
    const RowSlice held = axis_.rows(mb);
    GT_CHECK(x.value.shape.rows() == held.rows, "dropout of ", x.value.shape.rows(), " rows where a rank holds ",
             held.rows);
    RowDrop d{.mask = mask_of(mask_, mb), .rows = mb.rows(held.first)};
    d.mask.scale *= scale;
    return d;
  }

 private:
  TensorAxis axis_;
  DropMask mask_;
};

// Dropout of attention probabilities; `local_heads` query heads on each TP rank.
class AttentionDropout {
 public:
  AttentionDropout(const std::string& path, double p, int64_t local_heads, const Build& b)
      : drop_{drop_mask(stream_key(b.seed, "dropout/" + path), p), local_heads * b.tp().rank()} {}
  HeadDrop operator()(const MicroBatch& mb) const {
    if (!mb.train) return {};
    return {mask_of(drop_.mask, mb), drop_.first_head};
  }

 private:
  HeadDrop drop_;
};

}  // namespace gt
