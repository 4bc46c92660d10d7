// Metrics of a run: one record per step, evaluation, save or event. Rank 0 creates them, and a writer thread passes
// them to sinks (console, log.jsonl, TensorBoard). Pushing a record copies it into a ring buffer: no allocation, no
// system call, no disk wait. Independent of engines and ranks.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/core/check.h"
#include "launch/engine/measure/step_times.h"
#include "launch/options/console_text.h"

namespace gt {

constexpr double kUnknown =
    std::numeric_limits<double>::quiet_NaN();  // printed n/a, null in log.jsonl, no point on a curve

double wall_seconds();  // since 1970

// Parts of a loss besides that of its tokens, by their keys in log.jsonl, which outlive the records. NaN: not of this
// model.
class LossParts {
 public:
  struct Part {
    const char* key = nullptr;
    double value = kUnknown;
  };
  void add(const char* key, double value) {
    GT_CHECK(count_ < parts_.size(), "a record holds at most ", parts_.size(), " further losses; one more is ", key);
    parts_[count_++] = {key, value};
  }
  const Part* begin() const { return parts_.data(); }
  const Part* end() const { return parts_.data() + count_; }

 private:
  std::array<Part, 8> parts_{};
  size_t count_ = 0;
};

// Values of one optimizer step. In `loss` and `grad_norm` NaN and Inf are measured values; elsewhere NaN means unknown.
struct StepRecord {
  int64_t step = 0, total_steps = 0;
  double time = 0;      // wall_seconds() at the end of the step
  int64_t tokens = 0;   // target tokens, cumulative
  int64_t samples = 0;  // sequences, cumulative
  int64_t global_batch = 0, seq = 0;
  int64_t epoch = 0;
  LossParts parts{};
  double loss = 0, grad_norm = 0, clip_coef = kUnknown, lr = 0, momentum = kUnknown;
  double loss_scale = kUnknown;
  int64_t skipped = 0;  // steps skipped so far
  double step_seconds = kUnknown, tokens_per_second = kUnknown;
  double mfu = kUnknown, mfu_full = kUnknown, hfu = kUnknown, tflops_per_device = kUnknown;  // fractions; TFLOP/s
  double mfu_fp8 = kUnknown;     // relative to the device's FP8 GEMM rate, if the run has FP8 GEMMs
  double of_ceiling = kUnknown;  // same FLOPs relative to the measured GEMM rate of such a device
  double bubble = kUnknown, exposed_comm = kUnknown, data_wait = kUnknown;  // fractions of the step
  double pipeline_bubble = kUnknown, bubble_predicted = kUnknown;  // of the pipeline's part of it: measured, simulated
  double step_predicted = kUnknown;                                // seconds, by measured times of ops
  int64_t slowest_rank = -1, peak_bytes = -1;                      // -1: not known
  int64_t slowest_stage = -1;                                      // pipeline rank that computed longest, of pp > 1
  double stage_spread = kUnknown;    // by how much longer than the mean of the pipeline ranks, as a fraction
  int64_t timers_step = -1;          // last step all of whose times are known, at most the one before; -1: none
  double timers_seconds = kUnknown;  // its step_seconds; the timers and a remainder add up to it
  Timers timers{};                   // its times in seconds, a mean over the ranks
  Timers longest{};                  // of the slowest pipeline rank, timer by timer, as they come: see StageTime
};

struct EvalRecord {
  int64_t step = 0;
  double time = 0, loss = 0, seconds = 0;
  int64_t tokens = 0;
  LossParts parts{};
  // Of the token loss alone.
  double perplexity() const {
    double tokens = loss;
    for (const LossParts::Part& p : parts) tokens -= std::isnan(p.value) ? 0 : p.value;
    return std::exp(std::min(20.0, tokens));
  }
};

struct SavedRecord {
  int64_t step = 0;
  double time = 0, stall_seconds = 0, write_seconds = kUnknown;
  int64_t bytes = 0;
};

// Bytes of a rank by category, in the order of kMemoryNames.
constexpr const char* kMemoryNames[] = {"weights", "gradients",      "optimizer",  "activations",
                                        "buffers", "packed_weights", "workspaces", "graphs"};
using MemoryBytes = std::array<int64_t, std::size(kMemoryNames)>;

struct RankMemory {
  int64_t rank = 0, stage = 0;  // stage: pipeline rank
  MemoryBytes planned{}, measured{};
  int64_t process_bytes = 0;  // peak resident set of its process
};

// Memory of all ranks, or of each pipeline rank's largest one if there are many.
struct MemoryRecord {
  static constexpr size_t kMostRanks = 64;
  int64_t step = 0;
  double time = 0;
  std::shared_ptr<const std::vector<RankMemory>> ranks;
};

// Mean times of the steps so far by pipeline rank.
struct StagesRecord {
  int64_t step = 0;
  double time = 0, step_seconds = kUnknown;
  std::shared_ptr<const std::vector<Timers>> stages;
};

// Distribution of many numbers: bucket i counts those in (limits[i-1], limits[i]].
struct Histogram {
  double min = 0, max = 0, count = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, buckets;
};

struct HistogramRecord {
  int64_t step = 0;
  double time = 0;
  std::string tag;
  std::shared_ptr<const Histogram> histogram;
};

// One number of many of its kind, such as a trust ratio: a point of the curve `tag`, which is cut to fit.
struct ScalarRecord {
  int64_t step = 0;
  double time = 0, value = 0;
  std::array<char, 160> tag{};
};
ScalarRecord make_scalar(int64_t step, const std::string& tag, double value);

// Log message: a warning, a rolled-back step, a signal. The text is truncated to fit.
struct EventRecord {
  int64_t step = 0;
  double time = 0;
  bool warning = false;
  std::array<char, 480> text{};
};
EventRecord create_event(int64_t step, const std::string& text, bool warning = false);

struct StartInfo {
  std::string command, config_json, run_dir;
  int64_t first_step = 1;  // first step that this process writes
  int64_t total_steps = 0;
  int64_t resumed_from = -1;               // step of the checkpoint; -1: a fresh run
  int64_t eval_every = 0, save_every = 0;  // for the ETA; 0: never
  int world = 1;
  std::string layout, environment;  // one or more lines each: layers per rank; host, device, libraries
  Rows rows;                        // the start block
  std::string version;              // of the program, with its git hash
};

struct EndInfo {
  std::string reason;  // "finished", "interrupted by SIGTERM", ...
  int exit_code = 0;
  int64_t step = 0, tokens = 0;
  double seconds = 0;
  double last_loss = kUnknown, best_loss = kUnknown, median_tokens_per_second = kUnknown, median_mfu = kUnknown;
  double goodput = kUnknown;      // time in training steps / wall time, of this process
  Rows rows;                      // the end block
  std::string comm_json;          // of log.comm; "": disabled
  std::vector<std::string> next;  // suggested commands
};

// Destination of records. Called by the writer thread only. A sink that throws is disabled; temporary problems, such as
// a full disk, are notices instead.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual const char* name() const = 0;
  virtual void start(const StartInfo&) {}
  virtual void step(const StepRecord&) {}
  virtual void eval(const EvalRecord&) {}
  virtual void saved(const SavedRecord&) {}
  virtual void event(const EventRecord&) {}
  virtual void scalar(const ScalarRecord&) {}
  virtual void memory(const MemoryRecord&) {}
  virtual void stages(const StagesRecord&) {}
  virtual void histogram(const HistogramRecord&) {}
  virtual void end(const EndInfo&) {}
  virtual void flush() {}                                    // called once per second and after eval, save, end
  virtual std::vector<std::string> notices() { return {}; }  // the sink's warnings since the last call; after flush()
  virtual std::string unwritten() const {
    return "";
  }  // what could not be written and why; "": all is written. After flush()
};

// Writer thread and its queue. Any thread may push.
class MetricsWriter {
 public:
  static constexpr size_t kCapacity = 4096;

  explicit MetricsWriter(std::vector<std::unique_ptr<Sink>> sinks);
  ~MetricsWriter();  // drains and joins
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void start(const StartInfo& info);  // blocks until written
  // Never allocates or waits for a sink. When the queue is 7/8 full, steps that are not a multiple of 10 are dropped
  // and counted; when it is full, every record.
  void push(const StepRecord& r) { put(r, r.step % 10 != 0); }
  void push(const EvalRecord& r) { put(r, false); }
  void push(const SavedRecord& r) { put(r, false); }
  void push(const EventRecord& r) { put(r, false); }
  void push(const ScalarRecord& r) { put(r, true); }
  void push(const MemoryRecord& r) { put(r, false); }
  void push(const StagesRecord& r) { put(r, false); }
  void push(const HistogramRecord& r) { put(r, true); }
  // Waits until the sinks have flushed everything pushed so far, `limit` at most; false: they have not. Any thread.
  bool flush(std::chrono::seconds limit = std::chrono::hours(24));
  void end(const EndInfo& info);  // same, and writes the end block with dropped records and failed sinks

  // Prints a warning; of those with the same `key` (default: the text) only the first. All are counted for the end
  // block. Callable from any thread.
  void warn(int64_t step, const std::string& text, const std::string& key = "");
  void rearm(const std::string& key);  // the cause is gone: the next warning of that key is printed again

  int64_t dropped() const;
  std::vector<std::string> failures() const;  // "tensorboard: reason", one per disabled sink
  std::string unwritten() const;  // after end(): failures, and what sinks could not write; "": everything is written

 private:
  using Record = std::variant<StepRecord, EvalRecord, SavedRecord, EventRecord, ScalarRecord, MemoryRecord,
                              StagesRecord, HistogramRecord>;
  void put(const Record& record, bool droppable);
  void run();
  void deliver(const Record& record);
  void each_sink(const std::function<void(Sink&)>& call);
  void flush_sinks();
  void drain(std::unique_lock<std::mutex>& lock);

  std::vector<std::unique_ptr<Sink>> sinks_;  // a null entry: disabled. Guarded by sink_mutex_
  mutable std::mutex sink_mutex_;
  std::vector<std::string> failures_;
  std::vector<Record> ring_;  // [kCapacity], guarded by mutex_ like all below
  size_t head_ = 0, size_ = 0;
  int64_t dropped_ = 0;
  bool busy_ = false, stop_ = false;
  int64_t pushed_ = 0, delivered_ = 0;   // records
  int64_t flushed_ = 0, requested_ = 0;  // records that sinks have flushed; that flush() waits for
  struct Warning {
    std::string key, text;
    int64_t count = 0;
    bool quiet = false;
  };
  std::vector<Warning> warnings_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::thread thread_;
};

}  // namespace gt
