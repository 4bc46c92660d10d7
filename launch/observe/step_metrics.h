// The figures of a step, one row each: log.jsonl, metrics.csv, TensorBoard, curves over samples, Prometheus, the
// console, and the readers and charts of run folders are derived from it.
#pragma once
#include <cmath>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "launch/observe/metrics.h"

namespace gt {

// How a value is written where people read it: as it is, "12.3k", "832 ms", "31.2 %".
enum class MetricUnit : uint8_t { kNumber, kPerSecond, kSeconds, kFraction };

// Name in one output, and the position there, which does not depend on the order of the rows. at 0: not in that output.
struct MetricName {
  int at = 0;
  const char* name = "";
};

struct MetricChart : MetricName {  // the name is an id of HTML
  const char *title = "", *note = "";
  bool zero = true, logarithmic = false;  // the y-axis
};

struct StepMetric {
  using Derived = double (*)(const StepRecord&);

  const char* name;  // key in log.jsonl, column of metrics.csv
  std::variant<double StepRecord::*, int64_t StepRecord::*, Derived> value;
  MetricUnit unit = MetricUnit::kNumber;
  bool measured = false;  // NaN is a measured value; otherwise NaN, and a count below 0, are unknown
  bool logged = true;     // in log.jsonl, in the order of the rows
  MetricName csv = {};    // named as in log.jsonl
  MetricName tensorboard = {}, samples = {};  // tag; tag of DeepSpeed's monitors, without its group
  MetricName prometheus = {};  // name without "gpttrain_"; from kAfterFirstStep on: only once there is a step
  const char* help = "";       // of prometheus
  MetricName console = {};     // "loss {:.4f}"; from kAfterEta on: at the end of the line, if known
  MetricChart chart = {};      // of report.html

  static constexpr int kAfterFirstStep = 11, kAfterEta = 11;

  // Returns the value, which is unknown unless known(); of a count a pointer to it, else nullptr.
  double of(const StepRecord& r) const;
  const int64_t* count(const StepRecord& r) const;
  bool known(double x) const { return measured || !std::isnan(x); }
  bool is_loss() const { return std::string_view(name) == "loss"; }
};

// The rows, in the order of log.jsonl. The losses besides that of tokens (StepRecord::parts) follow "loss" everywhere.
const std::vector<StepMetric>& step_metrics();

// Rows that are in one output, in its order. `name`: returns a row's member of that output.
using MetricOutput = const MetricName& (*)(const StepMetric&);
std::vector<const StepMetric*> metrics_in(MetricOutput name);

// Number of the row with this value.
size_t metric_index(double StepRecord::*value);
size_t metric_index(int64_t StepRecord::*value);

}  // namespace gt
