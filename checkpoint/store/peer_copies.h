// Copies of a run's state in its machines' memory, so that a job that lost processes or a machine continues with the
// step that it had reached instead of its newest checkpoint. Each rank writes its copy into memory that outlives its
// process and sends it to a rank on each of the next machines, which keeps it the same way. Two copies of each
// alternate: at any time one of them is complete on all ranks. They fit the layout that wrote them only.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store/memory_image.h"
#include "kernels/core/files.h"
#include "parallel/mesh.h"

namespace gt {

struct PeerCopyOptions {
  std::string folder = "/dev/shm";  // of a file system in memory
  std::string job;                  // hexadecimal: distinguishes the job's copies from others
  int64_t attempt = 0;              // of the job to run; its copies replace those of earlier attempts
  bool restores = false;            // earlier attempts' copies may be used; false: they are deleted
  int peers = 1;                    // other machines that keep a copy of each rank; at most those that there are
  int64_t memory_free = -1;         // bytes that copies may take on this machine; -1: as its file system allows
};

class PeerCopies {
 public:
  // Collective. Allocates the copies. `views`: of every keep() and restore(), with the same sizes. Throws the same
  // error on every rank: kUsage if a machine lacks the memory, kIo.
  PeerCopies(const PeerCopyOptions&, const Mesh&, const DeviceApi&, Stream, std::span<const ShardView> views);
  ~PeerCopies();  // keeps the copies
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // Collective. Copies the state of a step. Returns once all of this rank's copies are complete.
  void keep(const TrainState&, std::span<const ShardView>);

  struct Restored {
    TrainState state;
    std::string from;  // "copies in memory, 1 of 2 from other machines"
  };
  // Collective, once, before the first keep(). Fills the views from the newest copies of which every rank's exists and
  // whose step is above `newer_than` (rank 0's); nullopt if there are none. Throws kDamaged on every rank if one of
  // them is damaged; views are undefined then.
  std::optional<Restored> restore(int64_t newer_than, std::span<const ShardView>);

  void discard();  // deletes this machine's copies; call when the run is on disk
  // Collective results of the constructor, the same on every rank.
  int peers() const { return peers_; }                             // machines besides its own that keep a rank's copy
  int64_t bytes_per_machine() const { return bytes_of_machine_; }  // of the machine with the most

 private:
  struct Kept;
  struct Choice;
  using Parcel = std::pair<int, std::span<std::byte>>;  // rank, bytes
  void open_folder();
  void assign_holders();
  void require_memory() const;
  void allocate();
  Choice choose(int64_t newer_than) const;
  void fetch(const Choice&);
  void exchange(const std::vector<Parcel>& to, const std::vector<Parcel>& from);
  void remove_files(bool all) const;
  std::string path_of(int owner, int slot) const;
  bool keeps_here(int owner) const;  // a rank of this machine keeps this owner's copies

  const PeerCopyOptions options_;
  const Mesh& mesh_;
  const DeviceApi& api_;
  const Stream stream_;
  const std::string folder_;
  Fd lock_;                                   // shared lock on the folder while this rank lives
  std::string machine_;                       // random name of the machine's memory
  uint64_t layout_ = 0;                       // of all ranks
  std::vector<int64_t> bytes_;                // of each rank's views
  std::vector<std::vector<int>> ranks_of_;    // by machine, ascending; machines in the order of their lowest rank
  std::vector<std::vector<int>> holders_of_;  // by rank: the ranks on other machines that keep its copies
  int peers_ = 0, here_ = 0;                  // here_: this rank's machine
  int64_t bytes_of_machine_ = 0;
  std::vector<std::unique_ptr<Kept>> kept_;  // this rank's own, then those that it keeps for others
  int slot_ = 0;                             // of the next copy
  int64_t sequence_ = 0;
};

// Folder of a job's copies.
std::string peer_copies_folder(const std::string& in, const std::string& job);

// Deletes folders of this user's dead jobs: no living rank holds them and none has for an hour.
void sweep_peer_copies(const std::string& in);

}  // namespace gt
