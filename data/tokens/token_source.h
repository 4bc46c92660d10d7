// Samples of one token source in one order. Used only by data/samples/dataset.cpp, which blends them.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "data/samples/dataset.h"
#include "data/samples/llmc_order.h"
#include "data/tokens/index_store.h"
#include "data/tokens/token_store.h"

namespace gt {

// Requires: every span of `to` is empty or has seq + 1 elements.
void check_sizes(const SampleBuffers& to, int64_t seq);

class TokenSource {
 public:
  // Throws kUsage: bad files, another tokenizer, an empty split, fewer than seq + 1 tokens.
  TokenSource(const std::string& path, const DatasetOptions& options);
  virtual ~TokenSource() = default;

  // kMegatron: number of samples the run needs of this file. Must be called before the first fetch.
  void set_num_samples(int64_t n) { num_samples_ = n; }

  const TokenStore& file() const { return *file_; }
  bool cut() const { return cut_; }                                  // splits by tokens, not documents
  int64_t size() const { return per_epoch_; }                        // samples per epoch
  virtual int64_t available() const;                                 // total samples; INT64_MAX: endless
  virtual void read(int64_t sample, const SampleBuffers& to) const;  // thread-safe
  virtual void read_ahead(int64_t sample) const;
  virtual Dataset::Position position_of(int64_t sample) const;
  virtual uint64_t order_hash() const;
  std::string identity() const;  // sizes, hashes and sidecar files (Dataset::Content)

 protected:
  void require_unchanged() const;
  // Copies out.size() tokens of a sequence. Throws kIo for one outside the vocabulary.
  void read_checked(int64_t sequence, int64_t begin, std::span<int32_t> out) const;
  Lengths range_;
  int64_t seq_ = 0, per_epoch_ = 0;
  SampleOrder order_ = SampleOrder::kEpoch;

 private:
  struct Slot {  // order of one epoch; pinned while in use
    int64_t epoch = -1, last_use = 0;
    int pins = 0;
    StoredOrder order;
  };
  struct Pin;
  LlmcOrder::Position llmc_position(int64_t sample) const;
  Slot* pin(int64_t epoch) const;
  void unpin(Slot*) const;
  template <class Visit>
  void walk(int64_t sample, Visit visit) const;  // visit(sequence, begin, count) for the seq + 1 tokens
  [[noreturn]] void bad_lengths(int64_t sample) const;
  [[noreturn]] void bad_token(int64_t sequence, int64_t begin, std::span<const int32_t> ids) const;

  std::unique_ptr<TokenStore> file_;
  bool cut_ = false;
  int64_t tokens_ = 0, vocab_ = 0, num_samples_ = 0;
  uint64_t seed_ = 0;
  SequentialOrder sequential_;
  std::unique_ptr<LlmcOrder> llmc_;  // for llm.c's orders
  IndexStoreOptions store_;
  std::string meta_note_;  // tokenizer declared by meta.json, for out-of-vocabulary errors
  mutable std::mutex mutex_;
  mutable std::array<Slot, 4> slots_;
  mutable int64_t clock_ = 0;
  mutable int64_t checked_epoch_ = -1;  // llm.c's order: last epoch at whose start the files were unchanged
};

}  // namespace gt
