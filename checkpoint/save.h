// One save, as one rank sees it, in the order of its phases: plan and begin (collective), snapshot or not, write (this
// rank alone), commit, retention (rank 0 alone). What runs on the training thread and what in the background is the
// caller's choice: phases that are not collective touch no other rank and no device memory that was snapshotted.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/index_h5.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/vfs.h"

namespace gt {

// Host memory that a device copies to at full speed and that holds what a rank is about to write. Grows to what the
// largest save needs and stays.
class Staging {
 public:
  explicit Staging(const DeviceApi& api) : api_(api) {}
  ~Staging() { free(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  std::byte* room(int64_t bytes);
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

  // Collective: what each rank holds is told to all, the attempt gets its name. Throws the same error everywhere.
  void plan(std::span<const ShardView>);
  void begin();
  void set_fetch(FetchTensor fetch) { fetch_ = std::move(fetch); }  // of views without data
  // This rank: copies what it will write, so that training may go on. Afterwards write() reads the copy.
  void snapshot(Staging&);
  int64_t stored_bytes() const;  // that this rank writes
  // This rank: the folder where it is missing, its shard and index, synced. Throws IoError, kNumerical.
  void write();
  void share_hashes();  // collective, after all ranks wrote: rank 0 learns theirs
  // Rank 0, after all ranks wrote: checks what they wrote, seals it, renames it. Throws IoError.
  void commit(const std::vector<AuxFile>&);
  void abandon() noexcept;  // rank 0: removes the attempt
  // Rank 0, after the commit: `latest`, steps of a left branch, retention. What fails here becomes a warning.
  SaveReport after();

 private:
  void merge(const std::vector<std::string>& tables);
  void add_aux(const AuxFile&);
  void collect_indexes();
  void write_index_h5();
  void seal(const std::string& folder);
  void clear_place(const std::string& folder);
  void write_latest(const std::string& text);

  Vfs& vfs_;
  const std::string dir_;
  const SaveOptions options_;
  const Mesh& mesh_;
  const DeviceApi& api_;
  const Stream stream_;
  std::vector<std::vector<StoredTensor>> parts_;  // what this rank writes, a file each
  Manifest m_;
  FetchTensor fetch_;
  std::vector<int> parts_of_;  // [rank]: files
  std::string temp_, text_;
  ShardRecords records_;  // of all shards, for index.h5
  std::vector<std::string> warnings_;
  std::vector<std::string> own_hashes_, hashes_;  // of this rank's shards; of all in the order of the manifest
};

// Collective. Would all ranks write one attempt? Compares MIN and MAX of a hash of what it is named after.
bool same_attempt(const Mesh&, const TrainState&);

// What a rank with these views writes, and copies for that: bytes.
int64_t snapshot_bytes(std::span<const ShardView>);

// The error of an attempt as callers see it.
Error save_error(int64_t step, const Error&);

// save_checkpoint over a given file system: see checkpoint.h.
SaveReport save_checkpoint(Vfs&, const std::string& dir, const TrainState&, std::span<const ShardView>,
                           const std::vector<AuxFile>&, const SaveOptions&, const Mesh&, const DeviceApi&, Stream,
                           const FetchTensor& fetch = {});

}  // namespace gt
