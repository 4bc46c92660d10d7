// Child-process side of the HDF5 reader (h5_gate.h starts it): the only code that opens files with libhdf5. Includes
// libhdf5 only in its .cpp.
#pragma once
#include <cstddef>

namespace gt {

constexpr size_t kH5OutputLimit = size_t{16} << 20;  // output limit, bytes
constexpr size_t kH5NoteLimit = 60000;               // limit of one text attribute, bytes
constexpr int kH5Seconds = 60;                       // CPU time limit, s

// Walks the HDF5 file open as descriptor `file` (> 3) and writes its structure to descriptor `out`, one line per item,
// fields separated by tabs: `set` name dtype offset dims...; with `attributes` also `numbers` attribute values...;
// `note` key bytes + text; finally `end`. On failure: `refused` location reason. Accepts groups, hard links and
// contiguous, unfiltered data sets of f32, f16, bf16, i8; nothing else. Limits its own time, memory and files; loads no
// plugins. Never returns.
[[noreturn]] void walk_h5(int file, int out, bool attributes);

}  // namespace gt
