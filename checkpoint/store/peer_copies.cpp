#include "checkpoint/store/peer_copies.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "checkpoint/store/vfs.h"
#include "checkpoint/world.h"
#include "kernels/core/hash/state_hash.h"

namespace gt {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPrefix = "gpttrain-copies-";
constexpr int kTag = 7100;                         // of messages; no other message of the world group has it
constexpr size_t kPieceBytes = size_t{256} << 20;  // of a message
constexpr time_t kUnusedSeconds = 3600;            // longer than a supervisor waits for lost machines

uint64_t hash_of(std::span<const ShardView> views) {
  StateHash h;
  for (const ShardView& v : views) {
    for (const char c : v.name) h.add(static_cast<uint64_t>(c));
    h.add(static_cast<uint64_t>(v.begin)).add(static_cast<uint64_t>(v.data.numel()));
    h.add(static_cast<uint64_t>(v.data.dtype)).add(static_cast<uint64_t>(v.local.numel()));
  }
  return h.value();
}

// Owner and slot of a file of copies; owner -1: another file.
std::pair<int, int> owner_of(const fs::path& file) {
  int owner = -1, slot = -1, end = 0;
  const std::string name = file.filename().string();
  if (std::sscanf(name.c_str(), "rank-%d.%d%n", &owner, &slot, &end) != 2 || static_cast<size_t>(end) != name.size())
    return {-1, -1};
  return owner >= 0 && (slot == 0 || slot == 1) ? std::pair(owner, slot) : std::pair(-1, -1);
}

// Returns the folder's machine name, created by the first rank that reads it.
std::string machine_name(const std::string& folder, int rank) {
  const std::string path = folder + "/machine", mine = cat(path, ".", getpid(), ".", rank);
  std::random_device random;
  std::ofstream(mine) << random() << "-" << random() << "-" << random();
  const bool linked = link(mine.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const int error = errno;
  unlink(mine.c_str());
  if (!linked) fail_io("link of " + path, -error);
  return read_whole_file(path, 4096);
}

}  // namespace

struct PeerCopies::Kept {
  int owner;
  MemoryImage slots[2];
};

// Copies to restore: the same on every rank.
struct PeerCopies::Choice {
  int64_t step = -1;
  int slot = 0;
  std::vector<int> source;  // by rank: a rank whose machine has its copy; itself if its own has
};

std::string peer_copies_folder(const std::string& in, const std::string& job) { return in + "/" + kPrefix + job; }

void sweep_peer_copies(const std::string& in) {
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(in, ec)) {
    struct stat s {};
    if (e.path().filename().string().rfind(kPrefix, 0) != 0 || lstat(e.path().c_str(), &s) != 0) continue;
    if (!S_ISDIR(s.st_mode) || s.st_uid != geteuid()) continue;
    const Fd lock(open((e.path() / "lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (lock && fstat(lock.get(), &s) != 0) continue;
    if (std::time(nullptr) - s.st_mtime < kUnusedSeconds) continue;
    if (lock && flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    fs::remove_all(e.path(), ec);
  }
}

PeerCopies::PeerCopies(const PeerCopyOptions& options, const Mesh& mesh, const DeviceApi& api, Stream stream,
                       std::span<const ShardView> views)
    : options_(options),
      mesh_(mesh),
      api_(api),
      stream_(stream),
      folder_(peer_copies_folder(options.folder, options.job)) {
  all_or_none(mesh, [&] { open_folder(); });
  const std::string mine = pack({machine_, std::to_string(hash_of(views)), std::to_string(tensor_bytes(views))});
  StateHash layout;
  for (const int n : {mesh.shape().pp, mesh.shape().dp, mesh.shape().cp, mesh.shape().tp})
    layout.add(static_cast<uint64_t>(n));
  std::map<std::string, size_t> index;
  for (const std::string& rank : gather_bytes(mesh.world(), mine)) {
    const auto parts = unpack(rank);
    const size_t machine = index.try_emplace(parts[0], index.size()).first->second;
    if (machine == ranks_of_.size()) ranks_of_.emplace_back();
    ranks_of_[machine].push_back(static_cast<int>(bytes_.size()));
    layout.add(std::stoull(parts[1]));
    bytes_.push_back(std::stoll(parts[2]));
  }
  layout_ = layout.value();
  here_ = static_cast<int>(index.at(machine_));
  assign_holders();
  const bool first_here = ranks_of_[static_cast<size_t>(here_)].front() == mesh.rank();
  all_or_none(mesh, [&] {
    if (!first_here) return;
    sweep_peer_copies(options_.folder);
    if (!options_.restores) remove_files(true);
    require_memory();
  });
  all_or_none(mesh, [&] { allocate(); });
}

PeerCopies::~PeerCopies() = default;

void PeerCopies::open_folder() {
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) fail_io("creation of " + folder_, -errno);
  struct stat s {};
  GT_REQUIRE(lstat(folder_.c_str(), &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == geteuid() && (s.st_mode & 077) == 0,
             Exit::kUsage, folder_, ": not a folder of this user alone");
  const std::string lock = folder_ + "/lock";
  lock_ = Fd(open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_ || flock(lock_.get(), LOCK_SH | LOCK_NB) != 0) fail_io("lock of " + lock, -errno);
  if (futimens(lock_.get(), nullptr) != 0) fail_io("touch of " + lock, -errno);
  machine_ = machine_name(folder_, mesh_.rank());
}

// Distributes each machine's copies over the ranks of the machines after it.
void PeerCopies::assign_holders() {
  peers_ = std::min(options_.peers, static_cast<int>(ranks_of_.size()) - 1);
  holders_of_.resize(bytes_.size());
  std::vector<int64_t> needs(ranks_of_.size());
  for (size_t m = 0; m < ranks_of_.size(); ++m)
    for (size_t i = 0; i < ranks_of_[m].size(); ++i) {
      const auto owner = static_cast<size_t>(ranks_of_[m][i]);
      for (int k = 0; k <= peers_; ++k) {
        const size_t machine = (m + static_cast<size_t>(k)) % ranks_of_.size();
        needs[machine] += 2 * MemoryImage::file_bytes(bytes_[owner]);
        if (k > 0) holders_of_[owner].push_back(ranks_of_[machine][i % ranks_of_[machine].size()]);
      }
    }
  bytes_of_machine_ = *std::max_element(needs.begin(), needs.end());
}

bool PeerCopies::keeps_here(int owner) const {
  const auto& here = ranks_of_[static_cast<size_t>(here_)];
  const auto is_here = [&](int rank) { return std::find(here.begin(), here.end(), rank) != here.end(); };
  if (owner >= static_cast<int>(bytes_.size())) return false;
  const auto& holders = holders_of_[static_cast<size_t>(owner)];
  return is_here(owner) || std::any_of(holders.begin(), holders.end(), is_here);
}

void PeerCopies::require_memory() const {
  if (options_.memory_free < 0) return;
  int64_t needed = 0;
  for (int owner = 0; owner < static_cast<int>(bytes_.size()); ++owner)
    for (int slot = 0; slot < 2 && keeps_here(owner); ++slot) {
      std::error_code ec;
      const auto there = fs::file_size(path_of(owner, slot), ec);
      const int64_t whole = MemoryImage::file_bytes(bytes_[static_cast<size_t>(owner)]);
      if (ec || static_cast<int64_t>(there) != whole) needed += whole;
    }
  GT_REQUIRE(needed <= options_.memory_free, Exit::kUsage, "copies of the run's state take ", needed,
             " bytes of this machine's memory, but ", options_.memory_free,
             " are free; use more machines, or fault.peer_copies 0");
}

void PeerCopies::allocate() {
  const auto keep = [&](int owner) {
    const int64_t bytes = bytes_[static_cast<size_t>(owner)];
    kept_.push_back(std::make_unique<Kept>(
        Kept{owner, {MemoryImage(path_of(owner, 0), bytes), MemoryImage(path_of(owner, 1), bytes)}}));
  };
  try {
    keep(mesh_.rank());
    for (size_t owner = 0; owner < holders_of_.size(); ++owner)
      for (const int holder : holders_of_[owner])
        if (holder == mesh_.rank()) keep(static_cast<int>(owner));
  } catch (const IoError& e) {
    if (e.errno_value() != ENOSPC) throw;
    fail(Exit::kUsage, "copies of the run's state do not fit ", options_.folder, ": ", e.what(),
         "; raise its size (mount -o remount,size=…), or use fault.peer_copies 0");
  }
}

std::string PeerCopies::path_of(int owner, int slot) const { return cat(folder_, "/rank-", owner, ".", slot); }

void PeerCopies::exchange(const std::vector<Parcel>& to, const std::vector<Parcel>& from) {
  std::vector<Work> works;
  const auto in_chunks = [](std::span<std::byte> bytes, const auto& call) {
    for (size_t at = 0; at < bytes.size(); at += kPieceBytes) {
      const auto n = static_cast<int64_t>(std::min(kPieceBytes, bytes.size() - at));
      call(Tensor{bytes.data() + at, {n}, DType::kByte, {}});
    }
  };
  for (const auto& [rank, bytes] : from)
    in_chunks(bytes, [&, rank = rank](const Tensor& t) { works.push_back(mesh_.world().recv(t, rank, kTag, {})); });
  for (const auto& [rank, bytes] : to)
    in_chunks(bytes, [&, rank = rank](const Tensor& t) { works.push_back(mesh_.world().send(t, rank, kTag, {})); });
  for (Work& w : works) w.wait({});
}

void PeerCopies::keep(const TrainState& state, std::span<const ShardView> views) {
  const auto slot = static_cast<size_t>(slot_);
  const int rank = mesh_.rank();
  MemoryImage& own = kept_.front()->slots[slot];
  ImageHeader h{.layout = layout_, .version = {options_.attempt, sequence_}, .step = state.step, .rank = rank};
  own.write(h, state, views, api_, stream_);
  std::vector<Parcel> content_to, header_to, content_from, header_from;
  for (const int holder : holders_of_[static_cast<size_t>(rank)]) {
    content_to.emplace_back(holder, own.content());
    header_to.emplace_back(holder, own.header());
  }
  for (size_t k = 1; k < kept_.size(); ++k) {
    MemoryImage& image = kept_[k]->slots[slot];
    image.mark_incomplete();
    content_from.emplace_back(kept_[k]->owner, image.content());
    header_from.emplace_back(kept_[k]->owner, image.header());
  }
  exchange(content_to, content_from);
  exchange(header_to, header_from);
  // Every rank is past restore(): a step has run since.
  if (sequence_ == 0 && ranks_of_[static_cast<size_t>(here_)].front() == rank) remove_files(false);
  slot_ = 1 - slot_;
  ++sequence_;
}

PeerCopies::Choice PeerCopies::choose(int64_t newer_than) const {
  struct StoredImage {
    ImageHeader header;
    int64_t slot;
  };
  std::string mine(reinterpret_cast<const char*>(&newer_than), sizeof newer_than);
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(folder_, ec)) {
    const auto [owner, slot] = owner_of(e.path());
    const auto header = owner < 0 ? std::nullopt : MemoryImage::read_header(e.path().string());
    if (!header || header->layout != layout_ || header->rank != owner) continue;
    const StoredImage stored{*header, slot};
    mine.append(reinterpret_cast<const char*>(&stored), sizeof stored);
  }
  std::map<std::pair<ImageVersion, int64_t>, Choice> found;  // by version and slot
  const auto all = gather_bytes(mesh_.world(), mine);
  std::memcpy(&newer_than, all[0].data(), sizeof newer_than);
  for (int reader = 0; reader < static_cast<int>(all.size()); ++reader) {
    const std::string& text = all[static_cast<size_t>(reader)];
    for (size_t at = sizeof newer_than; at + sizeof(StoredImage) <= text.size(); at += sizeof(StoredImage)) {
      StoredImage stored;
      std::memcpy(&stored, text.data() + at, sizeof stored);
      const ImageHeader& h = stored.header;
      if (h.step <= newer_than || h.rank >= static_cast<int>(bytes_.size())) continue;
      Choice& c = found[{h.version, stored.slot}];
      c.step = h.step, c.slot = static_cast<int>(stored.slot);
      c.source.resize(bytes_.size(), -1);
      int& source = c.source[static_cast<size_t>(h.rank)];
      if (source < 0 || reader == h.rank) source = reader;
    }
  }
  for (auto c = found.rbegin(); c != found.rend(); ++c)
    if (std::find(c->second.source.begin(), c->second.source.end(), -1) == c->second.source.end()) return c->second;
  return {};
}

// Brings the copies of ranks whose machine lacks them, from the lowest rank on.
void PeerCopies::fetch(const Choice& c) {
  for (int owner = 0; owner < static_cast<int>(c.source.size()); ++owner) {
    const int source = c.source[static_cast<size_t>(owner)];
    if (source == owner) continue;
    if (mesh_.rank() == source) {
      const MemoryImage image(path_of(owner, c.slot), bytes_[static_cast<size_t>(owner)]);
      exchange({{owner, image.content()}}, {});
      exchange({{owner, image.header()}}, {});
    } else if (mesh_.rank() == owner) {
      MemoryImage& image = kept_.front()->slots[c.slot];
      image.mark_incomplete();
      exchange({}, {{source, image.content()}});
      exchange({}, {{source, image.header()}});
    }
  }
}

std::optional<PeerCopies::Restored> PeerCopies::restore(int64_t newer_than, std::span<const ShardView> views) {
  const Choice c = choose(newer_than);
  if (c.step < 0) return std::nullopt;
  fetch(c);
  Restored out;
  all_or_none(mesh_, [&] { out.state = kept_.front()->slots[c.slot].read(views, api_, stream_); });
  int moved = 0;
  for (size_t owner = 0; owner < c.source.size(); ++owner) moved += c.source[owner] != static_cast<int>(owner);
  out.from = cat("copies in memory, ", moved, " of ", c.source.size(), " from other machines");
  slot_ = 1 - c.slot;
  return out;
}

// Deletes copies: `all`, or those of owners that no rank of this machine keeps copies of.
void PeerCopies::remove_files(bool all) const {
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(folder_, ec))
    if (const int owner = owner_of(e.path()).first; owner >= 0 && (all || !keeps_here(owner))) fs::remove(e.path(), ec);
}

void PeerCopies::discard() {
  std::error_code ec;
  fs::remove_all(folder_, ec);
}

}  // namespace gt
