// Stages 1 and 2 of data/prepare/prepare.h: a reader thread and T encoder threads around a ring of chunks. The caller
// is stage 3 and receives encoded chunks in input order, and the first error in input order.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/prepare/prepare_chunks.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_file.h"

namespace gt {

struct EncodedChunk {
  Chunk in;
  std::vector<uint8_t> packed;  // tokens as stored in the .bin
  std::vector<uint8_t> loss;    // of conversations: one byte for each token, as in the .mask
  struct Part {
    int64_t tokens;
    bool ends;
  };
  std::vector<Part> parts;  // parts of documents, in order
  int64_t dropped = 0, bad = 0, replaced = 0, truncated = 0, unanswered = 0;
  std::string problem;  // error that ends the work: file, line, reason
};

class PreparePipeline {
 public:
  PreparePipeline(const std::vector<TextInput>& inputs, const PrepareOptions& options, const Tokenizer& tokenizer,
                  TokenType type, const ReadState& from);
  ~PreparePipeline();         // stops all threads
  EncodedChunk* wait_next();  // nullptr at the end; rethrows errors of the reader
  void release();             // recycles the chunk of the last wait_next()

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
