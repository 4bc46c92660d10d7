#include "checkpoint/load.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/format/shard_reader.h"
#include "checkpoint/store/steps.h"
#include "checkpoint/world.h"

namespace gt {
namespace {

std::string group_of(const std::string& name) { return name.substr(0, name.rfind('/')); }
// Quantizer state of QAT and delayed scaling: a run may enable or disable these with any checkpoint.
bool of_quantization(const std::string& name) { return name.rfind("qat/", 0) == 0 || name.rfind("fp8/", 0) == 0; }
std::string describe(const Shape& s, DType t) { return cat(name_of(t), " ", to_string(s)); }

bool names(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
    return !p.empty() && p.back() == '*' ? name.compare(0, p.size() - 1, p, 0, p.size() - 1) == 0 : name == p;
  });
}

// Compares all ranks' views with the manifest and reports every difference at once, in the same text on every rank.
// `resume`: tensor groups that no view requests are differences too, since optimizer state would be lost silently.
// Returns the permitted tensors that the checkpoint lacks.
std::vector<std::string> require_match(ProcessGroup& world, const std::string& path, const Manifest& m,
                                       std::span<const ShardView> views, bool resume, const FitOptions& fit) {
  std::map<std::string, const TensorEntry*> stored;
  for (const TensorEntry& t : m.tensors) stored[t.name] = &t;
  std::map<std::string, std::string> mine;  // name → difference, "" when it matches
  for (const ShardView& v : views) {
    const auto it = stored.find(v.name);
    if (it == stored.end())
      mine[v.name] = cat("missing in the checkpoint: ", v.name, " ", describe(v.full, v.data.dtype));
    else if (it->second->shape != v.full || !may_hold(v.data.dtype, it->second->dtype))
      mine[v.name] = cat("differs: ", v.name, ": checkpoint ", describe(it->second->shape, it->second->dtype),
                         ", model ", describe(v.full, v.data.dtype));
    else
      mine.try_emplace(v.name);
  }
  std::vector<std::string> flat;
  for (auto& [name, difference] : mine) {
    flat.push_back(name);
    flat.push_back(std::move(difference));
  }
  std::set<std::string> requested, groups, differences, absent;
  for (const std::string& part : gather_bytes(world, pack(flat))) {
    const auto rows = unpack(part);
    for (size_t k = 0; k < rows.size(); k += 2) {
      requested.insert(rows[k]);
      groups.insert(group_of(rows[k]));
      const bool allowed = !stored.count(rows[k]) && names(fit.allow_missing, rows[k]);
      if (allowed)
        absent.insert(rows[k]);
      else if (!rows[k + 1].empty())
        differences.insert(rows[k + 1]);
    }
  }
  for (const TensorEntry& t : m.tensors)
    if (!requested.count(t.name) && !of_quantization(t.name) && (resume || groups.count(group_of(t.name))) &&
        !names(fit.allow_extra, t.name))
      differences.insert(cat("only in the checkpoint: ", t.name, " ", describe(t.shape, t.dtype)));
  if (differences.empty()) return {absent.begin(), absent.end()};
  std::string text;
  for (const std::string& d : differences) text += "\n  " + d;
  if (text.find(" i8 [") != std::string::npos)
    text += "\nFrozen weights are i8 in runs with --precision.frozen_weights int8, and in no others";
  fail(Exit::kUsage, path, ": does not fit this model, ", differences.size(),
       differences.size() == 1 ? " difference:" : " differences:", text,
       "\nGive the model and optimizer of the run (config.json in that folder), or another folder with "
       "--checkpoint.resume never; --checkpoint.allow_missing and --checkpoint.allow_extra take names of tensors that "
       "may be on one side only");
}

LoadReport report_of(Vfs& vfs, const std::string& path, const Manifest& m) {
  LoadReport r;
  r.state = m.state;
  r.path = path;
  for (const AuxEntry& a : m.aux)
    if (a.name == "config.json") r.config_json = read_file(vfs, path + "/" + a.name, a.bytes);
  return r;
}

// Collective. Throws the same error on every rank.
LoadReport load_opened(Vfs& vfs, const std::string& path, const std::string& manifest_text,
                       std::span<const ShardView> into, bool resume, const AcceptStep& accept, const FitOptions& fit,
                       const Mesh& mesh, const DeviceApi& api, Stream stream) {
  Manifest m;
  LoadReport report;
  std::vector<ShardView> stored, fresh;
  std::vector<std::string> absent;
  all_or_none(mesh, [&] {
    m = parse_manifest(manifest_text, path + "/manifest.json");
    std::set<std::string> names;
    for (const TensorEntry& t : m.tensors) names.insert(t.name);
    const bool imported = m.state.origin == "import";
    for (const ShardView& v : into)
      (!names.count(v.name) && (of_quantization(v.name) || (imported && v.name.rfind("optim/", 0) == 0)) ? fresh
                                                                                                         : stored)
          .push_back(v);
  });
  absent = require_match(mesh.world(), path, m, stored, resume, fit);
  std::erase_if(stored, [&](const ShardView& v) { return std::binary_search(absent.begin(), absent.end(), v.name); });
  all_or_none(mesh, [&] {
    report = report_of(vfs, path, m);
    if (!absent.empty())
      report.warnings.push_back(cat(path, ": lacks ", absent.size(), " tensors, which begin afresh: ", absent[0],
                                    absent.size() > 1 ? ", …" : ""));
    if (accept) accept(report);
  });
  const bool once = fit.read_once && mesh.size(Axis::kDp) > 1;
  if (once) read_views_once(vfs, path, m, stored, &api, stream, mesh, mesh.group(Axis::kDp));
  all_or_none(mesh, [&] {
    if (!once) read_views(vfs, path, m, stored, &api, stream);
    for (const ShardView& v : fresh) clear_view(v, &api, stream);
  });
  return report;
}

// Rank 0's list of candidate steps and why each was rejected.
struct StepCandidates {
  StepCandidates(Vfs& v, const std::string& d) : vfs(v), dir(d) {}

  void list(const std::string& which) {
    steps = list_steps(dir);
    try {
      clean_attempts(vfs, dir);
    } catch (const IoError& e) { warnings.emplace_back(e.what()); }
    if (which == "auto") {
      const std::string aside = steps.empty() ? newest_aside(dir, "corrupt") : "";
      GT_REQUIRE(aside.empty(), Exit::kDamaged, dir, ": holds only steps that were found damaged, the newest is ",
                 aside, "; restore one from a copy, or start afresh with --checkpoint.resume never");
      return;
    }
    GT_REQUIRE(!which.empty() && which.size() <= 15 && which.find_first_not_of("0123456789") == std::string::npos,
               Exit::kUsage, "checkpoint.resume: \"", which, "\" is neither auto, never nor a step number");
    only = std::stoll(which);
    std::string known;
    for (const auto& [n, path] : steps) known += cat(known.empty() ? "" : ", ", n);
    std::erase_if(steps, [&](const auto& s) { return s.first != *only; });
    GT_REQUIRE(!steps.empty(), Exit::kUsage, dir, ": holds no step ", *only, "; it has ",
               known.empty() ? "none" : known);
  }

  // Opens the next candidate that passes the cheap checks; nullopt when none is left.
  std::optional<OpenedStep> next() {
    for (; at < steps.size(); ++at) {
      try {
        return open_step(vfs, steps[at].second);
      } catch (const Error& e) {
        if (e.code() == Exit::kUsage) throw;
        refuse(e);
      }
    }
    return std::nullopt;
  }

  // Rejects the current candidate.
  void refuse(const Error& e) {
    const std::string& path = steps[at].second;
    std::string what = e.what();
    if (e.code() == Exit::kDamaged) {
      any_damaged = true;
      if (!only) {
        try {
          what += "; set aside as " + set_aside(vfs, path, "corrupt");
        } catch (const Error& r) { what += cat("; ", r.what()); }
      }
    }
    warnings.push_back(what);
  }

  [[noreturn]] void give_up() const {
    std::string text;
    for (const std::string& w : warnings) text += "\n  " + w;
    fail(any_damaged ? Exit::kDamaged : Exit::kIo, dir, ": no step can be loaded", text,
         any_damaged ? "\nRestore one from a copy, name another step with --checkpoint.resume N, or start afresh in "
                       "another folder"
                     : "\nMake the folder readable, then start again");
  }

  Vfs& vfs;
  const std::string dir;
  std::vector<std::pair<int64_t, std::string>> steps;
  std::optional<int64_t> only;
  size_t at = 0;
  bool any_damaged = false;
  std::vector<std::string> warnings;
};

}  // namespace

std::optional<LoadReport> load_checkpoint(Vfs& vfs, const std::string& dir, const std::string& which,
                                          std::span<const ShardView> into, const Mesh& mesh, const DeviceApi& api,
                                          Stream stream, const AcceptStep& accept, const FitOptions& fit) {
  ProcessGroup& world = mesh.world();
  const bool first = mesh.rank() == 0;
  StepCandidates choice(vfs, dir);
  all_or_none(mesh, [&] {
    if (first) choice.list(which);
  });
  for (;;) {
    std::vector<std::string> result;  // path, manifest, warnings so far; empty: no step at all
    all_or_none(mesh, [&] {
      if (!first || choice.steps.empty()) return;
      auto step = choice.next();
      if (!step) choice.give_up();
      result = {step->path, std::move(step->text), pack(choice.warnings)};
    });
    result = unpack(broadcast_bytes(world, pack(result), 0));
    if (result.empty()) return std::nullopt;
    for (int attempt = 0;; ++attempt) {
      try {
        LoadReport report = load_opened(vfs, result[0], result[1], into, true, accept, fit, mesh, api, stream);
        const auto refused = unpack(result[2]);
        report.warnings.insert(report.warnings.begin(), refused.begin(), refused.end());
        all_or_none(mesh, [&] {
          if (first && which != "auto")
            for (std::string& w : abandon_newer(vfs, dir, report.state.step)) report.warnings.push_back(std::move(w));
        });
        return report;
      } catch (const Error& e) {
        if (e.code() == Exit::kIo && attempt == 0) continue;  // retry once: a network file system may fail transiently
        if (e.code() != Exit::kIo && e.code() != Exit::kDamaged) throw;
        if (first) {
          choice.refuse(e);
          ++choice.at;
        }
        break;
      }
    }
  }
}

std::optional<LoadReport> load_checkpoint(const std::string& dir, const std::string& which,
                                          std::span<const ShardView> into, const Mesh& mesh, const DeviceApi& api,
                                          Stream stream, const AcceptStep& accept, const FitOptions& fit) {
  Vfs vfs;
  return load_checkpoint(vfs, dir, which, into, mesh, api, stream, accept, fit);
}

LoadReport load_step(const std::string& step_dir, std::span<const ShardView> into, const Mesh& mesh,
                     const DeviceApi& api, Stream stream, const AcceptStep& accept, const FitOptions& fit) {
  Vfs vfs;
  std::string text;
  all_or_none(mesh, [&] {
    if (mesh.rank() == 0) text = open_step(vfs, step_dir).text;
  });
  text = broadcast_bytes(mesh.world(), text, 0);
  return load_opened(vfs, step_dir, text, into, false, accept, fit, mesh, api, stream);
}

}  // namespace gt
