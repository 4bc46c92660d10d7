// gpttrain lr: plots the learning-rate curve of a config, and momentum if the schedule changes it, without running it;
// also as CSV.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "launch/commands/subcommand_args.h"
#include "launch/commands/subcommands.h"
#include "launch/config/config_optim.h"
#include "launch/observe/sinks/console.h"
#include "launch/options/output.h"

namespace gt {
namespace {

constexpr int kRows = 16, kPaperWidth = 100;  // plot size if the output is not a terminal

std::string csv(const LrSchedule& schedule, int64_t steps) {
  const bool beta1 = schedule.at(1).beta1 != kKeepBeta, beta2 = schedule.at(1).beta2 != kKeepBeta;
  std::string out = fmt::format("step,lr{}{}\n", beta1 ? ",beta1" : "", beta2 ? ",beta2" : "");
  for (int64_t t = 1; t <= steps; ++t) {
    const LrPoint p = schedule.at(t);
    out += fmt::format("{},{}", t, p.lr);
    if (beta1) out += fmt::format(",{}", p.beta1);
    if (beta2) out += fmt::format(",{}", p.beta2);
    out += '\n';
  }
  return out;
}

// Plots `width` columns for equal shares of the run; each shows its maximum as a dot.
template <class F>
std::string drawing(const char* what, int64_t steps, int width, F value) {
  const int columns = static_cast<int>(std::min<int64_t>(steps, width));
  std::vector<double> y;
  for (int c = 0; c < columns; ++c) {
    const int64_t first = 1 + steps * c / columns, last = steps * (c + 1) / columns;
    const int64_t stride = std::max<int64_t>(1, (last - first) / 1000);
    double best = value(first);
    for (int64_t t = first; t <= last; t += stride) best = std::max(best, value(t));
    y.push_back(best);
  }
  const double high = *std::max_element(y.begin(), y.end()), least = *std::min_element(y.begin(), y.end());
  const double low = least > 0.3 * high ? least : std::min(0.0, least);
  const double unit = high > low ? (high - low) / kRows : 1;
  std::string out = fmt::format("{:>11} {}\n", "", what);
  for (int row = kRows; row >= 0; --row) {
    std::string line;
    for (double v : y) line += static_cast<int>((v - low) / unit + 0.5) == row ? '*' : ' ';
    line.erase(line.find_last_not_of(' ') + 1);
    out += fmt::format("{:>11} |{}\n", row % 4 == 0 ? fmt::format("{:.3g}", low + unit * row) : "", line);
  }
  return out + fmt::format("{:>11} +{:-<{}}\n{:>11}  step 1{:>{}}\n", "", "", columns, "",
                           fmt::format("step {}", steps), std::max(8, columns - 6));
}

std::string key_points(const LrSchedule& schedule, int64_t steps) {
  std::vector<int64_t> at;
  for (int k = 0; k <= 10; ++k) at.push_back(1 + (steps - 1) * k / 10);
  for (int64_t t : {int64_t{2}, int64_t{3}})
    if (t <= steps) at.push_back(t);
  std::sort(at.begin(), at.end());
  at.erase(std::unique(at.begin(), at.end()), at.end());
  std::string out;
  for (int64_t t : at) {
    const LrPoint p = schedule.at(t);
    out += fmt::format("step {:>9}  lr {:<12.6g}", t, p.lr);
    if (p.beta1 != kKeepBeta) out += fmt::format("  beta1 {:<10.6g}", p.beta1);
    if (p.beta2 != kKeepBeta) out += fmt::format("  beta2 {:g}", p.beta2);
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

}  // namespace

Exit run_lr(const Command& command) {
  const auto& args = command.get<LrArgs>();
  const Config& c = command.loaded.config;
  const LrOptions options = lr_options(c);
  const auto schedule = make_lr_schedule(options);
  const int64_t steps = c.train.steps;
  if (args.csv == "-") {
    write_out(csv(*schedule, steps));
    flush_out();
    return Exit::kOk;
  }
  const int columns = terminal_width(), width = std::max(20, (columns > 0 ? columns : kPaperWidth) - 15);
  std::string out = fmt::format("{}{}: {} steps, optim.lr {:g}\n\n", options.type,
                                options.ds_exact ? " (exactly as DeepSpeed)" : "", steps, options.peak);
  out += drawing("learning rate", steps, width, [&](int64_t t) { return schedule->at(t).lr; });
  if (schedule->at(1).beta1 != kKeepBeta)
    out += "\n" + drawing("momentum (beta1)", steps, width, [&](int64_t t) { return schedule->at(t).beta1; });
  out += "\n" + key_points(*schedule, steps);
  for (const std::string& defect : lr_deviations(options))
    out += fmt::format("note: {}; schedule.ds_exact false removes this\n", defect);
  if (!args.csv.empty()) {
    std::ofstream file(args.csv);
    file << csv(*schedule, steps);
    file.close();
    GT_REQUIRE(file.good(), Exit::kIo, "--csv ", args.csv, ": cannot be written");
    out += fmt::format("written to {}\n", args.csv);
  }
  write_out(out);
  flush_out();
  return Exit::kOk;
}

}  // namespace gt
