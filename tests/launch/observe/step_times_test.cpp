// Breakdown of a step: measured and predicted bubbles, and the slow-data warning.
#include "launch/engine/measure/step_times.h"

#include "launch/observe/data_wait.h"
#include "launch/observe/predict.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

EngineOptions model_of(int64_t layers) {
  EngineOptions o;
  o.model = {.layers = layers, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 320, .seq = 32};
  o.microbatches = 8;
  return o;
}

}  // namespace

TEST_CASE("bubbles are computed from the times of the pipeline ranks") {
  double t[2 * kNumStageTimes] = {};
  t[kForwardTime] = 1;
  t[kBackwardTime] = 2;
  t[kPipelineTime] = 4;
  t[kOptimizerTime] = 0.5;
  t[kNumStageTimes + kForwardTime] = 1;
  t[kNumStageTimes + kInputGradTime] = 0.75;
  t[kNumStageTimes + kWeightGradTime] = 0.25;
  t[kNumStageTimes + kPipelineTime] = 5;
  const StepTimes times(t);
  CHECK(times.stages() == 2);
  CHECK(times.busy(0) == 3);
  CHECK(times.busy(1) == 2);
  CHECK(times.mean_busy() == Approx((3.5 + 2) / 2));
  CHECK(times.pipeline_seconds() == 5);
  CHECK(times.pipeline_bubble() == Approx(1 - 5. / 10));
  CHECK(StepTimes().pipeline_bubble() == 0);
}

TEST_CASE("the breakdown of a run excludes its first steps and sums to the step") {
  double t[2 * kNumStageTimes] = {};
  t[kForwardTime] = 0.25;
  t[kNumStageTimes + kForwardTime] = 0.125;
  t[kNumStageTimes + kWaitTime] = 0.125;
  t[kPipelineTime] = 7;  // contains the others: no row
  StepBreakdown b(false);
  int64_t step = 0;
  CHECK(b.add(++step, StepTimes(t), 100).step == -1);
  CHECK(b.add(++step, StepTimes(t), 100).step == 1);
  b.add(++step, StepTimes(t), 1);
  CHECK(b.table().empty());
  b.add(++step, StepTimes(t), 1);
  b.add(++step, StepTimes(t), 1);
  CHECK(b.table() ==
        "ms a step            stage0   stage1\n"
        "forward               250.0    125.0\n"
        "p2p_wait                0.0    125.0\n"
        "other                 750.0    750.0\n"
        "step                 1000.0   1000.0");
  CHECK(StepTimes(t).mean()[kForwardTime] == Approx(0.1875));
}

TEST_CASE("a step is combined with its own update, and its parts never exceed the step") {
  double t[kNumStageTimes] = {};
  StepBreakdown b(false, 0);
  int64_t step = 0;
  const auto add = [&](double forward, double update_before, double data, double seconds) {
    t[kForwardTime] = forward, t[kOptimizerTime] = update_before, t[kDataTime] = data;
    return b.add(++step, StepTimes(t), seconds);
  };
  CHECK(add(0.5, 0, 0.125, 1).step == -1);          // its update takes 0.25
  const StepParts first = add(0.25, 0.25, 0, 0.5);  // its update takes 0.25
  CHECK(first.step == 1);
  CHECK(first.seconds == 1);
  CHECK(first.times[kForwardTime] == 0.5);
  CHECK(first.times[kOptimizerTime] == 0.25);
  CHECK(first.times[kDataTime] == 0.125);
  add(9, 0.25, 9, 9);  // its update is unknown
  CHECK(b.table() ==
        "ms a step            stage0\n"
        "forward               375.0\n"
        "optimizer             250.0\n"
        "data                   62.5\n"
        "other                  62.5\n"
        "step                  750.0");
  StepBreakdown lagging(false, 0);
  t[kForwardTime] = 2, t[kOptimizerTime] = t[kDataTime] = 0;
  lagging.add(1, StepTimes(t), 1);
  lagging.add(2, StepTimes(t), 1);
  CHECK_THAT(lagging.table(), Contains("other                   0.0") && Contains("step                 2000.0"));
}

TEST_CASE("times of an asynchronous device, each one step older, are matched to their step too") {
  double t[kNumStageTimes] = {};
  StepBreakdown b(true, 0);
  int64_t last = -1;
  for (int64_t step = 1; step <= 6; ++step) {  // every time of step k is k, or k / 10
    const auto now = static_cast<double>(step);
    t[kForwardTime] = now - 1, t[kOptimizerTime] = (now - 2) / 10, t[kDataTime] = now;
    const StepParts& p = b.add(step, StepTimes(t), 10 * now);
    CHECK(p.step == (step > 2 ? step - 2 : -1));
    last = p.step;
    if (p.step < 0) continue;
    const auto of = static_cast<double>(p.step);
    CHECK(p.seconds == 10 * of);
    CHECK(p.times[kForwardTime] == of);
    CHECK(p.times[kOptimizerTime] == Approx(of / 10));
    CHECK(p.times[kDataTime] == of);
  }
  CHECK(last == 4);
}

TEST_CASE("the predicted bubble is the formula where stages are equal, and more where the partition is uneven") {
  EngineOptions o = model_of(13);  // 13 blocks and a head whose FLOPs no partition balances
  const Cost cost = stage_cost(o, 4);
  REQUIRE(cost.stage_f.size() == 4);
  double sum = 0;
  for (size_t k = 0; k < 4; ++k) {
    sum += cost.stage_f[k];
    CHECK(cost.stage_b[k] == Approx(2 * cost.stage_f[k]));
  }
  CHECK(sum == Approx(4));
  const double formula = 3. / (8 + 3);
  CHECK(predict_pipeline(o, 4).bubble > formula + 1e-3);
  o.model.vocab = 2;
  o.model.layers = 8;
  CHECK(predict_pipeline(o, 4).bubble == Approx(formula).margin(2e-3));  // a head of 2 tokens is negligible
  o.recompute = Recompute::kFull;
  CHECK(stage_cost(o, 4).stage_b[0] == Approx(3 * stage_cost(o, 4).stage_f[0]));
  o.recompute_layers = 1;  // of two blocks a stage
  CHECK(stage_cost(o, 4).stage_b[0] == Approx(2.5 * stage_cost(o, 4).stage_f[0]));
}

TEST_CASE("waiting for data more than one per cent of twenty steps is reported once, with a remedy") {
  DataWaitWatch quick;
  for (int k = 0; k < 100; ++k) CHECK_FALSE(quick.step(k < 2 ? 1 : 0.0099, 1));  // the first steps do not count
  DataWaitWatch slow;
  int printed = 0, at = 0;
  for (int k = 0; k < 100; ++k)
    if (const auto text = slow.step(0.0101, 1)) {
      ++printed;
      at = k;
      CHECK_THAT(*text,
                 Contains("1.0 % of the last 20 steps") && Contains("train.micro_batch") && Contains("device.threads"));
    }
  CHECK(printed == 1);
  CHECK(at == DataWaitWatch::kIgnored + DataWaitWatch::kSteps - 1);
}
