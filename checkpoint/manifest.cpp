#include "checkpoint/manifest.h"

#include <algorithm>
#include <set>

#include "checkpoint/state_json.h"
#include "kernels/core/sha256.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "gpttrain-checkpoint";
constexpr int kMajor = 1, kMaxDepth = 32;
constexpr int64_t kMaxWorld = 1 << 30;
constexpr std::string_view kSealBegin = ",\"sha256\":\"", kSealEnd = "\"}\n";
constexpr size_t kDigits = 64, kSeal = kSealBegin.size() + kDigits + kSealEnd.size();
static_assert(kSeal == 78);

// Refuses duplicate keys and deep nesting while parsing: nlohmann would keep the last of two equal keys.
Json parse_strict(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    GT_REQUIRE(depth <= kMaxDepth, Exit::kDamaged, "nested deeper than ", kMaxDepth);
    if (event == Json::parse_event_t::object_start)
      keys.emplace_back();
    else if (event == Json::parse_event_t::object_end)
      keys.pop_back();
    else if (event == Json::parse_event_t::key)
      GT_REQUIRE(keys.back().insert(value.get<std::string>()).second, Exit::kDamaged, "duplicate key \"",
                 value.get<std::string>(), "\"");
    return true;
  };
  return Json::parse(text, watch);
}

DType dtype_from(const std::string& name) {
  for (int k = 0; k <= static_cast<int>(DType::kByte); ++k)
    if (name == name_of(static_cast<DType>(k))) return static_cast<DType>(k);
  fail(Exit::kDamaged, "unknown dtype \"", name, "\"");
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
  GT_REQUIRE(j.is_array() && !j.empty() && j.size() <= Shape::kMaxRank, Exit::kDamaged, "shape ", j.dump());
  for (const Json& d : j) {
    const auto v = d.get<int64_t>();
    GT_REQUIRE(v >= 1 && v <= (int64_t{1} << 48) / n, Exit::kDamaged, "shape ", j.dump());
    n *= v;
    s.dim[static_cast<size_t>(s.rank++)] = v;
  }
  return s;
}

TensorEntry tensor_from(const Json& j, int files) {
  TensorEntry t;
  t.name = j.at("name").get<std::string>();
  t.dtype = dtype_from(j.at("dtype").get<std::string>());
  t.shape = shape_from(j.at("shape"));
  t.blocks = j.value("blocks", 1);
  for (const Json& run : j.at("files")) {
    t.files.emplace_back(run.at(0).get<int>(), run.at(1).get<int>());
    GT_REQUIRE(
        0 <= t.files.back().first && t.files.back().first <= t.files.back().second && t.files.back().second < files,
        Exit::kDamaged, t.name, ": files ", run.dump(), " of ", files);
  }
  return t;
}

// What files are said to hold can be added up.
void check_sizes(const Manifest& m) {
  int64_t room = int64_t{1} << 62;
  const auto take = [&](int64_t bytes, const std::string& name) {
    GT_REQUIRE(bytes >= 0 && bytes <= room, Exit::kDamaged, name, ": a file of ", bytes, " bytes");
    room -= bytes;
  };
  for (const ShardFile& f : m.files) take(f.bytes, f.name), take(f.idx_bytes, f.idx_name());
  for (const AuxEntry& a : m.aux) take(a.bytes, a.name);
}

void check_layout(const Manifest& m, const Json& j) {
  int64_t world = 1;
  for (const int n : {m.mesh.pp, m.mesh.dp, m.mesh.ep, m.mesh.cp, m.mesh.tp, m.vpp}) {
    GT_REQUIRE(n >= 1 && world <= kMaxWorld / n, Exit::kDamaged, "layout ", j.dump());
    world *= n;
  }
}

void read_lists(const Json& j, Manifest& m) {
  for (const Json& f : j.at("files")) {
    m.files.push_back({f.at("name").get<std::string>(), f.at("bytes").get<int64_t>(), f.at("idx_bytes").get<int64_t>(),
                       f.at("idx_sha256").get<std::string>(), f.value("sha256", "")});
    GT_REQUIRE(is_shard_name(m.files.back().name), Exit::kDamaged, "\"", m.files.back().name,
               "\" is no name of a shard");
  }
  for (const Json& a : j.at("aux")) {
    m.aux.push_back({a.at("name").get<std::string>(), a.at("bytes").get<int64_t>(), a.at("sha256").get<std::string>()});
    GT_REQUIRE(all_of(m.aux.back().name, "abcdefghijklmnopqrstuvwxyz0123456789._-") && m.aux.back().name[0] != '.',
               Exit::kDamaged, "\"", m.aux.back().name, "\" is no name of a file");
  }
  for (const Json& t : j.at("tensors")) {
    m.tensors.push_back(tensor_from(t, static_cast<int>(m.files.size())));
    const size_t n = m.tensors.size();
    GT_REQUIRE(n < 2 || m.tensors[n - 2].name < m.tensors[n - 1].name, Exit::kDamaged, "tensors are not sorted at ",
               m.tensors[n - 1].name);
  }
}

void read_ties(const Json& j, Manifest& m) {
  for (const Json& t : j) {
    m.ties.emplace_back(t.at(0).get<std::string>(), t.at(1).get<std::string>());
    const auto known = [&](const std::string& name) {
      return std::any_of(m.tensors.begin(), m.tensors.end(), [&](const TensorEntry& e) { return e.name == name; });
    };
    GT_REQUIRE(known(m.ties.back().second) && !known(m.ties.back().first), Exit::kDamaged, "tie ", t.dump(),
               ": expected a name without and one with a tensor");
  }
}

Manifest read_keys(const Json& j) {
  Manifest m;
  GT_REQUIRE(j.at("format") == kFormat, Exit::kDamaged, "format is ", j.at("format").dump(), ", expected \"", kFormat,
             "\"");
  m.major = j.at("version").at(0).get<int>();
  m.minor = j.at("version").at(1).get<int>();
  const Json& writer = j.at("writer");
  m.version = writer.value("version", "?");
  GT_REQUIRE(m.major <= kMajor, Exit::kUsage, "checkpoint format ", m.major, ".", m.minor, ", written by gpttrain ",
             m.version, "; this program reads formats up to ", kMajor, ".x: use a newer gpttrain");
  GT_REQUIRE(m.major >= 1 && m.minor >= 0, Exit::kDamaged, "format ", m.major, ".", m.minor, ", the first one is 1.0");
  m.git = writer.value("git", "");
  m.compiler = writer.value("compiler", "?");
  m.isa = writer.value("isa", "");
  m.device = writer.value("device", "?");
  m.uuid = uuid_from(j.at("uuid").get<std::string>());
  m.step = j.at("step").get<int64_t>();
  m.created = j.at("created").get<std::string>();
  const Json& l = j.at("layout");
  m.mesh = {.pp = l.at("pp").get<int>(),
            .dp = l.at("dp").get<int>(),
            .ep = l.at("ep").get<int>(),
            .cp = l.at("cp").get<int>(),
            .tp = l.at("tp").get<int>()};
  m.vpp = l.value("vpp", 1);
  m.zero = l.at("zero").get<int>();
  check_layout(m, l);
  read_lists(j, m);
  check_sizes(m);
  if (j.contains("ties")) read_ties(j.at("ties"), m);
  m.state = state_from(j.at("state"));
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
      {"layout", Json::parse(layout_json(m))},
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
  try {
    return read_keys(parse_strict(text));
  } catch (const Error& e) {
    throw Error(where + ": " + e.what(), e.code());
  } catch (const nlohmann::json::exception& e) { throw Error(where + ": " + e.what(), Exit::kDamaged); }
}

}  // namespace gt
