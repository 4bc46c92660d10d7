#include "launch/ranks/rank_consistency.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/world.h"
#include "data/samples/dataset.h"
#include "data/tokens/index_store.h"
#include "kernels/backend.h"
#include "kernels/core/hash/sha256.h"
#include "kernels/core/host.h"
#include "kernels/core/json.h"
#include "launch/config/config.h"
#include "launch/options/version.h"
#include "launch/ranks/agree.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

constexpr size_t kShown = 5;  // traits per message

std::string words_of(const std::vector<Trait>& traits) {
  std::vector<std::string> words{host_name()};
  for (const Trait& t : traits) words.insert(words.end(), {t.name, t.value});
  return pack(words);
}

// Host of a rank and the value of each of its traits.
struct RankTraits {
  std::string host;
  std::map<std::string, std::string> value;
};
RankTraits read_words(const std::string& sent) {
  RankTraits out;
  const std::vector<std::string> words = unpack(sent);
  if (!words.empty()) out.host = words[0];
  for (size_t i = 1; i + 1 < words.size(); i += 2) out.value[words[i]] = words[i + 1];
  return out;
}

// Returns "a on node1 (ranks 0, 1), b on node2 (rank 2)"; "" if all ranks agree.
std::string difference(const std::vector<RankTraits>& ranks, const std::string& name) {
  std::vector<std::pair<std::string, std::vector<size_t>>> groups;  // "value on host" → ranks, in rank order
  std::vector<std::string> values;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto found = ranks[r].value.find(name);
    const std::string value = found == ranks[r].value.end() ? "nothing" : found->second;
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    const std::string key = value + " on " + ranks[r].host;
    auto at = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == key; });
    if (at == groups.end()) at = groups.insert(groups.end(), {key, {}});
    at->second.push_back(r);
  }
  if (values.size() < 2) return "";
  std::string out;
  for (const auto& [key, who] : groups)
    out += fmt::format("{}{} ({} {})", out.empty() ? "" : ", ", key, who.size() == 1 ? "rank" : "ranks",
                       fmt::join(who, ", "));
  return out;
}

// Returns the linker's build id of this program; "" if it has none.
std::string build_id() {
  std::string id;
  const auto on_object = [](dl_phdr_info* info, size_t, void* out) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr)& h = info->dlpi_phdr[i];
      if (h.p_type != PT_NOTE) continue;
      const auto *at = reinterpret_cast<const uint8_t*>(info->dlpi_addr + h.p_vaddr), *end = at + h.p_memsz;
      while (at + sizeof(ElfW(Nhdr)) <= end) {
        ElfW(Nhdr) note;
        std::memcpy(&note, at, sizeof note);
        const uint8_t* name = at + sizeof note;
        const uint8_t* text = name + (note.n_namesz + 3) / 4 * 4;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0)
          *static_cast<std::string*>(out) = to_hex(text, std::min<size_t>(note.n_descsz, 6));
        at = text + (note.n_descsz + 3) / 4 * 4;
      }
    }
    return 1;  // stop after the first entry, which is the program itself
  };
  dl_iterate_phdr(on_object, &id);
  return id;
}

}  // namespace

void require_consistent(ProcessGroup& world, const std::vector<Trait>& mine) {
  if (world.size() == 1) return;
  std::vector<std::string> all;
  for (const Trait& t : mine) all.insert(all.end(), {t.name, t.value});
  const std::string digest = sha256_hex(pack(all));
  const auto number = static_cast<int64_t>(std::stoull(digest.substr(0, 15), nullptr, 16));
  const auto [most, least] = max_over(world, std::array{number, -number});
  if (most == -least) return;
  std::vector<RankTraits> ranks;
  for (const std::string& sent : gather_bytes(world, words_of(mine))) ranks.push_back(read_words(sent));
  std::string text;
  size_t count = 0;
  for (const Trait& t : mine) {
    const std::string found = difference(ranks, t.name);
    if (!found.empty() && ++count <= kShown) text += fmt::format("\n  {}: {}; {}", t.name, found, t.remedy);
  }
  if (count > kShown) text += fmt::format("\n  and {} more", count - kShown);
  // different sets of traits: file or option names unknown to rank 0
  if (count == 0) text = "\n  rank 0 lacks a property that another rank has";
  throw AgreedError("ranks differ, so nothing was started:" + text, Exit::kUsage, world.rank() == 0);
}

void require_same_program(const Config& config, GroupFactory& factory) {
  if (factory.world_size() == 1) return;
  std::vector<int> everybody(static_cast<size_t>(factory.world_size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto world = factory.make(everybody);
  agree(*world, [&] { set_cpu_isa(config.device.isa); });
  require_consistent(*world, program_traits(config));
}

std::vector<Trait> program_traits(const Config& config) {
  const std::string id = build_id();
  std::vector<Trait> out{
      {"program", fmt::format("{} (git {}{}{})", program_version(), git_hash(), id.empty() ? "" : ", build ", id),
       "copy one build to all machines"},
      {"device.isa", cpu_isa(), "choose one that all processors have, such as --device.isa avx2"}};
  const auto options = parse_json<nlohmann::json>(config_json(config), "config", kOwnJson).flatten();
  for (const auto& [path, value] : options.items()) {
    std::string key = path.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    if (key.rfind("launch.", 0) == 0 || key.rfind("log.", 0) == 0 || key == "device.isa") continue;
    out.push_back({key, value.dump(), "use the same configuration on all ranks"});
  }
  return out;
}

std::vector<Trait> data_traits(const std::string& tokenizer_sha256, const Dataset& train, const Dataset* valid) {
  std::vector<Trait> out;
  if (!tokenizer_sha256.empty())
    out.push_back({"data.tokenizer", "sha256 " + tokenizer_sha256.substr(0, 12), "copy one file to all machines"});
  for (const Dataset* d : {&train, valid})
    for (const Dataset::Content& c : d != nullptr ? d->contents() : std::vector<Dataset::Content>())
      out.push_back({c.name, c.identity, "copy the files again, so that all machines have the same"});
  const std::string folder = default_cache_dir();
  out.push_back({"order of samples", fmt::format("{:016x}", train.order_hash()),
                 folder.empty() ? "the machines have different programs or lengths of sequences"
                                : "an index below " + folder + " may be stale: remove that folder"});
  return out;
}

}  // namespace gt
