#include <cstring>
#include <filesystem>

#include "checkpoint/format/shard_reader.h"
#include "checkpoint/format/shard_writer.h"
#include "checkpoint/save.h"
#include "checkpoint/store/retention.h"
#include "checkpoint/store/steps.h"
#include "checkpoint/world.h"
#include "kernels/core/hash/sha256.h"
#include "parallel/comm/host_values.h"

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

// Report of one rank about one tensor.
struct Row {
  int64_t dtype, blocks, rank;
  int64_t first_part, last_part;  // part files that hold some of it; -1: none
  std::array<int64_t, Shape::kMaxRank> dim;
};

}  // namespace

bool same_attempt(const Mesh& mesh, const TrainState& state) {
  const Uuid u = attempt_uuid(state.run_uuid, state.step, 0);
  int64_t tag = 0;
  std::memcpy(&tag, u.data(), sizeof tag);
  // ~ reverses the order: the maximum of ~tag is ~MIN
  const auto [most, least] = max_over(mesh.world(), std::array{tag, ~tag});
  return most == ~least;
}

int64_t snapshot_bytes(std::span<const ShardView> views) {
  int64_t n = 0;
  for (const StoredTensor& t : stored_tensors(views))
    for (const Box& b : t.set.boxes) n += b.numel() * size_of(t.set.dtype);
  return n;
}

std::byte* Staging::reserve(int64_t bytes) {
  if (bytes > size_) {
    free();  // free first, so both never exist at once
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

// Exchanges what each rank holds and stores. Assigns the same tensor indices on every rank.
void SaveAttempt::plan(std::span<const ShardView> views) {
  std::string table;
  all_or_none(mesh_, [&] {
    parts_ = cut_into_parts(stored_tensors(views), options_.how.part_bytes);
    std::map<std::string, Row> rows;
    for (const ShardView& v : views)
      rows[v.name] = {static_cast<int64_t>(v.data.dtype), v.shard.tp().blocks, v.full.rank, -1, -1, v.full.dim};
    for (size_t p = 0; p < parts_.size(); ++p)
      for (const StoredTensor& t : parts_[p]) {
        Row& row = rows.at(t.set.name);
        if (row.first_part < 0) row.first_part = static_cast<int64_t>(p);
        row.last_part = static_cast<int64_t>(p);
      }
    std::vector<std::string> parts{std::to_string(parts_.size())};
    for (const auto& [name, row] : rows) {
      parts.push_back(name);
      parts.emplace_back(reinterpret_cast<const char*>(&row), sizeof row);
    }
    table = pack(parts);
  });
  const auto tables = gather_bytes(mesh_.world(), table);
  all_or_none(mesh_, [&] { merge(tables); });
}

// Builds the global tensor list. A tensor that ranks hold but none stores stays in it without files; the coverage check
// rejects it.
void SaveAttempt::merge(const std::vector<std::string>& tables) {
  std::map<std::string, TensorEntry> all;
  int first_file = 0;  // first file of the rank
  parts_of_.clear();
  for (size_t r = 0; r < tables.size(); ++r) {
    if (r > 0) first_file += parts_of_.back();
    const auto parts = unpack(tables[r]);
    parts_of_.push_back(std::stoi(parts[0]));
    for (size_t k = 1; k < parts.size(); k += 2) {
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
      GT_CHECK(known.shape == t.shape, t.name, ": rank ", r, " has ", to_string(t.shape), ", another one ",
               to_string(known.shape));
      if (row.first_part < 0) continue;  // such a rank may hold a copy in another dtype: a frozen tied head at O1
      GT_CHECK(known.files.empty() || known.dtype == t.dtype, t.name, ": rank ", r, " stores ", name_of(t.dtype),
               ", another one ", name_of(known.dtype));
      known.dtype = t.dtype;
      const int first = first_file + static_cast<int>(row.first_part),
                last = first_file + static_cast<int>(row.last_part);
      if (!known.files.empty() && known.files.back().second == first - 1)
        known.files.back().second = last;
      else
        known.files.emplace_back(first, last);
    }
  }
  m_.tensors.clear();
  for (auto& [name, t] : all) m_.tensors.push_back(std::move(t));
}

// Rank 0 picks an attempt number that no earlier attempt of this step left behind. Nothing is synced here: on a busy
// disk that can take seconds, and training is stalled.
void SaveAttempt::begin() {
  uint32_t attempt = 0;
  const auto name = [&] {
    return dir_ + "/.tmp-" + step_name(m_.step) + "-" + to_string(attempt_uuid(m_.state.run_uuid, m_.step, attempt));
  };
  all_or_none(mesh_, [&] {
    if (mesh_.rank() != 0) return;
    try {
      clean_attempts(vfs_, dir_);
    } catch (const IoError&) {  // leftovers that cannot be removed do not prevent a save
    }
    if (options_.how.commit == CommitBy::kMarker) prepare_final_folder(dir_ + "/" + step_name(m_.step));
    std::error_code ec;
    while (std::filesystem::exists(std::filesystem::symlink_status(name(), ec))) ++attempt;
  });
  attempt = static_cast<uint32_t>(std::stoul(broadcast_bytes(mesh_.world(), std::to_string(attempt), 0)));
  temp_ = options_.how.commit == CommitBy::kMarker ? dir_ + "/" + step_name(m_.step) : name();
  m_.uuid = attempt_uuid(m_.state.run_uuid, m_.step, attempt);
}

// Prepares a commit-by-marker attempt in its final folder. An existing step of that number belongs to an abandoned
// branch of the run. The marker declares the folder an attempt until its manifest is complete.
void SaveAttempt::prepare_final_folder(const std::string& folder) {
  std::error_code ec;
  if (std::filesystem::exists(std::filesystem::symlink_status(folder, ec))) set_aside(vfs_, folder, "abandoned");
  temp_ = folder;
  make_directory(vfs_, dir_);
  write_synced(vfs_, attempt_marker(folder), to_string(attempt_uuid(m_.state.run_uuid, m_.step, 0)) + "\n");
  sync_directory(vfs_, dir_);
}

int64_t SaveAttempt::stored_bytes() const {
  int64_t n = 0;
  for (const auto& part : parts_)
    for (const StoredTensor& t : part)
      for (const Box& b : t.set.boxes) n += b.numel() * size_of(t.set.dtype);
  return n;
}

void SaveAttempt::snapshot(Staging& staging) {
  std::byte* to = staging.reserve(stored_bytes());
  const auto copy = [&](StoredTensor& t) {
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
  };
  for (auto& part : parts_)
    for (StoredTensor& t : part) copy(t);
  api_.synchronize(stream_);
}

void SaveAttempt::write() {
  make_directory(vfs_, temp_);  // created by whichever rank comes first
  ShardJob job{temp_,
               {m_.step, to_string(m_.uuid), layout_json(m_), mesh_.rank(), 0},
               m_.uuid,
               {},
               options_.require_finite,
               fetch_,
               options_.how};
  for (size_t k = 0; k < m_.tensors.size(); ++k) job.ids[m_.tensors[k].name] = static_cast<uint32_t>(k);
  own_hashes_.clear();
  for (const auto& part : parts_) {
    own_hashes_.push_back(write_shard(vfs_, job, part, api_, stream_));
    ++job.head.part;
  }
}

void SaveAttempt::gather_hashes() {
  hashes_.clear();
  if (options_.how.hash == ShardHash::kNone) return;
  for (const std::string& rank : gather_bytes(mesh_.world(), pack(own_hashes_)))
    for (std::string& hash : unpack(rank)) hashes_.push_back(std::move(hash));
}

// Re-reads and checks every index; the rectangles of all of them must cover every tensor. A rank that wrote elsewhere,
// not at all, or twice aborts the attempt here.
void SaveAttempt::collect_indexes() {
  std::vector<std::vector<Box>> boxes(m_.tensors.size());
  const auto shapes = m_.shapes();
  const auto collect = [&](int rank, int part) {
    ShardFile f;
    f.name = shard_name(rank, part);
    const std::string path = temp_ + "/" + f.idx_name(), bytes = read_file(vfs_, path, kManifestLimit);
    f.bytes = File::open(vfs_, temp_ + "/" + f.name).size();
    f.idx_bytes = static_cast<int64_t>(bytes.size());
    f.idx_sha256 = sha256_hex(bytes);
    if (!hashes_.empty()) f.sha256 = hashes_[m_.files.size()];
    const ShardIndex x = decode_index(bytes, path, shapes);
    GT_REQUIRE(x.uuid == m_.uuid && x.step == m_.step && x.rank == rank && x.part == part && x.file_bytes == f.bytes,
               Exit::kIo, path, ": not what rank ", rank, " was to write; do all ranks see one folder?");
    for (const SliceRecord& s : x.records) boxes[s.tensor].push_back(s.box);
    m_.files.push_back(f);
    if (options_.how.index_h5) records_.push_back(x.records);
  };
  for (size_t r = 0; r < parts_of_.size(); ++r)
    for (int part = 0; part < parts_of_[r]; ++part) collect(static_cast<int>(r), part);
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

// A convenience file: failing to write it must not lose a checkpoint.
void SaveAttempt::write_index_h5() {
  const std::string path = temp_ + "/index.h5";
  try {
    write_synced(vfs_, path, index_h5(m_, records_, temp_));
  } catch (const Error& e) {
    warnings_.push_back(cat("no index.h5 of step ", m_.step, ": ", e.what()));
    vfs_.unlink(path);
  }
  records_.clear();
}

void SaveAttempt::commit(const std::vector<AuxFile>& aux) {
  collect_indexes();
  for (const AuxFile& a : aux) add_aux(a);
  if (options_.how.index_h5) write_index_h5();
  m_.created = utc_now();
  m_.version = GPT_VERSION;
#ifdef __clang__
  m_.compiler = __VERSION__;
#else
  m_.compiler = "g++ " __VERSION__;
#endif
  text_ = to_text(m_);
  parse_manifest(text_, temp_ + "/manifest.json");  // never commit what a reader would reject
  if (options_.how.commit == CommitBy::kMarker) {
    sync_directory(vfs_, temp_);
    if (options_.before_commit) options_.before_commit();
    seal(temp_);  // commit point
    return;
  }
  seal(temp_);
  const std::string final = dir_ + "/" + step_name(m_.step);
  std::error_code ec;
  if (options_.before_commit) options_.before_commit();
  if (std::filesystem::exists(std::filesystem::symlink_status(final, ec))) set_aside(vfs_, final, "abandoned");
  rename_file(vfs_, temp_, final);  // commit point
  sync_directory(vfs_, dir_);
}

void SaveAttempt::seal(const std::string& folder) {
  write_synced(vfs_, folder + "/manifest.json", text_);
  sync_directory(vfs_, folder);
}

void SaveAttempt::abandon() noexcept {
  if (mesh_.rank() != 0 || temp_.empty()) return;
  try {
    if (options_.how.commit == CommitBy::kMarker)
      vfs_.unlink(temp_ + "/manifest.json");  // turns the folder back into an attempt
    remove_tree(vfs_, temp_);
    if (options_.how.commit == CommitBy::kMarker) vfs_.unlink(attempt_marker(temp_));
  } catch (...) {  // the next save removes what is left
  }
}

void SaveAttempt::write_latest(const std::string& text) {
  write_synced(vfs_, dir_ + "/.latest.tmp", text);
  rename_file(vfs_, dir_ + "/.latest.tmp", dir_ + "/latest");
  sync_directory(vfs_, dir_);
}

// Steps after the commit; their failures become warnings.
SaveReport SaveAttempt::after() {
  SaveReport report;
  report.path = dir_ + "/" + step_name(m_.step);
  report.bytes = m_.bytes() + static_cast<int64_t>(text_.size());
  report.warnings = warnings_;
  const auto quietly = [&](const auto& body) {
    try {
      body();
    } catch (const Error& e) { report.warnings.emplace_back(e.what()); } catch (const std::exception& e) {
      report.warnings.emplace_back(e.what());
    }
  };
  if (options_.how.commit == CommitBy::kMarker)
    quietly([&] {
      const std::string marker = attempt_marker(report.path);
      if (const int r = vfs_.unlink(marker); r < 0) fail_io("deletion of " + marker, r);
    });
  quietly([&] { write_latest(step_name(m_.step) + " " + sha256_hex(text_) + "\n"); });
  quietly([&] {
    for (std::string& w : abandon_newer(vfs_, dir_, m_.step)) report.warnings.push_back(std::move(w));
  });
  quietly([&] { prune(vfs_, dir_, plan_prune(vfs_, dir_, options_.retention, false)); });
  return report;
}

}  // namespace gt
