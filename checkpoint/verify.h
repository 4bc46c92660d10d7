// Reads a checkpoint to the last byte and says what is wrong with it, everything at once, in words that help to judge
// the damage: file, bytes, tensors and rows hit, expected, found. Changes nothing.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/vfs.h"

namespace gt {

struct Finding {
  std::string file;              // in the step's folder
  int64_t begin = -1, end = -1;  // bytes [begin, end) of it; -1: the file as a whole
  std::string tensors;  // hit: "master/embed.weight rows 0-3, optim/exp_avg/embed.weight rows 7-9"; may be empty
  std::string expected, found;
};
std::string to_string(const Finding&);

struct VerifyReport {
  std::string path;
  int64_t step = -1, files = 0, bytes = 0, tensors = 0;  // what was read
  std::vector<Finding> findings;                         // empty: good
};

struct VerifyOptions {
  bool fresh = false;  // asks the kernel to drop its copy of the files first, so that the disk is read
  bool deep = false;   // also opens every shard with libhdf5, in a child process, and compares what that sees
};

// Seal, name and sizes of every file, indexes, coverage of every tensor, hashes of aux files, the CRC32C of every block
// of every shard and of every slice as it was in memory. Throws kUsage for a newer format, kIo when something cannot be
// read.
VerifyReport verify_step(Vfs&, const std::string& step_dir, const VerifyOptions& = {});

}  // namespace gt
