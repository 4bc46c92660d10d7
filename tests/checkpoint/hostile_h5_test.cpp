// HDF5 files from an attacker or a careless program: none reaches libhdf5 in this process, each is rejected with its
// reason, and nothing outside the file is read.
#include <hdf5.h>

#include <filesystem>
#include <functional>

#include "checkpoint/weights/weights.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

// The gate's error for a file; "" when it is accepted.
std::string verdict(const std::string& path) {
  Vfs vfs;
  try {
    const auto f = open_h5(vfs, path);
    for (size_t k = 0; k < f->list().size(); ++k) f->read(k);
  } catch (const Error& e) { return cat(static_cast<int>(e.code()), ": ", e.what()); }
  return "";
}

hid_t new_file(const std::string& path) {
  const hid_t f = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  REQUIRE(f >= 0);
  return f;
}

// Adds a data set of six values of `type`; `change` may set its properties.
void put(
    hid_t file, const char* name, hid_t type = H5T_IEEE_F32LE,
    const std::function<void(hid_t props)>& change = [](hid_t) {}, std::vector<hsize_t> dims = {2, 3},
    bool write = true) {
  const hid_t props = H5Pcreate(H5P_DATASET_CREATE);
  change(props);
  const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
  const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, props, H5P_DEFAULT);
  REQUIRE(set >= 0);
  const std::vector<float> zeros(1024);
  if (write) H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
  H5Dclose(set);
  H5Sclose(space);
  H5Pclose(props);
}

void group(hid_t file, const std::string& name) {
  H5Gclose(H5Gcreate2(file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}

void check(const std::string& why, const std::function<void(hid_t file, const std::string& dir)>& fill) {
  const TempDir dir;
  const hid_t f = new_file(dir.path + "/x.h5");
  fill(f, dir.path);
  H5Fclose(f);
  const std::string message = verdict(dir.path + "/x.h5");
  INFO(message);
  if (why.empty()) {
    CHECK(message == "");
  } else {
    CHECK_THAT(message, Catch::StartsWith("65:"));
    CHECK_THAT(message, Catch::Contains(why));
  }
}

TEST_CASE("plain contiguous little-endian floats are accepted, in groups and with attributes", "[R21]") {
  check("", [](hid_t f, const std::string&) {
    put(f, "w");
    group(f, "model");
    put(f, "model/a.weight");
    put(f, "model/b", H5T_IEEE_F32LE, [](hid_t) {}, {7});
  });
}

TEST_CASE("more objects than a model has are refused before they are opened", "[R21]") {
  for (const std::string where : {"/", "/model"})
    check("more than 20000 objects", [&](hid_t f, const std::string&) {
      put(f, "w");
      if (where != "/") group(f, "model");
      for (int k = 0; k < 20001; ++k)
        H5Lcreate_hard(f, "/w", f, cat(where == "/" ? "" : where, "/w", k).c_str(), H5P_DEFAULT, H5P_DEFAULT);
    });
}

TEST_CASE("linked, external, virtual and non-contiguous data are refused", "[R21]") {
  check("its data is in another file", [](hid_t f, const std::string& dir) {
    spill(dir + "/secret", std::string(4096, 's'));
    put(f, "w", H5T_IEEE_F32LE, [&](hid_t p) { H5Pset_external(p, (dir + "/secret").c_str(), 0, 24); });
  });
  check("a soft or external link", [](hid_t f, const std::string& dir) {
    const hid_t other = new_file(dir + "/other.h5");
    put(other, "w");
    H5Fclose(other);
    H5Lcreate_external((dir + "/other.h5").c_str(), "/w", f, "w", H5P_DEFAULT, H5P_DEFAULT);
  });
  check("a soft or external link", [](hid_t f, const std::string&) {
    put(f, "w");
    H5Lcreate_soft("/w", f, "again", H5P_DEFAULT, H5P_DEFAULT);
  });
  check("a soft or external link", [](hid_t f, const std::string&) {  // to itself
    H5Lcreate_soft("/loop", f, "loop", H5P_DEFAULT, H5P_DEFAULT);
  });
  check("contiguous", [](hid_t f, const std::string& dir) {
    const hid_t other = new_file(dir + "/other.h5");
    put(other, "w");
    H5Fclose(other);
    put(
        f, "w", H5T_IEEE_F32LE,
        [&](hid_t p) {
          const hsize_t dims[2] = {2, 3};
          const hid_t space = H5Screate_simple(2, dims, nullptr);
          H5Pset_virtual(p, space, (dir + "/other.h5").c_str(), "/w", space);
          H5Sclose(space);
        },
        {2, 3}, false);
  });
  const hsize_t chunk[2] = {1, 3};
  check("contiguous",
        [&](hid_t f, const std::string&) { put(f, "w", H5T_IEEE_F32LE, [&](hid_t p) { H5Pset_chunk(p, 2, chunk); }); });
  check("contiguous", [&](hid_t f, const std::string&) {
    put(f, "w", H5T_IEEE_F32LE, [&](hid_t p) { H5Pset_chunk(p, 2, chunk), H5Pset_fletcher32(p); });
  });
  check("contiguous", [](hid_t f, const std::string&) {
    put(f, "w", H5T_IEEE_F32LE, [](hid_t p) { H5Pset_layout(p, H5D_COMPACT); });
  });
}

TEST_CASE("non-float types and impossible shapes are refused", "[R21]") {
  for (const hid_t type : {H5T_IEEE_F32BE, H5T_IEEE_F64LE, H5T_STD_I32LE, H5T_STD_I64BE, H5T_STD_U8LE})
    check("expected little-endian", [&](hid_t f, const std::string&) { put(f, "w", type); });
  check("expected little-endian", [](hid_t f, const std::string&) {
    const hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, H5T_VARIABLE);
    put(
        f, "w", text, [](hid_t) {}, {2}, false);
    H5Tclose(text);
  });
  check("expected little-endian", [](hid_t f, const std::string&) {
    const hid_t list = H5Tvlen_create(H5T_IEEE_F32LE);
    put(
        f, "w", list, [](hid_t) {}, {2}, false);
    H5Tclose(list);
  });
  check("expected little-endian", [](hid_t f, const std::string&) {
    const hid_t pair = H5Tcreate(H5T_COMPOUND, 8);
    H5Tinsert(pair, "x", 0, H5T_IEEE_F32LE);
    put(
        f, "w", pair, [](hid_t) {}, {2}, false);
    H5Tclose(pair);
  });
  check("expected little-endian", [](hid_t f, const std::string&) {
    put(
        f, "w", H5T_STD_REF_OBJ, [](hid_t) {}, {2}, false);
  });
  check("expected little-endian", [](hid_t f, const std::string&) {
    const hsize_t three = 3;
    const hid_t array = H5Tarray_create2(H5T_IEEE_F32LE, 1, &three);
    put(
        f, "w", array, [](hid_t) {}, {2}, false);
    H5Tclose(array);
  });
  check("of a file of", [](hid_t f, const std::string&) {  // never allocated: 2^42 values without storage
    put(
        f, "w", H5T_IEEE_F32LE, [](hid_t p) { H5Pset_alloc_time(p, H5D_ALLOC_TIME_LATE); },
        {hsize_t{1} << 21, hsize_t{1} << 21}, false);
  });
  check("expected at most 8 dimensions", [](hid_t f, const std::string&) {
    put(
        f, "w", H5T_IEEE_F32LE, [](hid_t) {}, std::vector<hsize_t>(9, 1));
  });
}

TEST_CASE("endless groups and invalid names are refused", "[R21]") {
  check("a group inside itself", [](hid_t f, const std::string&) {
    group(f, "a");
    H5Lcreate_hard(f, "/", f, "a/root", H5P_DEFAULT, H5P_DEFAULT);
  });
  check("a group inside itself", [](hid_t f, const std::string&) {  // reachable by two paths
    group(f, "a");
    H5Lcreate_hard(f, "/a", f, "b", H5P_DEFAULT, H5P_DEFAULT);
  });
  check("nested too deeply", [](hid_t f, const std::string&) {
    std::string path;
    for (int k = 0; k < 40; ++k) group(f, path += "/g");
  });
  check("control characters", [](hid_t f, const std::string&) { put(f, "a\tb"); });
  check("control characters", [](hid_t f, const std::string&) { put(f, std::string(600, 'n').c_str()); });
  check("neither a group nor a data set", [](hid_t f, const std::string&) {
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tcommit2(f, "type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Tclose(type);
  });
}

TEST_CASE("a link that leads nowhere, a folder and a file of another kind are not HDF5", "[R21]") {
  const TempDir dir;
  H5Fclose(new_file(dir.path + "/x.h5"));
  std::filesystem::create_symlink(dir.path + "/x.h5", dir.path + "/link.h5");
  CHECK(verdict(dir.path + "/link.h5").empty());
  std::filesystem::create_symlink(dir.path + "/gone.h5", dir.path + "/dangling.h5");
  CHECK_THAT(verdict(dir.path + "/dangling.h5"), Catch::StartsWith("2:") && Catch::Contains("which is not there"));
  CHECK_THAT(verdict(dir.path), Catch::StartsWith("65:"));
  spill(dir.path + "/text.h5", "hello");
  CHECK_THAT(verdict(dir.path + "/text.h5"), Catch::StartsWith("65:") && Catch::Contains("libhdf5 cannot open it"));
}

}  // namespace
}  // namespace gt::ckpt
