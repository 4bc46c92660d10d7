// Structure of an HDF5 file as libhdf5 reads it, in a child process under limits (h5_gate.cpp).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

struct H5Set {
  std::string name, dtype;  // "master/embed.weight"; "f32", "bf16", "f16", "i8"
  int64_t offset = -1;      // byte offset of its data in the file
  std::vector<int64_t> shape;
  std::vector<int64_t> global_shape, rects;  // attributes of these names; empty: absent
};

// Lists every data set by name. kDamaged: libhdf5 cannot read the file, crashes, or finds unsupported objects; kIo.
std::vector<H5Set> list_h5(const std::string& path);

}  // namespace gt
