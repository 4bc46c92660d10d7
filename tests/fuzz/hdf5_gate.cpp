// libhdf5 crashes on some damaged files: it must do so in its child process. The parent survives, and accepts only what
// lies within the file.
#include <hdf5.h>

#include <functional>

#include "checkpoint/format/h5_gate.h"
#include "checkpoint/weights/weights.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  static const ScratchFile file("weights.h5");
  file.put(input);
  Vfs vfs;
  std::unique_ptr<WeightFile> f;
  refused([&] { list_h5(file.path()); });
  if (refused([&] { f = open_h5(vfs, file.path()); })) return;
  GT_CHECK(f->note("no such note").empty());
  for (size_t k = 0; k < f->list().size(); ++k)
    refused([&] { GT_CHECK(4 * f->read(k).size() <= 4 * input.size(), "a tensor larger than its file"); });
}

std::string ours() {
  const ScratchFile file("seed.h5");
  Vfs vfs;
  const std::vector<OutTensor> tensors{{"a.weight", {2, 3}, DType::kF32}, {"b.weight", {4}, DType::kBF16}};
  write_h5(vfs, file.path(), tensors, {{"ties", "[]"}},
           [](size_t, int64_t, int64_t count) { return std::vector<float>(static_cast<size_t>(count), 1.5f); });
  return read_file(vfs, file.path(), 1 << 20);
}

// Returns the file that libhdf5 writes for `fill`.
std::string theirs(const std::function<void(hid_t file)>& fill) {
  const ScratchFile path("seed.h5");
  const hid_t f = H5Fcreate(path.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  fill(f);
  H5Fclose(f);
  Vfs vfs;
  return read_file(vfs, path.path(), 1 << 20);
}

// Writes a data set of zeros; `change` sets its creation properties, `mark` adds to it.
void put(
    hid_t file, const char* name, hid_t type = H5T_IEEE_F32LE,
    const std::function<void(hid_t props)>& change = [](hid_t) {},
    const std::function<void(hid_t set)>& mark = [](hid_t) {}) {
  const hsize_t dims[2] = {2, 3};
  const std::vector<char> zeros(64);
  const hid_t props = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(2, dims, nullptr);
  change(props);
  const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, props, H5P_DEFAULT);
  H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
  mark(set);
  H5Dclose(set);
  H5Sclose(space);
  H5Pclose(props);
}

void attribute(hid_t object, const char* name, hid_t type, hsize_t n) {
  const hid_t space = H5Screate_simple(1, &n, nullptr);
  const std::vector<char> values(64 * n, '1');
  const hid_t a = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(a, type, values.data());
  H5Aclose(a);
  H5Sclose(space);
}

// libhdf5 has no predefined IEEE 16-bit float type.
hid_t f16_type() {
  const hid_t t = H5Tcopy(H5T_IEEE_F32LE);
  H5Tset_fields(t, 15, 10, 5, 0, 10);
  H5Tset_size(t, 2);
  H5Tset_ebias(t, 15);
  return t;
}

void taken(hid_t f) {
  const hid_t text = H5Tcopy(H5T_C_S1), group = H5Gcreate2(f, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Tset_size(text, 9);
  attribute(f, "model", text, 1);
  put(
      group, "w", f16_type(), [](hid_t) {},
      [](hid_t set) {
        attribute(set, "global_shape", H5T_STD_I64LE, 2);
        attribute(set, "rects", H5T_STD_I64LE, 8);
      });
  put(group, "q", H5T_STD_I8LE);
  H5Gclose(group);
}

std::vector<std::string> seeds() {
  const hsize_t chunk[2] = {1, 3};
  return {ours(),
          theirs(taken),
          theirs([](hid_t f) { put(f, "w", H5T_IEEE_F32BE); }),
          theirs([](hid_t f) { put(f, "w", H5T_STD_I32LE); }),
          theirs([](hid_t f) { put(f, "a name", H5T_IEEE_F32LE); }),
          theirs([&](hid_t f) { put(f, "w", H5T_IEEE_F32LE, [&](hid_t p) { H5Pset_chunk(p, 2, chunk); }); }),
          theirs([](hid_t f) { put(f, "w", H5T_IEEE_F32LE, [](hid_t p) { H5Pset_external(p, "/dev/null", 0, 24); }); }),
          theirs([](hid_t f) {
            put(
                f, "w", H5T_IEEE_F32LE, [](hid_t) {}, [](hid_t set) { attribute(set, "rects", H5T_STD_I32LE, 4); });
          }),
          theirs([](hid_t f) { H5Lcreate_soft("/loop", f, "loop", H5P_DEFAULT, H5P_DEFAULT); }),
          theirs([](hid_t f) { H5Tcommit2(f, "a.type", f16_type(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT); }),
          theirs([](hid_t f) {  // a cycle: a group inside itself
            const hid_t group = H5Gcreate2(f, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
            H5Lcreate_hard(f, "/g", group, "again", H5P_DEFAULT, H5P_DEFAULT);
            H5Gclose(group);
          })};
}

}  // namespace

Target hdf5_gate() {
  return {"hdf5_gate", run, seeds, {"SNOD", "TREE", "HEAP", number_bytes(~0ull, 8), number_bytes(1ull << 60, 8)}, 250};
}

}  // namespace gt::fuzz
