// The run of one rank: data in, steps, evaluations, checkpoints, records out. The order of a step is Engine::step; what
// is around it is here. One Trainer per rank; rank 0 also prints and writes the logs.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/loader.h"
#include "kernels/core/open_stream.h"
#include "launch/config/config.h"
#include "launch/engine/engine.h"
#include "launch/engine/inject.h"
#include "launch/engine/op_watch.h"
#include "launch/engine/rank_device.h"
#include "launch/engine/step_guard.h"
#include "launch/observe/comm_log.h"
#include "launch/observe/data_wait.h"
#include "launch/observe/memory_fit.h"
#include "launch/observe/metrics.h"
#include "launch/observe/trace/trace_session.h"
#include "launch/observe/trust_ratio_log.h"
#include "launch/observe/utilization.h"
#include "launch/ranks/run_file.h"
#include "launch/train/run_saver.h"
#include "launch/train/skip_watch.h"
#include "optim/lr_range.h"

namespace gt {

struct TrainRun {
  LoadedConfig loaded;
  std::string command;   // as typed, for logs
  bool quiet = false;
  bool force = false;       // --checkpoint.resume never in a folder that holds a run
  bool range_test = false;  // a learning-rate range test: stops when the loss diverges, saves nothing, proposes a peak
};

class Trainer {
 public:
  // Collective: every rank of the factory's world constructs its Trainer with the same run.
  Trainer(const TrainRun&, GroupFactory&);
  ~Trainer();
  // kOk, or kInterrupted after a saved stop. Throws AgreedError (kIo, kNumerical) when the last step is not on the disk.
  Exit run();

 private:
  void open_device(const std::vector<std::string>& hosts);
  void open_run_folder();
  void lock_folder();
  void require_disk_room() const;
  void write_config() const;
  void open_data();
  void load_or_init();
  void restore_scaler();
  void begin_curriculum();
  std::optional<LoadReport> start_from_elsewhere();
  FitOptions fit_options() const;
  void require_patterns_found();
  void require_fault_targets();
  void look_at_load_from();
  void open_loader();
  void watch_steps();
  void judge(const StepResult&);
  void go_on_from(const TrainState&);
  void react_to_bad_step();
  std::string name_bad_values();
  std::string name_first_bad_op();
  void roll_back();
  void check_replicas();
  StepResult step_twice();
  int64_t rollback_target(int64_t below);
  void note_schedule_change();
  void start_logs();
  void one_step();
  void evaluate();
  void report_memory();
  void say_who_computes_attention();
  bool profiles(int64_t step) const { return step > 0 && step == config_.log.flops_step; }
  void report_flops(double seconds);
  void log_trust_ratios();
  void add_sample_curves(std::vector<std::unique_ptr<Sink>>& sinks, StartInfo& info);
  StepRecord record_of(const StepResult&);
  void add_times(StepRecord&, const StepResult&, double seconds);
  void warn_of_eager_work();
  void say_where_time_and_memory_went(const StepRecord&);
  void save(bool must);
  void write_trace();
  std::optional<Error> unsaved(bool done) const;
  void finish(Exit, bool done);
  void report_range(EndInfo&) const;
  bool speaks() const { return mesh_->rank() == 0; }
  int64_t target_tokens(const Loader&, int64_t length) const;
  // Of a step whose sequences have so many tokens.
  int64_t global_tokens(int64_t length) const { return config_.train.global_batch * length; }
  int64_t length() const { return microbatches_.front().seq; }  // of the step that runs or ran last

  const TrainRun run_;
  const Config& config_;
  const Curriculum curriculum_;
  RankDevice device_;
  GroupFactory& factory_;  // of groups for tensors of that device
  const Backend* backend_;
  std::unique_ptr<Mesh> mesh_;
  OpenStream stream_;
  Stream compute_;  // that of stream_
  int threads_ = 1;
  EnginePlan plan_;
  StagePlans stage_plans_;         // on the first rank of a machine
  std::optional<MemoryFit> fit_;  // of this machine; likewise
  std::unique_ptr<OpWatch> ops_;  // between the engine and its backend
  double peak_flops_ = kUnknown, peak_fp8_ = kUnknown;  // of the device
  double mfu_at_rate_ = kUnknown;                        // MFU of a token a second
  std::optional<Ceilings> ceilings_;
  std::unique_ptr<ModuleTimer> module_timer_;  // of the step of log.flops_step
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<CommLog> comm_log_;  // nullptr: log.comm is off
  std::unique_ptr<Dataset> train_data_, valid_data_;
  std::unique_ptr<Loader> loader_, eval_loader_;
  std::span<const MicroBatch> microbatches_;  // of the last step
  LossScaleState scale_before_;               // before it
  int64_t targets_ = 0;                       // of it
  std::string tokenizer_sha256_;              // of data.tokenizer; "": there is none
  std::unique_ptr<RunLock> run_lock_;  // rank 0's, like the next two
  std::unique_ptr<DirLock> lock_;
  std::unique_ptr<MetricsWriter> log_;
  std::unique_ptr<RunSaver> saver_;
  std::unique_ptr<TrustRatioLog> trust_ratios_;
  std::unique_ptr<SkipWatch> skips_;
  std::optional<LoadReport> resumed_;
  std::vector<std::string> notes_;  // for the start block
  TrainState state_;
  StepGuard guard_;
  Injector injector_;
  std::vector<std::pair<int64_t, int64_t>> skip_windows_;  // samples that rollbacks leave out
  int64_t replicas_checked_ = -1;                          // after this step
  int64_t named_ = 0;            // times that bad values were looked for
  int64_t spikes_reported_ = 0;  // by a line of their own
  std::vector<RangePoint> range_;     // of a range test: every step
  std::vector<double> recent_rates_;  // tokens/s of the steps so far, for the median
  DataWaitWatch data_wait_;
  StepBreakdown breakdown_;
  std::unique_ptr<TraceSession> trace_;  // null: no step is traced
  std::string timeline_;                 // of the last traced step
  double predicted_bubble_ = kUnknown;
  double started_ = 0, step_ended_ = 0, wait_before_ = 0, last_loss_ = kUnknown;
  int64_t first_step_ = 1;
  bool stop_ = false, save_due_ = false, memory_reported_ = false, eager_told_ = false;
  bool snapshot_fits_ = true;  // beside everything else on this machine; known to its first rank
};

}  // namespace gt
