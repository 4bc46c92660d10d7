// gpttrain plan: memory and time of a run on devices that need not be present, the fastest layouts, and the planner's
// errors on tables of measured steps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "launch/config/config_check.h"
#include "launch/config/config_precision.h"
#include "launch/options/console_text.h"
#include "launch/options/json_text.h"
#include "launch/options/near_word.h"
#include "launch/options/output.h"
#include "launch/tools/plan/calibrate.h"
#include "launch/tools/plan/calibrate_machine.h"
#include "launch/tools/plan/changes.h"
#include "launch/tools/plan/layout_trials.h"
#include "launch/tools/plan/run_plan.h"
#include "launch/tools/plan/subcommands.h"

namespace gt {
namespace {

constexpr const char* kHere = "cpu";  // --device_type: this machine, by measured times
constexpr int64_t kUsualTrials = 24;

RunPrice price_of(const PlanArgs& a) { return {a.price, a.watts, a.tokens}; }

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
  c.machine = calibrated(c.machine, profile_of(read_profiles(file), file, name));
  c.origin = fmt::format("calibrated by {}", a.profile);
  return c;
}

// Applies the config to all devices: derives dp unless it was given, and keeps the global batch.
// A layout of the config file for another number of devices is one of its machine, not a request: dp of the file gives
// way, and where tp x pp does not divide the devices, `fastest` chooses the layout.
Config on_devices(const LoadedConfig& loaded, int64_t devices, const std::function<std::optional<Config>()>& fastest) {
  Config c = loaded.config;
  const int64_t split = c.parallel.tp * c.parallel.pp;
  if (devices == 0 || devices == c.world()) return c;
  const auto typed = [&](const char* key) {
    const auto it = loaded.origin.find(key);
    return it != loaded.origin.end() && it->second.starts_with("--");
  };
  const bool any = typed("parallel.tp") || typed("parallel.pp") || typed("parallel.dp");
  if (devices % split != 0 && !any)
    if (std::optional<Config> found = fastest()) return *found;
  GT_REQUIRE(devices % split == 0 && !typed("parallel.dp"), Exit::kUsage, "--devices ", devices, ": tp ", c.parallel.tp,
             " x pp ", c.parallel.pp, " x dp ", c.parallel.dp, " are ", c.world(),
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
  static const std::vector<std::string> kKeys = {"parallel.tp",       "parallel.pp", "parallel.vpp",
                                                 "parallel.dp",       "parallel.ep", "parallel.recompute",
                                                 "train.micro_batch", "zero.stage"};
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
  const double step = p.step();
  return fmt::format("{:>4} {:>4} {:>4} {:>6} {:>5} {:>6} {:>9}  {:>9.4g} {:>10} {:>6} {:>7.1f} {:>9} {:>5.0f}%{}\n",
                     par.tp, par.pp, par.vpp, par.dp, p.config.zero.stage, p.config.train.micro_batch,
                     name_of(par.recompute), step, format_count(p.tokens() / step),
                     std::isnan(p.peak) ? "n/a" : fmt::format("{:.1f}", 100 * p.flops / step / p.peak), 100 * p.bubble,
                     format_bytes(p.needed), 100 * p.needed / p.usable, std::isnan(p.trained) ? "" : "  measured");
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
  GT_REQUIRE(a.device_type == kHere || !a.calibrate, Exit::kUsage,
             "--calibrate measures this machine: it needs --device_type cpu");
  GT_REQUIRE(a.trials < 0 || (a.search && a.calibrate), Exit::kUsage, "--trials needs --search --calibrate");
  GT_REQUIRE(a.device_type != kHere || (a.profile.empty() && a.devices_per_node == 0), Exit::kUsage,
             "--device_type cpu takes measured times instead of --profile and has one node");
  GT_REQUIRE(a.device_figures.empty() || (a.device_type == PlanArgs().device_type && !table), Exit::kUsage,
             "--device_figures is for one plan or --search, in the place of --device_type");
  GT_REQUIRE(!a.why || (!table && !a.search && !a.json), Exit::kUsage, "--why explains the text of one plan");
  GT_REQUIRE((!table && (!a.search || a.json)) || (a.price == 0 && a.watts == 0 && a.tokens == 0), Exit::kUsage,
             "--price, --watts and --tokens: the table of --search has no cost; add --json, or plan one layout");
}

// Of the plans within 1 % of the fastest step, which comes first, the one that needs the least memory.
const RunPlan& least_memory(const std::vector<RunPlan>& plans) {
  const RunPlan* best = &plans.front();
  for (const RunPlan& p : plans)
    if (p.step() < 1.01 * plans.front().step() && p.needed < best->needed) best = &p;
  return *best;
}

Exit print_search(const PlanArgs& a, const std::vector<RunPlan>& plans, const std::string& device,
                  const std::string& constants) {
  if (a.json) {
    std::string out = "[";
    for (const RunPlan& p : plans)
      out.append(out.size() > 1 ? ",\n " : "").append(plan_json(p, device, constants, price_of(a)));
    write_out(out + "]\n");
  } else if (plans.empty()) {
    write_out(fmt::format("no layout fits on {} devices of type {}; use more devices, or devices with more memory\n",
                          a.devices, device));
  } else {
    const Config& c = plans.front().config;
    std::string out = fmt::format("{} {} {}, a step of {} sequences of {} tokens; {}\n", c.world(), device,
                                  device == kHere ? "ranks" : "devices", c.train.global_batch, c.model.seq, constants);
    out += fmt::format("{:>4} {:>4} {:>4} {:>6} {:>5} {:>6} {:>9}  {:>9} {:>10} {:>6} {:>7} {:>9} {:>6}\n", "tp", "pp",
                       "vpp", "dp", "ZeRO", "micro", "recompute", "step s", "tokens/s", "MFU %", "bubble", "memory",
                       "used");
    for (const RunPlan& p : plans) out += layout_line(p);
    out += device == kHere ? "in order of the step, those that were trained first\n"
                           : "in order of the step; of equal ones that with less memory first\n";
    out += fmt::format("first  {}\n", layout_flags(c));
    if (const RunPlan& lean = least_memory(plans); &lean != &plans.front() && device != kHere)
      out += fmt::format("within 1 % of its step, with the least memory  {}\n", layout_flags(lean.config));
    write_out(out);
  }
  flush_out();
  return plans.empty() && a.require_match ? Exit::kUsage : Exit::kOk;
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
  std::stable_sort(plans.begin(), plans.end(), [](const RunPlan& x, const RunPlan& y) {
    return layout_before(x.step(), x.needed, y.step(), y.needed);
  });
  return print_search(a, plans, device.name, constants.origin);
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
  const auto it = profiles.find(r.profile);
  return it != profiles.end() ? calibrated(r.machine, it->second) : r.machine;
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
  const std::vector<double> held_out_errors = unseen_errors(rows, 5);
  std::map<std::string, std::pair<Errors, Errors>> by_profile;
  Errors fit_errors, held_out;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!counts(rows[i])) continue;
    const double e = row_error(rows[i], model_of(rows[i], profiles));
    fit_errors.add(e), by_profile[rows[i].profile].first.add(e);
    if (!std::isnan(held_out_errors[i]))
      held_out.add(held_out_errors[i]), by_profile[rows[i].profile].second.add(held_out_errors[i]);
  }
  std::string out;
  for (const auto& [name, e] : by_profile)
    out += fmt::format("{}: fitted {}; held out {}\n", name, e.first.text(), e.second.text());
  out += fmt::format("all profiles: fitted {}; held out (5 folds) {}\n", fit_errors.text(), held_out.text());
  write_profiles(profiles, a.output);
  write_out(out + fmt::format("written to {}\n", a.output));
  flush_out();
  return Exit::kOk;
}

Exit print_plan(const PlanArgs& a, const RunPlan& p, const std::string& device, int64_t per_node,
                const std::string& constants, const std::function<RunPlan(const Config&)>& plan) {
  if (a.json) {
    write_out(plan_json(p, device, constants, price_of(a)));
  } else {
    write_out(plan_text(p, device, per_node, constants, price_of(a)));
    if (a.why) {
      write_out(why_text(p, changes_that_fit(p.config, plan)));
      if (p.config.parallel.dp > 1) write_out("\n" + zero_table(p.config));
    }
  }
  flush_out();
  return p.fits() || !a.require_match ? Exit::kOk : Exit::kUsage;
}

// Layouts of the search on this machine, by closed forms, which order them only roughly: a fixed number is planned.
std::vector<Config> layouts_here(const PlanArgs& a, const Config& base) {
  constexpr size_t kMostPlanned = 512;
  SearchSpace space = space_of(a, base);
  MachineModel rough{.peak = 1e11, .per_node = space.devices, .memory = 2e10, .link = 2e9, .nic = 2e9};
  rough.block_latency = 2e-5, rough.host = 0, rough.step_latency = 0;
  // Recomputation only costs time where memory is not short.
  const bool chosen =
      std::any_of(space.keep.begin(), space.keep.end(), [](const auto& k) { return k.first == "parallel.recompute"; });
  if (!chosen) space.keep.emplace_back("parallel.recompute", "none");
  std::vector<Config> out;
  for (Candidate& c : search_layouts(base, space, rough, 1e30, kMostPlanned)) out.push_back(std::move(c.config));
  GT_REQUIRE(!out.empty(), Exit::kUsage, "no layout of ", space.devices, " ranks is legal",
             a.keep.empty() ? "" : "; --keep may exclude the rest");
  return out;
}

// Plans of the layouts whose times are known: those that were trained by their measured steps, then the others.
std::vector<RunPlan> plans_by_time(const std::vector<Config>& layouts,
                                   const std::function<RunPlan(const Config&)>& plan) {
  std::vector<RunPlan> plans;
  for (const Config& layout : layouts)
    if (RunPlan p = plan(layout); std::isfinite(p.terms.total())) plans.push_back(std::move(p));
  std::stable_sort(plans.begin(), plans.end(), [](const RunPlan& x, const RunPlan& y) {
    return std::pair(std::isnan(x.trained), x.step()) < std::pair(std::isnan(y.trained), y.step());
  });
  return plans;
}

// Plans by the measured times of this machine.
Exit plan_machine(const Command& command) {
  const auto& a = command.get<PlanArgs>();
  GT_REQUIRE(command.loaded.config.device.kind != DeviceChoice::kCuda, Exit::kUsage,
             "--device_type cpu: device.kind is cuda");
  Command c = command;
  Config& config = c.loaded.config;
  if (a.search && a.devices > 0 && a.devices != config.world())
    config.parallel.dp = a.devices, config.parallel.tp = config.parallel.pp = 1;
  if (command.env.launched()) return calibrate_comm(c);
  if (!a.search) config = on_devices(c.loaded, a.devices, [] { return std::nullopt; });
  std::vector<Config> layouts = a.search ? layouts_here(a, config) : std::vector<Config>{config};
  if (a.calibrate) {
    std::vector<Config> measured = layouts;
    if (a.why)
      for (ChangedConfig& changed : single_changes(config)) measured.push_back(std::move(changed.config));
    calibrate_ops(measured);
    if (config.world() > 1)
      if (const Exit e = calibrate_comm(c); e != Exit::kOk) return e;
  }
  MeasuredTimes times = machine_times(config);
  GT_REQUIRE(!times.empty(), Exit::kUsage, "--device_type cpu: ", times.on().device, " is not measured for ",
             machine_share(config).together(), " ranks at a time of ", times.on().threads, " threads; add --calibrate");
  const auto plan = [&](const Config& layout) {
    return plan_here(layout, times, machine_transport(layout), machine_share(layout));
  };
  const auto plan_all = [&] { return plans_by_time(layouts, plan); };
  std::vector<RunPlan> plans = plan_all();
  GT_REQUIRE(!plans.empty(), Exit::kUsage, "--device_type cpu: ops or communication of ",
             a.search ? "every layout are" : "this layout are", " not measured; add --calibrate");
  if (a.search) std::erase_if(plans, [](const RunPlan& p) { return !p.fits(); });
  if (a.search && a.calibrate && a.trials != 0) {
    const auto most = static_cast<size_t>(a.trials < 0 ? kUsualTrials : a.trials);
    std::stable_sort(plans.begin(), plans.end(),
                     [](const RunPlan& x, const RunPlan& y) { return x.terms.total() < y.terms.total(); });
    try_layouts(std::span(plans).first(std::min(plans.size(), most)), times);
    plans = plan_all();
    std::erase_if(plans, [](const RunPlan& p) { return !p.fits(); });
  }
  std::string origin = fmt::format("by {} measured op times of {}", times.ops(), times.file());
  if (const size_t runs = times.runs(correction_key(config.model, machine_share(config).ranks)); runs > 0)
    origin += fmt::format(", corrected by {} run{} of this model", runs, runs == 1 ? "" : "s");
  if (!a.search) return print_plan(a, plans.front(), kHere, config.world(), origin, plan);
  if (plans.size() > static_cast<size_t>(a.top)) plans.erase(plans.begin() + a.top, plans.end());
  return print_search(a, plans, kHere, origin);
}

}  // namespace

Exit run_plan(const Command& command) {
  const auto& args = command.get<PlanArgs>();
  require_effect(args);
  if (!args.fit.empty()) return fit_rows(args);
  if (!args.rows.empty()) return predict_rows(args);
  if (args.device_type == kHere) return plan_machine(command);
  const DeviceType device =
      args.device_figures.empty() ? device_type(args.device_type) : device_of_figures(args.device_figures);
  const Config& c = command.loaded.config;
  const Constants constants = constants_of(args, device, precision_of(c).linear());
  if (args.search) return search(args, c, device, constants);
  const auto plan = [&](const Config& config) { return plan_run(config, device, constants.machine); };
  const auto fastest = [&]() -> std::optional<Config> {
    const double capacity = kUsableShare * device.memory - kLibraryBytes;
    constexpr size_t kAll = 1000;
    auto found = search_layouts(c, {args.devices, {}}, constants.machine, capacity, 1);
    const bool fits = !found.empty();
    if (!fits) found = search_layouts(c, {args.devices, {}}, constants.machine, 1e30, kAll);
    if (found.empty()) return std::nullopt;
    const auto less = [](const Candidate& a, const Candidate& b) { return a.memory < b.memory; };
    const Candidate& chosen = *std::min_element(found.begin(), fits ? found.begin() + 1 : found.end(), less);
    fmt::print(stderr, "the config's layout is one of {} ranks; on {} devices {} by closed forms is {}\n", c.world(),
               args.devices, fits ? "the fastest that fits" : "none fits, and the smallest",
               layout_flags(chosen.config));
    return chosen.config;
  };
  return print_plan(args, plan(on_devices(command.loaded, args.devices, fastest)), device.name, device.per_node,
                    constants.origin, plan);
}

}  // namespace gt
