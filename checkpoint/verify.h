// Verifies a checkpoint to the last byte and reports all damage at once: file, bytes, affected tensors and rows,
// expected, found. Changes nothing.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/store/vfs.h"

namespace gt {

struct Finding {
  std::string file;              // relative to the step's folder
  int64_t begin = -1, end = -1;  // bytes [begin, end) of it; -1: the whole file
  std::string tensors;  // affected: "master/embed.weight rows 0-3, optim/exp_avg/embed.weight rows 7-9"; may be empty
  std::string expected, found;
};
std::string to_string(const Finding&);

struct VerifyReport {
  std::string path;
  int64_t step = -1, files = 0, bytes = 0, tensors = 0;  // totals of what was read
  std::vector<Finding> findings;                         // empty: valid
};

struct StepVerifyOptions {
  bool fresh = false;  // drops the page cache of the files first, so reads come from disk
  bool deep = false;   // also compares the index with what libhdf5 finds in every shard, in a child process
};

// Verifies one step. Checks seal, name and size of every file, indexes, coverage of every tensor, and hashes of aux
// files. Checks the CRC32C of every block, and of every slice as it was in memory. Throws kUsage for a newer format,
// kIo when a file cannot be read.
VerifyReport verify_step(Vfs&, const std::string& step_dir, const StepVerifyOptions& = {});

}  // namespace gt
