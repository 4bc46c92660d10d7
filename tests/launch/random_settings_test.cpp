// Random settings under random layouts, as a user types them: a run saves, resumes on another layout, and its losses
// are those of an uninterrupted run on one rank. Settings are drawn from the list of all options, so a new one is among
// them without a change here. GPT_TEST_SEED selects others, GPT_TEST_RUNS more. Those of the default find faults 153
// and 154 of tests/mutation, which no comparison of layouts does: only a save shows them.
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <random>
#include <set>

#include "launch/config/config.h"
#include "launch/options/options.h"
#include "tests/launch/process.h"
#include "tests/support/environment.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace gt {
namespace {

using Random = std::mt19937_64;
using Settings = std::map<std::string, std::string>;

const std::string& any_of(const std::vector<std::string>& of, Random& random) { return of[random() % of.size()]; }

// Values of options that are neither switches nor choices; others of this kind keep their default.
const std::map<std::string, std::vector<std::string>>& numbers() {
  static const std::map<std::string, std::vector<std::string>> out{
      {"model.layers", {"3", "4"}},      {"model.vocab", {"130", "511"}},      {"model.kv_heads", {"1", "2"}},
      {"model.head_dim", {"8", "20"}},   {"model.ffn", {"96", "100"}},         {"model.seq", {"16", "31"}},
      {"model.dropout", {"0.1"}},        {"model.attn_dropout", {"0.1"}},      {"model.z_loss", {"0.01"}},
      {"model.window", {"5"}},           {"model.global_every", {"2"}},        {"model.attn_softcap", {"5"}},
      {"model.logit_softcap", {"5"}},    {"model.lora_rank", {"2", "5"}},      {"model.lora_targets", {"q,v", "out"}},
      {"model.lora_dropout", {"0.1"}},   {"zero.bucket_bytes", {"1000"}},      {"zero.persist_numel", {"0"}},
      {"optim.grad_clip", {"0", "0.1"}}, {"optim.no_decay", {".*mlp.*"}},      {"train.eval_every", {"2"}},
      {"checkpoint.every", {"1"}},       {"fault.recheck_every", {"2"}},       {"fault.replica_check_every", {"1"}},
      {"log.norms_every", {"1"}},        {"log.histograms_every", {"2"}},      {"log.flops_step", {"2"}},
      {"log.trace_steps", {"1:2"}},      {"precision.loss_scale", {"dynamic"}}};
  return out;
}

// Not drawn: what other machines, devices or data than these need; layouts, which are drawn apart; and what means
// another training under another layout.
bool left_alone(const Option& o) {
  static const std::set<std::string> sections{"comm", "launch"};
  static const std::set<std::string> keys{"device.kind",       "parallel.schedule", "zero.grad_op",
                                          "checkpoint.resume", "data.order",        "parallel.partition",
                                          "model.head",        "schedule.unit",     "checkpoint.tag_validation",
                                          "log.progress",      "model.mask",        "optim.muon_dtype"};
  return sections.contains(o.section) || keys.contains(o.key());
}

std::vector<std::string> values_of(const Option& o) {
  if (left_alone(o)) return {};
  if (const auto found = numbers().find(o.key()); found != numbers().end()) return found->second;
  if (is_flag(o)) return {"true", "false"};
  if (!std::holds_alternative<EnumTarget>(o.target)) return {};
  return choices(o);
}

Settings draw_settings(Random& random) {
  Config defaults;
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  for (const Option& o : list_options(defaults))
    if (std::vector<std::string> values = values_of(o); !values.empty()) all.emplace_back(o.key(), std::move(values));
  Settings out;
  for (uint64_t n = 1 + random() % 6; n > 0; --n) {
    const auto& [key, values] = all[random() % all.size()];
    out[key] = any_of(values, random);
  }
  if (random() % 2 == 0) out["precision.amp"] = any_of({"O1", "O2", "O2", "O3"}, random);
  if (random() % 3 == 0)
    out["model.arch"] = any_of({"llama", "qwen3", "gemma3", "olmo2", "mistral", "bert", "mixtral"}, random);
  if (random() % 3 == 0) out["precision.qat"] = any_of({"int8", "off"}, random);
  if (random() % 3 == 0) out["model.lora_rank"] = "2";
  return out;
}

std::string text_of(const Settings& settings) {
  std::string out;
  for (const auto& [key, value] : settings) out += fmt::format(" --{} {}", key, value);
  return out;
}

std::string draw_layout(Random& random) {
  return fmt::format(" --tp {} --pp {} --dp {} --zero {}", any_of({"1", "1", "2"}, random), 1 + random() % 2,
                     1 + random() % 2, random() % 4);
}

// Whether all results are f32. Others are compared coarsely: the order of sums decides about the last of eight bits.
bool is_exact(const std::string& run) {
  const Config c = load_config({.file = run + "/config.json"}).config;
  return c.precision.amp == AmpLevel::kO0 && c.precision.qat == Qat::kOff && c.precision.grad_dtype == DType::kF32 &&
         c.precision.reduce_dtype == DType::kF32;
}

// Runs a command that may refuse its settings with an explanation. Returns whether it ran.
bool ran(const std::string& args, const TempDir& dir) {
  const Outcome r = gpttrain(args, dir.path());
  INFO("gpttrain " << args << "\n" << r.out);
  CHECK((r.code == 0 || r.code == 2));
  return r.code == 0;
}

// Returns whether the settings were accepted under both layouts and on one rank.
bool check_run(const Settings& settings, Random& random) {
  const TempDir dir;
  const std::string job = "train --device.kind cpu --launch.ranks threads --train.grad_accum 0 ",
                    tiny = job + "--config " + source_dir() +
                           "/configs/tiny.json --train.global_batch 4 --train.micro_batch 1 --schedule.total_steps 4 "
                           "--data.curriculum_steps 4" +
                           text_of(settings),
                    first = draw_layout(random), second = draw_layout(random);
  INFO("settings" << text_of(settings) << "\nlayouts" << first << " and" << second);
  if (!ran(tiny + first + " --train.steps 2 --log.name a", dir)) return false;
  if (!ran(job + "--config runs/a/config.json --train.steps 4" + second, dir)) return false;
  must("ckpt verify runs/a", dir);
  if (!ran(tiny + " --tp 1 --pp 1 --dp 1 --zero 0 --train.steps 4 --log.name b", dir)) return false;
  const std::vector<double> cut = logged(dir / "runs/a", "loss"), whole = logged(dir / "runs/b", "loss");
  REQUIRE((cut.size() == 4 && whole.size() == 4));
  const double allowed = is_exact(dir / "runs/a") ? 1e-5 : 5e-3;
  for (size_t k = 0; k < 4; ++k) CHECK(cut[k] == Approx(whole[k]).epsilon(allowed));
  return true;
}

TEST_CASE("runs of random settings save and resume on another layout with the losses of one rank") {
  const uint64_t seed = from_environment("GPT_TEST_SEED", 2),
                 goal = from_environment("GPT_TEST_RUNS", kSanitized ? 2 : 40);
  Random random(seed);
  uint64_t accepted = 0, drawn = 0;
  for (; accepted < goal && drawn < 20 * goal; ++drawn) {
    INFO("GPT_TEST_SEED=" << seed << ", draw " << drawn);
    accepted += check_run(draw_settings(random), random) ? 1 : 0;
  }
  std::cout << fmt::format("random settings: seed {}, {} runs of {} drawn\n", seed, accepted, drawn);
  CHECK(accepted == goal);
}

}  // namespace
}  // namespace gt
