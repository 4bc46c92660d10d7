// Plain C API of libhdf5, with _exit on any anomaly: this process needs no cleanup.
#include "checkpoint/format/h5_walk.h"

#include <hdf5.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace gt {
namespace {

constexpr int kMaxDepth = 32;
// A shard holds tensors of a manifest (65,536 at most); a weight file holds those of one model.
constexpr size_t kShardObjects = 70000, kWeightObjects = 20000, kNumbers = 100000;

struct Walk {
  std::string out;  // lines, sent at the end
  std::set<haddr_t> groups;
  size_t objects = 0, most = kWeightObjects;
  int depth = 0;
  std::string path;
  bool attributes = false;  // of data sets: global_shape and rects
};

[[noreturn]] void refuse(const Walk& w, const std::string& name, const std::string& why) {
  const std::string line = "refused\t" + w.path + name + "\t" + why + "\n";
  if (::write(3, line.data(), line.size()) < 0) ::_exit(3);
  ::_exit(0);
}

bool plain_name(const std::string& s) {
  return !s.empty() && s.size() <= 512 &&
         std::all_of(s.begin(), s.end(), [](char c) { return static_cast<unsigned char>(c) > 32 && c != 127; });
}

std::string dtype_of(hid_t type) {
  if (H5Tequal(type, H5T_STD_I8LE) > 0) return "i8";
  if (H5Tget_class(type) != H5T_FLOAT || H5Tget_order(type) != H5T_ORDER_LE) return "";
  if (H5Tequal(type, H5T_IEEE_F32LE) > 0) return "f32";
  size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (H5Tget_size(type) != 2 || H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0 ||
      sign != 15 || mantissa != 0 || exponent != mantissa_bits)
    return "";
  const size_t bias = H5Tget_ebias(type);
  if (exponent_bits == 8 && mantissa_bits == 7 && bias == 127) return "bf16";
  return exponent_bits == 5 && mantissa_bits == 10 && bias == 15 ? "f16" : "";
}

// Prints "numbers\t<attribute>\t1\t2…" for the last data set; nothing when it has no such attribute.
void numbers(Walk& w, hid_t set, const char* attribute) {
  if (H5Aexists(set, attribute) <= 0) return;
  const hid_t a = H5Aopen(set, attribute, H5P_DEFAULT), type = H5Aget_type(a), space = H5Aget_space(a);
  const hssize_t n = H5Sget_simple_extent_npoints(space);
  if (a < 0 || H5Tequal(type, H5T_STD_I64LE) <= 0 || n < 0 || n > static_cast<hssize_t>(kNumbers))
    refuse(w, attribute, "expected at most 100,000 whole numbers of 64 bits");
  std::vector<int64_t> values(static_cast<size_t>(n));
  if (H5Aread(a, H5T_NATIVE_INT64, values.data()) < 0) refuse(w, attribute, "cannot be read");
  std::ostringstream line;
  line << "numbers\t" << attribute;
  for (const int64_t v : values) line << "\t" << v;
  w.out += line.str() + "\n";
  H5Sclose(space);
  H5Tclose(type);
  H5Aclose(a);
}

void data_set(Walk& w, hid_t parent, const char* name) {
  const hid_t set = H5Dopen2(parent, name, H5P_DEFAULT);
  if (set < 0) refuse(w, name, "a data set that cannot be opened");
  const hid_t props = H5Dget_create_plist(set), type = H5Dget_type(set), space = H5Dget_space(set);
  if (props < 0 || type < 0 || space < 0) refuse(w, name, "a data set without properties, type or extent");
  if (H5Pget_layout(props) != H5D_CONTIGUOUS)
    refuse(w, name, "expected contiguous layout (no chunks, no virtual data)");
  if (H5Pget_external_count(props) != 0) refuse(w, name, "its data is in another file");
  if (H5Pget_nfilters(props) != 0) refuse(w, name, "it is filtered");
  const std::string dtype = dtype_of(type);
  if (dtype.empty()) refuse(w, name, "expected little-endian f32, f16, bf16 or i8");
  hsize_t dims[H5S_MAX_RANK] = {};
  const int rank = H5Sget_simple_extent_dims(space, dims, nullptr);
  if (rank < 0 || rank > 8) refuse(w, name, "expected at most 8 dimensions");
  const haddr_t offset = H5Dget_offset(set);
  std::ostringstream line;
  line << "set\t" << w.path << name << "\t" << dtype << "\t"
       << (offset == HADDR_UNDEF ? -1 : static_cast<int64_t>(offset));
  for (int k = 0; k < rank; ++k) line << "\t" << dims[k];
  w.out += line.str() + "\n";
  if (w.attributes) numbers(w, set, "global_shape"), numbers(w, set, "rects");
  H5Sclose(space);
  H5Tclose(type);
  H5Pclose(props);
  H5Dclose(set);
}

// Checked before a group is walked: its own link count may already exceed the limit.
void require_few_links(const Walk& w, hid_t parent, const char* name) {
  H5G_info_t info;
  if (H5Gget_info_by_name(parent, name, &info, H5P_DEFAULT) < 0) refuse(w, name, "a group that cannot be read");
  if (info.nlinks > w.most) refuse(w, "", "more than " + std::to_string(w.most) + " objects");
}

herr_t visit(hid_t group, const char* name, const H5L_info_t* link, void* data) {
  Walk& w = *static_cast<Walk*>(data);
  if (++w.objects > w.most || w.out.size() > kH5OutputLimit / 2)
    refuse(w, "", "more than " + std::to_string(w.most) + " objects");
  if (!plain_name(name)) refuse(w, "", "a name that is empty, long or holds control characters");
  if (link->type != H5L_TYPE_HARD) refuse(w, name, "a soft or external link");
  H5O_info_t info;
  if (H5Oget_info_by_name(group, name, &info, H5P_DEFAULT) < 0) refuse(w, name, "an object that cannot be read");
  if (info.type == H5O_TYPE_DATASET) {
    data_set(w, group, name);
  } else if (info.type == H5O_TYPE_GROUP) {
    if (!w.groups.insert(info.addr).second) refuse(w, name, "a group inside itself");
    if (++w.depth > kMaxDepth) refuse(w, name, "groups nested too deeply");
    const std::string above = w.path;
    w.path += std::string(name) + "/";
    require_few_links(w, group, name);
    if (H5Literate_by_name(group, name, H5_INDEX_NAME, H5_ITER_INC, nullptr, visit, &w, H5P_DEFAULT) < 0)
      refuse(w, "", "a group that cannot be read");
    w.path = above;
    --w.depth;
  } else {
    refuse(w, name, "neither a group nor a data set");
  }
  return 0;
}

// Prints a short text attribute of the root as "note\tkey\tbytes\n<text>\n".
herr_t attribute(hid_t root, const char* name, const H5A_info_t*, void* data) {
  Walk& w = *static_cast<Walk*>(data);
  const hid_t a = H5Aopen(root, name, H5P_DEFAULT);
  if (a < 0) return -1;
  const hid_t type = H5Aget_type(a), space = H5Aget_space(a);
  if (plain_name(name) && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
      H5Sget_simple_extent_npoints(space) == 1 && H5Tget_size(type) <= kH5NoteLimit) {
    std::string text(H5Tget_size(type) + 1, '\0');
    if (H5Aread(a, type, text.data()) < 0) return -1;
    text.resize(std::strlen(text.c_str()));
    std::ostringstream line;
    line << "note\t" << name << "\t" << text.size() << "\n" << text << "\n";
    w.out += line.str();
  }
  H5Sclose(space);
  H5Tclose(type);
  H5Aclose(a);
  return w.out.size() > kH5OutputLimit / 2 ? -1 : 0;
}

void limit(int what, rlim_t value) {
  const rlimit r{value, value};
  ::setrlimit(static_cast<__rlimit_resource>(what), &r);
}

}  // namespace

void walk_h5(int file, int out, bool attributes) {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages;
  statm.close();
  ::dup2(out, 3);  // the file keeps its own descriptor; no other is needed
  if (file <= 3) ::_exit(3);
  limit(RLIMIT_CPU, kH5Seconds);
  limit(RLIMIT_AS, pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + (uint64_t{2} << 30));
  limit(RLIMIT_FSIZE, 0);  // files only: pipes are not limited
  limit(RLIMIT_CORE, 0);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5PLset_loading_state(0);
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_file_locking(access, false, true);
  Walk w;
  w.attributes = attributes;
  if (attributes) w.most = kShardObjects;
  const hid_t f = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  if (f < 0) refuse(w, "", "libhdf5 cannot open it");
  H5O_info_t root;
  if (H5Oget_info(f, &root) < 0) refuse(w, "", "libhdf5 cannot read its root");
  w.groups.insert(root.addr);
  hsize_t at = 0;
  if (H5Aiterate2(f, H5_INDEX_NAME, H5_ITER_INC, &at, attribute, &w) < 0)
    refuse(w, "", "root attributes cannot be read");
  require_few_links(w, f, "/");
  if (H5Literate(f, H5_INDEX_NAME, H5_ITER_INC, nullptr, visit, &w) < 0) refuse(w, "", "its groups cannot be read");
  w.out += "end\n";
  for (size_t done = 0; done < w.out.size();) {
    const ssize_t n = ::write(3, w.out.data() + done, w.out.size() - done);
    if (n < 0 && errno != EINTR) ::_exit(3);
    done += n < 0 ? 0 : static_cast<size_t>(n);
  }
  ::_exit(0);
}

}  // namespace gt
