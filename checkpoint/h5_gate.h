// What libhdf5 sees in a file, found out by a child process under limits (h5_gate.cpp). Knows no checkpoint.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

struct H5Set {
  std::string name, dtype;  // "master/embed.weight"; "f32", "bf16", "f16", "i8"
  int64_t offset = -1;      // of its first byte in the file
  std::vector<int64_t> shape;
  std::vector<int64_t> global_shape, rects;  // its attributes of these names; empty: none
};

// Every data set, by name. kDamaged: libhdf5 cannot read the file, dies of it, or finds what no shard holds; kIo.
std::vector<H5Set> list_h5(const std::string& path);

}  // namespace gt
