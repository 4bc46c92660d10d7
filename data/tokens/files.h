// File helpers of this folder: atomic replacement, checked writes, file hashes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/files.h"

namespace gt {

// Writes to a temporary file beside `path`, syncs, renames. Throws Error(kIo).
void write_file_atomically(const std::string& path, std::string_view content);
void write_all(int fd, const void* data, size_t bytes, const std::string& path);  // Error(kIo) with the bytes written
void rename_file(const std::string& from, const std::string& to);
void sync_and_close(int fd, const std::string& path);
std::string xxh3_128_file(const std::string& path);  // 32 hexadecimal digits

// Opens for writing. flags as in open(2); Error(kIo) with the reason.
Fd open_file(const std::string& path, int flags);

}  // namespace gt
