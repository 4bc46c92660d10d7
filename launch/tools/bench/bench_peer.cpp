// gpttrain bench peer: ratio of the speeds of this program and another trainer, run alternately (A B A B), each in a
// fresh process. Machines drift, so several pairs have to agree on the ratio.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "launch/observe/conditions.h"
#include "launch/observe/sinks/console.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/output.h"
#include "launch/tools/bench/bench_record.h"
#include "launch/tools/bench/bench_stats.h"
#include "launch/tools/bench/peer_output.h"
#include "launch/tools/bench/shell_run.h"
#include "launch/tools/bench/subcommands.h"

namespace gt {
namespace {

// Returns the idle fraction of this machine's processors over a short interval; NaN if unreadable.
double idle_share() {
  const auto read = [](double* idle, double* all) {
    std::ifstream in("/proc/stat");
    std::string cpu;
    in >> cpu;
    *idle = *all = 0;
    for (int k = 0; k < 8; ++k) {
      double t = 0;
      in >> t;
      *all += t;
      if (k == 3 || k == 4) *idle += t;
    }
    return static_cast<bool>(in);
  };
  double idle[2], all[2];
  if (!read(&idle[0], &all[0])) return std::numeric_limits<double>::quiet_NaN();
  ::usleep(500'000);
  read(&idle[1], &all[1]);
  return (idle[1] - idle[0]) / std::max(1., all[1] - all[0]);
}

// Returns the CUDA backend, or nullptr. Loading it sets environment variables for this program
// (kernels/cuda/table.cpp). They are unset again here, so that the baseline inherits the user's environment.
const Backend* cuda_in_this_environment() {
  std::set<std::string> before;
  const auto names = [](auto take) {
    for (char** v = environ; *v != nullptr; ++v) take(std::string(*v, std::strcspn(*v, "=")));
  };
  names([&](const std::string& name) { before.insert(name); });
  const Backend* cuda = cuda_backend(nullptr);
  std::vector<std::string> added;
  names([&](const std::string& name) {
    if (!before.count(name)) added.push_back(name);
  });
  for (const std::string& name : added) ::unsetenv(name.c_str());
  return cuda;
}

// Monitors the devices of both sides, as far as known: the devices that our ranks on this machine use.
class DeviceMonitors {
 public:
  explicit DeviceMonitors(const Config& c) {
    const Backend* cuda = c.device.kind == DeviceChoice::kCpu ? nullptr : cuda_in_this_environment();
    const Backend& backend = cuda != nullptr ? *cuda : cpu_backend();
    const int devices = std::clamp(backend.device->count(), 1, static_cast<int>(c.world()));
    for (int k = 0; k < devices; ++k) watches_.push_back(std::make_unique<ConditionsWatch>(backend, k));
  }
  // Monitors while `run` executes; start, load and end of a run leave the device idle.
  template <class Run>
  auto during(Run run) {
    for (const auto& w : watches_) w->start();
    auto result = run();
    summaries_.clear();
    for (const auto& w : watches_) {
      w->stop();
      summaries_.push_back(summary_of(w->samples(), true));
    }
    return result;
  }
  const std::vector<ConditionsSummary>& summaries() const { return summaries_; }
  nlohmann::ordered_json json() const {
    return parse_json<nlohmann::ordered_json>(conditions_json(summaries_, watches_.front()->why(), "device"),
                                              "conditions", kOwnJson);
  }

 private:
  std::vector<std::unique_ptr<ConditionsWatch>> watches_;
  std::vector<ConditionsSummary> summaries_;
};

// Text below a pair's line; empty if nothing is known.
std::string conditions_lines(const char* side, const std::vector<ConditionsSummary>& summaries) {
  std::string text = conditions_text(summaries, "device");
  if (text.empty()) return "";
  if (const std::string limits = limits_text(summaries, "device"); !limits.empty()) text += "\nthrottled: " + limits;
  return block({{fmt::format("  {:<8}", side), text}});
}

class PairedBench {
 public:
  PairedBench(const Command& command, const PeerArgs& args)
      : args_(args), config_(command.loaded.config), watches_(command.loaded.config) {
    own_ = this_program() + " bench";
    if (!command.config_file.empty()) own_ += " --config " + shell_word(command.config_file);
    for (const std::string& flag : command.config_flags) own_ += " " + shell_word(flag);
    own_ += fmt::format(" --steps {} --warmup {}", args.steps, args.warmup);
    formats_ = peer_formats();
    if (!args.pattern.empty()) {
      using Unit = PeerFormat::Unit;
      formats_ = {{"--pattern", args.pattern,
                   args.unit == "s"    ? Unit::kSeconds
                   : args.unit == "ms" ? Unit::kMilliseconds
                                       : Unit::kRate}};
    }
  }

  // Returns tokens per second, the median over the steps.
  double own() {
    const ShellResult r = watches_.during([&] { return run_shell(cat(own_, " --out ", record_.path())); });
    GT_REQUIRE(r.status == 0, Exit::kUsage, own_, ": ended with ", r.status, ":\n", tail(r.out));
    last_ = parse_json<nlohmann::json>(read_whole_file(record_.path()), "record of " + own_, kOwnJson);
    return last_.at("tokens_per_second").get<double>();
  }
  double peer() {
    const ShellResult r = watches_.during([&] { return run_shell(args_.run); });
    GT_REQUIRE(r.status == 0, Exit::kUsage, args_.run, ": ended with ", r.status, ":\n", tail(r.out));
    const double tokens = args_.tokens > 0 ? static_cast<double>(args_.tokens)
                                           : static_cast<double>(config_.train.global_batch * config_.model.seq);
    std::vector<double> rates = peer_rates(r.out, formats_, tokens, &format_);
    GT_REQUIRE(!rates.empty(), Exit::kUsage, args_.run,
               ": its output has no step lines; --pattern takes a regular expression with the number as its group. The "
               "output ends:\n",
               tail(r.out));
    const auto skip = static_cast<ptrdiff_t>(std::min<size_t>(rates.size() - 1, static_cast<size_t>(args_.skip)));
    rates.erase(rates.begin(), rates.begin() + skip);
    steps_ = rates.size();
    return quantile(rates, 0.5);
  }
  const std::string& own_command() const { return own_; }
  const std::string& format() const { return format_; }
  size_t steps() const { return steps_; }  // of the baseline's last run
  const nlohmann::json& last() const { return last_; }
  const DeviceMonitors& watches() const { return watches_; }  // of the last run

 private:
  const PeerArgs& args_;
  const Config& config_;
  DeviceMonitors watches_;
  MemoryFile record_;
  std::string own_, format_;
  std::vector<PeerFormat> formats_;
  size_t steps_ = 0;
  nlohmann::json last_;
};

}  // namespace

Exit run_bench_peer(const Command& command) {
  const auto& args = command.get<PeerArgs>();
  constexpr double kQuiet = 0.96;
  if (!args.out.empty()) require_writable(args.out);
  PairedBench duel(command, args);
  fmt::print("ours      {}\nbaseline  {}{}\n", duel.own_command(), args.run,
             args.note.empty() ? "" : cat("\n          ", args.note));
  std::vector<double> ratios;
  nlohmann::ordered_json pairs = nlohmann::ordered_json::array();
  for (int64_t k = 0; k < args.pairs; ++k) {
    const double idle = idle_share();
    const bool busy = idle < kQuiet;
    const double ours = duel.own();
    std::string conditions = conditions_lines("ours", duel.watches().summaries());
    const nlohmann::ordered_json our_conditions = duel.watches().json();
    const double theirs = duel.peer();
    conditions += conditions_lines("baseline", duel.watches().summaries());
    ratios.push_back(ours / theirs);
    pairs.push_back({{"ours", ours},
                     {"peer", theirs},
                     {"ratio", ratios.back()},
                     {"busy", busy},
                     {"conditions", {{"ours", our_conditions}, {"peer", duel.watches().json()}}}});
    fmt::print("pair {:<4} ours {} tokens/s   baseline {} tokens/s ({} steps, {})   ratio {:.3f}{}\n", k + 1,
               format_count(ours), format_count(theirs), duel.steps(), duel.format(), ratios.back(),
               busy ? fmt::format("   busy: {:.0f} % idle before it", 100 * idle) : "");
    fmt::print("{}", conditions);
    std::fflush(stdout);
  }
  const double low = quantile(ratios, 0.25), middle = quantile(ratios, 0.5), high = quantile(ratios, 0.75);
  fmt::print("ratio     median {:.3f}   quartiles {:.3f} to {:.3f}: {}\n", middle, low, high,
             low > 1    ? "ours is faster"
             : high < 1 ? "the baseline is faster"
                        : "no significant difference");
  if (!args.out.empty()) {
    const nlohmann::ordered_json j{{"ours", duel.own_command()}, {"peer", args.run},   {"note", args.note},
                                   {"format", duel.format()},    {"pairs", pairs},     {"median", middle},
                                   {"quartiles", {low, high}},   {"last", duel.last()}};
    write_json_record(j.dump(), args.out);
  }
  return Exit::kOk;
}

}  // namespace gt
