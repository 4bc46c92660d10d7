#include "launch/config/config.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

LoadedConfig load(const ScratchFile& file, std::string_view text) {
  file.put(text);
  return load_config({.file = file.path()});
}

void run(std::string_view input) {
  static const ScratchFile file("config.json");
  Config c;
  if (refused([&] { c = load(file, input).config; })) return;
  const std::string text = gt::config_json(c);
  GT_CHECK(gt::config_json(load(file, text).config) == text,
           "a config that was accepted is read back as it was written");
}

std::vector<std::string> seeds() {
  return {R"({"model": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 512, "seq": 32}, // comment
  "train": {"steps": 20, "micro_batch": 2, "grad_accum": 4,}, "data": {"train": "mock"}, })",
          R"({"parallel": {"tp": 2, "pp": 2, "dp": 2, "vpp": 2, "schedule": "interleaved", "partition": "4,4,2,2"},
 "zero": {"stage": 3, "grad_reduce": "each"}, "optim": {"lr": 3e-4, "betas": [0.9, 0.95], "type": "lamb"}})",
          R"({"schedule": {"type": "wsd", "decay_steps": 7}, "data": {"train": "0.7 A 0.3 B", "split": "9,1,0"},
 "checkpoint": {"every": 0, "resume": "12", "allow_change": ["optim.lr"]}, "log": {"trace_steps": "3:5"}})",
          "\xEF\xBB\xBF"
          R"({"data": {"train": "\u0041\u00e9\u20AC\uD834\uDD1E \" \\ \n \u0007 é € 𝄞"}, /* two
 lines */ "optim": {"lr": 1.5E-3}, "train": {"steps": +1}})",
          R"({"data": {"train": "\ud834x"}})",
          R"({"data": {"train": "\uD834\u0041"}})",
          R"({"data": {"train": "\q"}})",
          "{\"data\": {\"train\": \"\x01\"}}",
          "{\"data\": {\"train\": \"\xC0\x80\"}}",
          R"({"optim": {"lr": 01}})",
          R"({"optim": {"lr": 1e999}})",
          R"({"optim": {"lr": -}})",
          "{\"a\": \"b",
          R"({"a": yes})",
          R"({"a" 1})",
          R"({a: 1})",
          "{} x",
          "/* for ever",
          R"({"a": 1, "a": 2})",
          std::string(200, '[')};
}

}  // namespace

Target config_json() {
  return {"config_json",
          run,
          seeds,
          {"\"model\"",
           "\"optim\"",
           "\"train\"",
           "\"betas\"",
           "\"global_batch\"",
           "\"layers\"",
           "\"partition\"",
           "type:.*",
           "\"split\"",
           "true",
           "null",
           "[",
           "{",
           "/*",
           "//",
           "1e308",
           "-1",
           "9223372036854775807",
           "\\u0000",
           "\\ud800"},
          2000};
}

}  // namespace gt::fuzz
