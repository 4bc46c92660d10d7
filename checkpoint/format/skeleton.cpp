#include "checkpoint/format/skeleton.h"

#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "checkpoint/format/h5_make.h"
#include "checkpoint/store/vfs.h"

namespace gt {
namespace {

constexpr hsize_t kAlignment = 4096;

int64_t metadata_bytes(size_t sets) {
  int64_t n = int64_t{16} << 10;
  while (n < (int64_t{16} << 10) + (int64_t{1} << 10) * static_cast<int64_t>(sets)) n *= 2;
  return n;
}

void write_head(hid_t file, const ShardHead& head) {
  const int32_t version[2] = {1, 0}, rank = head.rank, part = head.part;
  h5_text(file, "format", "gpttrain-checkpoint");
  h5_attribute(file, "version", H5T_STD_I32LE, {2}, version);
  h5_attribute(file, "step", H5T_STD_I64LE, {}, &head.step);
  h5_text(file, "uuid", head.uuid);
  h5_attribute(file, "rank", H5T_STD_I32LE, {}, &rank);
  h5_attribute(file, "part", H5T_STD_I32LE, {}, &part);
  h5_text(file, "layout", head.layout);
}

int64_t make_set(hid_t file, const DataSet& d) {
  std::vector<hsize_t> dims;
  std::vector<int64_t> global, rects;
  if (d.boxes.size() == 1)
    for (int k = 0; k < d.boxes[0].ndim; ++k)
      dims.push_back(static_cast<hsize_t>(d.boxes[0].extent[static_cast<size_t>(k)]));
  int64_t n = 0;
  for (const Box& b : d.boxes) {
    n += b.numel();
    rects.insert(rects.end(), b.at.begin(), b.at.begin() + b.ndim);
    rects.insert(rects.end(), b.extent.begin(), b.extent.begin() + b.ndim);
  }
  if (d.boxes.size() > 1) dims.push_back(static_cast<hsize_t>(n));
  for (int k = 0; k < d.global.rank; ++k) global.push_back(d.global[k]);

  const H5Id props(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "properties of " + d.name);
  h5_done(H5Pset_obj_track_times(props, false), d.name);
  h5_done(H5Pset_layout(props, H5D_CONTIGUOUS), d.name);
  h5_done(H5Pset_alloc_time(props, H5D_ALLOC_TIME_EARLY), d.name);
  h5_done(H5Pset_fill_time(props, H5D_FILL_TIME_NEVER), d.name);
  const H5Id type = h5_type(d.dtype);
  const H5Id space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose, d.name);
  const H5Id set(H5Dcreate2(file, d.name.c_str(), type, space, H5P_DEFAULT, props, H5P_DEFAULT), H5Dclose,
                 "data set " + d.name);
  h5_attribute(set, "global_shape", H5T_STD_I64LE, {global.size()}, global.data());
  h5_attribute(set, "rects", H5T_STD_I64LE, {d.boxes.size(), 2 * global.size()}, rects.data());
  const haddr_t offset = H5Dget_offset(set);
  GT_REQUIRE(offset != HADDR_UNDEF && offset % kAlignment == 0, Exit::kIo, "libhdf5 put ", d.name, " at ", offset);
  return static_cast<int64_t>(offset);
}

void write_head(hid_t file, const TextAttributes& texts) {
  for (const auto& [name, text] : texts) h5_text(file, name.c_str(), text);
}

template <class Head>
std::vector<int64_t> lay_out(const H5TempFile& temp, const std::vector<DataSet>& sets, const Head& head) {
  const H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "file access");
  h5_done(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18), "version bounds");
  h5_done(H5Pset_alignment(access, 1, kAlignment), "alignment");
  h5_done(H5Pset_meta_block_size(access, static_cast<hsize_t>(metadata_bytes(sets.size()))), "metadata block");
  h5_done(H5Pset_file_locking(access, false, true), "locking");
  const H5Id create(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "file creation");
  h5_done(H5Pset_obj_track_times(create, false), "root times");
  H5Id file = temp.create(create, access);
  write_head(file, head);
  std::set<std::string> made;
  std::vector<int64_t> offsets;
  for (const DataSet& d : sets) {
    h5_groups(file, d.name, made);
    offsets.push_back(make_set(file, d));
  }
  file.close("closing of " + temp.path());
  return offsets;
}

// Data extents of the sparse file, minus the ranges of the data sets.
void read_metadata(const H5TempFile& temp, const std::vector<DataSet>& sets, Skeleton& out) {
  const int fd = temp.fd();
  out.file_bytes = ::lseek(fd, 0, SEEK_END);
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (size_t k = 0; k < sets.size(); ++k) {
    int64_t n = 0;
    for (const Box& b : sets[k].boxes) n += b.numel() * size_of(sets[k].dtype);
    taken.emplace_back(out.offsets[k], out.offsets[k] + n);
  }
  std::sort(taken.begin(), taken.end());
  taken.emplace_back(out.file_bytes, out.file_bytes);
  int64_t free_from = 0;
  for (const auto& [begin, end] : taken) {
    for (int64_t at = free_from; at < begin;) {
      at = ::lseek(fd, at, SEEK_DATA);
      if (at < 0 || at >= begin) break;  // ENXIO: only a hole is left
      const int64_t stop = std::min<int64_t>(begin, ::lseek(fd, at, SEEK_HOLE));
      std::string bytes(static_cast<size_t>(stop - at), '\0');
      const ssize_t n = ::pread(fd, bytes.data(), bytes.size(), at);
      if (n != stop - at) fail_io("read of " + temp.path(), n < 0 ? -errno : -EIO);
      out.metadata.emplace_back(at, std::move(bytes));
      at = stop;
    }
    free_from = std::max(free_from, end);
  }
}

template <class Head>
Skeleton skeleton_of(const std::vector<DataSet>& sets, const Head& head, const std::string& fallback_dir) {
  constexpr int64_t kMemoryOfByte = 8;  // measured: 7 to 9 kB of memory for a data set
  const H5Session session(kMemoryOfByte * metadata_bytes(sets.size()));
  const H5TempFile temp(h5_temp_dir(metadata_bytes(sets.size()), fallback_dir));
  Skeleton out;
  out.offsets = lay_out(temp, sets, head);
  read_metadata(temp, sets, out);
  return out;
}

}  // namespace

Skeleton make_skeleton(const std::vector<DataSet>& sets, const ShardHead& head, const std::string& fallback_dir) {
  return skeleton_of(sets, head, fallback_dir);
}

Skeleton make_skeleton(const std::vector<DataSet>& sets, const TextAttributes& texts, const std::string& fallback_dir) {
  return skeleton_of(sets, texts, fallback_dir);
}

}  // namespace gt
