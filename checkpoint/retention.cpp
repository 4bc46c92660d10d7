#include "checkpoint/retention.h"

#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/steps.h"
#include "checkpoint/verify.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

int64_t bytes_in(const std::string& dir) {
  int64_t n = 0;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(dir, ec))
    if (e.is_regular_file(ec)) n += static_cast<int64_t>(e.file_size(ec));
  return n;
}

// The best step so far, as the newest readable manifest remembers it; -1: none.
int64_t best_step(Vfs& vfs, const std::vector<std::pair<int64_t, std::string>>& steps) {
  for (const auto& [n, path] : steps) {
    try {
      return open_step(vfs, path).manifest.state.best_step;
    } catch (const Error&) {  // damaged or unreadable: an older one may know
    }
  }
  return -1;
}

// Weights that were brought here from elsewhere: no training makes them again.
bool was_imported(Vfs& vfs, const std::string& path) {
  try {
    return open_step(vfs, path).manifest.state.origin == "import";
  } catch (const Error&) { return false; }
}

}  // namespace

PrunePlan plan_prune(Vfs& vfs, const std::string& dir, const Retention& r, bool attempts) {
  PrunePlan plan;
  const auto entry = [&](const std::string& name, std::string why) {
    return PrunePlan::Entry{name, std::move(why), bytes_in(dir + "/" + name)};
  };
  if (attempts)
    for (const std::string& name : list_attempts(dir))
      plan.remove.push_back(entry(name, name[1] == 't' ? "an attempt that died" : "a deletion that was interrupted"));
  const auto steps = list_steps(dir);
  if (r.keep < 1) return plan;
  const auto keep = static_cast<size_t>(r.keep);
  const int64_t best = r.keep_best && steps.size() > keep ? best_step(vfs, steps) : -1;
  for (size_t k = 0; k < steps.size(); ++k) {
    const auto& [n, path] = steps[k];
    const std::string name = fs::path(path).filename().string();
    if (k < keep)
      plan.keep.push_back(entry(name, cat("newest ", k + 1, " of ", keep)));
    else if (n == best)
      plan.keep.push_back(entry(name, "best validation loss"));
    else if (r.keep_every > 0 && n % r.keep_every == 0)
      plan.keep.push_back(entry(name, cat("every ", r.keep_every, " steps")));
    else if (was_imported(vfs, path))
      plan.keep.push_back(entry(name, "imported"));
    else
      plan.remove.push_back(entry(name, cat("older than the ", keep, " newest")));
  }
  size_t kept = 0;
  for (const auto& [n, name] : list_aside(dir)) {
    const bool overtaken = steps.size() >= 2 && steps[1].first > n;
    if (overtaken || ++kept > keep)
      plan.remove.push_back(
          entry(name, overtaken ? "set aside, and two newer steps exist" : cat("set aside, more than ", keep)));
  }
  return plan;
}

void prune(Vfs& vfs, const std::string& dir, const PrunePlan& plan) {
  bool steps_go = false;
  for (const auto& e : plan.remove) steps_go = steps_go || e.name[0] != '.';
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
    if (e.name[0] == '.') {
      doomed.push_back(dir + "/" + e.name);
      continue;
    }
    doomed.push_back(dir + "/.del-" + e.name);
    rename_file(vfs, dir + "/" + e.name, doomed.back());
  }
  if (steps_go) sync_directory(vfs, dir);
  for (const std::string& path : doomed) remove_tree(vfs, path);
}

}  // namespace gt
