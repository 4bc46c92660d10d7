// Every row of the table of optimizers (optim/optimizer_rules.h) against what reads it: the bytes that a plan counts
// and an engine allocates, the config's domain, help and defaults, and the translators of DeepSpeed and Megatron-LM.
#include "optim/optimizer_rules.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <mutex>
#include <sstream>

#include "launch/commands/cli.h"
#include "launch/config/config_optim.h"
#include "launch/engine/engine_options.h"
#include "launch/tools/plan/search.h"
#include "launch/tools/translate/deepspeed_keys.h"
#include "model/module.h"
#include "tests/launch/commands/deepspeed_fixture.h"
#include "tests/launch/engine_ranks.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

Config config(const std::string& flags, const std::vector<std::string>& more = {}) {
  std::istringstream in(flags);
  std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
  words.insert(words.end(), more.begin(), more.end());
  return load_config({.flags = words}).config;
}

// Two ranks of a small model; widths of 128 leave no padding in shards.
std::string small(const std::string& optimizer, const std::string& precision, int zero) {
  return cat("--model.layers 2 --model.hidden 128 --model.heads 4 --model.vocab 256 --model.seq 16 ",
             "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --dp 2 --zero ", zero, " ", precision,
             " --optim.type ", optimizer);
}

// Optimizer state of both ranks in bytes, as the engine's memory report has it after allocation.
int64_t allocated(const Config& c) {
  std::mutex mutex;
  int64_t bytes = 0;
  on_engines(engine_options(c, 1), mesh_shape(c), [&](EngineRank& r) {
    const std::lock_guard lock(mutex);
    bytes += r.engine.measured_plan().memory.optimizer;
  });
  return bytes;
}

// The same by the planner's bytes per parameter. At O2 norms have 32 bits, hence no masters, which the planner's closed
// form leaves out of account.
double planned(const Config& c) {
  const Workload w = workload_of(c);
  const bool masters = c.precision.amp == AmpLevel::kO2;
  const double state = moment_bytes(c) + (masters ? 4 : 0);
  CHECK(w.kept_bytes + w.sharded_bytes == Approx(state + (masters ? 2 : 4) + 4));
  CHECK(w.sharded_bytes >= (w.zero > 0 ? state : 0));
  const ModelSpec spec = describe(c.model);
  double bytes = state * static_cast<double>(spec.trained_parameters());
  for (const ParamSpec& p : spec.params)
    if (masters && p.role == Role::kNorm) bytes -= 4 * static_cast<double>(p.shape.numel());
  return std::round(bytes) * (w.zero > 0 ? 1 : static_cast<double>(w.dp));  // a quotient was multiplied
}

std::string text_of(const Config& c, std::string_view key) { return value_of(c, cat("optim.", key)); }

bool same_value(const std::string& a, const std::string& b) {
  double x = 0, y = 0;
  return a == b || (parse_double(a, x) && parse_double(b, y) && x == y);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

TEST_CASE("plan: every optimizer's bytes per parameter are those that its state takes, at every ZeRO stage") {
  for (const OptimizerRule& r : optimizer_rules()) {
    std::vector<std::string> ways{""};
    if (r.keeps_moments != nullptr) ways = {"", " --optim.momentum 0.9", " --schedule.type one_cycle_torch"};
    for (const std::string& way : ways)
      for (const char* precision : {"", "--amp O2 --precision.dtype bf16"})
        for (int zero = 0; zero <= 3; ++zero) {
          const std::string flags = small(std::string(r.name) + way, precision, zero);
          INFO(flags);
          const Config c = config(flags);
          // An optimizer of some parameters allocates as many elements on every rank as on the one with most.
          const double slack = r.others.empty() || zero == 0 ? 0 : 0.02;
          CHECK(static_cast<double>(allocated(c)) == Approx(planned(c)).epsilon(slack).margin(0));
        }
  }
}

TEST_CASE("plan: parameter groups with a rule of their own count with its moments") {
  const std::vector<std::string> groups{"--optim.groups", "layers.0 rule=adamw"};
  const Config c = config(small("muon", "", 0), groups);
  CHECK(moment_bytes(c) > moment_bytes(config(small("muon", "", 0))));
  CHECK(static_cast<double>(allocated(c)) == Approx(planned(c)).epsilon(0).margin(0));
}

TEST_CASE("every optimizer's row gives its option's domain, its help and its defaults") {
  Config fresh;
  const std::vector<Option> options = list_options(fresh);
  const auto option = [&](std::string_view key) {
    return *std::find_if(options.begin(), options.end(),
                         [&](const Option& o) { return o.key() == cat("optim.", key); });
  };
  CHECK(choices(option("type")) == optimizer_names());
  for (const OptimizerRule& r : optimizer_rules()) {
    INFO(r.name);
    const Config c = config(cat("--optim.type ", r.name));
    CHECK(c.optim.type == r.name);
    CHECK_THAT(option("weight_decay").meaning, Contains(std::string(r.name)));
    for (const OptionText& d : r.defaults) CHECK(text_of(c, d.key) == d.text);
    for (const Moment& m : r.moments) CHECK(holds_squares(cat(m.name, "/embed.weight")) == m.squares);
    CHECK(&optimizer_rule(r.name) == &r);
    if (!r.others.empty()) CHECK(optimizer_rule(r.others).others.empty());
  }
  for (const std::string_view key : optimizer_keys()) {
    INFO(key);
    CHECK(value_of(fresh, cat("optim.", key)) != "no such key");
  }
  CHECK_THROWS_WITH(optimizer_rule("shampoo"), Contains("unknown optimizer \"shampoo\"") && Contains("muon, adagrad"));
}

TEST_CASE("every optimizer that DeepSpeed or Megatron-LM names is translated from its row") {
  const std::string megatron =
      "bench --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --vocab-size 300 "
      "--micro-batch-size 2 --global-batch-size 4 --train-iters 20 --mock-data --muon-extra-scale-factor 0.2 "
      "--optimizer ";
  for (const OptimizerRule& r : optimizer_rules()) {
    INFO(r.name);
    for (const std::string_view name : r.megatron) {
      std::istringstream in(cat(megatron, name));
      const std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
      CHECK(parse_command(words, RankEnv{}).loaded.config.optim.type == r.name);
    }
    if (r.deepspeed.name.empty()) continue;
    const char* mode = r.name == "adam" ? R"({"adam_w_mode": false})" : "{}";
    const std::string json =
        cat(R"({"gradient_clipping": 0, "optimizer": {"type": ")", r.deepspeed.name, R"(", "params": )", mode, "}}");
    INFO(json);
    const Config c = load_deepspeed({.json = json, .flags = {"--train.global_batch", "8"}}).config;
    CHECK(c.optim.type == r.name);
    for (const OptionText& o : r.deepspeed.implied) CHECK(text_of(c, o.key) == o.text);
    for (const DeepSpeedOptimizer::Param& p : r.deepspeed.params) {
      INFO(p.name);
      const DsKey* key = find_deepspeed_key(cat("optimizer.params.", p.name));
      REQUIRE(key != nullptr);
      const std::string types = cat("|", key->of, "|");
      CHECK((key->of.empty() || types.find(cat("|", lower(r.deepspeed.name), "|")) != std::string::npos));
      if (!p.standard.empty()) CHECK(same_value(text_of(c, p.key), std::string(p.standard)));
    }
  }
  CHECK_THAT(deepspeed_problems({.json = R"({"optimizer": {"type": "Adagrad", "params": {"betas": [0.9, 0.99]}}})",
                                 .flags = {"--train.global_batch", "8"}}),
             Contains("optimizer.params.betas: is not a parameter of Adagrad"));
  for (const char* parameter : {"lr_decay", "initial_accumulator_value"})
    for (const char* value : {"0", "0.0"})
      CHECK(deepspeed_problems(
                {.json = cat(R"({"optimizer": {"type": "Adagrad", "params": {")", parameter, "\": ", value, "}}}"),
                 .flags = {"--train.global_batch", "8"}}) == "accepted");
}

TEST_CASE("Adagrad has one moment, its own defaults and no betas, and a schedule varies none of it") {
  const Config c = config("--optim.type adagrad");
  CHECK((c.optim.eps == 1e-10f && c.optim.weight_decay == 0));
  CHECK(moment_bytes(c) == 4);
  const auto problems = [](const std::string& flags, const std::vector<std::string>& more = {}) {
    try {
      config(flags, more);
    } catch (const Error& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  CHECK_THAT(problems("--optim.type adagrad --optim.betas 0.5,0.5"), Contains("no effect with optim.type adagrad"));
  CHECK_THAT(problems("--optim.type adagrad", {"--optim.groups", "mlp betas=0.9/0.95"}),
             Contains("betas have no effect with optim.type adagrad"));
  CHECK(problems("--optim.type adagrad --schedule.type one_cycle_torch") == "accepted");
  CHECK_THAT(problems("--optim.type adagrad --schedule.type one_cycle_torch --schedule.min_momentum 0.7"),
             Contains("no effect with optim.type adagrad"));
  CHECK(text_of(load_deepspeed({.json = R"({"optimizer": {"type": "Adagrad"}, "scheduler": {"type": "OneCycle",
                "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2}}})",
                                .flags = {"--train.global_batch", "8"}})
                    .config,
                "type") == "adagrad");
}
