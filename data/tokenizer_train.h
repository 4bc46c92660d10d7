// Training a SentencePiece model that gives back every valid UTF-8 text exactly, from a sample of bounded size that
// depends on neither threads nor the order in which files are opened.
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
  double sample_mb = 20;             // what the trainer sees at most
  double coverage = 0.9995;          // of characters; the others are bytes
  std::vector<std::string> special;  // further symbols, after <|endoftext|> and newline
  std::vector<std::string> control;  // symbols that no text contains, before <|endoftext|>: [MASK]
  uint64_t seed = 1234;
  int threads = 1;  // that read inputs; the library always trains with 16, for its sums depend on that
};

struct TokenizerTrainProgress {
  const char* stage;             // "read", "train", "report", "write": from here on files appear
  int64_t bytes = 0, lines = 0;  // read so far
  double seconds = 0;
};

struct TokenizerReport {
  int64_t pieces = 0;
  double seconds = 0;
  int64_t peak_memory = 0;  // bytes of this process
  int64_t bytes_read = 0, lines_read = 0, train_bytes = 0, train_lines = 0;
  int64_t report_bytes = 0;  // what the next three are measured on
  bool unseen = true;        // false: the input is no larger than the sample, so they are measured on that
  double bytes_per_token = 0;
  double fallback_percent = 0;       // characters that became bytes
  std::vector<std::string> longest;  // 10 pieces
};
std::string to_json(const TokenizerReport&);

// A line of the sample. Its priority is the first 8 bytes of XXH3-128(seed, path index, line number): the smallest win.
struct SampledLine {
  uint64_t priority = 0, path = 0, line = 0, part = 0;  // part: lines are cut at 4096 bytes
  std::string text;
};
struct LineSample {
  std::vector<SampledLine> train, unseen;  // in file order: within the budget; up to 1 MB with the next priorities
  int64_t bytes_read = 0, lines_read = 0;
};
LineSample sample_lines(const std::vector<std::string>& inputs, double sample_mb, uint64_t seed, int threads = 1,
                        const std::function<void(const TokenizerTrainProgress&)>& progress = {});

// Throws kUsage for bad options, inputs without text, and a vocabulary that the text cannot fill (the library's words).
TokenizerReport tokenizer_train(const TokenizerTrainOptions& options,
                                const std::function<void(const TokenizerTrainProgress&)>& progress = {});

}  // namespace gt
