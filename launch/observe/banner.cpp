#include "launch/observe/banner.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "launch/config/config_optim.h"
#include "launch/config/config_precision.h"
#include "launch/engine/engine_options.h"
#include "launch/observe/predict.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/version.h"
#include "optim/optimizer_rules.h"

namespace gt {
namespace {

// "block 3" for the layer list's fifth entry.
std::string layer_name(int i, const ModelSpec& m) {
  const std::string& type = m.layers[static_cast<size_t>(i)].type;
  return type == "block" ? fmt::format("block {}", i - 1) : type;
}

std::string stage_layers(const std::vector<int>& b, int k, const ModelSpec& m) {
  const int first = b[static_cast<size_t>(k)], last = b[static_cast<size_t>(k) + 1] - 1;
  if (last < first) return "nothing";
  return first == last ? layer_name(first, m) : layer_name(first, m) + " .. " + layer_name(last, m);
}

// Chunks of a pipeline rank: "embedding .. block 1 + block 4 .. block 5".
std::string rank_layers(const std::vector<int>& b, int rank, int ranks, const ModelSpec& m) {
  std::string out;
  for (int k = rank; k + 1 < static_cast<int>(b.size()); k += ranks)
    out += (out.empty() ? "" : " + ") + stage_layers(b, k, m);
  return out;
}

// ", window 4096", or with the number of blocks that have it.
std::string window_text(const TransformerConfig& m) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < m.layers; ++i) blocks += m.window_of(i) > 0;
  if (blocks == 0) return "";
  return fmt::format(", window {}{}", m.window, blocks == m.layers ? "" : fmt::format(" in {} blocks", blocks));
}

std::string model_line(const Config& c, const ModelSpec& spec) {
  const TransformerConfig& m = spec.config;
  const std::string groups = m.groups() == m.heads ? "" : fmt::format(" ({} KV heads)", m.groups());
  const std::string lora =
      m.lora.rank == 0
          ? ""
          : fmt::format(", {} of them trained (LoRA of rank {}{})", format_thousands(spec.trained_parameters()),
                        m.lora.rank, c.precision.frozen_weights == FrozenWeights::kInt8 ? ", base in int8" : "");
  const std::string experts =
      m.moe.experts == 0
          ? ""
          : fmt::format(", {} of {}{} experts a token{}", m.moe.top_k, m.moe.experts,
                        m.moe.shared > 0 ? fmt::format(" + {}", m.moe.shared) : "",
                        m.moe.dense_blocks.empty()
                            ? ""
                            : fmt::format(" ({} dense blocks, ffn {})", m.moe.dense_blocks.size(), m.dense_ffn()));
  return fmt::format("{} {} layers, hidden {}, heads {}{}, ffn {}{}, seq {}{}, vocab {} (padded {}){}, {} parameters{}",
                     c.model.arch, m.layers, m.hidden, m.heads, groups, m.ffn, experts, m.seq, window_text(m), m.vocab,
                     padded_vocab(m.vocab, c.parallel.tp), m.tied ? ", tied" : "", format_thousands(spec.parameters()),
                     lora);
}

std::string recompute_text(const ParallelConfig& p) {
  if (p.recompute == Recompute::kNone) return "";
  if (p.recompute_layers == 0) return fmt::format(" · recompute {}", name_of(p.recompute));
  return fmt::format(" · recompute {} (first {} of a stage's blocks)", name_of(p.recompute), p.recompute_layers);
}

double bubble(const Config& c, const EngineOptions& o) {
  return predict_pipeline(o, static_cast<int>(c.parallel.pp)).bubble;
}

std::string schedule_text(const EngineOptions& o) {
  return o.extra_in_flight > 0 ? fmt::format("{}, {} more in flight", o.schedule, o.extra_in_flight) : o.schedule;
}

std::string layout_line(const Config& c, const EngineOptions& o) {
  const std::string chunks = o.vpp > 1 ? fmt::format(" · vpp {}", o.vpp) : "";
  const char* rows = c.parallel.tp == 1 ? "" : o.sequence_parallel ? " (sequence parallel)" : " (whole sequences)";
  return fmt::format("tp {}{} · pp {}{} ({}, bubble {:.1f} %) · dp {}{} · zero {}{}, {} rank{}", c.parallel.tp, rows,
                     c.parallel.pp, chunks, schedule_text(o), 100 * bubble(c, o), c.parallel.dp,
                     c.parallel.ep > 1 ? fmt::format(" · ep {}", c.parallel.ep) : "", c.zero.stage,
                     recompute_text(c.parallel), c.world(), c.world() == 1 ? "" : "s");
}

std::string batch_line(const Config& c) {
  return fmt::format("global {} = micro {} × microbatches {} × dp {} · {} tokens", c.train.global_batch,
                     c.train.micro_batch, c.train.grad_accum, c.parallel.dp,
                     format_thousands(c.train.global_batch * c.model.seq));
}

std::string optimizer_line(const Config& c) {
  const OptimConfig& o = c.optim;
  const OptimizerRule& rule = optimizer_rule(o.type);
  std::string out = o.type;
  if (o.type == "lamb") out += fmt::format(" ({})", name_of(o.lamb_variant));
  if (o.type == "muon")
    out += fmt::format(" ({} scale, {} {} iterations{})", name_of(o.muon_scale), o.muon_iterations,
                       name_of(o.muon_coefficients),
                       o.muon_lr_scale == 1 ? "" : fmt::format(", lr x {:g}", o.muon_lr_scale));
  if (rule.reads("momentum")) out += fmt::format(", momentum {:g}{}", o.momentum, o.nesterov ? " (Nesterov)" : "");
  if (rule.reads("betas")) out += fmt::format(", betas {:g} {:g}", o.betas[0], o.betas[1]);
  return out +
         fmt::format(", weight decay {:g}{}, clip {:g}", o.weight_decay,
                     o.no_decay.empty() ? "" : fmt::format(" (not on {})", fmt::join(o.no_decay, " ")), o.grad_clip) +
         (o.group_texts.empty() ? "" : fmt::format(", groups: {}", fmt::join(o.group_texts, ", ")));
}

// Learning rate at the first step, the peak and the last step, for any schedule.
std::string lr_line(const Config& c) {
  const auto schedule = make_lr_schedule(lr_options(c));
  int64_t top = 1;
  const int64_t stride = std::max<int64_t>(1, c.train.steps / 10000);
  for (int64_t t = 1; t <= c.train.steps; t += stride)
    if (schedule->at(t).lr > schedule->at(top).lr) top = t;
  std::string momentum;
  if (const double b = schedule->at(1).beta1; b != kKeepBeta)
    momentum = fmt::format("; momentum {:g}, at the peak {:g}", b, schedule->at(top).beta1);
  std::string out = c.schedule.type + (c.schedule.ds_exact ? " (as DeepSpeed)" : "");
  for (const int64_t t : std::set<int64_t>{1, top, c.train.steps})
    out += fmt::format("{}{:.4g} at step {}", t == 1 ? ": " : ", ", schedule->at(t).lr, t);
  return out + momentum;
}

std::string curriculum_line(const Config& c) {
  const Curriculum& rule = c.data.curriculum;
  const int64_t end = c.train.steps;
  return fmt::format("{}: {} tokens of each sample at step 1, {} at step {}, {} at step {}", name_of(rule.type),
                     rule.length(1), rule.length((end + 1) / 2), (end + 1) / 2, rule.length(end), end);
}

std::string layer_drop_line(const EngineOptions& o, int64_t steps) {
  const int64_t layers = o.model.layers;
  const auto deepest = [&](int64_t step) { return 100 * drop_probability(o.layer_drop, step, layers - 1, layers); };
  return fmt::format(
      "theta {:g}, gamma {:g}: the last block is dropped in {:.2g} % of steps at first, in {:.2g} % at step {}; "
      "TFLOP/s count executed blocks",
      o.layer_drop.theta, o.layer_drop.gamma, deepest(0), deepest(steps - 1), steps);
}

std::string data_line(const BannerFacts& f, double epochs) {
  if (f.config.data.train.front().path == "mock") return "synthetic tokens (mock)";
  return fmt::format("{} samples of {} tokens an epoch, {:.2f} epochs in this run{}", format_thousands(f.train.size()),
                     f.config.model.seq, epochs,
                     f.valid ? fmt::format("; validation {} samples", format_thousands(f.valid->size())) : "");
}

// Cost of split backwards with recomputation, on the rank that holds most: recomputed activations live until W.
std::string split_recompute_note(const EngineOptions& o, const MeshShape& mesh, const StagePlans& plans,
                                 const Backend& backend) {
  const auto peak = [](const StagePlans& of) {
    int64_t most = 0;
    for (const EnginePlan& p : of) most = std::max(most, p.memory.activations);
    return format_bytes(static_cast<double>(most));
  };
  EngineOptions kept = o, fused = o;
  kept.recompute = Recompute::kNone;
  fused.schedule = o.vpp > 1 ? "interleaved" : "1f1b";
  return fmt::format(
      "{} keeps recomputed activations until their weight gradients: peak activations of a rank {}, without "
      "recomputation {}, with {} {}",
      o.schedule, peak(plans), peak(plan_stages(kept, mesh, backend)), fused.schedule,
      peak(plan_stages(fused, mesh, backend)));
}

bool splits_backward(const PipelineSchedule& s) {
  return std::any_of(s.program.begin(), s.program.end(), [](const Program& p) {
    return std::any_of(p.begin(), p.end(), [](const Action& a) { return a.act == Act::kBackwardWeight; });
  });
}

}  // namespace

std::string graphs_line(const ReplayCounts& c) {
  return fmt::format("{} replayed, {} first runs, {} launched op by op{}", c.replayed, c.first, c.eager,
                     c.why.empty() ? "" : ", the last: " + c.why);
}

std::string stage_table(const EngineOptions& o, const MeshShape& mesh, const StagePlans& plans) {
  const std::vector<int> bounds = stage_boundaries(o, mesh.pp);
  const ModelSpec model = describe(o.model);
  std::string out;
  for (int k = 0; k < mesh.pp; ++k) {
    const EnginePlan& plan = plans[static_cast<size_t>(k)];
    out += fmt::format("{}{} {}: {}, {}{} in flight; a rank: {}", k ? "\n" : "", o.vpp > 1 ? "pipeline rank" : "stage",
                       k, rank_layers(bounds, k, mesh.pp, model), plan.slots, o.vpp > 1 ? " chunks" : "",
                       memory_line(plan.memory));
  }
  return out;
}

// For the pipeline rank with the most: bytes of parameters, gradients and optimizer state, and bytes sent to its
// data-parallel group per step.
std::string zero_cost(const StagePlans& plans) {
  EnginePlan worst;
  int64_t most = -1;
  for (const EnginePlan& plan : plans) {
    const int64_t held = plan.memory.weights + plan.memory.gradients + plan.memory.optimizer;
    if (held > most) {
      most = held;
      worst = plan;
    }
  }
  const auto b = [](int64_t n) { return format_bytes(static_cast<double>(n)); };
  const CommCounters& c = worst.sent.data_parallel;
  return fmt::format("a rank holds {} and sends {} a step (reduce-scatter {}, all-gather {})", b(most), b(c.total()),
                     b(c.bytes(CommOp::kReduceScatter)), b(c.bytes(CommOp::kAllGather)));
}

std::string zero_text(const EngineOptions& o, const MeshShape& mesh, const StagePlans& plans, const Backend& backend) {
  const GradReduce chosen = grad_reduce_of(o.zero, mesh.pp, o.microbatches);
  const auto mode = [](GradReduce g) { return g == GradReduce::kEach ? "each" : "end"; };
  std::string out = fmt::format("stage {}", o.zero.stage);
  if (o.zero.stage >= 2)
    out += fmt::format(", gradients reduced {}",
                       chosen == GradReduce::kEach ? "after each microbatch" : "at the end of the step");
  out += ": " + zero_cost(plans);
  if (o.zero.stage < 2 || mesh.pp == 1 || o.microbatches == 1) return out;
  EngineOptions other = o;
  other.zero.grad_reduce = chosen == GradReduce::kEach ? GradReduce::kEnd : GradReduce::kEach;
  return out + fmt::format("\nwith zero.grad_reduce {}: {}", mode(other.zero.grad_reduce),
                           zero_cost(plan_stages(other, mesh, backend)));
}

std::string traffic_text(const StagePlans& plans) {
  int64_t tp = 0, pp = 0, dp = 0, ep = 0, tied = 0;
  for (const EnginePlan& p : plans) {
    tp = std::max(tp, p.sent.tensor_parallel.total() + p.sent.key_value.total());
    pp = std::max(pp, p.sent.pipeline.total());
    dp = std::max(dp, p.sent.data_parallel.total() + p.sent.expert_data_parallel.total());
    ep = std::max(ep, p.sent.experts.total());
    tied = std::max(tied, p.sent.embedding.total());
  }
  const auto b = [](int64_t n) { return format_bytes(static_cast<double>(n)); };
  return fmt::format("a rank sends in a step at most: tp {}, pp {}, dp {}{}{}", b(tp), b(pp), b(dp),
                     ep > 0 ? ", ep " + b(ep) + " where the router chooses all experts alike" : "",
                     tied > 0 ? ", tied embedding " + b(tied) : "");
}

namespace {

// Returns "" if the backend has no graphs.
std::string graphs_text(const BannerFacts& f) {
  const auto ep = static_cast<int>(f.config.parallel.ep);
  if (f.backend.replays && !replays_microbatches(f.options, ep))
    return ep > 1
               ? "updates are replayed from their second run on; microbatches are not: with parallel.ep the sizes of "
                 "what ranks exchange depend on the router"
               : "updates and evaluation are replayed from their second run on; training microbatches are not: with "
                 "train.pld each step drops other blocks";
  if (f.backend.replays) return "microbatches and updates are replayed from their second run on";
  if (f.backend.device->capture == nullptr) return "";
  return f.config.device.graphs == OnOff::kOff ? "off"
                                               : "off: with parallel.dynamic_shapes microbatches may differ in shape";
}

}  // namespace

Rows start_rows(const BannerFacts& f) {
  const Config& c = f.config;
  Rows rows;
  rows.push_back({"gpttrain", fmt::format("{} ({})", program_version(), git_hash())});
  if (f.resumed_from >= 0) rows.push_back({"resumed", fmt::format("from step {} ({})", f.resumed_from, f.checkpoint)});
  rows.push_back({"model", model_line(c, describe(f.options.model))});
  rows.push_back({"layout", layout_line(c, f.options)});
  if (const double idle = bubble(c, f.options); idle > kMuchBubble)
    rows.push_back({"note", fmt::format("pipeline bubble {:.0f} %: raise train.grad_accum, lower pp, or use "
                                        "--parallel.schedule interleaved with parallel.vpp",
                                        100 * idle)});
  if (f.options.recompute != Recompute::kNone && splits_backward(train_schedule(f.options, mesh_shape(c).pp)))
    rows.push_back({"warning", split_recompute_note(f.options, mesh_shape(c), f.plans, f.backend)});
  rows.push_back({"memory", stage_table(f.options, mesh_shape(c), f.plans)});
  rows.push_back({"fit", fit_text(f.fit, mesh_shape(c), f.plans)});
  if (c.parallel.ep > 1) rows.push_back({"experts", expert_memory(f.options, mesh_shape(c), f.backend)});
  if (c.world() > 1) rows.push_back({"traffic", traffic_text(f.plans)});
  if (!f.prediction.empty()) rows.push_back({"prediction", f.prediction});
  if (c.parallel.dp > 1) rows.push_back({"zero", zero_text(f.options, mesh_shape(c), f.plans, f.backend)});
  if (c.zero.offload != Offload::kNone)
    rows.push_back({"note", "zero.offload has no effect: on a CPU the optimizer state is in host memory anyway"});
  rows.push_back({"batch", batch_line(c)});
  rows.push_back({"precision", precision_text(c)});
  rows.push_back({"optimizer", optimizer_line(c)});
  rows.push_back({"lr", lr_line(c)});
  if (f.options.layer_drop) rows.push_back({"layer drop", layer_drop_line(f.options, c.train.steps)});
  const double epochs = static_cast<double>(c.train.steps * c.train.global_batch) /
                        static_cast<double>(std::max<int64_t>(1, f.train.size()));
  rows.push_back({"data", data_line(f, epochs)});
  rows.insert(rows.end(), f.tokenizer.begin(), f.tokenizer.end());
  if (c.data.curriculum) rows.push_back({"curriculum", curriculum_line(c)});
  rows.push_back({"device", fmt::format("{}, {} thread{} per rank, transport {}", f.backend.device->describe(f.device),
                                        f.threads, f.threads == 1 ? "" : "s", f.comm)});
  rows.push_back({"run", c.run_dir()});
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) rows.push_back({name, text});
  };
  add("between GPUs", f.transport);
  add("mfu", f.mfu);
  add("graphs", graphs_text(f));
  add("checkpoints", f.saves);
  add("copies", f.copies);
  add("loaded", f.loaded);
  rows.insert(rows.end(), f.folders.begin(), f.folders.end());
  for (const std::string& note : f.notes) add("note", note);
  if (c.log.config) add("config", config_json(c));
  return rows;
}

}  // namespace gt
