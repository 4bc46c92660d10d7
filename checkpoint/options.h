// Options of checkpoints, each struct with the keys under which a run's configuration lists them.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

// Which committed steps are kept (checkpoint/store/retention.h).
struct Retention {
  int64_t keep = 3;        // newest steps to keep; below 1: never delete anything
  int64_t keep_every = 0;  // also keep every step divisible by this; 0: none
  int64_t keep_best = 1;   // also keep this many steps with the lowest validation loss
  template <class V>
  void fields(V& v) {
    v("keep", keep, "2..1000", "newest checkpoints kept");
    v("keep_every", keep_every, "0.. steps", "also keep every step divisible by this; 0: none");
    v("keep_best", keep_best, "0..1000, or true or false",
      "also keep this many checkpoints with the best validation losses; true: 1");
  }
};

// kAuto: O_DIRECT, where the file system supports it and the file has a whole window.
enum class DirectIo : uint8_t { kAuto, kOff };
// kMarker, for file systems without atomic directory renames: the attempt carries the step's name from the start, and
// its manifest, written last, makes it a checkpoint.
enum class CommitBy : uint8_t { kRename, kMarker };
enum class ShardHash : uint8_t { kNone, kSha256 };
constexpr std::array<const char*, 2> names_of(DirectIo) { return {"auto", "off"}; }
constexpr std::array<const char*, 2> names_of(CommitBy) { return {"rename", "marker"}; }
constexpr std::array<const char*, 2> names_of(ShardHash) { return {"none", "sha256"}; }

// How a step is written and committed.
struct WriteOptions {
  int64_t part_bytes = int64_t{64} << 30;  // a rank starts another file before one exceeds this size
  int threads = 1;  // threads per file: one fills windows, the others write; 1: a single thread does both
  DirectIo direct_io = DirectIo::kOff;
  bool readback = false;  // re-reads each shard from disk before the attempt counts as written
  CommitBy commit = CommitBy::kRename;
  bool index_h5 = false;  // also writes index.h5: every tensor whole, for h5py users
  ShardHash hash = ShardHash::kNone;
  template <class V>
  void fields(V& v) {
    v("part_bytes", part_bytes, "1048576.. bytes", "maximum size of a rank's shard file; 64 GiB");
    v("threads", threads, "1..64 threads", "checkpoint threads per rank: one copies and checksums, the others write");
    v("direct_io", direct_io, "", "auto: O_DIRECT for large files where the file system supports it");
    v("readback", readback, "", "read every shard back from disk before committing the checkpoint");
    v("commit", commit, "",
      "how a checkpoint is committed: by renaming its folder, or by writing its manifest last, for file systems "
      "without atomic folder renames");
    v("index_h5", index_h5, "", "also write index.h5: full tensors as virtual datasets over the shards, for h5py");
    v("hash", hash, "", "hash of each shard in manifest.json, for signing; ckpt verify checks it");
  }
};

// Permitted differences between model and checkpoint: exact names ("master/head.weight"), or prefixes that end in *
// ("optim/*"). Tensors missing from the checkpoint keep their current values; extra ones are not read.
struct FitOptions {
  std::vector<std::string> allow_missing, allow_extra;
  bool read_once = false;  // blocks needed by several ranks of a dp group are read by one of them and broadcast
  template <class V>
  void fields(V& v) {
    v("read_once", read_once, "", "read each block once per data-parallel group and broadcast it, for slow disks");
    v("allow_missing", allow_missing, "",
      "tensors that may be missing from the checkpoint and are then initialized: master/head.weight optim/*");
    v("allow_extra", allow_extra, "", "tensors of the checkpoint that may be ignored: master/head.weight optim/*");
  }
};

}  // namespace gt
