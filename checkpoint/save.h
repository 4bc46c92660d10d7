// One save from the view of one rank, phase by phase: plan and begin (collective), optional snapshot, write (this rank
// only), commit and retention (rank 0 only). The caller decides what runs on the training thread and what in the
// background: non-collective phases touch no other rank and no device memory that was snapshotted.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/index_h5.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard_writer.h"
#include "checkpoint/store/vfs.h"

namespace gt {

// Pinned host staging buffer for what a rank is about to write. Grows to the size of the largest save and is kept.
class Staging {
 public:
  explicit Staging(const DeviceApi& api) : api_(api) {}
  ~Staging() { free(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  std::byte* reserve(int64_t bytes);
  int64_t bytes() const { return size_; }

 private:
  void free();
  const DeviceApi& api_;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

class SaveAttempt {
 public:
  SaveAttempt(Vfs&, const std::string& dir, const TrainState&, const SaveOptions&, const Mesh&, const DeviceApi&,
              Stream);

  // Collective. Exchanges what each rank holds and names the attempt. Throws the same error on every rank.
  void plan(std::span<const ShardView>);
  void begin();
  void set_fetch(FetchTensor fetch) { fetch_ = std::move(fetch); }  // for views without data
  // This rank: copies what it will write, so training can continue; write() then reads the copy.
  void snapshot(Staging&);
  int64_t stored_bytes() const;  // bytes this rank writes
  // This rank: creates the folder if missing and writes its shard and index, synced. Throws IoError, kNumerical.
  void write();
  void gather_hashes();  // collective, after all ranks wrote: sends every rank's hashes to rank 0
  // Rank 0, after all ranks wrote: checks the shards, writes the sealed manifest, renames. Throws IoError.
  void commit(const std::vector<AuxFile>&);
  void abandon() noexcept;  // rank 0: removes the attempt
  // Rank 0, after the commit: `latest`, abandoned steps, retention. Failures here become warnings.
  SaveReport after();

 private:
  void merge(const std::vector<std::string>& tables);
  void add_aux(const AuxFile&);
  void collect_indexes();
  void write_index_h5();
  void seal(const std::string& folder);
  void prepare_final_folder(const std::string& folder);
  void write_latest(const std::string& text);

  Vfs& vfs_;
  const std::string dir_;
  const SaveOptions options_;
  const Mesh& mesh_;
  const DeviceApi& api_;
  const Stream stream_;
  std::vector<std::vector<StoredTensor>> parts_;  // what this rank writes, one entry per file
  Manifest m_;
  FetchTensor fetch_;
  std::vector<int> parts_of_;  // [rank]: number of files
  std::string temp_, text_;
  ShardRecords records_;  // of all shards, for index.h5
  std::vector<std::string> warnings_;
  std::vector<std::string> own_hashes_, hashes_;  // of this rank's shards; of all shards in manifest order
};

// Collective. Returns whether all ranks would write the same attempt, from MIN and MAX of a hash of its name.
bool same_attempt(const Mesh&, const TrainState&);

// Bytes that a rank with these views writes, and copies for a snapshot.
int64_t snapshot_bytes(std::span<const ShardView>);

// Converts the error of an attempt to the one callers receive.
Error save_error(int64_t step, const Error&);

// save_checkpoint() over a given file system: see checkpoint.h.
SaveReport save_checkpoint(Vfs&, const std::string& dir, const TrainState&, std::span<const ShardView>,
                           const std::vector<AuxFile>&, const SaveOptions&, const Mesh&, const DeviceApi&, Stream,
                           const FetchTensor& fetch = {});

}  // namespace gt
