#include <cstring>
#include <filesystem>

#include "checkpoint/save.h"
#include "checkpoint/shard_reader.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/steps.h"
#include "checkpoint/world.h"
#include "kernels/core/sha256.h"

namespace gt {
namespace {

constexpr int64_t kAuxLimit = int64_t{64} << 20;

// SHA-256(run uuid, step, attempt), first 16 bytes, marked as a version 8 UUID.
Uuid attempt_uuid(const std::string& run_uuid, int64_t step, uint32_t attempt) {
  Sha256 h;
  h.update(run_uuid);
  h.update(&step, sizeof step);
  h.update(&attempt, sizeof attempt);
  const auto digest = h.finish();
  Uuid u{};
  std::copy(digest.begin(), digest.begin() + u.size(), u.begin());
  u[6] = static_cast<uint8_t>((u[6] & 0x0f) | 0x80);
  u[8] = static_cast<uint8_t>((u[8] & 0x3f) | 0x80);
  return u;
}

// What a rank tells the others of a tensor.
struct Row {
  int64_t dtype, blocks, stored, rank;
  std::array<int64_t, Shape::kMaxRank> dim;
};

}  // namespace

std::byte* Staging::room(int64_t bytes) {
  if (bytes > size_) {
    free();  // before the larger one, so that never both exist
    data_ = static_cast<std::byte*>(api_.alloc_host(bytes));
    size_ = bytes;
  }
  return data_;
}

void Staging::free() {
  if (data_ != nullptr) api_.free_host(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

SaveAttempt::SaveAttempt(Vfs& vfs, const std::string& dir, const TrainState& state, const SaveOptions& options,
                         const Mesh& mesh, const DeviceApi& api, Stream stream)
    : vfs_(vfs), dir_(dir), options_(options), mesh_(mesh), api_(api), stream_(stream) {
  m_.step = state.step;
  m_.state = state;
  m_.mesh = mesh.shape();
  m_.vpp = options.vpp;
  m_.zero = options.zero_stage;
  m_.ties = options.ties;
  m_.git = options.git;
  m_.isa = options.isa;
  m_.device = cat(api.name, ", ", api.describe(stream.device.index));
}

// What each rank holds and whether it stores some of it, told to all: names become numbers, the same on every rank.
void SaveAttempt::plan(std::span<const ShardView> views) {
  std::string table;
  all_or_none(mesh_, [&] {
    mine_ = stored_tensors(views);
    std::map<std::string, Row> rows;
    for (const ShardView& v : views)
      rows[v.name] = {static_cast<int64_t>(v.data.dtype), v.shard.blocks, 0, v.full.rank, v.full.dim};
    for (const StoredTensor& t : mine_) rows.at(t.set.name).stored = 1;
    std::vector<std::string> parts;
    for (const auto& [name, row] : rows) {
      parts.push_back(name);
      parts.emplace_back(reinterpret_cast<const char*>(&row), sizeof row);
    }
    table = pack(parts);
  });
  const auto tables = gather_bytes(mesh_.world(), table);
  all_or_none(mesh_, [&] { merge(tables); });
}

// A tensor that ranks hold and none stores stays in the list, without files: the coverage check will refuse it.
void SaveAttempt::merge(const std::vector<std::string>& tables) {
  std::map<std::string, TensorEntry> all;
  for (size_t r = 0; r < tables.size(); ++r) {
    const auto parts = unpack(tables[r]);
    for (size_t k = 0; k < parts.size(); k += 2) {
      Row row{};
      GT_CHECK(parts[k + 1].size() == sizeof row, "table row");
      std::memcpy(&row, parts[k + 1].data(), sizeof row);
      TensorEntry t;
      t.name = parts[k];
      t.dtype = static_cast<DType>(row.dtype);
      t.blocks = static_cast<int>(row.blocks);
      t.shape.rank = static_cast<int32_t>(row.rank);
      t.shape.dim = row.dim;
      TensorEntry& known = all.try_emplace(t.name, t).first->second;
      GT_CHECK(known.shape == t.shape && known.dtype == t.dtype, t.name, ": rank ", r, " has ", to_string(t.shape),
               ", another one ", to_string(known.shape));
      if (!row.stored) continue;
      const int file = static_cast<int>(r);
      if (!known.files.empty() && known.files.back().second == file - 1)
        known.files.back().second = file;
      else
        known.files.emplace_back(file, file);
    }
  }
  m_.tensors.clear();
  for (auto& [name, t] : all) m_.tensors.push_back(std::move(t));
}

// Rank 0 chooses a number that no earlier attempt of this step left behind. Nothing is synced here: that may take a busy
// disk seconds, and training stands still.
void SaveAttempt::begin() {
  uint32_t attempt = 0;
  const auto name = [&] {
    return dir_ + "/.tmp-" + step_name(m_.step) + "-" + to_string(attempt_uuid(m_.state.run_uuid, m_.step, attempt));
  };
  all_or_none(mesh_, [&] {
    if (mesh_.rank() != 0) return;
    try {
      clean_attempts(vfs_, dir_);
    } catch (const IoError&) {  // leftovers that cannot be removed are no reason not to save
    }
    std::error_code ec;
    while (std::filesystem::exists(std::filesystem::symlink_status(name(), ec))) ++attempt;
  });
  attempt = static_cast<uint32_t>(std::stoul(broadcast_bytes(mesh_.world(), std::to_string(attempt), 0)));
  temp_ = name();
  m_.uuid = attempt_uuid(m_.state.run_uuid, m_.step, attempt);
}

int64_t SaveAttempt::stored_bytes() const {
  int64_t n = 0;
  for (const StoredTensor& t : mine_)
    for (const Box& b : t.set.boxes) n += b.numel() * size_of(t.set.dtype);
  return n;
}

void SaveAttempt::snapshot(Staging& staging) {
  std::byte* to = staging.room(stored_bytes());
  for (StoredTensor& t : mine_) {
    for (size_t k = 0; k < t.data.size(); ++k) {
      const int64_t n = t.set.boxes[k].numel() * size_of(t.set.dtype);
      if (t.device.kind == DeviceKind::kCpu)
        std::memcpy(to, t.data[k], static_cast<size_t>(n));
      else
        api_.copy(to, t.data[k], n, stream_);
      t.data[k] = to;
      to += n;
    }
    t.device = {};
  }
  api_.synchronize(stream_);
}

void SaveAttempt::write() {
  make_directory(vfs_, temp_);  // by whoever comes first
  ShardJob job{
      temp_, {m_.step, to_string(m_.uuid), layout_json(m_), mesh_.rank(), 0}, m_.uuid, {}, options_.require_finite, fetch_,
               options_.sha256, options_.readback};
  for (size_t k = 0; k < m_.tensors.size(); ++k) job.ids[m_.tensors[k].name] = static_cast<uint32_t>(k);
  sha256_ = write_shard(vfs_, job, mine_, api_, stream_);
}

void SaveAttempt::share_hashes() {
  if (options_.sha256) hashes_ = gather_bytes(mesh_.world(), sha256_);
}

// Every index is read back and checked, and the rectangles of all of them must fill every tensor: a rank that wrote
// elsewhere, or not at all, or twice, ends the attempt here.
void SaveAttempt::collect_indexes() {
  std::vector<std::vector<Box>> boxes(m_.tensors.size());
  const auto shapes = m_.shapes();
  for (int r = 0; r < mesh_.world().size(); ++r) {
    ShardFile f;
    f.name = shard_name(r);
    const std::string path = temp_ + "/" + f.idx_name(), bytes = read_file(vfs_, path, kManifestLimit);
    f.bytes = File::open(vfs_, temp_ + "/" + f.name).size();
    f.idx_bytes = static_cast<int64_t>(bytes.size());
    f.idx_sha256 = sha256_hex(bytes);
    if (!hashes_.empty()) f.sha256 = hashes_[static_cast<size_t>(r)];
    const ShardIndex x = decode_index(bytes, path, shapes);
    GT_REQUIRE(x.uuid == m_.uuid && x.step == m_.step && x.rank == r && x.file_bytes == f.bytes, Exit::kIo, path,
               ": not what rank ", r, " was to write; do all ranks see one folder?");
    for (const SliceRecord& s : x.records) boxes[s.tensor].push_back(s.box);
    m_.files.push_back(f);
  }
  for (size_t k = 0; k < boxes.size(); ++k) {
    const std::string error = coverage_error(shapes[k].shape, boxes[k]);
    GT_CHECK(error.empty(), shapes[k].name, ": ", error);
  }
}

void SaveAttempt::add_aux(const AuxFile& a) {
  const std::string bytes = a.path.empty() ? a.text : read_file(vfs_, a.path, kAuxLimit);
  write_synced(vfs_, temp_ + "/" + a.name, bytes);
  m_.aux.push_back({a.name, static_cast<int64_t>(bytes.size()), sha256_hex(bytes)});
}

void SaveAttempt::commit(const std::vector<AuxFile>& aux) {
  collect_indexes();
  for (const AuxFile& a : aux) add_aux(a);
  m_.created = utc_now();
  m_.version = GPT_VERSION;
#ifdef __clang__
  m_.compiler = __VERSION__;
#else
  m_.compiler = "g++ " __VERSION__;
#endif
  text_ = to_text(m_);
  parse_manifest(text_, temp_ + "/manifest.json");  // what a reader would refuse is never committed
  write_synced(vfs_, temp_ + "/manifest.json", text_);
  sync_directory(vfs_, temp_);
  const std::string final = dir_ + "/" + step_name(m_.step);
  std::error_code ec;
  if (options_.may_commit) options_.may_commit();
  if (std::filesystem::exists(std::filesystem::symlink_status(final, ec))) set_aside(vfs_, final, "abandoned");
  rename_file(vfs_, temp_, final);  // this is the commit
  sync_directory(vfs_, dir_);
}

void SaveAttempt::abandon() noexcept {
  if (mesh_.rank() != 0 || temp_.empty()) return;
  try {
    remove_tree(vfs_, temp_);
  } catch (...) {  // the next save cleans up what is left
  }
}

void SaveAttempt::write_latest(const std::string& text) {
  write_synced(vfs_, dir_ + "/.latest.tmp", text);
  rename_file(vfs_, dir_ + "/.latest.tmp", dir_ + "/latest");
  sync_directory(vfs_, dir_);
}

// What may fail without harm: the checkpoint is committed.
SaveReport SaveAttempt::after() {
  SaveReport report;
  report.path = dir_ + "/" + step_name(m_.step);
  report.bytes = m_.bytes() + static_cast<int64_t>(text_.size());
  const auto quietly = [&](const auto& body) {
    try {
      body();
    } catch (const Error& e) { report.warnings.emplace_back(e.what()); } catch (const std::exception& e) {
      report.warnings.emplace_back(e.what());
    }
  };
  quietly([&] { write_latest(step_name(m_.step) + " " + sha256_hex(text_) + "\n"); });
  quietly([&] {
    for (std::string& w : abandon_newer(vfs_, dir_, m_.step)) report.warnings.push_back(std::move(w));
  });
  quietly([&] { prune(vfs_, dir_, plan_prune(vfs_, dir_, options_.retention, false)); });
  return report;
}

}  // namespace gt
