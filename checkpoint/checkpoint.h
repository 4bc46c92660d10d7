// Sharded checkpoints: one HDF5 file per rank, committed atomically by one rename, loadable under any rank layout.
// A tensor is a global name and a shape; each rank stores rectangles of it and requests rectangles of it.
// Depends on meshes and ShardViews; independent of models, optimizers, configurations and data sets, whose files and
// cursors are stored as opaque text.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/options.h"
#include "kernels/core/device.h"
#include "parallel/mesh.h"
#include "parallel/zero/shard_view.h"

namespace gt {

// Dynamic loss-scaling state (optim/loss_scaler.h).
struct ScalerState {
  double scale = 1;
  int64_t clean = 0, hysteresis = 1;
  friend bool operator==(const ScalerState&, const ScalerState&) = default;
};

// Trainer state besides tensors. Every field is global: identical on all ranks and under every layout.
struct TrainState {
  int64_t step = 0;              // optimizer updates attempted; names the checkpoint
  int64_t consumed_samples = 0;  // samples consumed from the training stream
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;          // updates that were not applied (overflow, anomaly)
  int64_t consecutive_skips = 0;      // length of the current run of consecutive skips
  std::optional<ScalerState> scaler;  // nullopt: the scale is fixed
  int64_t applied_steps = 0;          // t of the optimizer
  int64_t schedule_steps = 0;    // t of the LR schedule; equals applied_steps unless only one of the two was loaded
  int64_t applied_samples = 0;   // samples of the schedule's steps: position of a schedule over samples
  std::string origin = "train";  // or "import": external weights, no optimizer state, nothing consumed
  std::string run_uuid;          // identifies the run; distinguishes two runs in one folder
  double elapsed_seconds = 0;
  uint64_t seed = 0;
  std::string optim_type, lr_type;
  double lr_value = 0;  // learning rate of the last step, stored bitwise
  int64_t global_batch = 0, micro_batch = 0;
  double best_loss = 0;  // validation loss; undefined while best_step is -1
  int64_t best_step = -1;
  double eval_loss = 0;  // loss of the latest evaluation
  int64_t eval_step = -1;
  std::string data_json;  // loader cursor: {"consumed_samples", "skip_windows", "data"}; empty: none
  // Sequence-length curriculum: tokens per sample in the last step, and samples consumed by all steps.
  struct CurriculumState {
    int64_t length = 0, samples = 0;
  };
  std::optional<CurriculumState> curriculum;
  std::optional<double> pld_theta;  // progressive layer drop: theta of the last step
  std::string anomaly_json;         // JSON object: history of the anomaly check; empty: none
  std::string carry;  // JSON object: state keys written by a newer program, preserved on the next save; empty: none
};

// File stored beside the tensors: a copy of `path`, or `text` when `path` is empty.
struct AuxFile {
  std::string name;  // config.json, tokenizer.model: [a-z0-9._-]+
  std::string path;
  std::string text;
};

struct SaveReport {
  int64_t bytes = 0;                  // whole checkpoint, all ranks
  double seconds = 0;                 // from entry to the commit on disk
  std::string path;                   // step directory
  std::vector<std::string> warnings;  // failures after the commit: `latest`, retention
};

struct SaveOptions {
  int zero_stage = 0, vpp = 1;  // recorded in the manifest only
  Retention retention;
  std::vector<std::pair<std::string, std::string>> ties;  // alias, stored name: master/head.weight, master/embed.weight
  bool require_finite = true;                             // NaN or infinity aborts the attempt
  WriteOptions how;
  std::string git, isa;                 // of the writer's build
  std::function<void()> before_commit;  // called on rank 0 right before the commit; an exception aborts the attempt
};

// Saves a checkpoint. Collective, synchronous. Writes the views with `save` set; checks that all ranks together write
// every element of every tensor exactly once. Commits dir/step-<9 digits> by a rename, then updates `latest` and
// applies the retention policy. Steps newer than this one belong to an abandoned branch of the run and are renamed to
// <step>.abandoned-<time>.
// Errors: if any rank fails, removes the attempt and throws the error of the lowest failing rank on every rank.
// kIo: rank, file, operation, errno. kNumerical: a value is not finite (tensor, element). kInternal: the views do not
// cover the tensors. Committed checkpoints are never touched before the commit.
SaveReport save_checkpoint(const std::string& dir, const TrainState&, std::span<const ShardView>,
                           const std::vector<AuxFile>&, const SaveOptions&, const Mesh&, const DeviceApi&, Stream);

// Single-rank save of whole f32 tensors that are not in memory. The views have shapes and no data; `fetch` returns
// elements [first, first + count) of a tensor, row-major, and is called in name order with ascending ranges, so that
// peak memory does not depend on the size of a tensor. An exception of `fetch` aborts the attempt.
SaveReport save_streamed(
    const std::string& dir, const TrainState&, std::span<const ShardView> tensors,
    const std::function<std::vector<float>(const std::string&, int64_t first, int64_t count)>& fetch,
    const std::vector<AuxFile>&, const SaveOptions&, const Mesh&, const DeviceApi& host);

struct LoadReport {
  TrainState state;
  std::string path;         // step directory
  std::string config_json;  // "" when the checkpoint holds none
  std::vector<std::string> warnings;
};

// Inspects a step before it is loaded (state, config_json, path); throws kUsage to reject it.
using AcceptStep = std::function<void(const LoadReport&)>;

// Resumes from a checkpoint. Collective. `which`: "auto" for the newest valid step, or a step number for exactly that
// step (newer ones are then renamed to <step>.abandoned-<time>). Fills every view; vocabulary padding becomes 0. Every
// byte is checked before use. In auto mode a damaged step is renamed to <step>.corrupt-<time> and an unreadable one is
// left in place; both add a warning, and the next older step is tried. `accept` runs on every rank before any tensor is
// read or step renamed. An imported step holds no optimizer state: optim/ views become 0.
// Returns nullopt when `dir` holds no step at all.
// Errors (the same on every rank): kUsage: mismatch (lists all missing, extra and mis-shaped tensors), no such step, or
// a format newer than this program. kDamaged: steps exist and none is valid. kIo: steps exist and none can be read.
std::optional<LoadReport> load_checkpoint(const std::string& dir, const std::string& which,
                                          std::span<const ShardView> into, const Mesh&, const DeviceApi&, Stream,
                                          const AcceptStep& accept = {}, const FitOptions& = {});

// Loads one given step, restricted to the tensor groups ("master", "optim/exp_avg") that the views name. Collective.
// Renames nothing. An imported step holds no optimizer state: optim/ views become 0.
LoadReport load_step(const std::string& step_dir, std::span<const ShardView> into, const Mesh&, const DeviceApi&,
                     Stream, const AcceptStep& accept = {}, const FitOptions& = {});

// Resolves `path` to a step directory: a step itself, or the newest valid step of a run directory or of its checkpoints
// folder. Checks seal, version and sizes; the payload is checked when it is read. kUsage: nothing there; kDamaged: no
// valid step there.
std::string resolve_step(const std::string& path);

TrainState read_state(const std::string& step_dir);
// Returns a file saved with the step, checked against its hash; "" when the step holds no file of that name.
std::string read_aux(const std::string& step_dir, const std::string& name);

struct CheckpointInfo {
  std::string name;     // directory name
  std::string created;  // UTC, "2026-01-31T12:00:00Z"; empty when unknown
  std::string layout;   // "tp2 pp4 dp2 zero1"
  std::string kept;     // retention rule that keeps it, or that it will be deleted
  std::string status;   // ok, incomplete, corrupt, abandoned, attempt; with the reason where there is one
  int64_t bytes = 0;
  int64_t step = 0;
};

// Lists everything in a checkpoints folder that is or was a checkpoint, oldest first. Cheap checks only. `kept` reports
// the decision of the given retention policy.
std::vector<CheckpointInfo> list_checkpoints(const std::string& dir, const Retention& = {});

struct InspectOptions {
  std::string tensor;  // restrict to this tensor: "master/embed.weight"; empty: all
  bool stats = false;  // read and check the payload: min, max, mean, rms, non-finite count
};

// Returns a human-readable listing: origin, layout, state, files, tensors. kUsage: no such step or tensor; kDamaged.
std::string inspect_checkpoint(const std::string& step_dir, const InspectOptions&);

// Removes leftovers of dead attempts and unfinished deletions (.tmp-*, .del-*) and returns their names. Call from one
// process while no save is running; save_checkpoint and load_checkpoint call it themselves.
std::vector<std::string> clean_attempts(const std::string& dir);

}  // namespace gt
