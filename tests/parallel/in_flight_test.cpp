// On every executed step the number of live tapes follows the schedule's closed form, and activation bytes are that
// number of microbatches. Stages only allocate; one rank of a world whose messages move nothing.
#include <algorithm>

#include "kernels/core/memory.h"
#include "parallel/comm/null_group.h"
#include "parallel/pipeline/simulate.h"
#include "tests/parallel/closed_forms.h"
#include "tests/parallel/toy_pipeline.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::toy;

namespace {

constexpr int64_t kSaved = 512;  // bytes a stage keeps for its backward; a multiple of the arena's alignment

// Keeps kSaved bytes and forwards zeros: a tape node of each kind, no mathematics.
class DummyStage : public PipelineStage {
 public:
  explicit DummyStage(bool last) : last_(last) {}
  Shape boundary(const MicroBatch&) const override { return {1, kSaved / 4}; }
  Var forward(Tape& t, Var x, const MicroBatch&) override {
    const Var y = last_ ? t.output({1}, DType::kF64) : t.output(boundary({}), DType::kF32);
    if (last_) (void)t.scratch({1, kSaved / 4 - 64}, DType::kF32);  // as many bytes as the others
    struct Saved {
      Var x, y;
    };
    t.record(
        Saved{x, y},
        [](const Saved& s, Backprop& bp) {
          if (bp.needs_grad(s.x)) std::fill_n(bp.dst(s.x).tensor.as<float>(), kSaved / 4, 0.f);
        },
        [](const Saved&, Backprop&) {});
    return y;
  }

 private:
  bool last_;
};

// Peak of live tapes and activation bytes over the actions of one executed step, and what stays live after it.
struct Peak {
  int live = 0;
  int64_t bytes = 0;
};
Peak executed(const PipelineSchedule& s, int rank) {
  NullFactory nobody(rank, s.ranks);
  const Mesh mesh({.pp = s.ranks}, nobody);
  std::vector<std::unique_ptr<DummyStage>> stages;
  std::vector<PipelineStage*> local;
  for (int st = rank; st < s.stages; st += s.ranks) {
    stages.push_back(std::make_unique<DummyStage>(st == s.stages - 1));
    local.push_back(stages.back().get());
  }
  PipelineExecutor e(s, local, mesh, ops(), device(), Stream{}, {4 * kSaved, int64_t{1} << 20, 0});
  std::vector<double> losses(static_cast<size_t>(s.microbatches));
  const Tensor out{reinterpret_cast<std::byte*>(losses.data()), {s.microbatches}, DType::kF64, {}};
  const std::vector<MicroBatch> batches(losses.size());
  Peak peak;
  for (int step = 0; step < 2; ++step) {
    e.run(batches, out, {});
    peak = {};
    for (const ActionTime& t : e.timeline()) {
      peak.live = std::max(peak.live, t.live);
      peak.bytes = std::max(peak.bytes, t.activation_bytes);
    }
    if (peak.live != e.peak_live()) return {-1, -1};
  }
  return peak;
}

}  // namespace

TEST_CASE("live tapes and activation bytes of executed steps follow the closed forms up to 8 ranks and 4 chunks") {
  for (const NamedSchedule c : kNamedSchedules)
    for (int p = 1; p <= 8; ++p)
      for (int m : {1, 2, 3, 5, 7, 8, 9, 16}) {
        if (kSanitized && p != 1 && p != 3 && p != 8) continue;
        const PipelineSchedule s = make_schedule(c.name, p, c.v, m, true);
        for (int r = 0; r < p; ++r) {
          CAPTURE(c.name, c.v, p, m, r);
          const int expected = most_in_flight(c.name, p, c.v, m, r);
          const Peak got = executed(s, r);
          REQUIRE(got.live == expected);
          REQUIRE(got.bytes == expected * kSaved);
        }
      }
}
