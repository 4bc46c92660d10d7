#include "launch/observe/sinks/csv_sink.h"

#include <fmt/format.h>

#include <cmath>

namespace gt {
namespace {

struct Column {
  const char* name;
  double StepRecord::*value;
};
constexpr Column kColumns[] = {{"loss", &StepRecord::loss},
                               {"grad_norm", &StepRecord::grad_norm},
                               {"lr", &StepRecord::lr},
                               {"loss_scale", &StepRecord::loss_scale},
                               {"clip_coef", &StepRecord::clip_coef},
                               {"step_seconds", &StepRecord::step_seconds},
                               {"step_predicted", &StepRecord::step_predicted},
                               {"tokens_per_second", &StepRecord::tokens_per_second},
                               {"mfu", &StepRecord::mfu},
                               {"mfu_full", &StepRecord::mfu_full},
                               {"hfu", &StepRecord::hfu},
                               {"of_ceiling", &StepRecord::of_ceiling},
                               {"tflops_per_device", &StepRecord::tflops_per_device},
                               {"bubble", &StepRecord::bubble},
                               {"pipeline_bubble", &StepRecord::pipeline_bubble},
                               {"bubble_predicted", &StepRecord::bubble_predicted},
                               {"exposed_comm", &StepRecord::exposed_comm},
                               {"data_wait", &StepRecord::data_wait}};
constexpr std::pair<const char*, int64_t StepRecord::*> kCounts[] = {{"step", &StepRecord::step},
                                                                     {"tokens", &StepRecord::tokens},
                                                                     {"samples", &StepRecord::samples},
                                                                     {"seq", &StepRecord::seq},
                                                                     {"epoch", &StepRecord::epoch},
                                                                     {"skipped", &StepRecord::skipped},
                                                                     {"slowest_rank", &StepRecord::slowest_rank},
                                                                     {"peak_bytes", &StepRecord::peak_bytes}};

// Losses and norms that are NaN were measured.
bool measured(double StepRecord::*value) { return value == &StepRecord::loss || value == &StepRecord::grad_norm; }

}  // namespace

std::string csv_header() {
  std::string out = "time";
  for (const auto& [name, unused] : kCounts) out += fmt::format(",{}", name);
  for (const Column& c : kColumns) out += fmt::format(",{}", c.name);
  return out + "\n";
}

std::string csv_row(const StepRecord& r) {
  std::string out = fmt::format("{:.3f}", r.time);
  for (const auto& [unused, value] : kCounts) out += r.*value < 0 ? "," : fmt::format(",{}", r.*value);
  for (const Column& c : kColumns)
    out += std::isnan(r.*c.value) && !measured(c.value) ? "," : fmt::format(",{}", r.*c.value);
  return out + "\n";
}

void CsvSink::start(const StartInfo& info) {
  file_ = std::make_unique<LogFile>(info.run_dir + "/metrics.csv", csv_header(), LogFile::Form::kLines);
}

}  // namespace gt
