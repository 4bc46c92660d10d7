// Use of the device: memory planned and measured, graphs, attention kernels.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "kernels/core/text.h"
#include "launch/observe/rank_memory.h"
#include "launch/train/observers/run_observer.h"

namespace gt {
namespace {

std::string process_text() { return "process " + format_bytes(static_cast<double>(resident_bytes())); }

class MemoryObserver : public RunObserver {
 public:
  using RunObserver::RunObserver;
  void end_step(const StepRecord* rec, const StepResult&) override {
    if (rec != nullptr && run_.config.log.memory && rec->step % run_.config.log.every == 0)
      run_.event(
          fmt::format("memory of rank 0: {} | {}", memory_line(run_.engine.measured_plan().memory), process_text()));
  }
  void after_evaluation() override;
  void end(EndInfo& info) override {
    if (!largest_) return;
    const auto bytes = [](const MemoryBytes& m) { return format_bytes(static_cast<double>(total(m))); };
    info.rows.emplace_back(
        "memory", fmt::format("rank {} (stage {}) needs most: {} planned, {} measured; {}", largest_->rank,
                              largest_->stage, bytes(largest_->planned), bytes(largest_->measured), process_text()));
  }

 private:
  std::optional<RankMemory> largest_;  // the rank that needs most; of rank 0
  bool reported_ = false;
};

// Once, when everything that takes memory has run: after two steps, and an evaluation if there are any.
void MemoryObserver::after_evaluation() {
  const int64_t every = run_.config.train.eval_every, step = run_.state->step;
  const int64_t steps = step - run_.state.first_step() + 1;
  const bool last = step >= run_.config.train.steps;
  if (reported_ || steps < 2 || (every > 0 && steps < every && !last)) return;
  reported_ = true;
  const MemoryReport& planned = run_.rank.plan.memory;
  const std::vector<RankMemory> all = gather_memory(run_.engine, planned, resident_bytes());
  if (run_.log == nullptr) return;
  largest_ = *std::max_element(all.begin(), all.end(), [](const RankMemory& a, const RankMemory& b) {
    return total(a.measured) < total(b.measured);
  });
  run_.log->push(MemoryRecord{.step = step,
                              .time = wall_seconds(),
                              .ranks = std::make_shared<const std::vector<RankMemory>>(worth_logging(all))});
  run_.event(fmt::format("memory of rank 0: planned {} | measured {} | {}", memory_line(planned),
                         memory_line(run_.engine.measured_plan().memory), process_text()));
}

class DeviceWorkObserver : public RunObserver {
 public:
  using RunObserver::RunObserver;
  void end_step(const StepRecord*, const StepResult&) override {
    report_eager_work();
    // The attention kernels selected since the last step: in the first step, and after a new shape.
    if (run_.rank.backend.take_attention_log == nullptr) return;
    std::istringstream lines(run_.rank.backend.take_attention_log());
    for (std::string line; std::getline(lines, line);) run_.event(line);
  }
  void end(EndInfo& info) override {
    if (run_.rank.backend.replays) info.rows.push_back({"graphs", graphs_line(run_.engine.replays())});
  }

 private:
  // Once: work whose calls change between steps costs speed only.
  void report_eager_work() {
    if (reported_ || !run_.rank.backend.replays) return;
    const ReplayCounts c = run_.engine.replays();
    if (c.eager == 0) return;
    reported_ = true;
    run_.event(fmt::format("graphs: work was launched op by op ({}); counted at the end of the run", c.why));
  }
  bool reported_ = false;
};

}  // namespace

std::unique_ptr<RunObserver> observe_memory(RunView& run) { return std::make_unique<MemoryObserver>(run); }
std::unique_ptr<RunObserver> observe_device_work(RunView& run) {
  return run.rank.is_rank0() ? std::make_unique<DeviceWorkObserver>(run) : nullptr;
}

}  // namespace gt
