// The half of the HDF5 reader that meets libhdf5: runs in a child process that has little to lose (h5_gate.h starts
// it). Floor 4; includes libhdf5 only in its .cpp.
#pragma once
#include <cstddef>

namespace gt {

constexpr size_t kH5SayLimit = size_t{16} << 20;  // bytes that a walk says at most
constexpr size_t kH5NoteLimit = 60000;            // of one note
constexpr int kH5Seconds = 60;                    // of processor time

// Walks the file open as `file` (a number above 3) and says on `say`, a line each, fields split by tabs: `set` name
// dtype offset dims…, with `attributes` after it `numbers` attribute values…, `note` key bytes + text, and `end`; or
// `refused` place reason. Groups, hard links and contiguous, unfiltered data sets of f32, f16, bf16, i8 pass; nothing
// else does. Limits its own time, memory and files, and loads no plugins. Never returns.
[[noreturn]] void walk_h5(int file, int say, bool attributes);

}  // namespace gt
