// Where dropout acts: a module path names the stream of random numbers, a microbatch says which of its samples are
// concerned. Acts in training alone (MicroBatch::train).
#pragma once
#include <string>

#include "autograd/tape.h"
#include "kernels/core/batch.h"
#include "kernels/core/dropout.h"
#include "kernels/core/rng.h"
#include "model/module.h"

namespace gt {

// Of rows of the residual stream.
class ResidualDropout {
 public:
  ResidualDropout(const std::string& path, double p, const Build& b)
      : axis_(b.tensor()), mask_(drop_mask(stream_key(b.seed, "dropout/" + path), p)) {}
  // The mask of x: all rows of the microbatch, equal on every tensor rank, or the rows that this rank holds. Kept
  // elements are multiplied by `scale` beside dropout's own factor.
  RowDrop operator()(const Var& x, const MicroBatch& mb, float scale = 1) const {
    if (!mb.train) return {};
    const RowSlice held = axis_.rows(mb);
    GT_CHECK(x.value.shape.rows() == held.rows, "dropout of ", x.value.shape.rows(), " rows where a rank holds ",
             held.rows);
    RowDrop d{mask_, mb.seq, held.first};
    d.mask.first_sample = mb.first_sample_at != nullptr ? 0 : mb.first_sample;
    d.mask.first_sample_at = mb.first_sample_at;
    d.mask.scale *= scale;
    return d;
  }

 private:
  TensorAxis axis_;
  DropMask mask_;
};

// Of attention probabilities; `local_heads` query heads on each tensor rank.
class AttentionDropout {
 public:
  AttentionDropout(const std::string& path, double p, int64_t local_heads, const Build& b)
      : drop_{drop_mask(stream_key(b.seed, "dropout/" + path), p), local_heads * b.tp().rank()} {}
  HeadDrop operator()(const MicroBatch& mb) const {
    if (!mb.train) return {};
    HeadDrop d = drop_;
    d.mask.first_sample = mb.first_sample_at != nullptr ? 0 : mb.first_sample;
    d.mask.first_sample_at = mb.first_sample_at;
    return d;
  }

 private:
  HeadDrop drop_;
};

}  // namespace gt
