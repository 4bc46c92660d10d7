#include "checkpoint/store/retention.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/store/steps.h"
#include "checkpoint/verify.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLinkNote = "; a link: its target is kept";

// Steps with the lowest validation losses: those evaluated when written, or named as best so far by a manifest. Damaged
// or unreadable steps have none.
std::set<int64_t> best_steps(Vfs& vfs, const std::vector<std::pair<int64_t, std::string>>& steps, int64_t count) {
  std::map<int64_t, double> losses;
  for (const auto& [n, path] : steps) {
    try {
      const std::string file = path + "/manifest.json";
      const TrainState s = parse_manifest(read_file(vfs, file, kManifestLimit), file).state;
      if (s.best_step >= 0) losses.try_emplace(s.best_step, s.best_loss);
      if (s.eval_step == n && !std::isnan(s.eval_loss)) losses[n] = s.eval_loss;
    } catch (const Error&) {}
  }
  std::vector<std::pair<double, int64_t>> order;
  for (const auto& [n, path] : steps)
    if (const auto it = losses.find(n); it != losses.end()) order.emplace_back(it->second, n);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;  // ties: the newer step
  });
  std::set<int64_t> out;
  for (size_t k = 0; k < order.size() && k < static_cast<size_t>(count); ++k) out.insert(order[k].second);
  return out;
}

// Imported weights: training cannot reproduce them.
bool was_imported(Vfs& vfs, const std::string& path) {
  try {
    return open_step(vfs, path).manifest.state.origin == "import";
  } catch (const Error&) { return false; }
}

}  // namespace

PrunePlan plan_prune(Vfs& vfs, const std::string& dir, const Retention& r, bool attempts) {
  PrunePlan plan;
  const auto entry = [&](const std::string& name, std::string why) {
    return PrunePlan::Entry{name, std::move(why), bytes_in(dir + "/" + name), false};
  };
  const auto goes = [&](const std::string& name, std::string why) {
    std::error_code ec;
    const bool link = fs::is_symlink(dir + "/" + name, ec);
    plan.remove.push_back(link ? PrunePlan::Entry{name, why + kLinkNote, 0, false} : entry(name, std::move(why)));
  };
  if (attempts)
    for (const std::string& name : list_attempts(dir)) {
      goes(name, name[1] == 'd' ? "a deletion that was interrupted" : "an attempt that died");
      plan.remove.back().leftover = true;
    }
  const auto steps = list_steps(dir);
  if (r.keep < 1) return plan;
  const auto keep = static_cast<size_t>(r.keep);
  const auto best = r.keep_best > 0 ? best_steps(vfs, steps, r.keep_best) : std::set<int64_t>();
  for (size_t k = 0; k < steps.size(); ++k) {
    const auto& [n, path] = steps[k];
    const std::string name = fs::path(path).filename().string();
    if (k < keep)
      plan.keep.push_back(entry(name, cat("newest ", k + 1, " of ", keep)));
    else if (best.count(n))
      plan.keep.push_back(entry(name, r.keep_best == 1 ? "best validation loss"
                                                       : cat("one of the ", r.keep_best, " best validation losses")));
    else if (r.keep_every > 0 && n % r.keep_every == 0)
      plan.keep.push_back(entry(name, cat("every ", r.keep_every, " steps")));
    else if (was_imported(vfs, path))
      plan.keep.push_back(entry(name, "imported"));
    else
      goes(name, cat("older than the ", keep, " newest"));
  }
  size_t kept = 0;
  for (const auto& [n, name] : list_aside(dir)) {
    const bool overtaken = steps.size() >= 2 && steps[1].first > n;
    if (overtaken || ++kept > keep)
      goes(name, overtaken ? "set aside, and two newer steps exist" : cat("set aside, more than ", keep));
  }
  return plan;
}

void prune(Vfs& vfs, const std::string& dir, const PrunePlan& plan) {
  bool steps_go = false;
  for (const auto& e : plan.remove) steps_go = steps_go || !e.leftover;
  if (steps_go) {
    GT_CHECK(!plan.keep.empty(), "a plan that keeps nothing");
    const VerifyReport report = verify_step(vfs, dir + "/" + plan.keep.front().name, {.fresh = true});
    GT_REQUIRE(report.findings.empty(), Exit::kDamaged, dir, "/", plan.keep.front().name,
               ": is damaged, so nothing older was deleted: ", to_string(report.findings.front()),
               report.findings.size() > 1
                   ? cat("\n  and ", report.findings.size() - 1, " more; see gpttrain ckpt verify")
                   : std::string());
  }
  std::vector<std::string> doomed;
  for (const auto& e : plan.remove) {
    if (e.leftover) {
      remove_attempt(vfs, dir, e.name);
      continue;
    }
    doomed.push_back(dir + "/.del-" + e.name);
    rename_file(vfs, dir + "/" + e.name, doomed.back());
  }
  if (steps_go) sync_directory(vfs, dir);
  for (const std::string& path : doomed) remove_tree(vfs, path);
}

}  // namespace gt
