// Incremental decoding: next-token logits with a KV cache. The prompt is processed once, then one token at a time. Runs
// identically on every rank of a tp x pp group; data-parallel replicas are independent.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/host_array.h"
#include "kernels/core/memory.h"
#include "launch/tools/weights/loaded_model.h"

namespace gt {

// KV cache of the blocks of a stage, on its device.
class KvCache {
 public:
  KvCache(const ModelStage&, int64_t sequences, int64_t positions, Device, const DeviceApi&);
  const KvLayer* layers() const { return layers_.data(); }  // [blocks of the stage]

 private:
  std::vector<Buffer> buffers_;
  std::vector<KvLayer> layers_;
};

// Sequence decoded by a Decoder. Owned by the caller, who appends to ids.
struct Sequence {
  int64_t slot = 0;  // cache slot, below the decoder's `sequences`
  std::vector<int32_t> ids;
  int64_t begin = 0, cached = 0;  // the cache holds K and V of ids [begin, cached)
};

class Decoder {
 public:
  // `sequences`: maximum number at a time. `cached` false: recompute the whole window for every token; bitwise
  // identical on a CPU. `shift`: tokens by which a full window advances, at most the context length (else kUsage); 0:
  // an eighth of it. Requires: the model outlives the decoder and was loaded with InferencePrecision::k16Bit.
  Decoder(LoadedModel&, int64_t sequences, bool cached = true, int64_t shift = 0);

  // Computes the logits after the last token of each sequence (at least one token). A sequence longer than the context
  // is read through a window that begins at a multiple of `shift` and restarts at position 0. Positions are absolute,
  // so moving the window invalidates its cache. Collective over tp and pp, with equal sequences on every rank.
  void run(std::span<Sequence* const> sequences);

  // Returns the logits [vocabulary] of sequence i of the last run; empty except on ranks of the last pipeline stage.
  std::span<const float> logits(size_t i) const;

 private:
  void forward(const MicroBatch&, std::span<const size_t> results);
  void run_whole(const Sequence&, size_t result);
  void run_last(std::span<Sequence* const>, std::span<const size_t> results);
  MicroBatch tokens(int64_t batch, int64_t seq);
  int64_t window_begin(int64_t length) const;
  void collect(Tensor logits, std::span<const size_t> results);

  LoadedModel& m_;
  ModelStage& stage_;
  const bool cached_;
  const int64_t context_, vocab_, shift_;
  KvCache cache_;
  Buffer inputs_;               // token ids, positions, sequence slots
  HostArray<int32_t> staged_;   // host copy of inputs_
  Buffer boundary_, gathered_;  // input from the previous stage; logits gathered over tp
  HostArray<float> parts_;      // host copy of gathered_
  std::vector<float> logits_;   // [sequences of the last run, vocabulary]
  Arena arena_;
  Pool pool_;
  Tape tape_;
};

}  // namespace gt
