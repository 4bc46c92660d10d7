// Read-only queries without a mesh: resolving a path to a step, listing a folder, listing a step.
#include "checkpoint/inspect.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/shard_reader.h"
#include "checkpoint/format/state_json.h"
#include "checkpoint/store/retention.h"
#include "checkpoint/store/steps.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Step number in the name of anything that is or was a step; -1 otherwise.
int64_t step_in(const std::string& name) {
  const size_t at = name.find("step-");
  if (at != 0 && name.rfind(".tmp-step-", 0) != 0 && name.rfind(".del-step-", 0) != 0) return -1;
  const size_t end = name.find_first_not_of("0123456789", at + 5);
  return step_number(name.substr(at, end == std::string::npos ? end : end - at)).value_or(-1);
}

CheckpointInfo info_of(Vfs& vfs, const std::string& path) {
  CheckpointInfo info;
  info.name = fs::path(path).filename().string();
  info.step = step_in(info.name);
  info.bytes = bytes_in(path);
  if (step_number(info.name) && is_attempt(path)) {
    info.status = "attempt";
    return info;
  }
  if (info.name[0] == '.') {
    info.status = info.name[1] == 't' ? "attempt" : "attempt (half deleted)";
    return info;
  }
  for (const char* aside : {"corrupt", "abandoned"})
    if (info.name.find(cat(".", aside, "-")) != std::string::npos) info.status = aside;
  try {
    const Manifest m = open_step(vfs, path).manifest;
    info.created = m.created;
    info.layout = m.layout();
    if (info.status.empty()) info.status = "ok";
  } catch (const Error& e) {
    std::error_code ec;
    const char* kind = !fs::exists(path + "/manifest.json", ec) ? "incomplete"
                       : e.code() == Exit::kDamaged             ? "corrupt"
                                                                : "unreadable";
    if (info.status.empty()) info.status = cat(kind, ": ", e.what());
  }
  return info;
}

struct Stats {
  double low = 0, high = 0, mean = 0, rms = 0;
  int64_t not_finite = 0;
};

// nullopt for a non-float dtype.
std::optional<Stats> stats_of(Vfs& vfs, const std::string& dir, const Manifest& m, const TensorEntry& t) {
  if (!may_hold(DType::kF32, t.dtype)) return std::nullopt;
  std::vector<float> values(static_cast<size_t>(t.shape.numel()));
  const ShardView view{.name = t.name,
                       .data = {reinterpret_cast<std::byte*>(values.data()), {t.shape.numel()}, DType::kF32, {}},
                       .full = t.shape,
                       .local = t.shape};
  read_views(vfs, dir, m, std::span(&view, 1), nullptr, {});
  double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0, squares = 0;
  int64_t finite = 0;
  for (float x : values) {
    if (!std::isfinite(x)) continue;
    ++finite;
    low = std::min<double>(low, x);
    high = std::max<double>(high, x);
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const double n = std::max<double>(1, static_cast<double>(finite));
  return Stats{finite ? low : 0.0, finite ? high : 0.0, sum / n, std::sqrt(squares / n), t.shape.numel() - finite};
}

std::string stats_text(const std::optional<Stats>& s, DType dtype) {
  if (!s) return cat("  (no statistics of ", name_of(dtype), ")");
  char text[200];
  std::snprintf(text, sizeof text, "  min %.6g max %.6g mean %.6g rms %.6g non-finite %lld", s->low, s->high, s->mean,
                s->rms, static_cast<long long>(s->not_finite));
  return text;
}

OpenedStep step_to_inspect(Vfs& vfs, const std::string& step_dir) {
  std::error_code ec;
  GT_REQUIRE(fs::exists(step_dir, ec), Exit::kUsage, step_dir, ": does not exist; give a step of a checkpoints folder");
  return open_step(vfs, without_slash(step_dir));
}

void require_found(bool found, const OpenedStep& step, const std::string& tensor) {
  GT_REQUIRE(found || tensor.empty(), Exit::kUsage, step.path, ": has no tensor ", tensor,
             "; names are like master/embed.weight, `ckpt inspect` lists them");
}

std::string head_text(const std::string& dir, const Manifest& m) {
  const TrainState& s = m.state;
  std::string out = cat(dir, "\n  step ", m.step, ", written ", printable(m.created), " by gpttrain ",
                        printable(m.version), " (", printable(m.compiler), "; ", printable(m.device), "), format ",
                        m.major, ".", m.minor, "\n  layout ", m.layout(), ", attempt ", to_string(m.uuid), "\n  ",
                        m.files.size(), m.files.size() == 1 ? " shard, " : " shards, ", m.bytes(), " bytes\n");
  out += cat("state\n  run ", printable(s.run_uuid), ", seed ", s.seed, ", ", s.elapsed_seconds, " s\n  consumed ",
             s.consumed_samples, " samples, ", s.consumed_tokens, " tokens\n  applied ", s.applied_steps,
             " updates, skipped ", s.skipped_steps, "\n  optimizer ", printable(s.optim_type), ", schedule ",
             printable(s.lr_type), ", learning rate ", s.lr_value, "\n  batch ", s.global_batch, ", micro batch ",
             s.micro_batch, "\n");
  if (s.best_step >= 0) out += cat("  best validation loss ", s.best_loss, " at step ", s.best_step, "\n");
  return out;
}

}  // namespace

namespace {

// Whether a folder is one of Hugging Face: a config and weights by its names, or adapters.
bool is_hf_folder(const std::string& folder) {
  std::error_code ec;
  bool config = false, weights = false;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    config |= name == "config.json" || name == "adapter_config.json";
    weights |=
        name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") || name == "pytorch_model.bin";
  }
  return config && weights;
}

// The name of what is imported from a folder.
std::string imported_name(const std::string& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string() + "-imported";
}

}  // namespace

std::string resolve_step(const std::string& given) {
  Vfs vfs;
  const std::string path = without_slash(given);
  std::error_code ec;
  GT_REQUIRE(fs::exists(path, ec), Exit::kUsage, path, ": ",
             ec && ec != std::errc::no_such_file_or_directory ? ec.message() : "does not exist",
             "; give a run directory, its checkpoints folder, or a step");
  GT_REQUIRE(fs::is_directory(path, ec), Exit::kUsage, path,
             ": is not a folder; give a run directory, its checkpoints folder, or a step");
  if (step_number(fs::path(path).filename().string()) || fs::exists(path + "/manifest.json", ec))
    return open_step(vfs, path).path;
  std::string refused;
  Exit code = Exit::kIo;
  for (const std::string& dir : {path, path + "/checkpoints"})
    for (const auto& [n, step] : list_steps(dir)) {
      try {
        return open_step(vfs, step).path;
      } catch (const Error& e) {
        if (e.code() == Exit::kUsage) throw;
        if (e.code() == Exit::kDamaged) code = Exit::kDamaged;
        refused += cat("\n  ", e.what());
      }
    }
  GT_REQUIRE(!refused.empty() || !is_hf_folder(path), Exit::kUsage, path,
             ": is a Hugging Face folder, not a checkpoint; import it first: gpttrain import --from ", shell_word(path),
             " --output ", shell_word(imported_name(path)));
  GT_REQUIRE(!refused.empty(), Exit::kUsage, path,
             ": holds no checkpoint; give a run directory, its checkpoints folder, or a step");
  fail(code, path, ": holds no good checkpoint:", refused);
}

TrainState read_state(const std::string& step_dir) {
  Vfs vfs;
  return open_step(vfs, without_slash(step_dir)).manifest.state;
}

std::string read_aux(const std::string& step_dir, const std::string& name) {
  Vfs vfs;
  const OpenedStep step = open_step(vfs, without_slash(step_dir));  // checks the hashes
  for (const AuxEntry& a : step.manifest.aux)
    if (a.name == name) return read_file(vfs, step.path + "/" + name, a.bytes);
  return "";
}

std::vector<CheckpointInfo> list_checkpoints(const std::string& dir, const Retention& retention) {
  Vfs vfs;
  std::error_code ec;
  fs::directory_iterator it(dir, ec);
  if (ec == std::errc::no_such_file_or_directory || ec == std::errc::not_a_directory)
    fail(Exit::kUsage, dir, ": no such folder");
  if (ec) fail_io("reading of folder " + dir, -ec.value());
  std::vector<CheckpointInfo> out;
  for (const auto& e : it)
    if (step_in(e.path().filename().string()) >= 0 && e.is_directory(ec))
      out.push_back(info_of(vfs, e.path().string()));
  std::map<std::string, std::string> why;
  const PrunePlan plan = plan_prune(vfs, dir, retention, false);
  for (const auto& e : plan.keep) why[e.name] = e.why;
  for (const auto& e : plan.remove) why[e.name] = "goes at the next save: " + e.why;
  for (CheckpointInfo& c : out)
    if (const auto it = why.find(c.name); it != why.end()) c.kept = it->second;
  std::sort(out.begin(), out.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return a.step != b.step ? a.step < b.step : a.name < b.name;
  });
  return out;
}

std::string inspect_checkpoint(const std::string& step_dir, const InspectOptions& options) {
  Vfs vfs;
  const OpenedStep step = step_to_inspect(vfs, step_dir);
  const Manifest& m = step.manifest;
  std::string out = head_text(step.path, m), group;
  int64_t elements = 0;
  size_t shown = 0;
  for (const TensorEntry& t : m.tensors) {
    if (!options.tensor.empty() && t.name != options.tensor) continue;
    const std::string g = t.name.substr(0, t.name.rfind('/'));
    if (g != group) out += printable(g) + "/\n";
    group = g;
    out += cat("  ", printable(t.name.substr(t.name.rfind('/') + 1)), "  ", name_of(t.dtype), " ", to_string(t.shape));
    if (t.blocks > 1) out += cat(" in ", t.blocks, " blocks");
    if (options.stats) out += stats_text(stats_of(vfs, step.path, m, t), t.dtype);
    out += "\n";
    elements += t.shape.numel();
    ++shown;
  }
  require_found(shown > 0, step, options.tensor);
  return out + cat(shown, " tensors, ", elements, " elements\n");
}

std::string inspect_json(const std::string& step_dir, const InspectOptions& options) {
  using Json = nlohmann::ordered_json;
  Vfs vfs;
  const OpenedStep step = step_to_inspect(vfs, step_dir);
  const Manifest& m = step.manifest;
  Json tensors = Json::array();
  for (const TensorEntry& t : m.tensors) {
    if (!options.tensor.empty() && t.name != options.tensor) continue;
    tensors.push_back({{"name", t.name},
                       {"dtype", name_of(t.dtype)},
                       {"shape", std::vector<int64_t>(t.shape.dim.begin(), t.shape.dim.begin() + t.shape.rank)}});
    if (!options.stats) continue;
    if (const auto s = stats_of(vfs, step.path, m, t))
      tensors.back()["stats"] = {
          {"min", s->low}, {"max", s->high}, {"mean", s->mean}, {"rms", s->rms}, {"non_finite", s->not_finite}};
  }
  require_found(!tensors.empty(), step, options.tensor);
  return Json{{"path", step.path},
              {"step", m.step},
              {"created", m.created},
              {"version", {m.major, m.minor}},
              {"writer", {{"version", m.version}, {"git", m.git}, {"compiler", m.compiler}, {"device", m.device}}},
              {"layout", parse_json<Json>(layout_json(m), "layout", kOwnJson)},
              {"bytes", m.bytes()},
              {"state", to_json(m.state)},
              {"tensors", tensors}}
             .dump() +
         "\n";
}

}  // namespace gt
