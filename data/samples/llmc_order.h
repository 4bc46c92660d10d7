// llm.c's order of windows over its token files (llmc/dataloader.h), so both trainers get the same tokens in the same
// microbatches. A window is dp * micro_batch consecutive sequences, split over data-parallel ranks; the rest of a file
// beyond whole windows is dropped. So, unlike any other order, it depends on dp and micro_batch. A pure function of
// token counts; reads no files.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <vector>

namespace gt {

struct LlmcOrderOptions {
  int64_t seq = 1024, micro_batch = 1, dp = 1;
  // Each rank r shuffles files, and the windows of each file it enters, by MT19937 with seed 42 + r; files again in
  // every epoch. Otherwise files and windows are sequential.
  bool shuffled = false;
};

class LlmcOrder {
 public:
  // tokens: per file. Throws kUsage naming the first file without a window.
  LlmcOrder(const std::vector<int64_t>& tokens, const LlmcOrderOptions& options);
  int64_t size() const { return samples_; }  // samples per epoch, all ranks

  struct Position {
    int64_t file, token;  // first of seq + 1
  };
  // Position of a global ordinal: microbatch k of rank i holds (k dp + i) micro_batch ... + micro_batch - 1. Ascending
  // ordinals, or slightly descending ones, cost nothing; others restart at the first. Not thread-safe.
  Position find(int64_t sample);

 private:
  struct FilePass {     // a rank's pass over a file
    int64_t first = 0;  // first microbatch of the rank in it
    size_t file = 0;
    std::vector<uint32_t> windows;  // in shuffled order; empty: sequential
  };
  struct Rank {
    std::mt19937 random;
    std::vector<uint32_t> files;
    size_t next = 0;              // next index into files
    std::deque<FilePass> passes;  // most recent ones
  };
  void enter_next_file(Rank&) const;
  const FilePass& pass_of(int64_t rank, int64_t microbatch);

  LlmcOrderOptions options_;
  std::vector<int64_t> windows_;  // windows per file
  int64_t samples_ = 0;
  std::map<int64_t, Rank> ranks_;  // created on demand: in a run, only its own rank
};

}  // namespace gt
