// The figures of a step: one row each, and what every output makes of it, byte by byte.
#include "launch/observe/step_metrics.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <sstream>

#include "launch/observe/sinks/console.h"
#include "launch/observe/sinks/log_jsonl.h"
#include "launch/observe/sinks/prometheus_sink.h"
#include "launch/observe/sinks/samples_sink.h"
#include "launch/observe/sinks/tensorboard_sink.h"
#include "tests/data/support.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// Every figure is known.
StepRecord full(int64_t step) {
  StepRecord r{.step = step, .total_steps = 9, .time = 1700000000.25, .tokens = 1024, .samples = 16};
  r.global_batch = 16, r.seq = 64, r.epoch = 1;
  r.parts.add("mtp_loss", 0.75);
  r.loss = 4.25, r.grad_norm = 0.8125, r.clip_coef = 0.5, r.lr = 2.4e-4, r.momentum = 0.95, r.loss_scale = 65536;
  r.skipped = 1, r.step_seconds = 0.125, r.tokens_per_second = 12345.5, r.mfu = 0.3125, r.mfu_full = 0.34;
  r.hfu = 0.41, r.tflops_per_device = 98.5, r.mfu_fp8 = 0.15, r.of_ceiling = 0.55, r.bubble = 0.2;
  r.exposed_comm = 0.03, r.data_wait = 0.02, r.pipeline_bubble = 0.21, r.bubble_predicted = 0.25;
  r.step_predicted = 0.0625, r.slowest_rank = 3, r.peak_bytes = 123456789, r.slowest_stage = 2, r.stage_spread = 0.04;
  r.timers_step = step - 1, r.timers_seconds = 0.125;
  r.timers[kForwardTime] = 0.5, r.timers[kDataTime] = 0.25;
  return r;
}

// A loss that is not finite; nothing else is known.
StepRecord bare(int64_t step) {
  StepRecord r{.step = step, .total_steps = 9, .time = 1700000000.5};
  r.loss = NAN, r.grad_norm = INFINITY, r.lr = 1e-3;
  return r;
}

// Texts of an output that are in the names' order; of TensorBoard files the tags with their steps.
std::string prometheus_values(const StepRecord& r) {
  PrometheusValues v;
  v.run = "x", v.step = r;
  std::istringstream in(prometheus_text(v));
  std::string out;
  for (std::string line; std::getline(in, line);)
    if (line[0] != '#') out += line.substr(9, line.find('{') - 9) + line.substr(line.find('}') + 1) + ", ";
  return out;
}

// "train/loss 3, …"; "START 3": a session that takes points from step 3 on back.
std::string tags_in(const std::string& folder) {
  std::string file, out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) file += read_file(entry.path().string());
  for (size_t at = 0; at + 16 <= file.size();) {
    uint64_t length;
    std::memcpy(&length, &file[at], 8);
    const std::string event = file.substr(at + 12, length);
    at += 16 + length;
    const int step = event.size() > 10 && event[9] == 0x10 ? event[10] : 0;
    size_t tag = std::string::npos;
    for (const char* group : {"train/", "perf/", "mem/", "time/", "Train/"}) tag = std::min(tag, event.find(group));
    if (event.find("hparams") != std::string::npos || event.find("run/") != std::string::npos) continue;
    if (tag == std::string::npos)
      out += event.ends_with("\x3a\x02\x08\x01") ? cat("START ", step, ", ") : "";
    else
      out += cat(event.substr(tag, static_cast<uint8_t>(event[tag - 1])), ' ', step, ", ");
  }
  return out;
}

}  // namespace

TEST_CASE("rows of the figures of a step have names and positions of their own in every output") {
  const std::pair<const char*, MetricOutput> outputs[] = {
      {"csv", [](const StepMetric& m) -> const MetricName& { return m.csv; }},
      {"tensorboard", [](const StepMetric& m) -> const MetricName& { return m.tensorboard; }},
      {"samples", [](const StepMetric& m) -> const MetricName& { return m.samples; }},
      {"prometheus", [](const StepMetric& m) -> const MetricName& { return m.prometheus; }},
      {"console", [](const StepMetric& m) -> const MetricName& { return m.console; }},
      {"chart", [](const StepMetric& m) -> const MetricName& { return m.chart; }}};
  std::set<std::string> names;
  for (const StepMetric& m : step_metrics()) CHECK(names.insert(m.name).second);
  for (const auto& [output, name] : outputs) {
    std::set<std::string> here;
    int last = 0;
    for (const StepMetric* m : metrics_in(name)) {
      INFO(output << ' ' << m->name);
      CHECK(name(*m).at > last);
      last = name(*m).at;
      CHECK((std::string(output) == "csv" || here.insert(name(*m).name).second));
      if (std::string(output) == "prometheus") CHECK(std::strlen(m->help) > 0);
    }
    CHECK(last > 0);
  }
}

TEST_CASE("figures of a step are written as they always were, in the order of each output") {
  const StepRecord a = full(3), b = bare(4);
  CHECK(json_line(a) ==
        R"({"type": "step", "time": 1700000000.25, "step": 3, "tokens": 1024, "samples": 16, "seq": 64,)"
        R"( "epoch": 1, "loss": 4.25, "mtp_loss": 0.75, "grad_norm": 0.8125, "clip_coef": 0.5, "lr": 0.00024,)"
        R"( "loss_scale": 65536, "skipped": 1, "step_seconds": 0.125, "tokens_per_second": 12345.5,)"
        R"( "mfu": 0.3125, "mfu_full": 0.34, "mfu_fp8": 0.15, "hfu": 0.41, "of_ceiling": 0.55,)"
        R"( "tflops_per_device": 98.5, "bubble": 0.2, "pipeline_bubble": 0.21, "bubble_predicted": 0.25,)"
        R"( "step_predicted": 0.0625, "exposed_comm": 0.03, "data_wait": 0.02, "slowest_rank": 3,)"
        R"( "slowest_stage": 2, "stage_spread": 0.04, "peak_bytes": 123456789, "timers_step": 2,)"
        R"( "timers": {"forward": 0.5, "data": 0.25, "other": 0}})");
  CHECK(json_line(b) ==
        R"({"type": "step", "time": 1700000000.5, "step": 4, "tokens": 0, "samples": 0, "seq": 0, "epoch": 0,)"
        R"( "loss": "nan", "grad_norm": "inf", "clip_coef": null, "lr": 0.001, "loss_scale": null,)"
        R"( "skipped": 0, "step_seconds": null, "tokens_per_second": null, "mfu": null, "mfu_full": null,)"
        R"( "mfu_fp8": null, "hfu": null, "of_ceiling": null, "tflops_per_device": null, "bubble": null,)"
        R"( "pipeline_bubble": null, "bubble_predicted": null, "step_predicted": null, "exposed_comm": null,)"
        R"( "data_wait": null, "slowest_rank": null, "slowest_stage": null, "stage_spread": null,)"
        R"( "peak_bytes": null, "timers_step": null, "timers": {}})");
  CHECK(csv_header() ==
        R"(time,step,tokens,samples,seq,epoch,skipped,slowest_rank,peak_bytes,loss,grad_norm,lr,loss_scale,)"
        R"(clip_coef,step_seconds,step_predicted,tokens_per_second,mfu,mfu_full,hfu,of_ceiling,)"
        R"(tflops_per_device,bubble,pipeline_bubble,bubble_predicted,exposed_comm,data_wait)"
        "\n");
  CHECK(csv_row(a) ==
        R"(1700000000.250,3,1024,16,64,1,1,3,123456789,4.25,0.8125,0.00024,65536,0.5,0.125,0.0625,12345.5,)"
        R"(0.3125,0.34,0.41,0.55,98.5,0.2,0.21,0.25,0.03,0.02)"
        "\n");
  CHECK(csv_row(b) == "1700000000.500,4,0,0,0,0,0,,,nan,inf,0.001,,,,,,,,,,,,,,,\n");
  CHECK(step_line(a, 77) ==
        "step 3/9  loss 4.2500  gnorm 0.812  lr 2.40e-04  12.3k tok/s  mfu 31.2%  125 ms  eta 1m17s  scale 65536  "
        "skipped 1  wait 2.0%");
  CHECK(step_line(b, 77) == "step 4/9  loss nan  gnorm inf  lr 1.00e-03  n/a tok/s  n/a  eta 1m17s");
  CHECK(prometheus_values(a) ==
        R"(step 3, steps_planned 9, tokens_total 1024, samples_total 16, skipped_steps_total 1,)"
        R"( warnings_total 0, loss 4.25, grad_norm 0.8125, learning_rate 0.00024, step_time_seconds 0.125,)"
        R"( step_time_predicted_seconds 0.0625, tokens_per_second 12345.5, mfu_ratio 0.3125, hfu_ratio 0.41,)"
        R"( bubble_ratio 0.2, exposed_communication_ratio 0.03, data_wait_ratio 0.02, loss_scale 65536,)"
        R"( peak_memory_bytes 123456789, last_step_timestamp_seconds 1700000000.25, )");
  CHECK(prometheus_values(b) ==
        R"(step 4, steps_planned 9, tokens_total 0, samples_total 0, skipped_steps_total 0, warnings_total 0,)"
        R"( loss NaN, grad_norm +Inf, learning_rate 0.001, last_step_timestamp_seconds 1700000000.5, )");
}

TEST_CASE("curves over steps and over samples have the tags of the rows, and a rollback takes points back") {
  const TempDir dir;
  std::filesystem::create_directories(dir / "run");
  {
    TensorBoardSink steps(1);
    const CurveAxis axis{2, 8, 4};
    SamplesSink samples("x", std::make_unique<TensorBoardCurves>(dir / "samples", 9), axis, false);
    steps.start({.command = "c", .config_json = "{}\n", .run_dir = dir / "run", .first_step = 3});
    for (const StepRecord& r : {full(3), bare(4), bare(4)}) {  // step 4 is made again
      steps.step(r);
      samples.step(r);
    }
  }
  const std::string again =
      "train/loss 4, train/grad_norm 4, train/lr 4, train/skipped_steps 4, train/samples 4, "
      "train/tokens 4, train/global_batch 4, train/seq 4, train/epoch 4, ";
  CHECK(tags_in(dir / "run") ==
        "START 3, train/loss 3, train/mtp_loss 3, train/grad_norm 3, train/lr 3, train/momentum 3, "
        "train/clip_coef 3, train/loss_scale 3, train/skipped_steps 3, train/samples 3, train/tokens 3, "
        "train/global_batch 3, train/seq 3, train/epoch 3, perf/step_seconds 3, "
        "perf/tokens_per_second 3, perf/tflops_per_device 3, perf/mfu 3, perf/mfu_full 3, "
        "perf/mfu_fp8 3, perf/hfu 3, perf/of_ceiling 3, perf/bubble 3, perf/pipeline_bubble 3, "
        "perf/bubble_predicted 3, perf/plan_ratio 3, perf/exposed_comm 3, perf/data_wait 3, "
        "time/forward 2, time/data 2, perf/slowest_rank 3, mem/peak_bytes 3, perf/slowest_stage 3, "
        "perf/stage_spread 3, " +
            again + "START 4, " + again);
  const std::string samples_again =
      "Train/Samples/train_loss 16, Train/Samples/lr 16, Train/Samples/grad_norm 16, "
      "Train/Samples/skipped_steps 16, ";
  CHECK(tags_in(dir / "samples") ==
        "START 9, Train/Samples/train_loss 12, Train/Samples/lr 12, Train/Samples/loss_scale 12, "
        "Train/Samples/grad_norm 12, Train/Samples/tokens_per_sec 12, Train/Samples/mfu 12, "
        "Train/Samples/skipped_steps 12, " +
            samples_again + "START 16, " + samples_again);
}
