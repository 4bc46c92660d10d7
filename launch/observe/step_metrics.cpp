#include "launch/observe/step_metrics.h"

#include <algorithm>

namespace gt {
namespace {

using R = StepRecord;
using Unit = MetricUnit;

const std::vector<StepMetric> kRows = {
    {.name = "step", .value = &R::step, .csv = {1}, .prometheus = {1, "step"}, .help = "Optimizer steps completed."},
    {.name = "total_steps",
     .value = &R::total_steps,
     .logged = false,
     .prometheus = {2, "steps_planned"},
     .help = "Optimizer steps of the whole run."},
    {.name = "tokens",
     .value = &R::tokens,
     .csv = {2},
     .tensorboard = {9, "train/tokens"},
     .prometheus = {3, "tokens_total"},
     .help = "Target tokens trained on."},
    {.name = "samples",
     .value = &R::samples,
     .csv = {3},
     .tensorboard = {8, "train/samples"},
     .prometheus = {4, "samples_total"},
     .help = "Sequences trained on."},
    {.name = "global_batch", .value = &R::global_batch, .logged = false, .tensorboard = {10, "train/global_batch"}},
    {.name = "seq", .value = &R::seq, .csv = {4}, .tensorboard = {11, "train/seq"}},
    {.name = "epoch", .value = &R::epoch, .csv = {5}, .tensorboard = {12, "train/epoch"}},
    {.name = "loss",
     .value = &R::loss,
     .measured = true,
     .csv = {9},
     .tensorboard = {1, "train/loss"},
     .samples = {1, "train_loss"},
     .prometheus = {11, "loss"},
     .help = "Training loss of the last step.",
     .console = {1, "loss {:.4f}"}},
    {.name = "grad_norm",
     .value = &R::grad_norm,
     .measured = true,
     .csv = {10},
     .tensorboard = {2, "train/grad_norm"},
     .samples = {4, "grad_norm"},
     .prometheus = {12, "grad_norm"},
     .help = "Gradient norm of the last step before clipping.",
     .console = {2, "gnorm {:.3f}"},
     .chart = {{1, "grad-norm"}, "Gradient norm before clipping", "", false, true}},
    {.name = "clip_coef", .value = &R::clip_coef, .csv = {13}, .tensorboard = {5, "train/clip_coef"}},
    {.name = "lr",
     .value = &R::lr,
     .measured = true,
     .csv = {11},
     .tensorboard = {3, "train/lr"},
     .samples = {2, "lr"},
     .prometheus = {13, "learning_rate"},
     .help = "Learning rate of the last step.",
     .console = {3, "lr {:.2e}"},
     .chart = {{2, "lr"}, "Learning rate"}},
    {.name = "momentum", .value = &R::momentum, .logged = false, .tensorboard = {4, "train/momentum"}},
    {.name = "loss_scale",
     .value = &R::loss_scale,
     .csv = {12},
     .tensorboard = {6, "train/loss_scale"},
     .samples = {3, "loss_scale"},
     .prometheus = {22, "loss_scale"},
     .help = "Loss scale.",
     .console = {11, "scale {:g}"}},
    {.name = "skipped",
     .value = &R::skipped,
     .csv = {6},
     .tensorboard = {7, "train/skipped_steps"},
     .samples = {7, "skipped_steps"},
     .prometheus = {5, "skipped_steps_total"},
     .help = "Steps whose update was skipped."},
    {.name = "step_seconds",
     .value = &R::step_seconds,
     .unit = Unit::kSeconds,
     .csv = {14},
     .tensorboard = {13, "perf/step_seconds"},
     .prometheus = {14, "step_time_seconds"},
     .help = "Time of the last step.",
     .chart = {{8, "step-time"}, "Step time", "", true, true}},
    {.name = "tokens_per_second",
     .value = &R::tokens_per_second,
     .unit = Unit::kPerSecond,
     .csv = {16},
     .tensorboard = {14, "perf/tokens_per_second"},
     .samples = {5, "tokens_per_sec"},
     .prometheus = {16, "tokens_per_second"},
     .help = "Rate of the last step.",
     .chart = {{3, "tokens"}, "Throughput", "tokens/s"}},
    {.name = "mfu",
     .value = &R::mfu,
     .unit = Unit::kFraction,
     .csv = {17},
     .tensorboard = {16, "perf/mfu"},
     .samples = {6, "mfu"},
     .prometheus = {17, "mfu_ratio"},
     .help = "Model FLOPs utilization, causal attention counted half.",
     .chart = {{4, "mfu"}, "Model FLOPs utilization (MFU)", "of the data-sheet peak"}},
    {.name = "mfu_full",
     .value = &R::mfu_full,
     .unit = Unit::kFraction,
     .csv = {18},
     .tensorboard = {17, "perf/mfu_full"}},
    {.name = "mfu_fp8", .value = &R::mfu_fp8, .unit = Unit::kFraction, .tensorboard = {18, "perf/mfu_fp8"}},
    {.name = "hfu",
     .value = &R::hfu,
     .unit = Unit::kFraction,
     .csv = {19},
     .tensorboard = {19, "perf/hfu"},
     .prometheus = {18, "hfu_ratio"},
     .help = "Hardware FLOPs utilization.",
     .chart = {{5, "hfu"}, "Hardware FLOPs utilization (HFU)", "of the data-sheet peak"}},
    {.name = "of_ceiling",
     .value = &R::of_ceiling,
     .unit = Unit::kFraction,
     .csv = {20},
     .tensorboard = {20, "perf/of_ceiling"},
     .chart = {{6, "ceiling"}, "Utilization of the measured peak"}},
    {.name = "tflops_per_device",
     .value = &R::tflops_per_device,
     .csv = {21},
     .tensorboard = {15, "perf/tflops_per_device"},
     .chart = {{7, "tflops"}, "Model FLOP/s per device", "TFLOP/s"}},
    {.name = "bubble",
     .value = &R::bubble,
     .unit = Unit::kFraction,
     .csv = {22},
     .tensorboard = {21, "perf/bubble"},
     .prometheus = {19, "bubble_ratio"},
     .help = "Fraction of the step in which the mean rank does not compute.",
     .chart = {{9, "bubble"}, "Share of the step in which ranks do not compute"}},
    {.name = "pipeline_bubble",
     .value = &R::pipeline_bubble,
     .unit = Unit::kFraction,
     .csv = {23},
     .tensorboard = {22, "perf/pipeline_bubble"},
     .chart = {{10, "pipeline"}, "Pipeline bubble", "measured"}},
    {.name = "bubble_predicted",
     .value = &R::bubble_predicted,
     .unit = Unit::kFraction,
     .csv = {24},
     .tensorboard = {23, "perf/bubble_predicted"}},
    {.name = "step_predicted",
     .value = &R::step_predicted,
     .unit = Unit::kSeconds,
     .csv = {15},
     .prometheus = {15, "step_time_predicted_seconds"},
     .help = "Time of a step as planned."},
    {.name = "plan_ratio",
     .value = StepMetric::Derived([](const R& r) { return r.step_seconds / r.step_predicted; }),
     .logged = false,
     .tensorboard = {24, "perf/plan_ratio"}},
    {.name = "exposed_comm",
     .value = &R::exposed_comm,
     .unit = Unit::kFraction,
     .csv = {25},
     .tensorboard = {25, "perf/exposed_comm"},
     .prometheus = {20, "exposed_communication_ratio"},
     .help = "Fraction of the step in communication."},
    {.name = "data_wait",
     .value = &R::data_wait,
     .unit = Unit::kFraction,
     .csv = {26},
     .tensorboard = {26, "perf/data_wait"},
     .prometheus = {21, "data_wait_ratio"},
     .help = "Fraction of the step in which rank 0 waits for data.",
     .chart = {{11, "data-wait"}, "Waiting for data", "share of the step"}},
    {.name = "slowest_rank", .value = &R::slowest_rank, .csv = {7}, .tensorboard = {27, "perf/slowest_rank"}},
    {.name = "slowest_stage", .value = &R::slowest_stage, .tensorboard = {29, "perf/slowest_stage"}},
    {.name = "stage_spread",
     .value = &R::stage_spread,
     .unit = Unit::kFraction,
     .tensorboard = {30, "perf/stage_spread"},
     .chart = {{12, "spread"}, "Slowest pipeline rank above the mean", "computing time"}},
    {.name = "peak_bytes",
     .value = &R::peak_bytes,
     .csv = {8},
     .tensorboard = {28, "mem/peak_bytes"},
     .prometheus = {23, "peak_memory_bytes"},
     .help = "Peak memory of rank 0's process."},
};

template <class Member>
size_t index_of(Member value) {
  const auto it = std::find_if(kRows.begin(), kRows.end(), [&](const StepMetric& m) {
    const auto* member = std::get_if<Member>(&m.value);
    return member != nullptr && *member == value;
  });
  GT_CHECK(it != kRows.end(), "a figure of a step without a row");
  return static_cast<size_t>(it - kRows.begin());
}

}  // namespace

double StepMetric::of(const StepRecord& r) const {
  if (const auto* x = std::get_if<double R::*>(&value)) return r.**x;
  if (const int64_t* n = count(r)) return *n < 0 ? kUnknown : static_cast<double>(*n);
  return std::get<Derived>(value)(r);
}

const int64_t* StepMetric::count(const StepRecord& r) const {
  const auto* n = std::get_if<int64_t R::*>(&value);
  return n == nullptr ? nullptr : &(r.**n);
}

const std::vector<StepMetric>& step_metrics() { return kRows; }

std::vector<const StepMetric*> metrics_in(MetricOutput name) {
  std::vector<const StepMetric*> out;
  for (const StepMetric& m : kRows)
    if (name(m).at > 0) out.push_back(&m);
  std::sort(out.begin(), out.end(), [name](const auto* a, const auto* b) { return name(*a).at < name(*b).at; });
  return out;
}

size_t metric_index(double StepRecord::*value) { return index_of(value); }
size_t metric_index(int64_t StepRecord::*value) { return index_of(value); }

}  // namespace gt
