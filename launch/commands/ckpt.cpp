// gpttrain ckpt: ls, inspect, verify, diff, prune. None needs a mesh; only prune writes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/diff.h"
#include "checkpoint/inspect.h"
#include "checkpoint/store/dir_lock.h"
#include "checkpoint/store/retention.h"
#include "checkpoint/store/steps.h"
#include "checkpoint/verify.h"
#include "kernels/core/text.h"
#include "launch/commands/subcommand_args.h"
#include "launch/commands/subcommands.h"
#include "launch/config/config.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/near_path.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

// Maps a run directory to its checkpoints folder.
std::string checkpoints_of(const std::string& dir) {
  require_path("--dir", dir);
  std::error_code ec;
  GT_REQUIRE(std::filesystem::is_directory(dir, ec), Exit::kUsage, dir,
             ": no such folder; give a run directory or its checkpoints folder");
  return std::filesystem::is_directory(dir + "/checkpoints", ec) ? dir + "/checkpoints" : dir;
}

// Returns the retention settings of the run that wrote the newest readable step; defaults if none is readable.
Retention retention_of(const std::string& dir) {
  Config config;
  std::vector<Option> options = list_options(config);
  for (const auto& [n, step] : list_steps(dir)) {
    try {
      const JsonValue saved = parse_json(read_aux(step, "config.json"), step + "/config.json");
      const JsonValue* section = saved.find("checkpoint");
      for (const Option& o : options)
        if (const JsonValue* value = section && o.section == "checkpoint" ? section->find(o.name) : nullptr)
          set_from_json(o, *value);
      break;
    } catch (const Error&) {}  // try an older step
  }
  return config.checkpoint;
}

}  // namespace

Exit run_ckpt_ls(const Command& command) {
  const auto& args = command.get<CkptArgs>();
  const std::string dir = checkpoints_of(args.dir);
  const auto list = list_checkpoints(dir, retention_of(dir));
  if (args.json) {
    Json all = Json::array();
    for (const CheckpointInfo& c : list)
      all.push_back({{"name", c.name},
                     {"step", c.step},
                     {"bytes", c.bytes},
                     {"created", c.created},
                     {"layout", c.layout},
                     {"status", c.status},
                     {"kept", c.kept}});
    fmt::print("{}\n", Json{{"dir", dir}, {"checkpoints", all}}.dump(-1, ' ', false, Json::error_handler_t::replace));
    return Exit::kOk;
  }
  fmt::print("{}: {} checkpoint{}\n", dir, list.size(), list.size() == 1 ? "" : "s");
  for (const CheckpointInfo& c : list)
    fmt::print("  {:<24} {:>10}  {:<22} {:<28} {}{}{}\n", printable(c.name), format_bytes(static_cast<double>(c.bytes)),
               printable(c.created), c.layout, printable_lines(c.status), c.kept.empty() ? "" : ", ", c.kept);
  return Exit::kOk;
}

Exit run_ckpt_inspect(const Command& command) {
  const auto& args = command.get<CkptInspectArgs>();
  const InspectOptions options{.tensor = args.tensor, .stats = args.stats};
  require_path("--dir", args.dir);
  const std::string step = resolve_step(args.dir);
  fmt::print("{}", args.json ? inspect_json(step, options) : inspect_checkpoint(step, options));
  return Exit::kOk;
}

namespace {

// Returns the steps to verify: one, or all of a folder. Opens nothing, so that a damaged newest step is not skipped in
// favour of an older one.
std::vector<std::string> steps_to_verify(const CkptVerifyArgs& args) {
  std::string path = args.dir;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code ec;
  GT_REQUIRE(std::filesystem::is_directory(path, ec), Exit::kUsage, path,
             ": no such folder; give a step, a run directory or its checkpoints folder");
  const std::string name = std::filesystem::path(path).filename().string();
  const bool aside = name[0] == '.' && name.find("step-") != std::string::npos;  // .abandoned-step-…
  if (step_number(name) || aside || std::filesystem::exists(path + "/manifest.json", ec)) return {path};
  std::vector<std::string> out;
  for (const auto& [n, step] : list_steps(checkpoints_of(path))) out.push_back(step);
  GT_REQUIRE(!out.empty(), Exit::kUsage, path, ": holds no checkpoint");
  if (!args.all) out.resize(1);
  return out;
}

Json report_json(const VerifyReport& r) {
  Json findings = Json::array();
  for (const Finding& f : r.findings) {
    Json j{{"file", f.file}, {"expected", f.expected}, {"found", f.found}, {"tensors", f.tensors}};
    if (f.begin >= 0) j["bytes"] = {f.begin, f.end};
    findings.push_back(j);
  }
  return {{"path", r.path},   {"good", r.findings.empty()}, {"step", r.step},      {"files", r.files},
          {"bytes", r.bytes}, {"tensors", r.tensors},       {"findings", findings}};
}

// JSON has no infinity.
Json number(double v) { return std::isfinite(v) ? Json(v) : Json("inf"); }

Json report_json(const DiffReport& r, const std::string& a, const std::string& b) {
  Json tensors = Json::array();
  for (const TensorDiff& t : r.tensors)
    tensors.push_back({{"name", t.name},
                       {"misfit", t.misfit},
                       {"max_abs", number(t.max_abs)},
                       {"relative", number(t.relative)},
                       {"max_ulp", t.max_ulp},
                       {"different", t.different},
                       {"elements", t.elements},
                       {"first", t.first}});
  return {{"a", a}, {"b", b}, {"equal", r.within}, {"compared", r.compared}, {"tensors", tensors}, {"state", r.state}};
}

void print_diff(const TensorDiff& t) {
  if (!t.misfit.empty()) {
    fmt::print("  {:<44} {}\n", printable(t.name), t.misfit);
    return;
  }
  fmt::print("  {:<44} max abs {:.3e}  relative {:.3e}  {}  {} of {} elements, first at {}: {:.9g} | {:.9g}\n",
             printable(t.name), t.max_abs, t.relative,
             std::isfinite(t.max_abs) ? fmt::format("{} ulp", t.max_ulp) : "not finite", t.different, t.elements,
             t.first, t.a, t.b);
}

}  // namespace

Exit run_ckpt_verify(const Command& command) {
  const auto& args = command.get<CkptVerifyArgs>();
  Vfs vfs;
  bool good = true;
  Json all = Json::array();
  for (const std::string& step : steps_to_verify(args)) {
    const VerifyReport r = verify_step(vfs, step, {.deep = args.deep});
    good = good && r.findings.empty();
    if (args.json) {
      all.push_back(report_json(r));
      continue;
    }
    fmt::print("{}: {}, {} files, {} read, {} tensors\n", step,
               r.findings.empty() ? "good" : fmt::format("DAMAGED, {} finding(s)", r.findings.size()), r.files,
               format_bytes(static_cast<double>(r.bytes)), r.tensors);
    for (const Finding& f : r.findings) fmt::print("  {}\n", printable_lines(to_string(f)));
  }
  if (args.json)
    fmt::print("{}\n", Json{{"good", good}, {"steps", all}}.dump(-1, ' ', false, Json::error_handler_t::replace));
  return good ? Exit::kOk : Exit::kDamaged;
}

Exit run_ckpt_diff(const Command& command) {
  const auto& args = command.get<CkptDiffArgs>();
  GT_REQUIRE(args.checkpoints.size() == 2, Exit::kUsage, "gpttrain ckpt diff: expected two checkpoints, found ",
             args.checkpoints.size());
  Vfs vfs;
  for (const std::string& c : args.checkpoints) require_path("--checkpoints", c);
  const std::string a = resolve_step(args.checkpoints[0]), b = resolve_step(args.checkpoints[1]);
  const DiffReport r = diff_steps(vfs, a, b, args.tol);
  if (args.json) {
    fmt::print("{}\n", report_json(r, a, b).dump(-1, ' ', false, Json::error_handler_t::replace));
    return r.within ? Exit::kOk : Exit::kDifferent;
  }
  const char* const verdict = !r.within ? "different" : r.tensors.empty() ? "equal" : "equal within the tolerance";
  fmt::print("A {}\nB {}\n{}: {} tensors compared, {} of them bitwise equal; {} of the state differ{}\n", a, b, verdict,
             r.compared,
             r.compared - std::count_if(r.tensors.begin(), r.tensors.end(),
                                        [](const TensorDiff& t) { return t.misfit.empty(); }),
             r.state.size() == 1 ? "1 entry" : fmt::format("{} entries", r.state.size()),
             r.state.size() == 1 ? "s" : "");
  const auto most = static_cast<size_t>(args.show);
  for (size_t k = 0; k < r.tensors.size() && k < most; ++k) print_diff(r.tensors[k]);
  if (r.tensors.size() > most) fmt::print("  and {} more tensors (--show)\n", r.tensors.size() - most);
  for (size_t k = 0; k < r.state.size() && k < most; ++k) fmt::print("  state {}\n", printable(r.state[k]));
  if (r.state.size() > most) fmt::print("  and {} more of the state (--show)\n", r.state.size() - most);
  return r.within ? Exit::kOk : Exit::kDifferent;
}

Exit run_ckpt_prune(const Command& command) {
  const auto& args = command.get<CkptPruneArgs>();
  const std::string dir = checkpoints_of(args.dir);
  Vfs vfs;
  std::unique_ptr<DirLock> lock;
  // excludes a running job, whose attempts must not be removed
  if (!args.dry_run) lock = std::make_unique<DirLock>(dir);
  const std::string owner = args.dry_run ? DirLock::living_owner(dir) : "";
  const PrunePlan plan = plan_prune(
      vfs, dir, {static_cast<int>(args.keep), args.keep_every, static_cast<int>(args.keep_best)}, owner.empty());
  if (!args.dry_run) prune(vfs, dir, plan);
  if (args.json) {
    const auto list = [](const std::vector<PrunePlan::Entry>& entries) {
      Json out = Json::array();
      for (const auto& e : entries) out.push_back({{"name", e.name}, {"why", e.why}, {"bytes", e.bytes}});
      return out;
    };
    fmt::print(
        "{}\n",
        Json{{"dir", dir}, {"dry_run", args.dry_run}, {"keep", list(plan.keep)}, {"remove", list(plan.remove)}}.dump(
            -1, ' ', false, Json::error_handler_t::replace));
    return Exit::kOk;
  }
  double bytes = 0;
  const std::string removed = args.dry_run ? "would remove" : "removed";
  for (const auto& e : plan.keep) fmt::print("  {:<{}} {:<44} {}\n", "keep", removed.size(), e.name, e.why);
  for (const auto& e : plan.remove) {
    fmt::print("  {} {:<44} {}, {}\n", removed, e.name, e.why, format_bytes(static_cast<double>(e.bytes)));
    bytes += static_cast<double>(e.bytes);
  }
  if (!owner.empty()) fmt::print("  a job is using this folder ({}): its attempts are not listed\n", owner);
  fmt::print("{}: {} {} of {}\n", dir, args.dry_run ? "would free" : "freed", format_bytes(bytes),
             plan.remove.size() == 1 ? "1 folder" : fmt::format("{} folders", plan.remove.size()));
  return Exit::kOk;
}

}  // namespace gt
