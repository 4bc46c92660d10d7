// gpttrain plan: memory and time of a run on devices that need not be present, the fastest layouts, and the planner's
// errors on tables of measured steps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "launch/commands/output.h"
#include "launch/commands/subcommands.h"
#include "launch/config/config_check.h"
#include "launch/config/config_precision.h"
#include "launch/options/console_text.h"
#include "launch/options/json_text.h"
#include "launch/plan/calibrate.h"
#include "launch/plan/run_plan.h"

namespace gt {
namespace {

struct Constants {
  MachineModel machine;
  std::string origin;  // "data sheet", "profile NAME of FILE"
};

const MachineModel& profile_of(const MachineProfiles& all, const std::string& file, const std::string& name) {
  if (name.empty() && all.size() == 1) return all.begin()->second;
  std::vector<std::string> names;
  for (const auto& [key, unused] : all) names.push_back(key);
  const auto it = all.find(name);
  if (it != all.end()) return it->second;
  const std::string guess = did_you_mean(name, names);
  fail(Exit::kUsage, "--profile ", file, ": expected FILE:NAME, NAME one of ",
       fmt::format("{}", fmt::join(names, ", ")), guess.empty() ? "" : " (did you mean " + guess + "?)");
}

Constants constants_of(const PlanArgs& a, const DeviceType& device, DType compute) {
  Constants c{machine_model(device, compute), "typical constants of the device type, not calibrated"};
  if (a.devices_per_node > 0) c.machine.per_node = a.devices_per_node;
  if (a.profile.empty()) return c;
  const size_t colon = a.profile.rfind(':');
  const std::string file = a.profile.substr(0, colon),
                    name = colon == std::string::npos ? "" : a.profile.substr(colon + 1);
  const MachineModel& fitted = profile_of(read_profiles(file), file, name);
  for (const MachineConstant& k : machine_constants()) c.machine.*k.value = fitted.*k.value;
  c.origin = fmt::format("calibrated by {}", a.profile);
  return c;
}

// Applies the config to all devices: derives dp unless it was given, and keeps the global batch.
Config on_devices(const LoadedConfig& loaded, int64_t devices) {
  Config c = loaded.config;
  const int64_t split = c.parallel.tp * c.parallel.pp;
  if (devices == 0 || devices == c.world()) return c;
  GT_REQUIRE(devices % split == 0 && loaded.origin.count("parallel.dp") == 0, Exit::kUsage, "--devices ", devices,
             ": tp ", c.parallel.tp, " x pp ", c.parallel.pp, " x dp ", c.parallel.dp, " are ", c.world(),
             " ranks; omit --dp if tp x pp divides the devices, or use --search");
  c.parallel.dp = devices / split;
  GT_REQUIRE(c.train.global_batch % (c.parallel.dp * c.train.micro_batch) == 0, Exit::kUsage,
             "train.global_batch: ", c.train.global_batch, " is not a multiple of dp ", c.parallel.dp,
             " x micro_batch ", c.train.micro_batch, "; the nearest is ",
             std::max<int64_t>(1, (c.train.global_batch + c.parallel.dp * c.train.micro_batch / 2) /
                                      (c.parallel.dp * c.train.micro_batch)) *
                 c.parallel.dp * c.train.micro_batch);
  c.train.grad_accum = c.train.global_batch / (c.parallel.dp * c.train.micro_batch);
  Problems problems;
  std::vector<std::string> notes;
  resolve_and_check(c, {.origin = loaded.origin}, problems, notes);
  problems.throw_if_any();
  return c;
}

SearchSpace space_of(const PlanArgs& a, const Config& c) {
  SearchSpace space{a.devices > 0 ? a.devices : c.world(), {}};
  static const std::vector<std::string> kKeys = {"parallel.tp", "parallel.pp",        "parallel.vpp",
                                                 "parallel.dp", "parallel.recompute", "train.micro_batch",
                                                 "zero.stage"};
  for (const std::string& word : a.keep) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    GT_REQUIRE(equals != std::string::npos && std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end(), Exit::kUsage,
               "--keep: expected KEY=VALUE, KEY one of ", fmt::format("{}", fmt::join(kKeys, ", ")), ", found \"", word,
               "\"");
    space.keep.emplace_back(key, word.substr(equals + 1));
  }
  return space;
}

// Returns a line of the search's table.
std::string layout_line(const RunPlan& p) {
  const ParallelConfig& par = p.config.parallel;
  const double step = p.terms.total();
  return fmt::format("{:>4} {:>4} {:>4} {:>6} {:>5} {:>6} {:>9}  {:>9.3f} {:>10} {:>6.1f} {:>7.1f} {:>9} {:>5.0f}%\n",
                     par.tp, par.pp, par.vpp, par.dp, p.config.zero.stage, p.config.train.micro_batch, par.recompute,
                     step, format_count(p.tokens() / step), 100 * p.flops / step / p.peak, 100 * p.bubble,
                     format_bytes(p.needed), 100 * p.needed / p.usable);
}

// Rejects options that would be ignored.
void require_effect(const PlanArgs& a) {
  const bool table = !a.fit.empty() || !a.rows.empty();
  GT_REQUIRE(a.fit.empty() || a.rows.empty(), Exit::kUsage, "--fit and --rows: give only one of them");
  GT_REQUIRE(table || a.output.empty(), Exit::kUsage, "--output needs --fit or --rows");
  GT_REQUIRE(a.fit.empty() || a.profile.empty(), Exit::kUsage,
             "--profile has no effect with --fit, which writes profiles");
  GT_REQUIRE(!table || (!a.search && !a.json && !a.require_match && a.devices == 0 && a.devices_per_node == 0),
             Exit::kUsage, "--fit and --rows take --output and --profile; a row names its own devices");
  GT_REQUIRE(a.search || a.keep.empty(), Exit::kUsage, "--keep needs --search");
  GT_REQUIRE((!table && (!a.search || a.json)) || (a.price == 0 && a.watts == 0), Exit::kUsage,
             "--price and --watts: the table of --search has no cost; add --json, or plan one layout");
}

Exit search(const PlanArgs& a, const Config& base, const DeviceType& device, const Constants& constants) {
  const SearchSpace space = space_of(a, base);
  const double capacity = kUsableShare * device.memory - kLibraryBytes;
  // Closed forms may be off by some percent, so twice the requested number of layouts is planned exactly.
  const auto found = search_layouts(base, space, constants.machine, capacity, 2 * static_cast<size_t>(a.top));
  GT_REQUIRE(!found.empty() || !search_layouts(base, space, constants.machine, 1e30, 1).empty(), Exit::kUsage,
             "no layout of ", space.devices, " devices is legal: tp must divide model.heads ", base.model.heads,
             " and model.ffn ", base.model.ffn, ", pp model.layers ", base.model.layers, ", dp train.global_batch ",
             base.train.global_batch, a.keep.empty() ? "" : "; --keep may exclude the rest");
  std::vector<RunPlan> plans;
  for (const Candidate& c : found) {
    RunPlan p = plan_run(c.config, device, constants.machine);
    if (p.fits()) plans.push_back(std::move(p));
    if (plans.size() == static_cast<size_t>(a.top)) break;
  }
  if (a.json) {
    std::string out = "[";
    for (const RunPlan& p : plans)
      out.append(out.size() > 1 ? ",\n " : "").append(plan_json(p, device, constants.origin, {a.price, a.watts}));
    write_out(out + "]\n");
  } else if (plans.empty()) {
    write_out(fmt::format("no layout fits on {} {} devices; use more devices, or devices with more memory\n",
                          space.devices, device.name));
  } else {
    std::string out = fmt::format("{} {} devices, a step of {} sequences of {} tokens; {}\n", space.devices,
                                  device.name, base.train.global_batch, base.model.seq, constants.origin);
    out += fmt::format("{:>4} {:>4} {:>4} {:>6} {:>5} {:>6} {:>9}  {:>9} {:>10} {:>6} {:>7} {:>9} {:>6}\n", "tp", "pp",
                       "vpp", "dp", "ZeRO", "micro", "recompute", "step s", "tokens/s", "MFU %", "bubble", "memory",
                       "used");
    for (const RunPlan& p : plans) out += layout_line(p);
    write_out(out);
  }
  flush_out();
  return plans.empty() && a.require_match ? Exit::kUsage : Exit::kOk;
}

// Error statistics over the rows of a table of measured steps.
struct Errors {
  double sum = 0, worst = 0;
  int n = 0;
  void add(double e) { sum += std::fabs(e), worst = std::max(worst, std::fabs(e)), ++n; }
  std::string text() const {
    return n == 0 ? "none" : fmt::format("mean {:.2f} %, worst {:.1f} %, of {} rows", 100 * sum / n, 100 * worst, n);
  }
};

MachineModel model_of(const PlanRow& r, const MachineProfiles& profiles) {
  MachineModel m = r.machine;
  const auto it = profiles.find(r.profile);
  if (it != profiles.end())
    for (const MachineConstant& k : machine_constants()) m.*k.value = it->second.*k.value;
  return m;
}

bool counts(const PlanRow& r) { return r.graded && r.seconds > 0 && r.serves("time"); }

Exit predict_rows(const PlanArgs& a) {
  const std::vector<PlanRow> rows = read_plan_rows(a.rows);
  const MachineProfiles profiles = a.profile.empty() ? MachineProfiles() : read_profiles(a.profile);
  std::string out = "id,profile,predicted_s,printed_s,error";
  for (const auto& [name, unused] : StepTerms().list()) out += cat(",", name);
  out += '\n';
  Errors errors;
  for (const PlanRow& r : rows) {
    const StepTerms t = step_terms(r.work, model_of(r, profiles));
    const bool printed = r.seconds > 0;
    out += fmt::format("{},{},{:.6g},{},{}", r.id, r.profile, t.total(), printed ? fmt::format("{:g}", r.seconds) : "",
                       printed ? fmt::format("{:.4f}", t.total() / r.seconds - 1) : "");
    for (const auto& [unused, seconds] : t.list()) out += fmt::format(",{:.6g}", seconds);
    out += '\n';
    if (counts(r)) errors.add(t.total() / r.seconds - 1);
  }
  if (a.output.empty()) {
    write_out(out);
  } else {
    std::ofstream file(a.output);
    file << out;
    file.close();
    GT_REQUIRE(file, Exit::kIo, "--output ", a.output, ": cannot be written");
  }
  fmt::print(stderr, "error of predicted step times: {}\n", errors.text());
  flush_out();
  return Exit::kOk;
}

Exit fit_rows(const PlanArgs& a) {
  GT_REQUIRE(!a.output.empty(), Exit::kUsage, "--fit needs --output FILE for the profiles");
  const std::vector<PlanRow> rows = read_plan_rows(a.fit);
  GT_REQUIRE(std::any_of(rows.begin(), rows.end(), counts), Exit::kUsage, a.fit, ": no row has a measured time");
  const MachineProfiles profiles = calibrate_profiles(rows);
  const std::vector<double> unseen = unseen_errors(rows, 5);
  std::map<std::string, std::pair<Errors, Errors>> by_profile;
  Errors seen, not_seen;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!counts(rows[i])) continue;
    const double e = row_error(rows[i], model_of(rows[i], profiles));
    seen.add(e), by_profile[rows[i].profile].first.add(e);
    if (!std::isnan(unseen[i])) not_seen.add(unseen[i]), by_profile[rows[i].profile].second.add(unseen[i]);
  }
  std::string out;
  for (const auto& [name, e] : by_profile)
    out += fmt::format("{}: fitted {}; held out {}\n", name, e.first.text(), e.second.text());
  out += fmt::format("all profiles: fitted {}; held out (5 folds) {}\n", seen.text(), not_seen.text());
  write_profiles(profiles, a.output);
  write_out(out + fmt::format("written to {}\n", a.output));
  flush_out();
  return Exit::kOk;
}

}  // namespace

Exit run_plan(const Command& command) {
  const auto& args = command.get<PlanArgs>();
  require_effect(args);
  if (!args.fit.empty()) return fit_rows(args);
  if (!args.rows.empty()) return predict_rows(args);
  const DeviceType& device = device_type(args.device_type);
  const Config& c = command.loaded.config;
  const Constants constants = constants_of(args, device, precision_of(c).linear());
  if (args.search) return search(args, c, device, constants);
  const RunPlan p = plan_run(on_devices(command.loaded, args.devices), device, constants.machine);
  const RunPrice price{args.price, args.watts};
  write_out(args.json ? plan_json(p, device, constants.origin, price) : plan_text(p, device, constants.origin, price));
  flush_out();
  return p.fits() || !args.require_match ? Exit::kOk : Exit::kUsage;
}

}  // namespace gt
