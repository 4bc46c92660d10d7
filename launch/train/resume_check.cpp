#include "launch/train/resume_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "launch/train/save/run_saver.h"
#include "launch/train/training_data.h"

namespace gt {
namespace fs = std::filesystem;

bool has_part(const std::vector<std::string>& parts, const std::string& part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end() || parts.front() == "all";
}

namespace {

// Returns whether a changed key matters to the loaded parts. Lines of changed_keys() begin with the key.
bool matters(const std::string& line, const std::vector<std::string>& parts) {
  if (parts.front() == "all") return true;
  const auto in = [&](const char* section) { return line.rfind(section, 0) == 0; };
  const bool of_weights = in("model.") && line.find("dropout") == std::string::npos && !in("model.z_loss") &&
                          !in("model.moe_balance") && !in("model.moe_bias_rate");
  return (of_weights && has_part(parts, "weights")) || (in("optim.") && has_part(parts, "optim")) ||
         (in("schedule.") && has_part(parts, "schedule"));
}

// Returns the model family in a step's config.json; without one the first family that existed.
std::string family_of_run(const std::string& step) {
  Config config;
  const JsonValue saved = parse_json(read_aux(step, "config.json"), step + "/config.json");
  const JsonValue* model = saved.find("model");
  const JsonValue* arch = model == nullptr ? nullptr : model->find("arch");
  return arch == nullptr ? config.model.arch : arch->text;
}

bool has_adapters(const std::string& config_json) {
  const JsonValue saved = parse_json(config_json, "config.json of the checkpoint");
  const JsonValue* model = saved.find("model");
  const JsonValue* rank = model == nullptr ? nullptr : model->find("lora_rank");
  return rank != nullptr && rank->text != "0";
}

}  // namespace

void require_same_run(const LoadReport& found, const Config& config, const Dataset& data,
                      const std::vector<std::string>& requested) {
  const auto changed = found.config_json.empty()
                           ? std::vector<std::string>()
                           : changed_keys(found.config_json, config, config.checkpoint.allow_change);
  const std::vector<std::string> parts =
      found.state.origin == "import" ? std::vector<std::string>{"weights"} : requested;
  // New adapters may stand on the weights of a model without any.
  const bool adds = parts.front() != "all" && !found.config_json.empty() && !has_adapters(found.config_json);
  std::string text;
  for (const std::string& line : changed)
    if (matters(line, parts) && !(adds && line.rfind("model.lora_", 0) == 0)) text += "\n  " + line;
  GT_REQUIRE(text.empty(), Exit::kUsage, found.path, ": settings differ from the checkpoint's:", text,
             "\nRestore these settings, allow them by name (--checkpoint.allow_change optim.lr, or a whole section), "
             "or start a new run with another --log.name");
  if (has_part(parts, "weights")) require_tokenizer_of(found.path, config);
  if (has_part(parts, "data"))
    require_same_stream(data_cursor_from_json(found.state.data_json), data.cursor(found.state.consumed_samples),
                        config.data.allow_change);
}

void require_same_kind(const Config& config) {
  std::string step, was, family;
  try {
    const std::string dir = config.checkpoint_dir(), &which = config.checkpoint.resume;
    int64_t number = 0;
    step = which != "auto" && parse_int(which, number) ? fmt::format("{}/step-{:09}", dir, number) : resolve_step(dir);
    was = read_state(step).optim_type;
    family = family_of_run(step);
  } catch (const Error&) { return; }
  GT_REQUIRE(family == config.model.arch, Exit::kUsage, "model.arch: ", step, " holds a ", family, ", this run needs ",
             config.model.arch, ". Resume with --model.arch ", family, ", or start a new run with another --log.name");
  if (was.empty()) return;  // imported weights have no optimizer state
  GT_REQUIRE(was == config.optim.type, Exit::kUsage, "optim.type: ", step, " holds the state of ", was,
             ", this run needs ", config.optim.type, ". Resume with --optim.type ", was,
             ", or start a new run with another --log.name");
}

void require_unused_folder(const Config& config, bool force) {
  const fs::path dir = config.run_dir();
  std::error_code ec;
  const bool used = fs::exists(dir / "log.jsonl", ec) ||
                    (fs::exists(config.checkpoint_dir(), ec) && !fs::is_empty(config.checkpoint_dir(), ec));
  GT_REQUIRE(!(used && config.checkpoint.resume == "never" && !force), Exit::kUsage, dir.string(),
             ": already contains a run, and --checkpoint.resume never would start a new one in it. Give --log.name "
             "another name, resume it ",
             "(--checkpoint.resume auto), or add --force");
}

}  // namespace gt
