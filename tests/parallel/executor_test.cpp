// The executor on thread ranks: every schedule is bitwise identical to one rank, within the memory that the simulator
// predicts.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "parallel/comm/null_group.h"
#include "parallel/comm/self_group.h"
#include "parallel/pipeline/simulate.h"
#include "tests/parallel/toy_ranks.h"
#include "tests/support/heap/count_allocations.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::toy;
using Catch::Contains;

namespace {

std::string order_complaint(const PipelineSchedule& s, const std::vector<Rank::Event>& order, bool tied) {
  std::vector<int> next(static_cast<size_t>(s.stages), 0);
  bool saw_tied = false;
  for (const Rank::Event& e : order) {
    if (e.what == 3) {
      saw_tied = true;
      continue;
    }
    int& n = next[static_cast<size_t>(e.stage)];
    if (e.what == 2 && n != s.microbatches) return cat("G of stage ", e.stage, " after ", n, " weight passes");
    if (e.what == 2) continue;
    if (e.microbatch != n) return cat("stage ", e.stage, " accumulates microbatch ", e.microbatch, " as number ", n);
    ++n;
    if ((e.what == 1) != (n == s.microbatches))
      return cat("stage ", e.stage, " microbatch ", e.microbatch, ": wrong `last`");
  }
  if (saw_tied != tied) return "T was not called where it should be";
  return "";
}

struct Case {
  const char* name;
  int v;
};

}  // namespace

TEST_CASE("every schedule on one to four ranks is bitwise one rank, twice, in the predicted number of slots") {
  for (int m = 1; m <= 9; ++m) {
    const Outcome expected[2] = {on_one_rank(m, 0), on_one_rank(m, 1)};
    REQUIRE_FALSE(expected[0].same_bits(expected[1]));
    for (const Case c : {Case{"gpipe", 1}, {"1f1b", 1}, {"zb-h1", 1}, {"interleaved", 2}, {"interleaved", 3}})
      for (int p = 1; p <= 4; ++p) {
        CAPTURE(c.name, c.v, p, m);
        const PipelineSchedule s = make_schedule(c.name, p, c.v, m, true);
        const Report predicted = simulate(s);
        Outcome got[2];
        std::mutex guard;
        std::vector<std::string> complaints;
        REQUIRE_NOTHROW(on_ranks(p, [&](int r, const Mesh& mesh) {
          Rank rank(s, mesh);
          for (int step = 0; step < 2; ++step) {
            rank.step(Batches(m, step));
            const std::lock_guard lock(guard);
            got[step].add(rank, r == p - 1);
            const int peak = predicted.peak_in_flight[static_cast<size_t>(r)];
            if (rank.executor->slots() != peak || rank.executor->peak_live() != peak)
              complaints.push_back(cat("rank ", r, ": ", rank.executor->slots(), " slots, ", rank.executor->peak_live(),
                                       " live, ", peak, " predicted"));
            const std::string order = order_complaint(s, rank.order, r == 0 || r == p - 1);
            if (!order.empty()) complaints.push_back(order);
          }
        }));
        CHECK(complaints == std::vector<std::string>{});
        CHECK(got[0].same_bits(expected[0]));
        CHECK(got[1].same_bits(expected[1]));
      }
  }
}

TEST_CASE("delays on any rank leave results bitwise identical") {
  const Outcome expected = on_one_rank(7, 0);
  for (const Case c : {Case{"gpipe", 1}, {"1f1b", 1}, {"zb-h1", 1}, {"interleaved", 2}})
    for (unsigned jitter = 1; jitter <= 5; ++jitter) {
      CAPTURE(c.name, jitter);
      Outcome got;
      std::mutex guard;
      on_ranks(3, [&](int r, const Mesh& mesh) {
        Rank rank(make_schedule(c.name, 3, c.v, 7), mesh, kGenerous, jitter * 97);
        rank.step(Batches(7, 0));
        const std::lock_guard lock(guard);
        got.add(rank, r == 2);
      });
      CHECK(got.same_bits(expected));
    }
}

TEST_CASE("evaluation returns the training losses in two slots and touches no gradient") {
  for (int m = 1; m <= 5; ++m) {
    const Outcome expected = on_one_rank(m, 0);
    for (int v = 1; v <= 3; ++v)
      for (int p = 1; p <= 4; ++p) {
        CAPTURE(m, v, p);
        const PipelineSchedule s = make_schedule("forward", p, v, m);
        std::vector<double> losses;
        std::mutex guard;
        std::atomic<int> touched{0}, slots{0};
        on_ranks(p, [&](int r, const Mesh& mesh) {
          Rank rank(s, mesh);
          rank.step(Batches(m, 1));
          rank.step(Batches(m, 0));
          for (auto& st : rank.stages)
            for (Weight& w : st->weights()) touched += w.param.grad_dirty ? 1 : 0;
          slots = std::max<int>(slots, rank.executor->slots());
          if (rank.executor->gradient_high_water() != 0 || !rank.order.empty()) ++touched;
          const std::lock_guard lock(guard);
          if (r == p - 1) losses = rank.losses;
        });
        CHECK(losses == expected.losses);
        CHECK(touched == 0);
        CHECK(slots == 2);
      }
  }
}

TEST_CASE("a dry run without neighbors measures exactly the memory that a real run needs") {
  for (const Case c : {Case{"gpipe", 1}, {"1f1b", 1}, {"zb-h1", 1}, {"interleaved", 2}, {"forward", 1}}) {
    CAPTURE(c.name);
    const PipelineSchedule s = make_schedule(c.name, 3, c.v, 5);
    const Outcome expected = on_one_rank(5, 0);
    Outcome got;
    std::mutex guard;
    std::vector<std::string> complaints;
    REQUIRE_NOTHROW(on_ranks(3, [&](int r, const Mesh& mesh) {
      NullFactory nobody(r, 3);
      const Mesh planned({.pp = 3}, nobody);
      Rank dry(s, planned);
      dry.step(Batches(5, 0));
      const PipelineExecutor& e = *dry.executor;
      Rank real(s, mesh, {e.activation_high_water(), e.gradient_high_water(), e.boundary_bytes()});
      real.step(Batches(5, 0));
      const std::lock_guard lock(guard);
      got.add(real, r == 2);
      if (real.executor->activation_high_water() != e.activation_high_water() ||
          real.executor->gradient_high_water() != e.gradient_high_water() ||
          real.executor->boundary_bytes() != e.boundary_bytes())
        complaints.push_back(cat("rank ", r));
    }));
    CHECK(complaints == std::vector<std::string>{});
    if (c.name != std::string("forward")) CHECK(got.same_bits(expected));
    CHECK(got.losses == expected.losses);
  }
}

TEST_CASE("a warm executor allocates nothing") {
  for (const Case c : {Case{"gpipe", 1}, {"1f1b", 1}, {"zb-h1", 1}, {"interleaved", 3}, {"forward", 2}})
    for (int p = 1; p <= 4; p += 3)
      for (int r = 0; r < p; ++r) {
        CAPTURE(c.name, p, r);
        NullFactory nobody(r, p);  // measures the executor alone: groups here move nothing
        const Mesh mesh({.pp = p}, nobody);
        Rank rank(make_schedule(c.name, p, c.v, 6, true), mesh, kGenerous, 0, {r % 2 == 0, true});
        const Batches b(6, 0);
        rank.step(b);
        CountAllocations count;
        rank.step(b);
        CHECK(count.stop() == 0);
      }
}

TEST_CASE("a stage that forwards its tensors works in training and evaluation") {
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "forward"}) {
    CAPTURE(name);
    const int m = 6;
    Outcome expected = on_one_rank(m, 0), got;
    std::mutex guard;
    on_ranks(3, [&](int r, const Mesh& mesh) {
      const PipelineSchedule s = make_schedule(name, 3, 1, m);
      ThroughStage through;
      ToyStage front(0, 5), back(5, kLayers);
      PipelineStage* local = r == 0   ? static_cast<PipelineStage*>(&front)
                             : r == 1 ? &through
                                      : static_cast<PipelineStage*>(&back);
      PipelineExecutor e(s, {local}, mesh, ops(), device(), Stream{}, kGenerous);
      std::vector<double> losses(m);
      const Batches b(m, 0);
      for (int step = 0; step < 2; ++step) {
        for (ToyStage* t : {&front, &back})
          for (Weight& w : t->weights()) w.begin_step();
        e.run(b.list, {reinterpret_cast<std::byte*>(losses.data()), {m}, DType::kF64, {}}, {});
      }
      const std::lock_guard lock(guard);
      for (ToyStage* t : {&front, &back})
        if (t == local)
          for (Weight& w : t->weights()) got.grads[static_cast<size_t>(std::stoi(w.param.name.substr(5)))] = w.grad;
      if (r == 2) got.losses = losses;
    });
    CHECK(got.losses == expected.losses);
    if (name != std::string("forward")) CHECK(got.same_bits(expected));
  }
}

TEST_CASE("a schedule from text with mixed plain and split backward runs") {
  const Outcome expected = on_one_rank(3, 0);
  Outcome got;
  std::mutex guard;
  // W0 after B1 would accumulate microbatch 0 after 1.
  CHECK_THROWS_WITH(simulate(parse_schedule("0F0 0I0 0F1 0B1 0W0 0G\n")), Contains(">>0W0<<") && Contains("ascending"));
  const PipelineSchedule mixed = parse_schedule(
      "0F0 0F>0 0F1 0F>1 0B<0 0B0 0B<1 0F2 0F>2 0I1 0W1 0B<2 0B2 0G\n"
      "1F<0 1F0 1F<1 1I0 1B>0 1F1 1W0 1B1 1B>1 1F<2 1F2 1I2 1B>2 1W2 1G\n");
  on_ranks(2, [&](int r, const Mesh& mesh) {
    Rank rank(mixed, mesh);
    rank.step(Batches(3, 0));
    const std::lock_guard lock(guard);
    got.add(rank, r == 1);
  });
  CHECK(got.same_bits(expected));
}

TEST_CASE("the timeline lists this rank's compute actions in order") {
  on_ranks(2, [&](int r, const Mesh& mesh) {
    const PipelineSchedule s = make_schedule("1f1b", 2, 1, 4);
    Rank rank(s, mesh);
    rank.step(Batches(4, 0));
    const auto times = rank.executor->timeline();
    GT_CHECK(times.size() == 8);
    size_t at = 0;
    double sum = 0, end = 0;
    for (const Action& a : s.program[static_cast<size_t>(r)]) {
      if (a.act != Act::kForward && a.act != Act::kBackward) continue;
      GT_CHECK(times[at].action == a && times[at].begin >= end && times[at].end >= times[at].begin);
      end = times[at].end;
      sum += times[at].end - times[at].begin;
      ++at;
    }
    GT_CHECK(std::abs(sum - rank.executor->busy_seconds()) < 1e-9 && rank.executor->wait_seconds() >= 0);
    GT_CHECK(r == 0 || rank.executor->wait_seconds() > 0);
  });
}

TEST_CASE("misuse is refused with expected and found") {
  SelfFactory factory;
  const Mesh mesh({}, factory);
  CHECK_THROWS_WITH(Rank(make_schedule("1f1b", 2, 1, 2), mesh), Contains("2 ranks") && Contains("mesh has 1"));
  ToyStage whole(0, kLayers);
  const auto make = [&](PipelineStage* s, int m, ExecutorMemory memory = kGenerous) {
    return PipelineExecutor(make_schedule("1f1b", 1, 1, m), {s}, mesh, ops(), device(), Stream{}, memory);
  };
  CHECK_THROWS_WITH(PipelineExecutor(make_schedule("1f1b", 1, 1, 2), {}, mesh, ops(), device(), Stream{}, kGenerous),
                    Contains("0 model chunks"));
  std::vector<double> losses(2);
  const Tensor out{reinterpret_cast<std::byte*>(losses.data()), {2}, DType::kF64, {}};
  auto two = make(&whole, 2);
  CHECK_THROWS_WITH(two.run(Batches(3, 0).list, out, {}), Contains("takes 2 microbatches, got 3"));
  CHECK_THROWS_WITH(two.run(Batches(2, 0).list, out.view({1, 2}).slice(0, 0), {}), Contains("losses are f64 [2]"));
  ToyStage headless(0, 3);  // returns an activation where the loss is due
  auto no_loss = make(&headless, 2);
  CHECK_THROWS_WITH(no_loss.run(Batches(2, 0).list, out, {}),
                    Contains("0F0") && Contains("f64 [1]") && Contains("f32 [6, 4]"));
  auto small = make(&whole, 2, {512, 1 << 16, 0});
  CHECK_THROWS_WITH(small.run(Batches(2, 0).list, out, {}), Contains("arena"));
  CHECK_THROWS_WITH(on_ranks(2,
                             [&](int, const Mesh& pair) {
                               Rank rank(make_schedule("1f1b", 2, 1, 2), pair, {1 << 16, 1 << 16, 4});
                               rank.step(Batches(2, 0));
                             }),
                    Contains("does not fit"));
}
