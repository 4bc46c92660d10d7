#include "checkpoint/format/index_h5.h"

#include <unistd.h>

#include <cerrno>
#include <map>

#include "checkpoint/format/h5_make.h"
#include "checkpoint/store/vfs.h"

namespace gt {
namespace {

// A rectangle of a tensor and its position in a shard's data set.
struct Piece {
  std::string file;
  Box box;
  int64_t begin = 0, elements = 0;  // offset in the data set; size of the whole data set
  bool whole = false;               // the data set has the rectangle's shape
};

using Dims = std::vector<hsize_t>;

Dims dims_of(const Box& b, const std::array<int64_t, Shape::kMaxRank>& from) {
  Dims out;
  for (int d = 0; d < b.ndim; ++d) out.push_back(static_cast<hsize_t>(from[static_cast<size_t>(d)]));
  return out;
}

H5Id space_of(const Dims& dims, const std::string& what) {
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose, what};
}

void select(hid_t space, const Dims& at, const Dims& extent, const std::string& what) {
  h5_done(H5Sselect_hyperslab(space, H5S_SELECT_SET, at.data(), nullptr, extent.data(), nullptr), what);
}

void map_piece(hid_t props, hid_t whole, const Piece& p, const std::string& stored) {
  select(whole, dims_of(p.box, p.box.at), dims_of(p.box, p.box.extent), stored);
  const H5Id source = space_of(p.whole ? dims_of(p.box, p.box.extent) : Dims{static_cast<hsize_t>(p.elements)}, stored);
  if (!p.whole) select(source, {static_cast<hsize_t>(p.begin)}, {static_cast<hsize_t>(p.box.numel())}, stored);
  h5_done(H5Pset_virtual(props, whole, p.file.c_str(), stored.c_str(), source), stored);
}

void make_virtual(hid_t file, const std::string& name, const TensorEntry& t, const std::vector<Piece>& pieces) {
  const H5Id props(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "properties of " + name);
  h5_done(H5Pset_obj_track_times(props, false), name);
  if (t.dtype == DType::kF32 || t.dtype == DType::kBF16 || t.dtype == DType::kF16) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    h5_done(H5Pset_fill_value(props, H5T_NATIVE_FLOAT, &nan), name);
  }
  Dims dims;
  for (int d = 0; d < t.shape.rank; ++d) dims.push_back(static_cast<hsize_t>(t.shape[d]));
  const H5Id whole = space_of(dims, name), type = h5_type(t.dtype);
  for (const Piece& p : pieces) map_piece(props, whole, p, t.name);
  h5_done(H5Sselect_all(whole), name);
  const H5Id set(H5Dcreate2(file, name.c_str(), type, whole, H5P_DEFAULT, props, H5P_DEFAULT), H5Dclose, name);
}

// Rectangles of every tensor, in file order; those of one tensor in one shard are adjacent.
std::vector<std::vector<Piece>> pieces_by_tensor(const Manifest& m, const ShardRecords& records) {
  std::vector<std::vector<Piece>> out(m.tensors.size());
  for (size_t f = 0; f < records.size(); ++f) {
    std::map<uint32_t, std::vector<Piece>> here;
    for (const SliceRecord& r : records[f]) here[r.tensor].push_back({m.files[f].name, r.box});
    for (auto& [tensor, pieces] : here) {
      int64_t elements = 0;
      for (Piece& p : pieces) {
        p.begin = elements;
        elements += p.box.numel();
      }
      for (Piece& p : pieces) {
        p.elements = elements;
        p.whole = pieces.size() == 1;
        out[tensor].push_back(p);
      }
    }
  }
  return out;
}

// Link names in index.h5 and the tensor behind each, sorted.
std::map<std::string, size_t> names_of(const Manifest& m) {
  constexpr std::string_view kMaster = "master/";
  std::map<std::string, size_t> out;
  for (size_t t = 0; t < m.tensors.size(); ++t) {
    const std::string& name = m.tensors[t].name;
    out.emplace(name, t);
    if (name.rfind(kMaster, 0) == 0) out.emplace("model/" + name.substr(kMaster.size()), t);
  }
  return out;
}

}  // namespace

std::string index_h5(const Manifest& m, const ShardRecords& records, const std::string& fallback_dir) {
  const auto pieces = pieces_by_tensor(m, records);
  const auto names = names_of(m);
  int64_t need = int64_t{1} << 16;
  for (const auto& [name, t] : names) need += 4096 + 512 * static_cast<int64_t>(pieces[t].size());
  const H5Session session(2 * need);
  const H5TempFile temp(h5_temp_dir(need, fallback_dir));
  {
    const H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "file access");
    h5_done(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110), "version bounds");
    h5_done(H5Pset_file_locking(access, false, true), "locking");
    const H5Id create(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "file creation");
    h5_done(H5Pset_obj_track_times(create, false), "root times");
    H5Id file = temp.create(create, access);
    std::set<std::string> made;
    for (const auto& [name, t] : names) {
      h5_groups(file, name, made);
      make_virtual(file, name, m.tensors[t], pieces[t]);
    }
    file.close("closing of " + temp.path());
  }
  std::string bytes(static_cast<size_t>(::lseek(temp.fd(), 0, SEEK_END)), '\0');
  const ssize_t n = ::pread(temp.fd(), bytes.data(), bytes.size(), 0);
  if (n != static_cast<ssize_t>(bytes.size())) fail_io("read of " + temp.path(), n < 0 ? -errno : -EIO);
  return bytes;
}

}  // namespace gt
