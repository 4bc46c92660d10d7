// Order of samples. A sample is seq + 1 consecutive tokens (input: the first seq, target: the last seq), so neighbours
// share one token. Everything here is a pure function of lengths, seq and seed; nothing reads tokens or files.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/enum_names.h"

namespace gt {

enum class SampleOrder : uint8_t {
  kEpoch,         // each epoch shuffled independently: extending a run does not change its past
  kMegatron,      // exactly Megatron's order for a fixed number of samples
  kSequential,    // sample k starts at token k * seq of the concatenation
  kLlmc,          // llm.c's windows of its token files, sequential (llmc_order.h)
  kLlmcShuffled,  // shuffled as by llm.c's CUDA trainer
};
constexpr std::array<const char*, 5> names_of(SampleOrder) {
  return {"epoch", "megatron", "sequential", "llmc", "llmc_shuffled"};
}

// Token counts of sequences [begin, end) of a file; `table`: int32 table of the .idx, unaligned.
struct Lengths {
  const void* table = nullptr;
  int64_t begin = 0, end = 0;
  int64_t operator[](int64_t sequence) const {
    int32_t n;
    std::memcpy(&n, static_cast<const char*>(table) + 4 * sequence, 4);
    return n;
  }
  int64_t count() const { return end - begin; }
  int64_t total() const;  // tokens
};

// Bounds of the train, valid and test sequences: shares "969,30,1" as running sums in f64, rounded half to even.
// Returns one more bound than shares. kUsage: a share that is not a number or negative, or all of them 0.
std::vector<int64_t> split_bounds(const std::string& shares, int64_t sequences);

// One epoch, or all epochs of kMegatron, as three tables.
struct OrderView {
  std::span<const int32_t> documents;  // entry -> sequence
  // 2 * (samples + 1): entry, token offset where each sample begins, before the shuffle.
  std::span<const uint32_t> positions;
  std::span<const uint32_t> shuffle;  // k-th sample -> row of positions
  int64_t samples() const { return static_cast<int64_t>(shuffle.size()); }
};
struct Order {
  std::vector<int32_t> documents;
  std::vector<uint32_t> positions, shuffle;
  OrderView view() const { return {documents, positions, shuffle}; }
};

// What determines an order up to its random draws: the sizes of its tables, and what each may hold.
struct OrderShape {
  Lengths lengths;
  int64_t seq = 0, samples = 0, epochs = 1;
  bool apart = false;  // the documents of the last epoch, and the samples from `before` on, are shuffled separately
  int64_t before = 0;
};
// Returns whether the tables are an order of this shape: every sequence once an epoch, sample after sample without a
// gap, every sample once. For tables that were not built by this process; reads every entry and length.
bool is_order(const OrderView& tables, const OrderShape& shape);

int64_t samples_per_epoch(int64_t tokens, int64_t seq);  // (T - 1) / s: the tail is dropped
uint32_t epoch_seed(uint64_t seed, int64_t epoch);       // seed + 2654435769 e, modulo 2^32
Order build_epoch(const Lengths& lengths, int64_t seq, uint32_t seed);

// Plan of Megatron's GPTDataset for `num_samples`: as many epochs as needed; the last one is shuffled separately when
// little of it is used.
struct MegatronPlan {
  int64_t epochs = 1, samples = 0, before = 0;  // before: samples of all epochs but the last, when that is separate
  bool apart = false;
};
MegatronPlan plan_megatron(int64_t tokens, int64_t seq, int64_t num_samples);
Order build_megatron(const Lengths& lengths, int64_t seq, uint32_t seed, int64_t num_samples);

// Finds the sequence and offset of token k * seq of the concatenation without a table of all sequences.
class SequentialOrder {
 public:
  SequentialOrder() = default;
  explicit SequentialOrder(const Lengths& lengths);
  int64_t tokens() const { return tokens_; }
  struct Position {
    int64_t sequence, offset;
  };
  Position find(int64_t token) const;

 private:
  static constexpr int64_t kStep = 256;  // sequences per entry of sums_
  Lengths lengths_;
  std::vector<int64_t> sums_;  // tokens before sequence begin + i * kStep
  int64_t tokens_ = 0;
};

}  // namespace gt
