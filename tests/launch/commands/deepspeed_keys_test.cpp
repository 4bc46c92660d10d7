// Every row of DeepSpeed's key table: the declared treatment of its key against the result of loading such a file.
#include "launch/tools/translate/deepspeed_keys.h"

#include <chrono>
#include <set>

#include "launch/config/config_check.h"
#include "tests/launch/commands/deepspeed_fixture.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

std::string name_of(const DsKey& k) { return std::string(k.path); }

// Returns a value that the row accepts and that differs from DeepSpeed's default.
std::string sample(const DsKey& k) {
  if (k.path == "optimizer.type") return "\"AdamW\"";
  if (k.path == "scheduler.type") return "\"WarmupLR\"";
  if (k.path == "pipeline.partition") return "\"uniform\"";
  if (k.path == "amp.cast_model_type") return "\"torch.float16\"";
  if (k.path == "zero_optimization.mics_shard_size") return "4";
  if (k.path == "zero_optimization.zero_hpz_partition_size") return "8";
  switch (k.type) {
    case DsType::kBool: return k.standard == "true" ? "false" : "true";
    case DsType::kInt: return k.standard == "1" ? "2" : "1";
    case DsType::kNumber: return "0.5";
    case DsType::kPair: return "[0.8, 0.99]";
    case DsType::kInts: return "[8, 16]";
    case DsType::kScalar: return "\"True\"";
    case DsType::kText:
      return k.domain.find('|') == std::string_view::npos
                 ? "\"x\""
                 : "\"" + std::string(k.domain.substr(0, k.domain.find('|'))) + "\"";
    case DsType::kBlock: return "{}";
    case DsType::kOpaque: return "{\"enabled\": true}";
  }
  return "";
}

std::string wrong_type(const DsKey& k) { return k.type == DsType::kText || k.type == DsType::kInt ? "true" : "{}"; }

// Returns {"a": {"b": VALUE}} for a.b, plus the keys that its block requires.
std::string file_with(const std::string& path, const std::string& value, std::string_view of = {}) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return "{\"" + path + "\": " + value + "}";
  const std::string block = path.substr(0, dot), name = path.substr(dot + 1);
  std::string inner = "{\"" + name + "\": " + value;
  std::string outer, top;
  if (block == "scheduler.params") {
    std::string type = of.empty() ? "WarmupLR" : std::string(of.substr(0, of.find('|')));
    if (name == "total_num_steps" || type == "warmupcosinelr") type = "WarmupCosineLR";
    outer = "\"type\": \"" + type + "\", ";
    if (type == "WarmupCosineLR" && name != "total_num_steps") inner += ", \"total_num_steps\": 100";
    if (type == "onecycle" && name != "cycle_min_lr") inner += ", \"cycle_min_lr\": 1e-4";
    if (type == "onecycle" && name != "cycle_max_lr") inner += ", \"cycle_max_lr\": 0.6";
    if (type == "onecycle" && name == "cycle_min_mom") inner += ", \"cycle_max_mom\": 0.9";
    if (type == "onecycle" && name == "cycle_max_mom") inner += ", \"cycle_min_mom\": 0.4";
  }
  if (block == "optimizer.params") {
    const std::string type = of.empty() ? "adam" : std::string(of.substr(0, of.find('|')));
    outer = "\"type\": \"" + type + "\", ";
    if (type == "muon") top = "\"gradient_clipping\": 0, ";
    if (name == "nesterov") inner += ", \"momentum\": 0.9";
  }
  if (path == "curriculum_learning.enabled")
    inner += R"(, "schedule_type": "fixed_discrete", "schedule_config": {"difficulty": [8, 16], "max_step": [5]})";
  if (block == "optimizer" && name != "type") inner += ", \"type\": \"Adam\"";
  inner += "}";
  const size_t up = block.rfind('.');
  if (up == std::string::npos) return "{\"" + block + "\": " + inner + "}";
  return "{" + top + "\"" + block.substr(0, up) + "\": {" + outer + "\"" + block.substr(up + 1) + "\": " + inner + "}}";
}

const std::vector<std::string> kBatch{"--train.global_batch", "8"};

// Removes problems about values that are not implemented yet; each must name the requesting key.
std::string without_not_built(const std::string& problems, const std::string& path) {
  std::string out;
  size_t at = 0;
  while (at < problems.size()) {
    const size_t end = std::min(problems.find('\n', at), problems.size());
    const std::string line = problems.substr(at, end - at);
    const bool waits =
        line.find(path + " -> ") != std::string::npos && line.find("is not built yet") != std::string::npos;
    if (!waits && line.find("nothing was started") == std::string::npos && line != "accepted") out += line + "\n";
    at = end + 1;
  }
  return out;
}

bool needs_value(const DsKey& k) { return k.type != DsType::kBlock; }

}  // namespace

TEST_CASE("the key table has no key twice, and every row is complete") {
  std::set<std::string_view> paths;
  Config c;
  for (const DsKey& k : deepspeed_keys()) {
    INFO(name_of(k));
    CHECK(paths.insert(k.path).second);
    CHECK(find_deepspeed_key(k.path) == &k);
    if (const size_t dot = k.path.rfind('.'); dot != std::string_view::npos) {
      REQUIRE(find_deepspeed_key(k.path.substr(0, dot)) != nullptr);
      CHECK(find_deepspeed_key(k.path.substr(0, dot))->type == DsType::kBlock);
    }
    if (k.status == DsStatus::kIgnored || k.status == DsStatus::kRefused) CHECK(!k.why.empty());
    if (!k.native.empty()) CHECK(value_of(c, std::string(k.native)) != "no such key");
  }
  CHECK(paths.size() > 200);
}

TEST_CASE("every key alone behaves as its table row states") {
  for (const DsKey& k : deepspeed_keys()) {
    if (!needs_value(k)) continue;
    const std::string path = name_of(k), value = sample(k), json = file_with(path, value, k.of);
    INFO(json);
    DsInput load{.json = json, .flags = kBatch};
    if (path.rfind("train_", 0) == 0) load.flags = {};
    if (path.rfind("gradient_acc", 0) == 0) load.flags = {"--train.micro_batch", "1"};
    const std::string found = deepspeed_problems(load);
    if (k.status == DsStatus::kRefused) {
      CHECK_THAT(found, Contains(path + ": ") && Contains(std::string(k.why)) &&
                            Catch::EndsWith("1 problem, nothing was started"));
      continue;
    }
    CHECK(without_not_built(found, path) == "");
    if (found != "accepted") continue;  // not implemented yet
    const LoadedConfig c = load_deepspeed(load);
    const std::string notes = joined_notes(c);
    CHECK_THAT(notes, Contains("deepspeed: " + path + " "));
    if (k.status == DsStatus::kIgnored)
      CHECK_THAT(notes, Contains(path) && Contains("no effect: " + std::string(k.why)));
    if (k.native.empty()) continue;
    const std::string native(k.native), set = value_of(c.config, native);
    CHECK(set == (value[0] == '"' ? value.substr(1, value.size() - 2) : value));
    CHECK_THAT(c.origin.at(native), Contains(path));
  }
}

TEST_CASE("every key with a value of the wrong type is refused with its position") {
  for (const DsKey& k : deepspeed_keys()) {
    if (k.type == DsType::kOpaque) continue;
    const std::string path = name_of(k), json = file_with(path, k.type == DsType::kBlock ? "7" : wrong_type(k), k.of);
    INFO(json);
    const std::string found = deepspeed_problems({.json = json, .flags = kBatch});
    CHECK_THAT(found, Contains("<base64>:1:") && Contains(": " + path + ": expected ") && Contains("found "));
  }
}

TEST_CASE("auto is accepted where the table allows it, as the native value, and refused elsewhere") {
  for (const DsKey& k : deepspeed_keys()) {
    if (k.type == DsType::kOpaque || k.type == DsType::kBlock || k.path == "pipeline.partition") continue;
    const std::string path = name_of(k), json = file_with(path, "\"auto\"", k.of);
    INFO(json);
    const std::string found = deepspeed_problems({.json = json, .flags = kBatch});
    if (!k.may_be_auto) {
      CHECK_THAT(found, Contains(path + ": \"auto\" is not allowed here"));
      continue;
    }
    REQUIRE(found == "accepted");
    CHECK_THAT(joined_notes(load_deepspeed({.json = json, .flags = kBatch})),
               Contains(path + " auto: the native value"));
  }
}

TEST_CASE("every key misspelled by one letter suggests the right one, outside of blocks in a note") {
  for (const DsKey& k : deepspeed_keys()) {
    const std::string path = name_of(k), last(k.name());
    for (const size_t at : {size_t{0}, last.size() / 2, last.size() - 1}) {
      std::string wrong = last;
      wrong.insert(at, 1, wrong[at] == 'q' ? 'z' : 'q');
      const std::string where = path.substr(0, path.size() - last.size()) + wrong;
      INFO(where);
      const std::string json = file_with(where, "1", k.of);
      if (where == wrong) {
        CHECK_THAT(joined_notes(load_deepspeed({.json = json, .flags = kBatch})),
                   Contains(where + ": unknown key, ignored, as by DeepSpeed; did you mean " + last + "?"));
        continue;
      }
      const std::string found = deepspeed_problems({.json = json, .flags = kBatch});
      CHECK_THAT(found, Contains(where + ": unknown key\n  did you mean " + last + "?"));
    }
  }
}

TEST_CASE("all supported keys fit into one file, which is parsed quickly") {
  std::string top, zero, tensorboard;
  for (const DsKey& k : deepspeed_keys()) {
    const std::string path = name_of(k);
    if (k.status == DsStatus::kRefused || k.type == DsType::kBlock || path.rfind("train_", 0) == 0) continue;
    const size_t dot = path.find('.');
    if (dot == std::string::npos) top += "\"" + path + "\": " + sample(k) + ",\n";
    if (path.rfind("zero_optimization.", 0) == 0 && path.find('.', dot + 1) == std::string::npos)
      zero += "\"" + path.substr(dot + 1) + "\": " + sample(k) + ", ";
  }
  const std::string json = "{ // all of it\n" + top + "\"train_batch_size\": 8, \"zero_optimization\": {" + zero +
                           "}, \"tensorboard\": {\"enabled\": true}, # and the rest\n"
                           "\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"lr\": 1e-3,}}, "
                           "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 100}} }";
  INFO(json);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(deepspeed_problems({.json = json}) == "accepted");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));  // otherwise the test would hang
}

TEST_CASE("an unsupported key at DeepSpeed's default has no effect") {
  for (const char* json : {R"({"autotuning": {"enabled": false}})", R"({"elasticity": {"enabled": false}})",
                           R"({"fp16": {"fp16_master_weights_and_grads": false}})",
                           R"({"zero_optimization": {"mics_shard_size": -1, "zero_hpz_partition_size": 1}})",
                           R"({"zero_optimization": {"zeropp_loco_param": null}})",
                           R"({"optimizer": {"type": "Adam", "params": {"amsgrad": false}}})",
                           R"({"curriculum_learning": {"enabled": false, "min_difficulty": 8}})"}) {
    INFO(json);
    CHECK(deepspeed_problems({.json = json, .flags = kBatch}) == "accepted");
  }
}
