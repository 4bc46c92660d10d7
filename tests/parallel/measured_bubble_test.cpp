// The executed timeline against the simulator's, with stages of equal duration that sleep. Sleeping ranks need no core,
// so the measurement is valid on small and busy machines. Compares ratios within one run only. A failed measurement is
// reported and repeated with passes twice as long, which halves the relative effect of the machine's delays. Five
// failures in a row fail the test.
#include <algorithm>
#include <chrono>

#include "parallel/pipeline/simulate.h"
#include "tests/parallel/toy_ranks.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::toy;

namespace {

constexpr int kRanks = 4, kMicrobatches = 8, kSteps = 5, kTries = 5;
constexpr std::chrono::microseconds kPass{10000};  // of F, I and W of a whole rank, in the first attempt
constexpr double kWithin = kSanitized ? 1 : 0.1;   // of the simulator's; under a sanitizer waits are longer than passes

class SleepingStage : public PipelineStage {
 public:
  SleepingStage(bool last, std::chrono::microseconds pass) : last_(last), pass_(pass) {}
  Shape boundary(const MicroBatch&) const override { return {1, 16}; }
  Var forward(Tape& t, Var x, const MicroBatch&) override {
    std::this_thread::sleep_for(pass_);
    const Var y = last_ ? t.output({1}, DType::kF64) : t.output(boundary({}), DType::kF32);
    struct Saved {
      Var x, y;
      std::chrono::microseconds pass;
    };
    t.record(
        Saved{x, y, pass_},
        [](const Saved& s, Backprop& bp) {
          std::this_thread::sleep_for(s.pass);
          if (bp.needs_grad(s.x)) bp.dst(s.x);
        },
        [](const Saved& s, Backprop&) { std::this_thread::sleep_for(s.pass); });
    return y;
  }

 private:
  bool last_;
  std::chrono::microseconds pass_;
};

// Measurements of each step over the executed timelines of all ranks.
struct Steps {
  std::mutex guard;
  double first[kSteps], last[kSteps] = {}, busy[kSteps] = {};
  Steps() { std::fill_n(first, kSteps, 1e300); }
  void add(int step, const PipelineExecutor& e) {
    const std::lock_guard lock(guard);
    const auto t = e.timeline();
    first[step] = std::min(first[step], e.started() + t.front().begin);
    last[step] = std::max(last[step], e.started() + t.back().end);
    busy[step] += e.busy_seconds();
  }
  double median_bubble() const {
    double b[kSteps];
    for (int k = 0; k < kSteps; ++k) b[k] = 1 - busy[k] / ((last[k] - first[k]) * kRanks);
    std::sort(b, b + kSteps);
    return b[kSteps / 2];
  }
};

double measure(const PipelineSchedule& s, std::chrono::microseconds pass) {
  Steps steps;
  on_ranks(kRanks, [&](int r, const Mesh& mesh) {
    std::vector<std::unique_ptr<SleepingStage>> stages;
    std::vector<PipelineStage*> local;
    for (int st = r; st < s.stages; st += s.ranks) {
      stages.push_back(std::make_unique<SleepingStage>(st == s.stages - 1, pass / (s.stages / s.ranks)));
      local.push_back(stages.back().get());
    }
    PipelineExecutor e(s, local, mesh, ops(), device(), Stream{}, kGenerous);
    std::vector<double> losses(kMicrobatches);
    const Tensor out{reinterpret_cast<std::byte*>(losses.data()), {kMicrobatches}, DType::kF64, {}};
    const std::vector<MicroBatch> batches(kMicrobatches);
    for (int step = -1; step < kSteps; ++step) {  // the first one is a warm-up
      mesh.group(Axis::kPp).barrier();
      e.run(batches, out, {});
      if (step >= 0) steps.add(step, e);
    }
  });
  return steps.median_bubble();
}

struct Case {
  const char* name;
  int v;
};

}  // namespace

TEST_CASE("the bubble of executed timelines is within a tenth of the simulator's for stages of equal duration") {
  for (const Case c : {Case{"1f1b", 1}, {"interleaved", 2}, {"zb-h1", 1}}) {
    const PipelineSchedule s = make_schedule(c.name, kRanks, c.v, kMicrobatches);
    const double predicted = simulate(s).bubble;
    double measured = 0;
    for (int attempt = 1; attempt <= kTries; ++attempt) {
      measured = measure(s, kPass * (1 << (attempt - 1)));
      if (std::abs(measured / predicted - 1) <= kWithin) break;
      WARN(c.name << ": measured bubble " << measured << ", simulated " << predicted << ", try " << attempt);
    }
    INFO(c.name << ": measured " << measured << ", simulated " << predicted);
    CHECK(std::abs(measured / predicted - 1) <= kWithin);
  }
}
