// Samples by ordinal: a Dataset returns the seq + 1 tokens of any sample, or its sentence pair, from any thread.
// Handles files, splits, orders and blends; independent of batches, ranks and devices (data/samples/loader.h).
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/samples/blend.h"
#include "data/samples/cursor.h"
#include "data/samples/masked_pairs.h"
#include "data/samples/sample_order.h"

namespace gt {

// How documents fill samples. kDocuments: attention and positions stay inside each document, whose first token is not
// a target.
enum class Packing : uint8_t { kStream, kDocuments };
constexpr std::array<const char*, 2> names_of(Packing) { return {"stream", "documents"}; }

// Destination of the seq + 1 tokens of a sample. Each span has that length, or is empty: not read.
struct SampleBuffers {
  std::span<int32_t> tokens;     // input = first seq, target = last seq
  std::span<uint8_t> loss;       // 1: a target; 0: masked by the file's loss mask
  std::span<int32_t> positions;  // of each token in its document, counted from the document's first token in the sample
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  // Samples per epoch (of a blend: one epoch of all its datasets together).
  virtual int64_t size() const = 0;
  virtual int64_t seq() const = 0;
  // Samples are rows for masked language models (PairRow) instead of tokens alone.
  virtual bool pairs() const { return false; }
  int64_t row() const { return pairs() ? PairRow::width(seq()) : seq() + 1; }  // values of a sample
  // Reads the seq + 1 tokens of global ordinal `sample`, or its PairRow. Thread-safe; allocates only at the start of an
  // epoch. Throws kIo for a token outside the vocabulary (file, document, position, id), for damaged masks and for
  // files that changed while being read.
  virtual void read(int64_t sample, const SampleBuffers& to) const = 0;
  void fetch(int64_t sample, std::span<int32_t> row) const { read(sample, {row, {}, {}}); }
  virtual bool masked() const { return false; }  // some source has a loss mask
  // Hint that these samples come next: starts readahead.
  virtual void read_ahead(int64_t /*first*/, int64_t /*count*/) const {}
  // Returns the cursor to checkpoint after `consumed` samples (skip_windows are set by the caller).
  virtual DataCursor cursor(int64_t consumed) const = 0;
  // Hash of the order tables of the first epoch, compared across ranks that read one dataset. 0: no tables.
  virtual uint64_t order_hash() const { return 0; }
  // Identity of each source's files, compared across machines. Empty: no files.
  struct Content {
    // Name as in the config; identity "12 bytes, index 0123456789ab, content 0123456789abcdef".
    std::string name, identity;
  };
  virtual std::vector<Content> contents() const { return {}; }
  // File sequence and token offset where a sample begins; {-1, -1} without a file. `source`: index of the dataset.
  struct Position {
    int32_t source = 0;
    int64_t sequence = -1, offset = -1;
  };
  virtual Position position_of(int64_t) const { return {}; }
};

struct DatasetOptions {
  std::vector<DataSource> sources;  // one or more; weights for all or none; {"mock"} alone for random tokens
  std::string split = "969,30,1";   // shares of sequences for train, valid, test
  int part = 0;                     // which share: 0 train, 1 valid, 2 test
  bool split_tokens = false;        // split by tokens where train or valid would get no document
  bool whole = false;               // use all sequences: data.valid is given, so nothing is split
  int64_t seq = 1024;
  uint64_t seed = 1234;
  SampleOrder order = SampleOrder::kEpoch;
  int64_t num_samples = 0;          // of the whole run; kMegatron only
  int64_t dp = 1, micro_batch = 1;  // of the run; only kLlmc and kLlmcShuffled depend on them
  int64_t vocab = 0;                // ids >= vocab are errors; 0: not checked (required by mock)
  bool documents = false;           // SampleBuffers::positions are read: files must list their documents
  // All of these that name a tokenizer must name the same: meta.json of the sources, the model data.tokenizer, and
  // meta.json of further files that the run reads (data.valid).
  std::string tokenizer_sha256;  // of data.tokenizer
  std::vector<DataSource> beside;
  std::string cache_dir;  // index store and check results; empty: memory only (usually default_cache_dir())
  bool remembers = true;  // writes check results to cache_dir; false: only reads them
  std::optional<MaskingOptions> masking;  // sentence pairs with masked tokens instead of runs of tokens
  bool builder = true;                    // this rank builds orders for its node; others wait for the file
  std::function<void(const std::string&)> warn;
  bool by_windows() const { return order == SampleOrder::kLlmc || order == SampleOrder::kLlmcShuffled; }
};

// Opens and checks everything; throws kUsage with all problems of all datasets, one per line.
std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options);

}  // namespace gt
