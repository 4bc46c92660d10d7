#include "checkpoint/format/h5_make.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "checkpoint/store/vfs.h"
#include "kernels/core/owned_file.h"

namespace gt {
namespace {
std::mutex one_at_a_time;
constexpr const char* kMemory = "/dev/shm";
}  // namespace

H5Id::H5Id(hid_t id, herr_t (*close)(hid_t), const std::string& what) : id_(id), close_(close) {
  GT_REQUIRE(id >= 0, Exit::kIo, "libhdf5 failed: ", what);
}

void H5Id::close(const std::string& what) {
  const hid_t id = id_;
  id_ = -1;
  GT_REQUIRE(close_(id) >= 0, Exit::kIo, "libhdf5 failed: ", what);
}

void h5_done(herr_t r, const std::string& what) { GT_REQUIRE(r >= 0, Exit::kIo, "libhdf5 failed: ", what); }

H5Session::H5Session(int64_t need) : lock_(one_at_a_time) {
  constexpr int64_t kOfLibrary = int64_t{2} << 20;  // its tables and caches
  void* const reserve = ::operator new(static_cast<size_t>(kOfLibrary + need));
  *static_cast<volatile char*>(reserve) = 0;  // the pair may not be left out by the compiler
  ::operator delete(reserve);
  // libhdf5 would flush a file that could not be closed (a full disk) again at exit, and crash (h5py#914). Every file
  // is closed here, so its exit handler is disabled.
  static const bool quiet_exit = H5dont_atexit() >= 0;
  static_cast<void>(quiet_exit);
  h5_done(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), "error stack");
}

H5TempFile::H5TempFile(const std::string& dir) {
  if (dir == kMemory) {
    OwnedFile file = create_owned_file(dir);
    path_ = file.path, fd_ = std::move(file.fd);
  } else {
    path_ = cat(dir, "/gpttrain-", ::getpid(), "-XXXXXX");
    fd_ = Fd(::mkostemp(path_.data(), O_CLOEXEC));
  }
  if (!fd_) fail_io("creation of a temporary file in " + dir, -errno);
}

H5TempFile::~H5TempFile() { ::unlink(path_.c_str()); }

H5Id H5TempFile::create(hid_t properties, hid_t access) const {
  const hid_t file = H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, properties, access);
  ::unlink(path_.c_str());
  return {file, H5Fclose, "creation of " + path_};
}

std::string h5_temp_dir(int64_t need, const std::string& fallback) {
  const std::string shm = kMemory;
  struct statvfs s {};
  const bool fits = ::access(shm.c_str(), W_OK) == 0 && ::statvfs(shm.c_str(), &s) == 0 &&
                    static_cast<int64_t>(s.f_bavail * s.f_frsize) > 16 * need;
  return fits ? shm : fallback;
}

H5Id h5_type(DType t) {
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
  H5Id type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "type");  // narrowed to two bytes: sign, exponent, mantissa
  const bool bf16 = t == DType::kBF16;
  h5_done(bf16 ? H5Tset_fields(type, 15, 7, 8, 0, 7) : H5Tset_fields(type, 15, 10, 5, 0, 10),
          "fields of a 2-byte float");
  h5_done(H5Tset_size(type, 2), "size of a 2-byte float");
  h5_done(H5Tset_ebias(type, bf16 ? 127 : 15), "exponent bias of a 2-byte float");
  return {H5Tcopy(type), H5Tclose, "type"};
}

void h5_attribute(hid_t at, const char* name, hid_t type, const std::vector<hsize_t>& dims, const void* data) {
  const H5Id space(
      dims.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
      H5Sclose, name);
  const H5Id a(H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, name);
  h5_done(H5Awrite(a, type, data), name);
}

void h5_text(hid_t at, const char* name, const std::string& text) {
  const H5Id type(H5Tcopy(H5T_C_S1), H5Tclose, name);
  h5_done(H5Tset_size(type, std::max<size_t>(1, text.size())), name);
  h5_attribute(at, name, type, {}, text.c_str());
}

void h5_groups(hid_t file, const std::string& name, std::set<std::string>& made) {
  const H5Id props(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "group properties");
  h5_done(H5Pset_obj_track_times(props, false), "group times");
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
    if (made.insert(name.substr(0, slash)).second)
      H5Id(H5Gcreate2(file, name.substr(0, slash).c_str(), H5P_DEFAULT, props, H5P_DEFAULT), H5Gclose,
           "group " + name.substr(0, slash));
}

}  // namespace gt
