// Stage 1 of data/prepare/prepare.h: splits inputs into chunks of documents, or of document parts that end at a
// newline.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/prepare/prepare.h"
#include "data/prepare/text_source.h"
#include "data/tokenizer/tokenizer_model.h"

namespace gt {

struct ReadState {                        // resumable state between two chunks
  int64_t input = 0, byte = 0, line = 0;  // where the next line begins, in decompressed bytes
  bool open = false;                      // inside an unfinished document
  bool skipping = false;                  // the rest of the open document is dropped
};

struct TextChunk {
  size_t begin = 0, size = 0;  // in Chunk::text
  bool ends = false;           // the document ends here
  bool json = false;
  int64_t input = 0, line = 0, byte = 0;  // for error messages
  bool starts = false;                    // the document begins here
};

struct Chunk {
  std::string text;
  std::vector<TextChunk> pieces;
  ReadState after;
  int64_t read_bytes = 0, disk_done = 0;  // text bytes of this chunk; bytes of all inputs read so far, on disk
  int64_t dropped = 0, bad = 0;
  std::string problem;  // with on_bad fail: error that ends the work after these pieces
  void clear();
};

class ChunkReader {
 public:
  // `cuts`: where the tokenizer allows to cut documents.
  ChunkReader(const std::vector<TextInput>& inputs, const PrepareOptions& options, LineCuts cuts, int64_t chunk_bytes,
              const ReadState& from);
  bool next(Chunk* chunk);  // false at the end of all inputs

 private:
  void open_input();
  void end_input(Chunk*);
  bool full(const Chunk&) const;
  void see_cut(const LineReader::Line&, const Chunk&);
  void take(const LineReader::Line&, Chunk*);
  void append(std::string_view text, const LineReader::Line&, bool json, Chunk*);
  void end_document(Chunk*);
  void bad(const LineReader::Line&, const std::string& what, Chunk*);

  const std::vector<TextInput>& inputs_;
  const PrepareOptions& options_;
  const LineCuts cuts_;
  const int64_t chunk_bytes_;
  ReadState state_;
  std::unique_ptr<LineReader> reader_;
  LineReader::Line line_;
  bool held_ = false;  // line_ was read and not yet taken: the next chunk begins with it
  int64_t uncut_ = 0;  // bytes of the open document since it could be cut last
  bool json_ = false, failed_ = false;
  int64_t disk_before_ = 0;
};

}  // namespace gt
