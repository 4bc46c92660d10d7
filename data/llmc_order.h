// The order in which llm.c's trainer takes windows of its token files (llmc/dataloader.h), so that both see the same
// tokens in the same microbatches. A window is dp * micro_batch sequences in a row, each data-parallel rank has its
// part of it; what a file has beyond whole windows is left out. So the order depends on dp and micro_batch, as no other
// does. A pure function of the numbers of tokens; nothing here reads files.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <vector>

namespace gt {

struct LlmcOrderOptions {
  int64_t seq = 1024, micro_batch = 1, dp = 1;
  // Each rank r shuffles files, and the windows of each file that it comes to, by MT19937 with seed 42 + r; files again
  // in every epoch. Else files and windows follow each other.
  bool shuffled = false;
};

class LlmcOrder {
 public:
  // tokens: of each file. Throws kUsage naming the first file without a window.
  LlmcOrder(const std::vector<int64_t>& tokens, const LlmcOrderOptions& options);
  int64_t size() const { return samples_; }  // an epoch, of all ranks

  struct Place {
    int64_t file, token;  // the first of seq + 1
  };
  // Of a sample's global ordinal: microbatch k of rank i holds (k dp + i) micro_batch … + micro_batch - 1. Ordinals
  // that rise, or fall back a little, cost nothing; others begin anew at the first. Not thread-safe.
  Place find(int64_t sample);

 private:
  struct Visit {        // of a rank to a file
    int64_t first = 0;  // microbatch of the rank
    size_t file = 0;
    std::vector<uint32_t> windows;  // in the order that they are taken; empty: as they lie
  };
  struct Rank {
    std::mt19937 random;
    std::vector<uint32_t> files;
    size_t next = 0;           // of files
    std::deque<Visit> visits;  // the latest
  };
  void enter_next_file(Rank&) const;
  const Visit& visit_of(int64_t rank, int64_t microbatch);

  LlmcOrderOptions options_;
  std::vector<int64_t> windows_;  // of each file
  int64_t samples_ = 0;
  std::map<int64_t, Rank> ranks_;  // those that were asked for: of a run its own
};

}  // namespace gt
