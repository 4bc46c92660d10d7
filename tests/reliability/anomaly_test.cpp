// Anomalous steps: detection, skipping, rollback, reporting.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "kernels/core/step_limits.h"
#include "launch/config/config.h"
#include "launch/engine/inject.h"
#include "launch/engine/step_guard.h"
#include "tests/launch/process.h"
#include "tests/support/goal.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

constexpr GuardOptions kSkips{.action = SpikeAction::kSkip};

void fill(StepGuard& g, double loss = 2, double norm = 1) {
  for (int k = 0; k < SpikeWindow::kSize; ++k) REQUIRE_FALSE(g.check(loss, norm));
}

const std::string kTiny =
    "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --schedule.type constant "
    "--launch.ranks threads ";

}  // namespace

TEST_CASE("a value 6 deviations above the median of 128 is a spike, and no spike enters the window", "[R24]") {
  StepGuard g(kSkips);
  for (int k = 0; k < 127; ++k) CHECK_FALSE(g.check(2, 1));
  CHECK_FALSE(g.check(2000, 1));  // the window is not full: no check, but the value enters it
  StepGuard fixture(kSkips);
  fill(fixture);
  CHECK_FALSE(fixture.check(2.011, 1));  // s = 0.002: z 5.5
  CHECK(fixture.check(2.013, 1));        // 6.5
  CHECK_THAT(fixture.reason(), Catch::Contains("loss 2.013 is 6.5 deviations above 2, the median"));
  CHECK_FALSE(fixture.check(1.9, 1));  // only values above the median
  CHECK(fixture.check(2, 1.1));
  CHECK_THAT(fixture.reason(), Catch::Contains("gradient norm 1.1 is 1.1 times 1, the median"));
  for (int k = 0; k < 300; ++k) fixture.check(2.013, 1);
  CHECK(fixture.check(2.013, 1));  // still a spike: spikes do not enter the window
}

TEST_CASE("the spread is 1.4826 times the median distance from the median", "[R24]") {
  SpikeWindow w(SpikeWindow::Scale::kLinear), logs(SpikeWindow::Scale::kLog);
  // Median 63.5, distances 0.5 … 63.5 with median 32; the logarithms are a sixteenth of that.
  for (int k = 0; k < SpikeWindow::kSize; ++k) w.add(k), logs.add(std::exp(k / 16.));
  CHECK(w.median() == 63.5);
  CHECK(w.z(63.5 + 1.4826 * 32 * 7, 6) == Approx(7).epsilon(1e-12));
  CHECK(std::log(logs.median()) == Approx(63.5 / 16).epsilon(1e-12));
  for (const double most : {2., 6., 9.}) {  // deviations are counted in spreads of the logarithm
    CHECK(logs.z(std::exp((63.5 + 1.4826 * 32 * most) / 16), most) == Approx(most).epsilon(1e-9));
    CHECK(logs.z(std::exp((63.5 + 1.4826 * 32 * (most - 0.1)) / 16), most) < most);
  }
}

TEST_CASE("by default every finite step is applied, for any loss and norm, and spikes are counted", "[R24]") {
  const FaultConfig standard;
  StepGuard g(standard);
  fill(g);
  for (int k = 0; k < 2000; ++k) {
    const double loss = k % 7 == 0 ? 1e6 : 2, norm = k % 5 == 0 ? 1e9 : k % 3 == 0 ? 40 : 1;
    const StepLimits l = g.limits();
    const double limits[kNumLimits] = {l.loss_middle, l.loss_spread, l.norm_middle, l.norm_spread, l.most};
    REQUIRE_FALSE(is_anomalous_step(loss, norm, limits));
    REQUIRE_FALSE(g.check(loss, norm));
    REQUIRE_FALSE(g.needs_rollback());
  }
  CHECK(g.spikes_taken() > 100);
  StepGuard level(standard);
  fill(level);
  for (int k = 0; k < 300; ++k) level.check(3, 5);
  CHECK(level.spikes_taken() == SpikeWindow::kSize / 2);  // a lasting level becomes the median
  CHECK_FALSE(level.bad());
}

TEST_CASE("three anomalous steps in a row request a rollback, non-finite steps are always skipped", "[R23][R24]") {
  for (const SpikeAction action : {SpikeAction::kSkip, SpikeAction::kRollback, SpikeAction::kWarn, SpikeAction::kOff}) {
    StepGuard g({.action = action});
    fill(g);
    const bool skips = action == SpikeAction::kSkip || action == SpikeAction::kRollback;
    CHECK(g.check(9, 1) == skips);
    CHECK(g.bad() == (action != SpikeAction::kOff));
    CHECK(g.needs_rollback() == (action == SpikeAction::kRollback));
    CHECK_FALSE(g.check(2, 1));
    CHECK(g.check(kNan, 1));
    CHECK(g.check(2, std::numeric_limits<double>::infinity()));
    CHECK_FALSE(g.needs_rollback());
    CHECK(g.check(kNan, kNan));
    CHECK(g.needs_rollback());
    CHECK_FALSE(g.check(2, 1));
    CHECK(g.check(kNan, 1));
    CHECK_FALSE(g.needs_rollback());
  }
  StepGuard scaled(kSkips);
  CHECK(scaled.check(2, std::numeric_limits<double>::infinity(), true));  // handled by the loss scaler
  CHECK_FALSE(scaled.bad());
  CHECK(scaled.check(kNan, kNan, true));
  CHECK(scaled.bad());
}

TEST_CASE("rising gradient norms under an unchanged loss are skipped twice, then accepted", "[R24]") {
  StepGuard g(kSkips);
  fill(g);
  CHECK(g.check(2, 70));
  CHECK(g.check(2, 3));
  StepGuard resumed(kSkips);
  resumed.restore(g.json());
  for (StepGuard* guard : {&g, &resumed}) {
    CHECK_FALSE(guard->check(2, 5));
    CHECK(guard->bad());
    CHECK(guard->relearns());
    CHECK_FALSE(guard->needs_rollback());
    CHECK_THAT(guard->reason(), Catch::Contains("gradient norm 5 is far above the median"));
    CHECK_FALSE(guard->check(2, 500));  // the window of norms is not full
    CHECK(guard->check(9, 5));          // the window of losses is
    for (int k = 0; k < 200; ++k) CHECK_FALSE(guard->check(2, 5));
    CHECK(guard->check(2, 6));
  }
  // Not if a loss was anomalous, if nothing bounds the update, or if the action is immediate rollback.
  StepGuard mixed(kSkips);
  fill(mixed);
  CHECK(mixed.check(9, 1));
  CHECK(mixed.check(2, 70));
  resumed.restore(mixed.json());
  for (StepGuard* guard : {&mixed, &resumed}) {
    CHECK(guard->check(2, 70));
    CHECK(guard->needs_rollback());
  }
  StepGuard unbounded({.action = SpikeAction::kSkip, .clipped = false}), eager({.action = SpikeAction::kRollback});
  for (StepGuard* guard : {&unbounded, &eager}) {
    fill(*guard);
    for (int k = 0; k < 3; ++k) CHECK(guard->check(2, 70));
    CHECK(guard->needs_rollback());
  }
}

TEST_CASE("with the limits a device skips exactly the steps that the guard would skip", "[R24]") {
  for (const SpikeAction action : {SpikeAction::kSkip, SpikeAction::kRollback, SpikeAction::kWarn, SpikeAction::kOff})
    for (const bool clipped : {true, false}) {
      StepGuard g({.action = action, .clipped = clipped});
      uint64_t x = 7;
      int left_out = 0, relearned = 0;
      for (int step = 0; step < 4000; ++step) {
        x = splitmix64(x);
        const auto odds = static_cast<double>(x % 1000) / 1000;
        double loss = 2 + 0.1 * odds, norm = 1 + 0.2 * odds;
        if (step > 150 && step % 200 < 5) norm = 40;  // longer than the guard tolerates
        if (x % 61 == 0) loss = 9;
        if (x % 67 == 0) loss = kNan;
        if (x % 71 == 0) norm = std::numeric_limits<double>::infinity();
        const StepLimits l = g.limits();
        const double limits[kNumLimits] = {l.loss_middle, l.loss_spread, l.norm_middle, l.norm_spread, l.most};
        const bool bad = is_anomalous_step(loss, norm, limits);
        REQUIRE(bad == g.check(loss, norm));
        left_out += bad, relearned += g.relearns();
      }
      CHECK(left_out > (action == SpikeAction::kWarn || action == SpikeAction::kOff ? 50 : 100));
      CHECK((relearned > 0) == (action == SpikeAction::kSkip && clipped));
    }
}

TEST_CASE("rollbacks are counted, reset after 1000 good steps, and survive the state of an older checkpoint", "[R24]") {
  StepGuard g({.action = SpikeAction::kSkip, .max_rollbacks = 2});
  fill(g);
  const std::string old = g.json();
  CHECK(g.count_rollback());
  g.restore(old, true);
  CHECK(g.rollbacks() == 1);
  CHECK(g.count_rollback());
  CHECK_FALSE(g.count_rollback());
  for (int k = 0; k < 999; ++k) g.check(2, 1);
  CHECK(g.check(kNan, 1));  // the count of a thousand restarts
  for (int k = 0; k < 999; ++k) g.check(2, 1);
  CHECK(g.rollbacks() == 2);
  g.check(2, 1);
  CHECK(g.rollbacks() == 0);
}

TEST_CASE("a restored guard decides like the original", "[R24]") {
  StepGuard a(kSkips);
  uint64_t x = 1;
  const auto next = [&] { return 2 + 1e-3 * static_cast<double>((x = x * 6364136223846793005u + 1) >> 54); };
  for (int k = 0; k < 200; ++k) a.check(next(), next());
  a.check(kNan, 1);
  StepGuard b(kSkips);
  b.restore(a.json());
  CHECK(b.json() == a.json());
  for (int k = 0; k < 400; ++k) {
    const double loss = next() + (k % 7 == 0 ? 3 : 0), norm = next();
    CHECK(a.check(loss, norm) == b.check(loss, norm));
    CHECK(a.needs_rollback() == b.needs_rollback());
  }
  CHECK(b.json() == a.json());
}

TEST_CASE("a rollback skips the batches around the anomalous one") {
  // Third anomalous step 1000, batch 999, one sample each: batches 899 to 1098.
  CHECK(skip_window(999, 1, 200) == std::pair<int64_t, int64_t>{899, 1099});
  CHECK(skip_window(999 * 8, 8, 200) == std::pair<int64_t, int64_t>{899 * 8, 1099 * 8});
  CHECK(skip_window(8, 8, 200).first == 0);
  CHECK(skip_window(40, 8, 1) == std::pair<int64_t, int64_t>{40, 48});  // at least the anomalous one
  CHECK(skip_window(40, 8, 0).first == skip_window(40, 8, 0).second);
}

TEST_CASE("a spike is applied and reported unless the user configures skipping", "[R24]") {
  TempDir dir;
  const std::string run = kTiny + "--checkpoint.every 0 --train.steps 140 --fault.inject scale@grad:n=10000,step=135 ";
  const Outcome taken = gpttrain(run + "--log.name taken", dir.path());
  INFO(taken.out);
  CHECK(taken.code == 0);
  CHECK(taken.prints("step 135: gradient norm "));
  CHECK(taken.prints("; its update is applied"));
  CHECK(taken.prints("of 140 steps had a loss or gradient norm far above the median"));
  const auto none = logged(dir / "runs/taken", "skipped");
  REQUIRE(none.size() == 140);
  CHECK(none[139] == 0);
  const Outcome left = gpttrain(run + "--log.name left --fault.spike_action skip", dir.path());
  INFO(left.out);
  CHECK(left.code == 0);
  CHECK(left.prints("step 135, its update is skipped: gradient norm "));
  const auto one = logged(dir / "runs/left", "skipped");
  REQUIRE(one.size() == 140);
  CHECK(one[139] == 1);
}

TEST_CASE("a non-finite gradient is skipped and named: tensor, element, rank, and training continues", "[R23]") {
  struct Case {
    std::string layout, fault, named;
  };
  for (const Case& c :
       {Case{"--tp 2 --pp 2 ", ",param=layers.3.mlp.up.weight,index=2", "gradient of layers.3.mlp.up.weight, element "},
        Case{"--tp 2 --pp 2 ", ",param=layers.3.norm1.bias", "gradient of layers.3.norm1.bias, in this rank's replica"},
        Case{"--dp 2 --pp 2 --zero 2 ", "", "gradient of "}}) {
    TempDir dir;
    const Outcome r = gpttrain(
        kTiny + c.layout + "--train.steps 8 --log.name x --fault.inject nan@grad:rank=3,step=4" + c.fault, dir.path());
    INFO(r.out);
    CHECK(r.code == 0);
    CHECK(r.prints("step 4, its update is skipped: loss "));
    CHECK(r.prints(c.named));
    CHECK(r.prints("(rank 3, pp1 "));
    const auto skipped = logged(dir / "runs/x", "skipped");
    REQUIRE(skipped.size() == 8);
    CHECK(skipped[2] == 0);
    CHECK(skipped[3] == 1);
    CHECK(skipped[7] == 1);
  }
}

TEST_CASE("the op that first produced a non-finite value is named: op, parameter, element, rank, microbatch, samples",
          "[R23]") {
  struct Site {
    std::string param;
    int stage;
  };
  std::vector<Site> sites;
  for (int layer = 0; layer < 4; ++layer)
    for (const char* p :
         {"attn.qkv.weight", "attn.out.weight", "mlp.up.weight", "mlp.down.weight", "norm1.weight", "norm2.weight"})
      sites.push_back({cat("layers.", layer, ".", p), layer / 2});
  int goal = goal_size(kSanitized ? 3 : 51, 51), named = 0;
  // Three per run, the most it diagnoses. Good steps lie between them, so nothing rolls back.
  for (int first = 0; first < goal; first += 3) {
    TempDir dir;
    std::string faults;
    std::vector<std::string> expected;
    for (int k = 0; k < 3; ++k) {
      const int n = 7 * (first + k);
      const Site& site = sites[static_cast<size_t>(n) % sites.size()];
      const bool forward = (first + k) % 2 == 0;
      const int rank = 2 * site.stage + (n / 5) % 2, mb = n % 8, step = 2 + 2 * k;
      faults += cat(k > 0 ? " " : "", n % 3 == 0 ? "inf" : "nan", "@", forward ? "forward" : "backward", ":rank=", rank,
                    ",step=", step, ",mb=", mb, ",index=5,param=", site.param);
      expected.push_back(cat("step ", step, ", its update is skipped: "));
      expected.push_back(cat(forward ? " with " : " for the gradient of ", site.param, ": "));
      expected.push_back(cat("its operands are finite (rank ", rank, ", pp", site.stage, " dp0 tp", rank % 2,
                             ", stage ", site.stage, ", microbatch ", mb, ", samples ", 8 * (step - 1) + mb, " to "));
    }
    const Outcome r = gpttrain(
        kTiny + "--tp 2 --pp 2 --train.steps 7 --checkpoint.every 0 --log.name x --fault.inject '" + faults + "'",
        dir.path());
    INFO(faults << "\n" << r.out);
    CHECK(r.code == 0);
    for (const std::string& text : expected) {
      INFO(text);
      CHECK(r.prints(text));
    }
    for (size_t k = 2; k < expected.size(); k += 3) named += r.prints(expected[k]);
  }
  print_figure("R23",
               cat(named, "/", goal, " sites: caught in their step, first op, parameter, rank, microbatch named"));
}

TEST_CASE("a value that no op of the step produced is reported as of other origin", "[R23]") {
  TempDir dir;
  const Outcome r =
      gpttrain(kTiny +
                   "--pp 2 --train.steps 6 --checkpoint.every 0 --log.name x --fault.inject "
                   "'nan@grad:rank=1,step=2 nan@master:rank=0,step=4,until=4,param=layers.0.norm1.weight'",
               dir.path());
  INFO(r.out);
  CHECK(r.prints("every op of the step had finite results, so these values appeared afterwards"));
  CHECK(r.prints("layer_norm with layers.0.norm1.weight: out, element 0 of "));
  CHECK(r.prints("its operand gamma was not finite before"));
}

TEST_CASE("the run rolls back to an older checkpoint and skips the batches that caused it, also after a resume",
          "[R23][R24]") {
  // Batches 8 to 10 (steps 9 to 11) are anomalous. Rollback to step 3, the oldest; batches 7 to 12 are skipped, so step
  // 8 takes batch 13.
  const std::string run = kTiny +
                          "--pp 2 --train.steps 16 --checkpoint.every 3 --checkpoint.keep 9 --fault.skip_batches 6 "
                          "--fault.inject nan@grad:step=9,until=11 ";
  TempDir dir;
  const Outcome whole = gpttrain(run + "--log.name whole", dir.path());
  INFO(whole.out);
  CHECK(whole.code == 0);
  CHECK(whole.prints("rolled back from step 11 to step 3 (rollback 1 of 3)"));
  CHECK(whole.prints("batches 7 to 12 are skipped"));
  const auto samples = logged(dir / "runs/whole", "samples"), losses = logged(dir / "runs/whole", "loss");
  REQUIRE(samples.size() == 16);
  CHECK(samples[6] == 7 * 8);
  CHECK(samples[7] == 14 * 8);
  CHECK(samples[15] == 22 * 8);
  CHECK(logged(dir / "runs/whole", "skipped")[15] == 0);  // those steps are undone
  CHECK(whole.prints("newer than step 3, from which the run resumes; set aside as"));
  // Stopped after the rollback and before the skipped batches.
  REQUIRE(gpttrain(run + "--log.name parts --fault.inject \"nan@grad:step=9,until=11\" --train.steps 13", dir.path())
              .code == 0);
  const Outcome rest = gpttrain(run + "--log.name parts", dir.path());
  INFO(rest.out);
  CHECK(rest.code == 0);
  CHECK(logged(dir / "runs/parts", "loss") == losses);
  CHECK(logged(dir / "runs/parts", "samples") == samples);

  const Outcome never = gpttrain(run + "--log.name never --fault.max_rollbacks 0", dir.path());
  INFO(never.out);
  CHECK(never.code == 17);
  CHECK(never.prints("fault.max_rollbacks"));
  const Outcome again = gpttrain(run + "--log.name never --checkpoint.resume 9 --fault.skip_batches 0", dir.path());
  INFO(again.out);
  CHECK(again.code == 17);  // nothing is skipped: the same batches repeat until the rollback limit
  CHECK(again.prints("rollback 3 of 3"));
}

TEST_CASE("a rollback with no earlier checkpoint ends the run with 17 and a message", "[R23]") {
  TempDir dir;
  const Outcome r = gpttrain(kTiny +
                                 "--train.steps 9 --checkpoint.every 0 --log.name x --tp 2 --fault.inject "
                                 "inf@master:rank=1,step=3,param=layers.0.mlp.up.weight",
                             dir.path());
  INFO(r.out);
  CHECK(r.code == 17);
  CHECK(r.prints("weight of layers.0.mlp.up.weight, element "));
  CHECK(r.prints("(rank 1, pp0 dp0 tp1)"));
  CHECK(r.prints("the loss of microbatch 0 of dp rank 0 (samples 16 to 16) is "));
  CHECK(r.prints("there is no checkpoint to roll back to"));
  CHECK_FALSE(std::filesystem::exists(dir / "runs/x/checkpoints/latest"));
}

TEST_CASE("unknown fault injections are refused with the known ones") {
  for (const char* bad : {"nan", "nan@loss", "kill@grad", "nan@grad:x=1", "nan@grad:step", "nan@grad:step=b"}) {
    TempDir dir;
    const Outcome r = gpttrain(kTiny + "--train.steps 1 --fault.inject " + bad, dir.path());
    INFO(r.out);
    CHECK(r.code == 2);
    CHECK(r.prints("fault.inject"));
  }
}
