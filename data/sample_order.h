// In which order samples are seen. A sample is seq + 1 consecutive tokens (input: the first seq, target: the last seq),
// so neighbours share one token. Everything here is a pure function of lengths, seq and seed; nothing reads tokens or
// files.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace gt {

enum class SampleOrder : uint8_t {
  kEpoch,       // each epoch shuffled alone: a run can be extended without changing its past
  kMegatron,    // exactly Megatron's order for a number of samples fixed in advance
  kSequential,  // sample k starts at token k * seq of the concatenation
  kLlmc,          // llm.c's windows of its token files, as they lie (llmc_order.h)
  kLlmcShuffled,  // as llm.c's CUDA trainer shuffles them
};
SampleOrder sample_order_from(const std::string& name);  // by name_of; kUsage lists the names
const char* name_of(SampleOrder o);

// Token counts of the sequences [begin, end) of a file; `table` is the int32 table of the .idx, which is not aligned.
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

// Which sequences belong to train, valid and test: shares "969,30,1" cut by running sums in float64, rounded half to
// even. Returns one more bound than there are shares. kUsage: a share that is no number, negative, or all of them 0.
std::vector<int64_t> split_bounds(const std::string& shares, int64_t sequences);

// One epoch, or all of them in kMegatron, as three tables.
struct OrderView {
  std::span<const int32_t> documents;  // entry -> sequence
  std::span<const uint32_t>
      positions;  // 2 * (samples + 1): entry, token offset, where each sample begins before the shuffle
  std::span<const uint32_t> shuffle;  // k-th sample -> row of positions
  int64_t samples() const { return static_cast<int64_t>(shuffle.size()); }
};
struct Order {
  std::vector<int32_t> documents;
  std::vector<uint32_t> positions, shuffle;
  OrderView view() const { return {documents, positions, shuffle}; }
};

int64_t samples_per_epoch(int64_t tokens, int64_t seq);  // (T - 1) / s: the tail is dropped
uint32_t epoch_seed(uint64_t seed, int64_t epoch);       // seed + 2654435769 e, modulo 2^32
Order build_epoch(const Lengths& lengths, int64_t seq, uint32_t seed);

// Megatron's GPTDataset for `num_samples`: as many epochs as needed, the last one shuffled apart when little of it is
// used.
struct MegatronPlan {
  int64_t epochs = 1, samples = 0, before = 0;  // before: samples of the epochs but the last, when it is apart
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
  struct Place {
    int64_t sequence, offset;
  };
  Place find(int64_t token) const;

 private:
  static constexpr int64_t kStep = 256;  // sequences between two entries of sums_
  Lengths lengths_;
  std::vector<int64_t> sums_;  // tokens before sequence begin + i * kStep
  int64_t tokens_ = 0;
};

}  // namespace gt
