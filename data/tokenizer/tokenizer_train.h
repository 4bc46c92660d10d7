// Trains a SentencePiece model that is lossless for valid UTF-8, from a sample of bounded size. The sample depends
// neither on threads nor on the order in which files are opened.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gt {

struct TokenizerTrainOptions {
  std::vector<std::string> inputs;  // files, folders, patterns, "-"; gzip is read as text
  std::string output;               // X or X.model; writes X.model, X.vocab, X.meta.json
  int64_t vocab = 8192;
  std::string type = "bpe";          // bpe, unigram
  double sample_mb = 20;             // size limit of the training sample
  double coverage = 0.9995;          // fraction of characters covered; others use byte fallback
  std::vector<std::string> special;  // additional symbols, after <|endoftext|> and newline
  std::vector<std::string> control;  // symbols that no text contains, before <|endoftext|>: [MASK]
  std::string json_key = "text";     // JSON lines: the field that holds the text, as in data/prepare/prepare.h
  uint64_t seed = 1234;
  int threads = 1;  // reader threads; the library always trains with 16, which affects its sums
};

struct TokenizerTrainProgress {
  const char* stage;             // "read", "train", "report", "write": files are written from this stage on
  int64_t bytes = 0, lines = 0;  // read so far
  double seconds = 0;
};

struct TokenizerReport {
  int64_t pieces = 0;
  double seconds = 0;
  int64_t peak_memory = 0;  // bytes of this process
  int64_t bytes_read = 0, lines_read = 0, train_bytes = 0, train_lines = 0;
  int64_t report_bytes = 0;  // size of the text for the next three
  bool unseen = true;        // false: the input is no larger than the sample, which is then used for them
  double bytes_per_token = 0;
  double fallback_percent = 0;       // characters encoded as bytes
  std::vector<std::string> longest;  // 10 pieces
};
std::string to_json(const TokenizerReport&);

// Line of the sample: of a text, or of the text of a JSON line. Its priority is the first 8 bytes of XXH3-128(seed,
// path index, line number) or, after the first line of a JSON line's text, of that and the line's number in it; the
// smallest are selected.
struct SampledLine {
  uint64_t priority = 0, path = 0, line = 0, part = 0;  // part: lines are cut at 4096 bytes
  std::string text;
};
struct LineSample {
  std::vector<SampledLine> train, unseen;  // in file order: within the budget; up to 1 MB with the next priorities
  int64_t bytes_read = 0, lines_read = 0;
};
LineSample sample_lines(const std::vector<std::string>& inputs, double sample_mb, uint64_t seed, int threads = 1,
                        const std::function<void(const TokenizerTrainProgress&)>& progress = {},
                        const std::string& json_key = "text");

// Throws kUsage for invalid options, inputs that are not text, a JSON line without the key's text (file, line), inputs
// without text, and a vocabulary that the text cannot fill (the library's message).
TokenizerReport tokenizer_train(const TokenizerTrainOptions& options,
                                const std::function<void(const TokenizerTrainProgress&)>& progress = {});

}  // namespace gt
