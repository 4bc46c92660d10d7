#include "checkpoint/skeleton.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>

#include "checkpoint/vfs.h"

namespace gt {
namespace {

constexpr hsize_t kAlignment = 4096;

// Owns one HDF5 identifier.
class Id {
 public:
  Id(hid_t id, herr_t (*close)(hid_t), const std::string& what) : id_(id), close_(close) {
    GT_REQUIRE(id >= 0, Exit::kIo, "libhdf5 failed: ", what);
  }
  ~Id() {
    if (id_ >= 0) close_(id_);
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  operator hid_t() const { return id_; }  // NOLINT: handed to C functions
  void close(const std::string& what) {
    const hid_t id = id_;
    id_ = -1;
    GT_REQUIRE(close_(id) >= 0, Exit::kIo, "libhdf5 failed: ", what);
  }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

void done(herr_t r, const std::string& what) { GT_REQUIRE(r >= 0, Exit::kIo, "libhdf5 failed: ", what); }

struct TempFile {  // named after its maker: what a killed one leaves behind can be told from the living
  explicit TempFile(const std::string& dir) : path(dir + "/gpttrain-" + std::to_string(::getpid()) + "-XXXXXX") {
    const int fd = ::mkstemp(path.data());
    if (fd < 0) fail_io("creation of a temporary file in " + dir, -errno);
    ::close(fd);
  }
  ~TempFile() { ::unlink(path.c_str()); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  std::string path;
};

int64_t metadata_bytes(size_t sets) {
  int64_t n = int64_t{16} << 10;
  while (n < (int64_t{16} << 10) + (int64_t{1} << 10) * static_cast<int64_t>(sets)) n *= 2;
  return n;
}

// A file of which only metadata is ever touched needs little room; a full disk inside libhdf5 is what must not happen.
std::string choose_dir(int64_t need, const std::string& fallback) {
  const std::string shm = "/dev/shm";
  struct statvfs s {};
  const bool fits = ::access(shm.c_str(), W_OK) == 0 && ::statvfs(shm.c_str(), &s) == 0 &&
                    static_cast<int64_t>(s.f_bavail * s.f_frsize) > 16 * need;
  return fits ? shm : fallback;
}

Id file_type(DType t) {
  switch (t) {
    case DType::kF32: return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "type"};
    case DType::kI32: return {H5Tcopy(H5T_STD_I32LE), H5Tclose, "type"};
    case DType::kU16: return {H5Tcopy(H5T_STD_U16LE), H5Tclose, "type"};
    case DType::kByte: return {H5Tcopy(H5T_STD_U8LE), H5Tclose, "type"};
    case DType::kI8: return {H5Tcopy(H5T_STD_I8LE), H5Tclose, "type"};
    case DType::kBF16:
    case DType::kF16: break;
    default: fail(Exit::kInternal, "checkpoints do not store ", name_of(t));
  }
  Id type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "type");  // narrowed to two bytes: sign, exponent, mantissa
  const bool bf16 = t == DType::kBF16;
  done(bf16 ? H5Tset_fields(type, 15, 7, 8, 0, 7) : H5Tset_fields(type, 15, 10, 5, 0, 10), "fields of a 2-byte float");
  done(H5Tset_size(type, 2), "size of a 2-byte float");
  done(H5Tset_ebias(type, bf16 ? 127 : 15), "exponent bias of a 2-byte float");
  return {H5Tcopy(type), H5Tclose, "type"};
}

void attribute(hid_t at, const char* name, hid_t type, const std::vector<hsize_t>& dims, const void* data) {
  const Id space(
      dims.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
      H5Sclose, name);
  const Id a(H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, name);
  done(H5Awrite(a, type, data), name);
}

void text_attribute(hid_t at, const char* name, const std::string& text) {
  const Id type(H5Tcopy(H5T_C_S1), H5Tclose, name);
  done(H5Tset_size(type, std::max<size_t>(1, text.size())), name);
  attribute(at, name, type, {}, text.c_str());
}

void write_head(hid_t file, const ShardHead& head) {
  const int32_t version[2] = {1, 0}, rank = head.rank, part = head.part;
  text_attribute(file, "format", "gpttrain-checkpoint");
  attribute(file, "version", H5T_STD_I32LE, {2}, version);
  attribute(file, "step", H5T_STD_I64LE, {}, &head.step);
  text_attribute(file, "uuid", head.uuid);
  attribute(file, "rank", H5T_STD_I32LE, {}, &rank);
  attribute(file, "part", H5T_STD_I32LE, {}, &part);
  text_attribute(file, "layout", head.layout);
}

// Every group above a data set, once, without times. Names come sorted, so the order is always the same.
void make_groups(hid_t file, const std::string& name, std::set<std::string>& made) {
  const Id props(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "group properties");
  done(H5Pset_obj_track_times(props, false), "group times");
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
    if (made.insert(name.substr(0, slash)).second)
      Id(H5Gcreate2(file, name.substr(0, slash).c_str(), H5P_DEFAULT, props, H5P_DEFAULT), H5Gclose,
         "group " + name.substr(0, slash));
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

  const Id props(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "properties of " + d.name);
  done(H5Pset_obj_track_times(props, false), d.name);
  done(H5Pset_layout(props, H5D_CONTIGUOUS), d.name);
  done(H5Pset_alloc_time(props, H5D_ALLOC_TIME_EARLY), d.name);
  done(H5Pset_fill_time(props, H5D_FILL_TIME_NEVER), d.name);
  const Id type = file_type(d.dtype);
  const Id space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose, d.name);
  const Id set(H5Dcreate2(file, d.name.c_str(), type, space, H5P_DEFAULT, props, H5P_DEFAULT), H5Dclose,
               "data set " + d.name);
  attribute(set, "global_shape", H5T_STD_I64LE, {global.size()}, global.data());
  attribute(set, "rects", H5T_STD_I64LE, {d.boxes.size(), 2 * global.size()}, rects.data());
  const haddr_t offset = H5Dget_offset(set);
  GT_REQUIRE(offset != HADDR_UNDEF && offset % kAlignment == 0, Exit::kIo, "libhdf5 put ", d.name, " at ", offset);
  return static_cast<int64_t>(offset);
}

void write_head(hid_t file, const TextAttributes& texts) {
  for (const auto& [name, text] : texts) text_attribute(file, name.c_str(), text);
}

template <class Head>
std::vector<int64_t> lay_out(const std::string& path, const std::vector<DataSet>& sets, const Head& head) {
  const Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "file access");
  done(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18), "version bounds");
  done(H5Pset_alignment(access, 1, kAlignment), "alignment");
  done(H5Pset_meta_block_size(access, static_cast<hsize_t>(metadata_bytes(sets.size()))), "metadata block");
  done(H5Pset_file_locking(access, false, true), "locking");
  const Id create(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "file creation");
  done(H5Pset_obj_track_times(create, false), "root times");
  Id file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, create, access), H5Fclose, "creation of " + path);
  write_head(file, head);
  std::set<std::string> made;
  std::vector<int64_t> offsets;
  for (const DataSet& d : sets) {
    make_groups(file, d.name, made);
    offsets.push_back(make_set(file, d));
  }
  file.close("closing of " + path);
  return offsets;
}

// Data extents of the sparse file, less the places of the data sets.
void read_metadata(const std::string& path, const std::vector<DataSet>& sets, Skeleton& out) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_io("opening of " + path, -errno);
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } close_it{fd};
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
      if (n != stop - at) fail_io("read of " + path, n < 0 ? -errno : -EIO);
      out.metadata.emplace_back(at, std::move(bytes));
      at = stop;
    }
    free_from = std::max(free_from, end);
  }
}

std::mutex one_at_a_time;  // Debian's libhdf5 is not thread-safe, and ranks may be threads

template <class Head>
Skeleton skeleton_of(const std::vector<DataSet>& sets, const Head& head, const std::string& fallback_dir) {
  const std::lock_guard lock(one_at_a_time);
  // A file that could not be closed (a full disk) would be flushed again at exit, and libhdf5 dies of that (h5py#914).
  // Nothing is left to it: every file is closed here.
  static const bool quiet_exit = H5dont_atexit() >= 0;
  static_cast<void>(quiet_exit);
  done(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), "error stack");
  const TempFile temp(choose_dir(metadata_bytes(sets.size()), fallback_dir));
  Skeleton out;
  out.offsets = lay_out(temp.path, sets, head);
  read_metadata(temp.path, sets, out);
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
