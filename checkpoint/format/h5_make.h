// Shared by the writers of HDF5 metadata: RAII handles, temporary files, types, groups, attributes. Includes libhdf5's
// header; only for .cpp files of this folder.
#pragma once
#include <hdf5.h>

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kernels/core/files.h"
#include "kernels/core/tensor.h"

namespace gt {

// Owns one HDF5 identifier. Throws kIo when it is invalid or cannot be closed.
class H5Id {
 public:
  H5Id(hid_t id, herr_t (*close)(hid_t), const std::string& what);
  ~H5Id() {
    if (id_ >= 0) close_(id_);
  }
  H5Id(const H5Id&) = delete;
  H5Id& operator=(const H5Id&) = delete;
  operator hid_t() const { return id_; }  // NOLINT: passed to C functions
  void close(const std::string& what);

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

void h5_done(herr_t, const std::string& what);  // throws kIo on failure

// Serializes all use of libhdf5 while alive: Debian's build is not thread-safe, and ranks may be threads.
class H5Session {
 public:
  // `need`: bytes that libhdf5 will allocate, about. Throws std::bad_alloc if they cannot be had now: libhdf5 itself
  // ends the process, by a fault or by exit(-1), where an allocation of its own fails.
  explicit H5Session(int64_t need = 0);

 private:
  std::unique_lock<std::mutex> lock_;
};

// A file for libhdf5, which opens files by name only. It has one until create() returns, so that a killed process
// leaves nothing behind; in /dev/shm it is an owned one (owned_file.h) for the moment between.
class H5TempFile {
 public:
  explicit H5TempFile(const std::string& dir);
  ~H5TempFile();
  H5TempFile(const H5TempFile&) = delete;
  H5TempFile& operator=(const H5TempFile&) = delete;
  H5Id create(hid_t properties, hid_t access) const;
  int fd() const { return fd_.get(); }  // reads what libhdf5 wrote
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Fd fd_;
};
// Returns /dev/shm if it has space for a file with `need` bytes of metadata, else `fallback`. libhdf5 must never meet a
// full disk.
std::string h5_temp_dir(int64_t need, const std::string& fallback);

H5Id h5_type(DType);  // little-endian; bf16 and f16 as two-byte floats
void h5_attribute(hid_t at, const char* name, hid_t type, const std::vector<hsize_t>& dims, const void* data);
void h5_text(hid_t at, const char* name, const std::string& text);
// Creates every group above a data set once, without timestamps. Requires: calls in sorted name order, so the group
// order is deterministic.
void h5_groups(hid_t file, const std::string& name, std::set<std::string>& made);

}  // namespace gt
