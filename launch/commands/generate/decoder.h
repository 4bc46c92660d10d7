// Next-token logits of sequences that grow: a prompt is computed once, then each token alone, with the keys and values
// of those before it in a cache. Runs on every rank of a tp x pp group alike; data-parallel replicas are independent.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/host_array.h"
#include "kernels/core/memory.h"
#include "launch/commands/loaded_model.h"

namespace gt {

// Keys and values of the blocks of a stage, on its device.
class KvCache {
 public:
  KvCache(const ModelStage&, int64_t sequences, int64_t positions, Device, const DeviceApi&);
  const KvLayer* layers() const { return layers_.data(); }  // [blocks of the stage]

 private:
  std::vector<Buffer> buffers_;
  std::vector<KvLayer> layers_;
};

// One of the sequences that a Decoder holds. Owned by the caller, who appends to ids.
struct Sequence {
  int64_t slot = 0;  // of the cache, below the decoder's `sequences`
  std::vector<int32_t> ids;
  int64_t begin = 0, cached = 0;  // the cache holds keys and values of ids [begin, cached)
};

class Decoder {
 public:
  // sequences: most of them at a time. cached: false recomputes everything for every token, which gives the same bits
  // on a CPU. shift: tokens by which the window moves on, up to the context; 0: an eighth of it. kUsage for a longer
  // one. The model outlives the decoder; its options are those of Products::kHalf.
  Decoder(LoadedModel&, int64_t sequences, bool cached = true, int64_t shift = 0);

  // Computes the logits that follow the last token of each sequence, which has at least one. A sequence longer than the
  // model's context is read through a window that begins at a multiple of `shift`, from position 0: positions are
  // absolute, so that no cached key survives its move. Collective over tp and pp: the same sequences on every rank.
  void run(std::span<Sequence* const> sequences);

  // Of the i-th sequence of the last run, [vocabulary]: on ranks of the last pipeline stage, else empty.
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
  Buffer inputs_;               // tokens, positions, sequences
  HostArray<int32_t> staged_;   // written for the device
  Buffer boundary_, gathered_;  // from the stage before; logits of all tp ranks
  HostArray<float> parts_;      // likewise, on the host
  std::vector<float> logits_;   // [sequences of the last run, vocabulary]
  Arena arena_;
  Pool pool_;
  Tape tape_;
};

}  // namespace gt
