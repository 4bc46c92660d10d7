#include "checkpoint/format/manifest.h"

#include <algorithm>

#include "checkpoint/format/state_json.h"
#include "kernels/core/hash/sha256.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "gpttrain-checkpoint";
constexpr int kMajor = 1, kMaxDepth = 32;
constexpr int64_t kMaxWorld = 1 << 30;
constexpr std::string_view kSealBegin = ",\"sha256\":\"", kSealEnd = "\"}\n";
constexpr size_t kDigits = 64, kSeal = kSealBegin.size() + kDigits + kSealEnd.size();
static_assert(kSeal == 78);

DType dtype_from(const std::string& name) {
  for (int k = 0; k <= static_cast<int>(DType::kByte); ++k)
    if (name == name_of(static_cast<DType>(k))) return static_cast<DType>(k);
  if (name == name_of(DType::kI8)) return DType::kI8;
  fail(Exit::kDamaged, "unknown dtype \"", name, "\"");
}

// Calls `take` with each value of a list; errors are prefixed with the value's location: "tensors.17: …".
template <class Take>
void each(const Json& j, const char* key, const Take& take) {
  const Json& list = member(j, key);
  GT_REQUIRE(list.is_array(), Exit::kDamaged, key, ": expected a list, found ", found_json(list));
  for (size_t k = 0; k < list.size(); ++k) {
    try {
      take(list[k]);
    } catch (const Error& e) { throw Error(cat(key, ".", k, ": ", e.what()), e.code()); }
  }
}

bool all_of(const std::string& s, const char* allowed) {
  return !s.empty() && s.find_first_not_of(allowed) == std::string::npos;
}

bool is_shard_name(const std::string& s) {
  const size_t end = s.size() < 3 ? 0 : s.size() - 3;
  if (end < 10 || s.compare(0, 5, "rank-") != 0 || s.substr(end) != ".h5") return false;
  std::string middle = s.substr(5, end - 5);
  if (middle.size() > 4 && middle[middle.size() - 4] == '.') {
    if (!all_of(middle.substr(middle.size() - 3), "0123456789")) return false;
    middle.resize(middle.size() - 4);
  }
  return middle.size() >= 5 && all_of(middle, "0123456789");
}

Json tensor_json(const TensorEntry& t) {
  Json shape = Json::array(), files = Json::array();
  for (int d = 0; d < t.shape.rank; ++d) shape.push_back(t.shape[d]);
  for (const auto& [first, last] : t.files) files.push_back({first, last});
  Json j{{"name", t.name}, {"dtype", name_of(t.dtype)}, {"shape", shape}};
  if (t.blocks > 1) j["blocks"] = t.blocks;
  j["files"] = files;
  return j;
}

Shape shape_from(const Json& j) {
  Shape s;
  int64_t n = 1;
  GT_REQUIRE(j.is_array() && !j.empty() && j.size() <= Shape::kMaxRank, Exit::kDamaged, "shape: expected 1 to ",
             Shape::kMaxRank, " dimensions, found ", found_json(j));
  for (size_t k = 0; k < j.size(); ++k) {
    const auto v = field<int64_t>(j, std::to_string(k));
    GT_REQUIRE(v >= 1 && v <= (int64_t{1} << 48) / n, Exit::kDamaged, "shape ", found_json(j));
    n *= v;
    s.dim[static_cast<size_t>(s.rank++)] = v;
  }
  return s;
}

TensorEntry tensor_from(const Json& j, int files) {
  TensorEntry t;
  t.name = field<std::string>(j, "name");
  t.dtype = dtype_from(field<std::string>(j, "dtype"));
  t.shape = shape_from(member(j, "shape"));
  t.blocks = field_or(j, "blocks", 1);
  each(j, "files", [&](const Json& run) {
    t.files.emplace_back(field<int>(run, "0"), field<int>(run, "1"));
    GT_REQUIRE(
        0 <= t.files.back().first && t.files.back().first <= t.files.back().second && t.files.back().second < files,
        Exit::kDamaged, t.name, ": files ", found_json(run), " of ", files);
  });
  return t;
}

// Checks that the declared file sizes can be summed without overflow.
void check_sizes(const Manifest& m) {
  int64_t remaining = int64_t{1} << 62;
  const auto take = [&](int64_t bytes, const std::string& name) {
    GT_REQUIRE(bytes >= 0 && bytes <= remaining, Exit::kDamaged, name, ": a file of ", bytes, " bytes");
    remaining -= bytes;
  };
  for (const ShardFile& f : m.files) take(f.bytes, f.name), take(f.idx_bytes, f.idx_name());
  for (const AuxEntry& a : m.aux) take(a.bytes, a.name);
}

void check_layout(const Manifest& m, const Json& j) {
  int64_t world = 1;
  for (const int n : {m.mesh.pp, m.mesh.dp, m.mesh.ep, m.mesh.cp, m.mesh.tp, m.vpp}) {
    GT_REQUIRE(n >= 1 && world <= kMaxWorld / n, Exit::kDamaged, "layout ", found_json(j));
    world *= n;
  }
}

void read_lists(const Json& j, Manifest& m) {
  each(j, "files", [&](const Json& f) {
    m.files.push_back({field<std::string>(f, "name"), field<int64_t>(f, "bytes"), field<int64_t>(f, "idx_bytes"),
                       field<std::string>(f, "idx_sha256"), field_or(f, "sha256", std::string())});
    GT_REQUIRE(is_shard_name(m.files.back().name), Exit::kDamaged, "\"", m.files.back().name,
               "\" is not the name of a shard");
  });
  each(j, "aux", [&](const Json& a) {
    m.aux.push_back({field<std::string>(a, "name"), field<int64_t>(a, "bytes"), field<std::string>(a, "sha256")});
    GT_REQUIRE(all_of(m.aux.back().name, "abcdefghijklmnopqrstuvwxyz0123456789._-") && m.aux.back().name[0] != '.',
               Exit::kDamaged, "\"", m.aux.back().name, "\" is not the name of a file");
  });
  each(j, "tensors", [&](const Json& t) {
    m.tensors.push_back(tensor_from(t, static_cast<int>(m.files.size())));
    const size_t n = m.tensors.size();
    GT_REQUIRE(n < 2 || m.tensors[n - 2].name < m.tensors[n - 1].name, Exit::kDamaged, "tensors are not sorted at ",
               m.tensors[n - 1].name);
  });
}

void read_ties(const Json& j, Manifest& m) {
  each(j, "ties", [&](const Json& t) {
    m.ties.emplace_back(field<std::string>(t, "0"), field<std::string>(t, "1"));
    const auto known = [&](const std::string& name) {
      const auto it = std::lower_bound(m.tensors.begin(), m.tensors.end(), name,
                                       [](const TensorEntry& e, const std::string& n) { return e.name < n; });
      return it != m.tensors.end() && it->name == name;
    };
    GT_REQUIRE(known(m.ties.back().second) && !known(m.ties.back().first), Exit::kDamaged,
               "expected a name without and one with a tensor, found ", found_json(t));
  });
}

Manifest read_keys(const Json& j) {
  Manifest m;
  GT_REQUIRE(field<std::string>(j, "format") == kFormat, Exit::kDamaged, "format: expected \"", kFormat, "\", found ",
             found_json(j["format"]));
  m.major = field<int>(j, "version.0");
  m.minor = field<int>(j, "version.1");
  const Json& writer = member(j, "writer");
  GT_REQUIRE(writer.is_object(), Exit::kDamaged, "writer: expected an object, found ", found_json(writer));
  const auto text_of = [&](const char* key, const char* otherwise) {
    return field_or(writer, key, std::string(otherwise));
  };
  m.version = text_of("version", "?");
  GT_REQUIRE(m.major <= kMajor, Exit::kUsage, "checkpoint format ", m.major, ".", m.minor, ", written by gpttrain ",
             m.version, "; this program reads formats up to ", kMajor, ".x: use a newer gpttrain");
  GT_REQUIRE(m.major >= 1 && m.minor >= 0, Exit::kDamaged, "format ", m.major, ".", m.minor, ", the first one is 1.0");
  m.git = text_of("git", "");
  m.compiler = text_of("compiler", "?");
  m.isa = text_of("isa", "");
  m.device = text_of("device", "?");
  m.uuid = uuid_from(field<std::string>(j, "uuid"));
  m.step = field<int64_t>(j, "step");
  m.created = field<std::string>(j, "created");
  m.mesh = {.pp = field<int>(j, "layout.pp"),
            .dp = field<int>(j, "layout.dp"),
            .ep = field<int>(j, "layout.ep"),
            .cp = field<int>(j, "layout.cp"),
            .tp = field<int>(j, "layout.tp")};
  m.vpp = field_or(j["layout"], "vpp", 1);
  m.zero = field<int>(j, "layout.zero");
  check_layout(m, j["layout"]);
  read_lists(j, m);
  check_sizes(m);
  if (j.contains("ties")) read_ties(j, m);
  try {
    m.state = state_from(member(j, "state"));
  } catch (const Error& e) { throw Error(cat("state: ", e.what()), e.code()); }
  GT_REQUIRE(m.state.step == m.step, Exit::kDamaged, "step ", m.step, " holds the state of step ", m.state.step);
  return m;
}

}  // namespace

std::string Manifest::layout() const {
  return cat("tp", mesh.tp, " pp", mesh.pp, vpp > 1 ? cat(" vpp", vpp) : "", " dp", mesh.dp, " zero", zero);
}

int64_t Manifest::bytes() const {
  int64_t n = 0;
  for (const ShardFile& f : files) n += f.bytes + f.idx_bytes;
  for (const AuxEntry& a : aux) n += a.bytes;
  return n;
}

std::string layout_json(const Manifest& m) {
  return Json{{"tp", m.mesh.tp}, {"pp", m.mesh.pp},         {"vpp", m.vpp},
              {"dp", m.mesh.dp}, {"cp", m.mesh.cp},         {"ep", m.mesh.ep},
              {"zero", m.zero},  {"world", m.mesh.world()}, {"order", "pp-dp-ep-cp-tp"}}
      .dump();
}

std::string to_text(const Manifest& m) {
  Json files = Json::array(), aux = Json::array(), tensors = Json::array(), ties = Json::array();
  for (const auto& [alias, stored] : m.ties) ties.push_back({alias, stored});
  for (const ShardFile& f : m.files) {
    files.push_back({{"name", f.name}, {"bytes", f.bytes}, {"idx_bytes", f.idx_bytes}, {"idx_sha256", f.idx_sha256}});
    if (!f.sha256.empty()) files.back()["sha256"] = f.sha256;
  }
  for (const AuxEntry& a : m.aux) aux.push_back({{"name", a.name}, {"bytes", a.bytes}, {"sha256", a.sha256}});
  for (const TensorEntry& t : m.tensors) tensors.push_back(tensor_json(t));
  const std::pair<const char*, Json> keys[] = {
      {"format", kFormat},
      {"version", Json::array({m.major, m.minor})},
      {"uuid", to_string(m.uuid)},
      {"step", m.step},
      {"created", m.created},
      {"writer",
       {{"version", m.version}, {"git", m.git}, {"compiler", m.compiler}, {"isa", m.isa}, {"device", m.device}}},
      {"layout", parse_json<Json>(layout_json(m), "layout", kOwnJson)},
      {"files", files},
      {"aux", aux},
      {"tensors", tensors},
      {"ties", ties},
      {"state", to_json(m.state)}};
  std::string out;
  for (const auto& [key, value] : keys) out += cat(out.empty() ? "{" : ",", Json(key).dump(), ":", value.dump(), "\n");
  return out + std::string(kSealBegin) + sha256_hex(out) + std::string(kSealEnd);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const size_t body = text.size() < kSeal ? 0 : text.size() - kSeal;
  const std::string_view seal = text.substr(body);
  GT_REQUIRE(seal.size() == kSeal && seal.substr(0, kSealBegin.size()) == kSealBegin &&
                 seal.substr(kSeal - kSealEnd.size()) == kSealEnd &&
                 seal.substr(kSealBegin.size(), kDigits) == sha256_hex(text.substr(0, body)),
             Exit::kDamaged, where, ": the hash in the last line does not match the ", body,
             " bytes before it: changed or truncated");
  const Json json = parse_json<Json>(
      text, where, {.code = Exit::kDamaged, .bytes = SIZE_MAX, .depth = kMaxDepth, .entries = kMostEntries});
  try {
    return read_keys(json);
  } catch (const Error& e) {
    throw Error(where + ": " + e.what(), e.code());
  } catch (const nlohmann::json::exception& e) { throw Error(where + ": " + no_json(e.what()), Exit::kDamaged); }
}

}  // namespace gt
