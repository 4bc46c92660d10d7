// Random layouts of small models, legal and illegal: shared by the tests that train them and those that prove them.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "launch/tools/verify/layouts.h"

namespace gt::random_layout {

inline Config tiny(const std::vector<std::string>& flags) {
  std::vector<std::string> all{"--model.layers",
                               "6",
                               "--model.hidden",
                               "16",
                               "--model.heads",
                               "4",
                               "--model.vocab",
                               "379",
                               "--model.seq",
                               "8",
                               "--model.loss_chunk",
                               "6",
                               "--train.micro_batch",
                               "1",
                               "--train.grad_accum",
                               "2",
                               "--train.steps",
                               "40",
                               "--optim.lr",
                               "0.003",
                               "--schedule.warmup_steps",
                               "3"};
  all.insert(all.end(), flags.begin(), flags.end());
  return load_config({.file = "", .flags = all}).config;
}

using Settings = std::vector<std::pair<std::string, std::string>>;

// Draws one value for each axis, at most `ranks` ranks in total, and other user choices. Mostly compatible values;
// otherwise nearly all draws would be illegal.
// With channels of a head apart from hidden, a third of the models have odd sizes: tp divides no boundary tensor.
inline Settings draw(const std::vector<LayoutAxis>& axes, const ModelConfig& model, std::mt19937_64& random,
                     int64_t ranks) {
  const auto one_in = [&](uint64_t n) { return random() % n == 0; };
  std::map<std::string, std::string> s;
  const auto number = [&](const char* key) { return std::stoll(s.at(key)); };
  do {
    for (const LayoutAxis& a : axes) s[a.key] = a.values[random() % a.values.size()];
  } while (number("parallel.tp") * number("parallel.pp") * number("parallel.dp") > ranks);
  if (s.count("parallel.ep") > 0 && !one_in(8)) {
    std::vector<int64_t> legal;
    for (int64_t ep = 1; ep <= number("parallel.dp"); ++ep)
      if (number("parallel.dp") % ep == 0 && model.moe.experts % ep == 0) legal.push_back(ep);
    s["parallel.ep"] = std::to_string(legal[random() % legal.size()]);
  }
  if (!one_in(4)) s["parallel.vpp"] = s["parallel.schedule"] == "interleaved" ? std::to_string(1 + random() % 3) : "1";
  if (one_in(2)) s["parallel.sequence_parallel"] = "false";
  if (one_in(2)) s["precision.amp"] = "O0";
  s["train.grad_accum"] = std::to_string(1 + random() % 6);
  s["model.dropout"] = one_in(2) ? "0.1" : "0";
  s["model.attn_dropout"] = one_in(3) ? "0.2" : "0";
  s["model.tied"] = one_in(2) ? "true" : "false";
  // There are 4 heads: 3 KV heads are illegal; 1 and 2 are shared by the ranks of tp 4.
  s["model.kv_heads"] = one_in(2) ? "0" : one_in(8) ? "3" : one_in(2) ? "1" : "2";
  s["train.loss_mean"] = one_in(4) ? "microbatch" : "token";
  if (one_in(4)) s["parallel.partition"] = "uniform";
  if (one_in(4)) {
    std::vector<int64_t> blocks(static_cast<size_t>(one_in(4) ? 2 : number("parallel.pp") * number("parallel.vpp")), 0);
    for (int64_t i = 0; i < model.layers; ++i) ++blocks[random() % blocks.size()];
    s["parallel.partition"] = fmt::format("{}", fmt::join(blocks, ","));
  }
  if (one_in(s["parallel.recompute"] == "none" ? 8 : 2)) s["parallel.recompute_layers"] = "1";
  s["zero.bucket_bytes"] = one_in(2) ? "1" : "4000";
  s["zero.overlap"] = one_in(2) ? "true" : "false";
  s["zero.prescale"] = one_in(4) ? "true" : "false";
  s["train.pld"] = one_in(4) ? "true" : "false";
  s["train.pld_theta"] = "0.3";
  s["train.pld_gamma"] = "10";
  if (one_in(4)) {
    s["data.curriculum"] = "fixed_discrete";
    s["data.curriculum_lengths"] = "4,8";
    s["data.curriculum_until"] = "5";
  }
  std::mt19937_64 beside = random;  // the draws after this one stay as they were
  s["data.pack"] = beside() % 3 == 0 ? "documents" : "stream";
  if (beside() % 3 == 0 && model.head_dim > 0 && s.count("data.curriculum") == 0) {
    s["model.hidden"] = std::to_string(model.hidden - 1);
    s["model.seq"] = std::to_string(model.seq - 1);
  }
  // O3 has no default loss scaling: gradients of a mean over so few tokens would be fp16 subnormals.
  if (s["precision.amp"] == "O3" && s["precision.dtype"] == "fp16") s["precision.loss_scale"] = "4096";
  return {s.begin(), s.end()};
}

inline std::string text_of(const Settings& s) {
  std::string out;
  for (const auto& [key, value] : s) out += fmt::format(" --{} {}", key, value);
  return out;
}

}  // namespace gt::random_layout
