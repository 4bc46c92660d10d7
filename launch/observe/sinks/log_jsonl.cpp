#include "launch/observe/sinks/log_jsonl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "launch/observe/step_metrics.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

// Builds {"type": "step", ...} key by key.
class Line {
 public:
  explicit Line(const char* type, double time) : out_("{\"type\": \"" + std::string(type) + "\"") {
    number("time", time);
  }
  Line& number(const char* key, double x) { return raw(key, json_number(x)); }  // NaN is a value
  Line& maybe(const char* key, double x) {
    return raw(key, std::isnan(x) ? "null" : json_number(x));
  }  // NaN means unknown
  Line& parts(const LossParts& list) {
    for (const LossParts::Part& p : list) maybe(p.key, p.value);
    return *this;
  }
  Line& integer(const char* key, int64_t x) { return raw(key, std::to_string(x)); }
  Line& index(const char* key, int64_t x) { return raw(key, x < 0 ? "null" : std::to_string(x)); }
  Line& text(const char* key, std::string_view s) {
    std::string quoted;
    append_json_string(quoted, s);
    return raw(key, quoted);
  }
  Line& raw(const char* key, const std::string& json) {
    out_ += ", \"";
    out_ += key;
    out_ += "\": " + json;
    return *this;
  }
  std::string close() { return out_ + "}"; }

 private:
  std::string out_;
};

// Removes newlines in JSON text and the indentation after them; inside strings newlines are escaped.
std::string on_one_line(const std::string& json) {
  std::string out;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] != '\n') {
      out += json[i];
      continue;
    }
    while (i + 1 < json.size() && json[i + 1] == ' ') ++i;
    if (i + 1 < json.size() && json[i + 1] != '}' && !out.empty() && out.back() != '{') out += ' ';
  }
  return out;
}

// Rows as an object. A label is a key, but several rows, such as warnings, may share one.
std::string rows_json(const Rows& rows) {
  Rows merged;
  for (const auto& row : rows) {
    const auto same = std::find_if(merged.begin(), merged.end(), [&](const auto& r) { return r.first == row.first; });
    if (same != merged.end())
      same->second += "\n" + row.second;
    else
      merged.push_back(row);
  }
  std::string out = "{";
  for (const auto& [label, value] : merged) {
    if (out.size() > 1) out += ", ";
    append_json_string(out, label);
    out += ": ";
    append_json_string(out, value);
  }
  return out + "}";
}

std::string bytes_json(const MemoryBytes& bytes) {
  std::string out = "{";
  for (size_t i = 0; i < bytes.size(); ++i) out += cat(i > 0 ? ", \"" : "\"", kMemoryNames[i], "\": ", bytes[i]);
  return out + "}";
}

// Time breakdown of r.timers_step; "other" is the remainder.
std::string timers_json(const StepRecord& r) {
  if (r.timers_step < 0) return "{}";
  double sum = 0;
  std::string out = "{";
  const auto add = [&](const char* name, double x) {
    out += cat(out.size() > 1 ? ", \"" : "\"", name, "\": ", std::isnan(x) ? "null" : json_number(x));
    sum += x;
  };
  for (size_t t = 0; t < r.timers.size(); ++t)
    if (kTimerNames[t] != nullptr && r.timers[t] != 0) add(kTimerNames[t], r.timers[t]);
  add("other", std::max(0., r.timers_seconds - sum));  // rank 0's clock may be behind the mean
  return out + "}";
}

const std::vector<const StepMetric*>& csv_columns() {
  static const auto kColumns = metrics_in([](const StepMetric& m) -> const MetricName& { return m.csv; });
  return kColumns;
}

}  // namespace

std::string json_line(const StartInfo& s, double time) {
  return Line("start", time)
      .text("command", s.command)
      .integer("first_step", s.first_step)
      .integer("total_steps", s.total_steps)
      .index("resumed_from", s.resumed_from)
      .integer("world", s.world)
      .text("layout", s.layout)
      .text("environment", s.environment)
      .text("mfu_formula", "6*n*N_mm + 6*L*q*s*n (causal attention counted half) over the device's peak")
      .text("mfu_full_formula", "6*n*N_mm + 12*L*q*s*n over the device's peak")
      .text("mfu_fp8_formula", "mfu's FLOPs over the device's FP8 peak, for runs with FP8 linear layers")
      .text("version", s.version)
      .raw("summary", rows_json(s.rows))
      .raw("config", s.config_json.empty() ? "null" : on_one_line(s.config_json))
      .close();
}

std::string json_line(const StepRecord& r) {
  Line line("step", r.time);
  for (const StepMetric& m : step_metrics()) {
    if (!m.logged) continue;
    if (const int64_t* n = m.count(r))
      line.index(m.name, *n);
    else
      m.measured ? line.number(m.name, m.of(r)) : line.maybe(m.name, m.of(r));
    if (m.is_loss()) line.parts(r.parts);
  }
  return line.index("timers_step", r.timers_step).raw("timers", timers_json(r)).close();
}

std::string json_line(const EvalRecord& r) {
  return Line("eval", r.time)
      .integer("step", r.step)
      .number("loss", r.loss)
      .parts(r.parts)
      .number("perplexity", r.perplexity())
      .integer("tokens", r.tokens)
      .number("seconds", r.seconds)
      .close();
}

std::string json_line(const SavedRecord& r) {
  return Line("checkpoint", r.time)
      .integer("step", r.step)
      .integer("bytes", r.bytes)
      .number("stall_seconds", r.stall_seconds)
      .maybe("write_seconds", r.write_seconds)
      .close();
}

std::string json_line(const EventRecord& r) {
  return Line("event", r.time)
      .integer("step", r.step)
      .text("level", r.warning ? "warning" : "info")
      .text("text", r.text.data())
      .close();
}

std::string json_line(const ScalarRecord& r) {
  return Line("scalar", r.time).integer("step", r.step).text("tag", r.tag.data()).number("value", r.value).close();
}

std::string json_line(const MemoryRecord& r) {
  std::string ranks = "[";
  for (const RankMemory& m : *r.ranks)
    ranks += cat(ranks.size() > 1 ? ", " : "", "{\"rank\": ", m.rank, ", \"stage\": ", m.stage,
                 ", \"planned\": ", bytes_json(m.planned), ", \"measured\": ", bytes_json(m.measured),
                 ", \"process_bytes\": ", m.process_bytes, "}");
  return Line("memory", r.time).integer("step", r.step).raw("ranks", ranks + "]").close();
}

std::string json_line(const StagesRecord& r) {
  std::string stages = "[";
  for (const Timers& t : *r.stages) {
    double sum = 0;
    stages += stages.size() > 1 ? ", {" : "{";
    for (size_t i = 0; i < t.size(); ++i) {
      if (kTimerNames[i] == nullptr || t[i] == 0) continue;
      stages += cat("\"", kTimerNames[i], "\": ", json_number(t[i]), ", ");
      sum += t[i];
    }
    stages += cat("\"other\": ", json_number(std::max(0., r.step_seconds - sum)), "}");
  }
  return Line("stages", r.time)
      .integer("step", r.step)
      .number("step_seconds", r.step_seconds)
      .raw("stages", stages + "]")
      .close();
}

std::string json_line(const EndInfo& e, double time) {
  Line line("end", time);
  if (!e.comm_json.empty()) line.raw("comm", e.comm_json);
  return line.text("reason", e.reason)
      .integer("exit_code", e.exit_code)
      .integer("step", e.step)
      .integer("tokens", e.tokens)
      .number("seconds", e.seconds)
      .maybe("last_loss", e.last_loss)
      .maybe("best_loss", e.best_loss)
      .maybe("median_tokens_per_second", e.median_tokens_per_second)
      .maybe("median_mfu", e.median_mfu)
      .maybe("goodput", e.goodput)
      .raw("summary", rows_json(e.rows))
      .close();
}

// A recreated file begins with the start record, like that of a new run.
void JsonlSink::start(const StartInfo& info) {
  const std::string line = json_line(info, wall_seconds());
  open(info, line + '\n');
  if (!file_->was_empty()) add(line);
}

std::string csv_header() {
  std::string out = "time";
  for (const StepMetric* m : csv_columns()) out += cat(",", m->name);
  return out + "\n";
}

std::string csv_row(const StepRecord& r) {
  std::string out = fmt::format("{:.3f}", r.time);
  for (const StepMetric* m : csv_columns()) {
    out += ',';
    const double x = m->of(r);
    if (const int64_t* n = m->count(r); n != nullptr && *n >= 0)
      out += std::to_string(*n);
    else if (n == nullptr && m->known(x))
      out += fmt::format("{}", x);
  }
  return out + "\n";
}

}  // namespace gt
