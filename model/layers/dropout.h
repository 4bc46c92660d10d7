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
      : tp_(b.tp()), mask_(drop_mask(stream_key(b.seed, "dropout/" + path), p)) {}
  // The mask of x: all rows of the microbatch, equal on every tensor rank, or this tensor rank's equal share of them.
  RowDrop operator()(const Var& x, const MicroBatch& mb) const {
    if (!mb.train) return {};
    const int64_t rows = x.value.shape.rows(), all = mb.batch * mb.seq;
    RowDrop d{mask_, mb.seq, rows == all ? 0 : tp_.rank() * rows};
    GT_CHECK(rows == all || rows * tp_.size() == all, "dropout: ", rows, " rows of ", all, " on one of ", tp_.size(),
             " ranks");
    d.mask.first_sample = mb.first_sample;
    return d;
  }

 private:
  ProcessGroup& tp_;
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
    d.mask.first_sample = mb.first_sample;
    return d;
  }

 private:
  HeadDrop drop_;
};

}  // namespace gt
