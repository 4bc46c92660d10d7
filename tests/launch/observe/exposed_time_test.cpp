// Time of collectives: delays injected into waits appear in the timer of their axis, and not in forward or backward.
#include "tests/launch/engine_ranks.h"
#include "tests/support/delayed_group.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int kSteps = 4;

EngineOptions tiny() {
  EngineOptions o;
  o.model = {.layers = 4, .hidden = 16, .heads = 4, .ffn = 32, .vocab = 60, .seq = 8};
  o.lr = {.type = "constant", .peak = 1e-3};
  o.zero.persist_numel = 0;
  o.zero.bucket_bytes = 1;
  o.micro_batch = 1;
  o.microbatches = 2;
  return o;
}

// Times of one rank and step, in seconds.
struct RankTimes {
  Timers timers{};    // mean over the replicas of its pipeline rank; equal on all of them
  double whole = 0;   // from begin to end of the step
  double inside = 0;  // inside compute actions
  double slept[kNumCommOps] = {};
};

// Returns [rank][step]. Every wait of a group with more than one rank is delayed by up to a millisecond.
std::vector<std::vector<RankTimes>> run_delayed(const EngineOptions& o, MeshShape shape) {
  std::vector<std::vector<RankTimes>> out(static_cast<size_t>(shape.world()), std::vector<RankTimes>(kSteps));
  std::vector<Delays*> delays(out.size());
  const WrapFactory wrap = [&](GroupFactory& f) {
    auto made = std::make_unique<DelayedFactory>(f, 7, 1 << 20);
    Delays& d = made->delays();
    d.waits_only = true;
    d.one_in = 1;
    d.longest_us = 1000;
    delays[static_cast<size_t>(f.world_rank())] = &d;
    return made;
  };
  on_engines(
      o, shape,
      [&](EngineRank& r) {
        const auto rank = static_cast<size_t>(r.mesh.rank());
        for (int k = 0; k < kSteps; ++k) {
          RankTimes& s = out[rank][static_cast<size_t>(k)];
          const Delays before = *delays[rank];
          const StepResult result = r.step(k);
          for (int op = 0; op < kNumCommOps; ++op)
            s.slept[op] = static_cast<double>(delays[rank]->slept_in[op] - before.slept_in[op]) * 1e-6;
          for (int t = 0; t < kNumStageTimes; ++t)
            s.timers[static_cast<size_t>(t)] = result.times.at(r.mesh.coord(Axis::kPp), static_cast<StageTime>(t));
          const PhaseEnds phases = r.engine.phases();
          s.whole = phases.back() - phases.front();
          for (const ActionTime& t : r.engine.executor().timeline()) s.inside += t.end - t.begin;
        }
      },
      wrap);
  return out;
}

double busy(const Timers& t) { return t[kForwardTime] + t[kBackwardTime] + t[kInputGradTime] + t[kWeightGradTime]; }

// Mean over the replicas of pipeline rank `pp`.
template <class F>
double replicas(const std::vector<std::vector<RankTimes>>& times, MeshShape shape, int pp, F of) {
  double sum = 0;
  int n = 0;
  for (int r = 0; r < shape.world(); ++r)
    if (shape.coord(Axis::kPp, r) == pp) sum += of(times[static_cast<size_t>(r)]), ++n;
  return sum / n;
}

}  // namespace

TEST_CASE("waits for ZeRO's gathers and reductions are not compute, and each has its timer") {
  struct Way {
    int stage;
    GradReduce reduce;
    bool overlap;
  };
  for (const MeshShape shape : {MeshShape{.dp = 2}, MeshShape{.pp = 2, .dp = 2}})
    for (const Way way :
         {Way{1, GradReduce::kEnd, true}, Way{2, GradReduce::kEach, true}, Way{3, GradReduce::kEach, true},
          Way{3, GradReduce::kEach, false}, Way{3, GradReduce::kEnd, true}}) {
      INFO("pp " << shape.pp << " zero " << way.stage << " each " << (way.reduce == GradReduce::kEach) << " overlap "
                 << way.overlap);
      EngineOptions o = tiny();
      o.zero.stage = way.stage;
      o.zero.grad_reduce = way.reduce;
      o.zero.overlap = way.overlap;
      const auto times = run_delayed(o, shape);
      for (int pp = 0; pp < shape.pp; ++pp)
        for (size_t k = 0; k + 1 < kSteps; ++k) {
          const auto slept = [&](CommOp op) {
            return replicas(times, shape, pp,
                            [&](const std::vector<RankTimes>& s) { return s[k].slept[static_cast<int>(op)]; });
          };
          const double whole = replicas(times, shape, pp, [&](const auto& s) { return s[k].whole; });
          const double inside = replicas(times, shape, pp, [&](const auto& s) { return s[k].inside; });
          const auto rank = static_cast<size_t>(pp * shape.dp);
          // Reductions and gathers of a step are reported with the next one.
          const Timers &now = times[rank][k].timers, &next = times[rank][k + 1].timers;
          CHECK(slept(CommOp::kAllGather) > 0);
          CHECK(slept(CommOp::kReduceScatter) > 0);
          CHECK(next[kGatherTime] >= slept(CommOp::kAllGather));
          CHECK(next[kReduceTime] >= slept(CommOp::kReduceScatter));
          CHECK(busy(now) > 0);
          if (way.stage == 3)  // most waits were inside compute actions
            CHECK(busy(now) + (slept(CommOp::kAllGather) + slept(CommOp::kReduceScatter)) / 2 <= inside);
          // No time is counted twice.
          CHECK(busy(now) + now[kWaitTime] + now[kTpTime] + next[kReduceTime] + next[kNormsTime] +
                    next[kOptimizerTime] + next[kGatherTime] <=
                whole * (1 + 1e-9));
        }
    }
}

TEST_CASE("waits for tensor-parallel collectives have their timer, and count as a stage's work") {
  for (bool sequence_parallel : {true, false}) {
    const MeshShape shape{.pp = 2, .tp = 2};
    EngineOptions o = tiny();
    o.sequence_parallel = sequence_parallel;
    const auto times = run_delayed(o, shape);
    for (int pp = 0; pp < 2; ++pp)
      for (size_t k = 0; k < kSteps; ++k) {
        // The remaining all-reduces are one of the world and those of the tied embeddings.
        const double slept = replicas(times, shape, pp, [&](const std::vector<RankTimes>& s) {
          const double world = 2 * 1e-3;
          return s[k].slept[static_cast<int>(CommOp::kAllGather)] +
                 s[k].slept[static_cast<int>(CommOp::kReduceScatter)] +
                 s[k].slept[static_cast<int>(CommOp::kAllReduce)] - world;
        });
        const Timers& t = times[static_cast<size_t>(2 * pp)][k].timers;
        const double inside = replicas(times, shape, pp, [&](const auto& s) { return s[k].inside; });
        CHECK(slept > 0);
        CHECK(t[kTpTime] >= slept);
        CHECK(t[kTpTime] + busy(t) == Approx(inside).epsilon(1e-6));
        CHECK(t[kReduceTime] >= 0);
      }
  }
}
