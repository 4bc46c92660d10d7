// A small network with all features a pipeline must support: residuals, weights of several stages, and a fused head.
// The head's weight gradient is written in the forward, and its loss gradient is known beforehand. Hand-written on the
// tape over a table of two ops, so the executor's tests depend on no kernel and no model.
#pragma once
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "parallel/pipeline/executor.h"

namespace gt::toy {

constexpr int64_t kBatch = 2, kSeq = 3, kHidden = 4, kElements = kBatch * kSeq * kHidden;
constexpr int kLayers = 14;  // embedding, blocks, head

const OpTable& ops();       // copy and axpy only, as needed by tape and executor
const DeviceApi& device();  // host memory, filled with NaN

struct Weight {
  std::vector<float> value, grad;
  Parameter param;
  explicit Weight(int layer);
  void begin_step() { param.grad_dirty = false; }
};

// Layers [begin, end) of the network; layer 0 is the embedding, the last one the head with the loss.
class ToyStage : public PipelineStage {
 public:
  ToyStage(int begin, int end);
  Shape boundary(const MicroBatch& mb) const override { return {mb.batch * mb.seq, kHidden}; }
  Var forward(Tape&, Var input, const MicroBatch&) override;
  std::span<const int> losses() const override {
    static constexpr int kHead[] = {0};
    return end_ == kLayers ? std::span<const int>(kHead) : std::span<const int>();
  }
  std::deque<Weight>& weights() { return weights_; }
  void set_jitter(unsigned seed) { jitter_ = seed; }  // sleeps up to 0.2 ms before each forward

 private:
  int begin_, end_;
  unsigned jitter_ = 0;
  std::deque<Weight> weights_;
};

// Forwards its input unchanged, forward and backward.
class ThroughStage : public PipelineStage {
 public:
  Shape boundary(const MicroBatch& mb) const override { return {mb.batch * mb.seq, kHidden}; }
  Var forward(Tape&, Var input, const MicroBatch&) override;
};

// Microbatches of one step; tokens depend on step and microbatch only. `vary`: each has a different length, longer ones
// in later steps.
struct Batches {
  Batches(int count, int step, bool vary = false);
  std::vector<std::vector<int32_t>> tokens;
  float seed = 0.25f;
  std::vector<MicroBatch> list;
};

}  // namespace gt::toy
