// Stages 1 and 2 of data/prepare.h: a reader thread and T encoder threads around a ring of chunks; the caller is stage
// 3 and gets encoded chunks in input order, with the first error in input order.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/prepare_chunks.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace gt {

struct EncodedChunk {
  Chunk in;
  std::vector<uint8_t> packed;  // tokens as they go into the .bin
  struct Part {
    int64_t tokens;
    bool ends;
  };
  std::vector<Part> parts;  // of documents, in order
  int64_t dropped = 0, bad = 0, replaced = 0;
  std::string problem;  // ends the work: file, line, what
};

class PreparePipeline {
 public:
  PreparePipeline(const std::vector<TextInput>& inputs, const PrepareOptions& options, const Tokenizer& tokenizer,
                  TokenType type, const ReadState& from);
  ~PreparePipeline();         // stops all threads
  EncodedChunk* wait_next();  // nullptr at the end; throws what the reader met
  void release();             // the chunk of the last wait_next may be used again

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
