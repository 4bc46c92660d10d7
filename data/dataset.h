// Samples by ordinal. A dataset answers "the seq + 1 tokens of sample n" for any n, from any thread; it knows files,
// splits, orders and blends, and refuses to know batches, ranks and devices (data/loader.h).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/blend.h"
#include "data/cursor.h"
#include "data/sample_order.h"

namespace gt {

class Dataset {
 public:
  virtual ~Dataset() = default;
  // Samples of one epoch (of a blend: of one epoch of all of its datasets together).
  virtual int64_t size() const = 0;
  virtual int64_t seq() const = 0;
  // The seq + 1 tokens of global ordinal `sample`: input = first seq, target = last seq. Thread-safe; allocates nothing
  // except when an epoch begins. Throws kIo for a token outside of the vocabulary (file, document, position, id) and
  // for files that changed while they were read.
  virtual void fetch(int64_t sample, std::span<int32_t> tokens_and_next) const = 0;
  // A hint that these samples come next: asks the kernel to read them ahead.
  virtual void read_ahead(int64_t /*first*/, int64_t /*count*/) const {}
  // What a checkpoint stores when `consumed` samples have been seen (skip_windows are the caller's).
  virtual DataCursor cursor(int64_t consumed) const = 0;
  // Hash of the tables of the first epoch: ranks that read one dataset compare it. 0: no tables.
  virtual uint64_t order_hash() const { return 0; }
  // What identifies the files of each source, for ranks of several machines to compare. Empty: no files.
  struct Content {
    std::string name, identity;  // as the config names it; "12 bytes, index 0123456789ab, content 0123456789abcdef"
  };
  virtual std::vector<Content> contents() const { return {}; }
  // The sequence of the file and the offset of the first token of a sample; {-1, -1} without a file. `source`: which
  // dataset.
  struct Place {
    int32_t source = 0;
    int64_t sequence = -1, offset = -1;
  };
  virtual Place place(int64_t) const { return {}; }
};

struct DatasetOptions {
  std::vector<DataSource> sources;  // one or more; weights all or none; {"mock"} alone for random tokens
  std::string split = "969,30,1";   // shares of sequences for train, valid, test
  int part = 0;                     // which share: 0 train, 1 valid, 2 test
  bool cut_tokens = false;          // where train or valid would get no document, cut the tokens of the file instead
  bool whole = false;               // use all sequences: data.valid is given, so nothing is split
  int64_t seq = 1024;
  uint64_t seed = 1234;
  SampleOrder order = SampleOrder::kEpoch;
  int64_t num_samples = 0;          // of the whole run; kMegatron only
  int64_t dp = 1, micro_batch = 1;  // of the run, which kLlmc and kLlmcShuffled depend on
  int64_t vocab = 0;                // ids from here on are errors; 0: not checked (mock needs it)
  // All of these that say which tokenizer their numbers are of must say the same:
  // meta.json of the sources, the model data.tokenizer, meta.json of the files that the run reads beside these
  // (data.valid).
  std::string tokenizer_sha256;  // of data.tokenizer
  std::vector<DataSource> beside;
  std::string cache_dir;  // index store and verdicts; empty: memory only (default_cache_dir() is the usual one)
  bool remembers = true;  // writes verdicts to cache_dir; false: only reads there
  bool builder = true;    // this rank builds orders for its node; the others wait for the file
  std::function<void(const std::string&)> warn;
  bool by_windows() const { return order == SampleOrder::kLlmc || order == SampleOrder::kLlmcShuffled; }
};

// Opens and checks everything; throws kUsage with all problems of all datasets, one a line.
std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options);

}  // namespace gt
