// Sharded checkpoints: one HDF5 file per rank, committed whole by one rename, readable by any layout, whatever layout
// wrote them. A tensor is a global name and a shape; a rank stores rectangles of it and asks for rectangles of it.
// Knows meshes and ShardViews; knows no model, optimizer, configuration or data set: their files and cursors travel as
// text.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/block_stream.h"
#include "checkpoint/retention.h"
#include "kernels/core/device.h"
#include "parallel/mesh.h"
#include "parallel/zero/shard_view.h"

namespace gt {

// Of dynamic loss scaling (optim/loss_scaler.h).
struct ScalerState {
  double scale = 1;
  int64_t clean = 0, hysteresis = 1;
  friend bool operator==(const ScalerState&, const ScalerState&) = default;
};

// What a run must remember besides tensors. Everything is global: equal on all ranks and under every layout.
struct TrainState {
  int64_t step = 0;              // updates attempted: the name of the checkpoint
  int64_t consumed_samples = 0;  // of the training stream
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;  // updates that were not applied
  int64_t skips_in_a_row = 0;  // at the end of those
  std::optional<ScalerState> scaler;  // nullopt: the scale is fixed
  int64_t applied_steps = 0;    // t of the optimizer
  int64_t schedule_steps = 0;   // t of the learning-rate schedule: the same, unless only one of them was loaded
  int64_t applied_samples = 0;  // of the schedule's steps: where a schedule over samples is
  std::string origin = "train";  // or "import": weights from elsewhere, no optimizer state, nothing consumed
  std::string run_uuid;       // names the run; two runs in one folder are told apart by it
  double elapsed_seconds = 0;
  uint64_t seed = 0;
  std::string optim_type, lr_type;
  double lr_value = 0;  // of the last step, kept bit for bit
  int64_t global_batch = 0, micro_batch = 0;
  double best_loss = 0;  // validation; meaningless while best_step is -1
  int64_t best_step = -1;
  double eval_loss = 0;  // of the newest evaluation
  int64_t eval_step = -1;
  std::string data_json;  // the loader's cursor: {"consumed_samples", "skip_windows", "data"}; empty: none
  // Of a run whose sequences grow: tokens of a sample that its last step took, and samples of all its steps.
  struct CurriculumState { int64_t length = 0, samples = 0; };
  std::optional<CurriculumState> curriculum;
  std::optional<double> pld_theta;  // of progressive layer drop in the last step
  std::string bad_steps_json;  // JSON object: what the run remembers of good and bad steps; empty: nothing
  std::string carry;      // JSON object of state keys that a newer program wrote: kept and written back; empty: none
};

// A file that travels with the tensors: copied from `path`, or holding `text` when `path` is empty.
struct AuxFile {
  std::string name;  // config.json, tokenizer.model: [a-z0-9._-]+
  std::string path;
  std::string text;
};

struct SaveReport {
  int64_t bytes = 0;                  // of the whole checkpoint, all ranks
  double seconds = 0;                 // from entry to the commit on disk
  std::string path;                   // of the step
  std::vector<std::string> warnings;  // after the commit: `latest`, retention
};

struct SaveOptions {
  int zero_stage = 0, vpp = 1;  // for the record
  Retention retention;
  std::vector<std::pair<std::string, std::string>> ties;  // alias, stored name: master/head.weight, master/embed.weight
  bool require_finite = true;                             // NaN and infinity end the attempt
  bool readback = false;  // each shard is read again from the disk before the attempt counts as written
  bool sha256 = false;    // of each shard in the manifest, for who wants to sign it
  int64_t part_bytes = int64_t{64} << 30;  // a rank begins another file before one grows beyond
  WriteOptions how;
  bool index_h5 = false;  // index.h5 beside the shards: every tensor whole, for people
  // For file systems that do not rename folders in one piece: the attempt has the step's name from the start, and its
  // manifest, written last, makes it a checkpoint.
  bool commit_by_marker = false;
  std::string git, isa;                                   // of the writer
  std::function<void()> may_commit;  // asked on rank 0 right before the commit; what it throws ends the attempt
};

// Collective, synchronous. Writes the views with `save` set, every element of every tensor exactly once over the ranks
// (checked), and commits dir/step-<9 digits> by a rename; then `latest`, then what Retention says. Steps newer than
// this one belong to a branch that the run has left: they are renamed to <step>.abandoned-<time>. Throws on every rank
// if any rank failed, with the message of the lowest one, after removing the attempt: kIo (rank, file, operation,
// errno); kNumerical: a value is not finite (tensor, element); kInternal when the views do not cover the tensors.
// Committed checkpoints are never touched before the commit.
SaveReport save_checkpoint(const std::string& dir, const TrainState&, std::span<const ShardView>,
                           const std::vector<AuxFile>&, const SaveOptions&, const Mesh&, const DeviceApi&, Stream);

// The same by one rank of whole f32 tensors that are in no memory: the views have shapes and no data, `fetch` gives the
// values of one of them at a time, in the order of names, so that memory is that of the largest. What it throws ends the
// attempt.
SaveReport save_streamed(const std::string& dir, const TrainState&, std::span<const ShardView> tensors,
                         const std::function<std::vector<float>(const std::string& name)>& fetch,
                         const std::vector<AuxFile>&, const SaveOptions&, const Mesh&, const DeviceApi& host);

struct LoadReport {
  TrainState state;
  std::string path;         // of the step
  std::string config_json;  // "" when the checkpoint holds none
  std::vector<std::string> warnings;
};

// Differences between model and checkpoint that are wanted: exact names ("master/head.weight"), or beginnings that end in
// * ("optim/*"). What is missing in the checkpoint keeps the values that it has; what is extra there is not read.
struct FitOptions {
  std::vector<std::string> allow_missing, allow_extra;
  bool read_once = false;  // what several ranks of a dp group want is read by one of them and sent to the others
};

// Looks at what is about to be loaded (state, config_json, path) and throws kUsage when the run does not want it.
using AcceptStep = std::function<void(const LoadReport&)>;

// Collective: resumes. `which`: "auto", the newest good step, or a step number, that step and no other (newer ones are
// then renamed to <step>.abandoned-<time>). Fills every view; vocabulary padding becomes 0. Every byte is checked
// before it is used. auto: a damaged step is renamed to <step>.corrupt-<time>, a step that cannot be read is left
// alone, both with a warning, and the next older one is taken. `accept` is asked on every rank before a tensor is read
// or a step renamed. An imported step holds no optimizer state: views of optim/ become 0. nullopt: `dir` holds no step
// at all. Throws the same error on every rank: kUsage: it does not fit (all missing, extra and mis-shaped tensors
// listed), no such step, a format newer than this program; kDamaged: steps exist and none is good; kIo: steps exist and
// none can be read.
std::optional<LoadReport> load_checkpoint(const std::string& dir, const std::string& which,
                                          std::span<const ShardView> into, const Mesh&, const DeviceApi&, Stream,
                                          const AcceptStep& accept = {}, const FitOptions& = {});

// Collective: one given step, and only the groups of tensors ("master", "optim/exp_avg") that the views name. Renames
// nothing. An imported step holds no optimizer state: views of optim/ become 0.
LoadReport load_step(const std::string& step_dir, std::span<const ShardView> into, const Mesh&, const DeviceApi&,
                     Stream, const AcceptStep& accept = {}, const FitOptions& = {});

// The step directory that `path` means: a step itself, or the newest good one of a run directory or of its checkpoints
// folder (seal, version, sizes are looked at; payload is checked when it is read). kUsage: nothing there; kDamaged:
// nothing good there.
std::string resolve_step(const std::string& path);

TrainState read_state(const std::string& step_dir);
// A file that was saved with the step, checked against its hash; "" when the step holds no file of that name.
std::string read_aux(const std::string& step_dir, const std::string& name);

struct CheckpointInfo {
  std::string name;     // of the directory
  std::string created;  // UTC, "2026-01-31T12:00:00Z"; empty when unknown
  std::string layout;   // "tp2 pp4 dp2 zero1"
  std::string kept;     // why the retention that was asked for keeps it; or that it will go
  std::string status;   // ok, incomplete, corrupt, abandoned, attempt; with the reason where there is one
  int64_t bytes = 0;
  int64_t step = 0;
};

// Everything in a checkpoints folder that is or was a checkpoint, oldest first. Cheap checks only.
// The retention is asked why each step is there.
std::vector<CheckpointInfo> list_checkpoints(const std::string& dir, const Retention& = {});

struct InspectOptions {
  std::string tensor;  // only this tensor: "master/embed.weight"; empty: all
  bool stats = false;  // read and check the payload: min, max, mean, rms, non-finite count
};

// Text for people: origin, layout, state, files, tensors. kUsage: no such step or tensor; kDamaged.
std::string inspect_checkpoint(const std::string& step_dir, const InspectOptions&);

// Removes what dead attempts and half-done deletions left (.tmp-*, .del-*). Call from one process, while nobody saves;
// save_checkpoint and load_checkpoint do it themselves. Returns the names removed.
std::vector<std::string> clean_attempts(const std::string& dir);

}  // namespace gt
