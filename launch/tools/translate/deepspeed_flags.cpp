#include "launch/tools/translate/deepspeed_flags.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/hash/base64.h"
#include "launch/options/help_text.h"
#include "launch/tools/translate/deepspeed_file.h"

namespace gt {
namespace {

constexpr const char* kConfig = "--deepspeed_config";
constexpr size_t kMostBase64 = 100'000;  // Linux limits an argument to 128 KiB

void check_local_rank(const std::string& flag, const std::string& text, const RankEnv& env, Problems& problems) {
  int64_t n;
  if (!parse_int(text, n) || n < -1)
    return problems.add(flag, "local_rank", fmt::format("expected a whole number from -1, found \"{}\"", text));
  if (n == -1) return;  // -1: not launched as a rank
  if (!env.launched() && n > 0)
    problems.add(flag, "local_rank",
                 fmt::format("{}, but no launcher started this process: the environment has no rank", n),
                 "start ranks with mpirun, srun or gpttrain itself");
  else if (env.launched() && n != env.local_rank)
    problems.add(flag, "local_rank",
                 fmt::format("{}, but the launcher reports local rank {} ({})", n, env.local_rank, env.source));
}

// Flags of DeepSpeed's launcher without a counterpart.
constexpr struct {
  const char* name;
  bool takes_value, harmless;  // harmless: no effect on results
  const char* why;
} kLauncher[] = {
    {"--master_addr", true, true, "ranks find each other by what started them"},
    {"--master_port", true, true, "ranks find each other by what started them"},
    {"--no_local_rank", false, true, "what starts the ranks numbers them"},
    {"--force_multi", false, true, "the hostfile selects the machines"},
    {"--module", false, false, "gpttrain does not run Python"},
    {"--no_python", false, false, "gpttrain does not run Python"},
    {"--elastic_training", false, false, "launch.min_dp lets a run continue on fewer replicas"},
    {"--autotuning", true, false, "gpttrain plan --search lists the fastest layouts that fit"},
    {"--venv_script", true, false, "gpttrain does not run Python"},
};

// Returns whether words[i] is one of them; if so, consumes it and its value.
bool consume_launcher_flag(const std::string& name, bool attached, const std::vector<std::string>& words, size_t& i,
                           DsFlags& out, Problems& problems) {
  for (const auto& f : kLauncher) {
    if (name != f.name) continue;
    if (f.harmless)
      out.notes.push_back(fmt::format("deepspeed: {}: no effect: {}", name, f.why));
    else
      problems.add(name, "", fmt::format("is a flag of DeepSpeed's launcher that is not implemented: {}", f.why),
                   "leave it out");
    if (f.takes_value && !attached && i + 1 < words.size() && words[i + 1].rfind("--", 0) != 0) ++i;
    return true;
  }
  return false;
}

constexpr std::pair<const char*, const char*> kShort[] = {
    {"-H", "--hostfile"}, {"-i", "--include"}, {"-e", "--exclude"}, {"--dry_run", "--dry-run"}};

}  // namespace

DsFlags consume_deepspeed_flags(std::vector<std::string>& words, const RankEnv& env, Problems& problems) {
  DsFlags out;
  std::vector<std::string> rest;
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t eq = words[i].find('=');
    const std::string name = words[i].substr(0, eq);
    const bool attached = eq != std::string::npos;
    const auto value = [&]() -> std::string {
      if (attached) return words[i].substr(eq + 1);
      return i + 1 < words.size() ? words[++i] : "";
    };
    if (name == kConfig) {
      out.config = value();
      if (out.config.empty() || out.config.rfind("--", 0) == 0)
        problems.add(name, "deepspeed_config", "expected a file, - or base64:TEXT, found none"), out.config.clear();
    } else if (name == "--allow_unknown_keys") {
      out.allow_unknown_keys = true;
    } else if (name == "--local_rank" || name == "--local-rank") {
      check_local_rank(name, value(), env, problems);
    } else if (name == "--deepspeed") {
      if (i + 1 < words.size() && words[i + 1].rfind("-", 0) != 0 && !attached)
        problems.add(name, "deepspeed", "takes no value", fmt::format("did you mean {} {}?", kConfig, words[++i]));
    } else if (name.rfind("--deepscale", 0) == 0) {
      problems.add(name, "deepscale", "is an obsolete DeepSpeed name", fmt::format("use {} FILE", kConfig));
      if (!attached && i + 1 < words.size() && words[i + 1].rfind("-", 0) != 0) ++i;
    } else if (!consume_launcher_flag(name, attached, words, i, out, problems)) {
      rest.push_back(words[i]);
      for (const auto& [brief, full] : kShort)
        if (words[i] == brief) rest.back() = full;
    }
  }
  words = std::move(rest);
  return out;
}

void inline_standard_input(DsFlags& flags, std::vector<std::string>& words) {
  if (flags.config != "-") return;
  flags.config = "stdin:" + encode_base64(read_deepspeed_text("-").text);
  GT_REQUIRE(flags.config.size() <= kMostBase64, Exit::kUsage, kConfig,
             " -: standard input holds more than 75 kB; write it to a file and give that");
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == std::string(kConfig) + "=-") words[i] = std::string(kConfig) + "=" + flags.config;
    if (words[i] == "-" && i > 0 && words[i - 1] == kConfig) words[i] = flags.config;
  }
}

std::string deepspeed_help() {
  return help_entry("  --deepspeed_config <FILE|-|base64:TEXT>",
                    "DeepSpeed's JSON, translated and reported; overrides --config, flags override it") +
         help_entry("  --allow_unknown_keys", "ignore unknown keys of that file, with a note") +
         help_entry("  --deepspeed, --local_rank <int>",
                    "passed by DeepSpeed's launchers: accepted, the rank is checked");
}

std::vector<std::string> deepspeed_flag_names() {
  return {"deepspeed_config", "allow_unknown_keys", "deepspeed", "local_rank"};
}

}  // namespace gt
