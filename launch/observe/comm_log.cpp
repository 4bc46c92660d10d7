#include "launch/observe/comm_log.h"

#include <fmt/format.h>

#include "launch/observe/sinks/progress.h"
#include "launch/options/json_text.h"
#include "parallel/comm/call.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

constexpr int kValues = 5;  // calls, bytes, payload, flight, blocked

double per_second(double bytes, double seconds) { return seconds > 0 ? bytes / seconds : 0; }

}  // namespace

CommLog::CommLog(const Mesh& mesh)
    : world_(mesh.world()), groups_(mesh.groups()), before_(groups_.size()), total_(groups_.size()) {}

void CommLog::begin_step() {
  for (size_t i = 0; i < before_.size(); ++i) before_[i] = groups_[i].group->counters();
}

void CommLog::end_step() {
  ++steps_;
  for (size_t i = 0; i < before_.size(); ++i) {
    total_[i].add(groups_[i].group->counters());
    total_[i].add(before_[i], -1);
  }
}

std::vector<CommRow> CommLog::rows() const {
  std::vector<int64_t> sums;
  for (const CommCounters& c : total_)
    for (const CommCounters::Op& o : c.ops)
      sums.insert(sums.end(), {o.calls, o.bytes, o.payload, o.flight_ns, o.blocked_ns});
  sums = sum_over(world_, std::move(sums));
  std::vector<CommRow> out;
  for (size_t i = 0; i < total_.size(); ++i)
    for (int k = 0; k < kNumCommOps; ++k) {
      const int64_t* v = sums.data() + (i * kNumCommOps + static_cast<size_t>(k)) * kValues;
      if (v[0] == 0 || groups_[i].size == 1) continue;
      const auto op = static_cast<CommOp>(k);
      const bool collective = op != CommOp::kSend && op != CommOp::kRecv && op != CommOp::kBarrier;
      out.push_back({groups_[i].name, name_of(op), v[0], v[1], v[2], static_cast<double>(v[3]) * 1e-9,
                     static_cast<double>(v[4]) * 1e-9, collective && groups_[i].group->capturable()});
    }
  return out;
}

std::string comm_table(const std::vector<CommRow>& rows, int64_t steps, int world) {
  if (rows.empty() || steps == 0) return "none: every group has one rank";
  std::string out = fmt::format("{:<10}{:<15}{:>12}{:>13}{:>12}{:>13}{:>11}{:>11}", "group", "op", "calls/step",
                                "bytes/step", "ms/step", "blocked ms", "alg/s", "bus/s");
  const double n = static_cast<double>(steps), ranks = static_cast<double>(world);
  for (const CommRow& r : rows)
    out += fmt::format("\n{:<10}{:<15}{:>12.1f}{:>13}{:>12.3f}{:>13.3f}{:>11}{:>11}", r.group, r.op,
                       static_cast<double>(r.calls) / n, format_bytes(static_cast<double>(r.bytes) / n),
                       r.seconds / n / ranks * 1e3, r.blocked_seconds / n / ranks * 1e3,
                       r.in_graphs ? "in graphs" : format_bytes(per_second(static_cast<double>(r.payload), r.seconds)),
                       r.in_graphs ? "untimed" : format_bytes(per_second(static_cast<double>(r.bytes), r.seconds)));
  return out;
}

std::string comm_json(const std::vector<CommRow>& rows, int64_t steps) {
  std::string out = fmt::format("{{\"steps\": {}, \"rows\": [", steps);
  for (size_t i = 0; i < rows.size(); ++i) {
    const CommRow& r = rows[i];
    out += fmt::format(
        "{}{{\"group\": \"{}\", \"op\": \"{}\", \"calls\": {}, \"bytes\": {}, \"payload\": {}, \"seconds\": {}, "
        "\"blocked_seconds\": {}, \"in_graphs\": {}}}",
        i > 0 ? ", " : "", r.group, r.op, r.calls, r.bytes, r.payload, json_number(r.seconds),
        json_number(r.blocked_seconds), r.in_graphs);
  }
  return out + "]}";
}

}  // namespace gt
