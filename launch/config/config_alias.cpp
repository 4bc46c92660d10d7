#include "launch/config/config_alias.h"

#include <fmt/format.h>

#include <algorithm>

#include "launch/config/config.h"
#include "launch/config/config_check.h"

namespace gt {
namespace {

// Flags with a fixed value are those whose mere presence or absence is the value in Megatron; the others take an
// argument. Megatron flags that map to several keys, to none, or to different values are in megatron_flags.cpp.
constexpr Alias kAliases[] = {
    {"tp", "parallel.tp", nullptr, false},
    {"pp", "parallel.pp", nullptr, false},
    {"dp", "parallel.dp", nullptr, false},
    {"vpp", "parallel.vpp", nullptr, false},
    {"cp", "parallel.cp", nullptr, false},
    {"ep", "parallel.ep", nullptr, false},
    {"zero", "zero.stage", nullptr, false},
    {"amp", "precision.amp", nullptr, false},
    {"comm_log", "log.comm", "true", false},
    {"hostfile", "launch.hostfile", nullptr, false},
    {"include", "launch.include", nullptr, false},
    {"exclude", "launch.exclude", nullptr, false},
    {"num_nodes", "launch.num_nodes", nullptr, false},
    {"num_gpus", "launch.num_slots", nullptr, false},
    {"num_accelerators", "launch.num_slots", nullptr, false},
    {"launcher", "launch.launcher", nullptr, false},
    {"launcher_args", "launch.launcher_args", nullptr, false},
    {"ssh_port", "launch.ssh_port", nullptr, false},
    {"bind_cores_to_rank", "launch.bind_cores", "true", false},
    {"bind_core_list", "launch.core_list", nullptr, false},
    {"tensor-model-parallel-size", "parallel.tp"},
    {"pipeline-model-parallel-size", "parallel.pp"},
    {"context-parallel-size", "parallel.cp"},
    {"expert-model-parallel-size", "parallel.ep"},
    {"sequence-parallel", "parallel.sequence_parallel", "true"},
    {"recompute-granularity", "parallel.recompute"},
    {"recompute-num-layers", "parallel.recompute_layers"},
    {"num-layers", "model.layers"},
    {"hidden-size", "model.hidden"},
    {"ffn-hidden-size", "model.ffn"},
    {"num-attention-heads", "model.heads"},
    {"num-query-groups", "model.kv_heads"},
    {"seq-length", "model.seq"},
    {"vocab-size", "model.vocab"},
    {"hidden-dropout", "model.dropout"},
    {"attention-dropout", "model.attn_dropout"},
    {"init-method-std", "model.init_std"},
    {"untie-embeddings-and-output-weights", "model.tied", "false"},
    {"micro-batch-size", "train.micro_batch"},
    {"global-batch-size", "train.global_batch"},
    {"train-iters", "train.steps"},
    {"eval-interval", "train.eval_every"},
    {"eval-iters", "train.eval_steps"},
    {"seed", "train.seed"},
    {"lr", "optim.lr"},
    {"adam-eps", "optim.eps"},
    {"weight-decay", "optim.weight_decay"},
    {"clip-grad", "optim.grad_clip"},
    {"min-lr", "schedule.min_lr"},
    {"loss-scale", "precision.loss_scale"},
    {"initial-loss-scale", "precision.loss_scale_init"},
    {"min-loss-scale", "precision.loss_scale_min"},
    {"loss-scale-window", "precision.loss_scale_window"},
    {"hysteresis", "precision.loss_scale_hysteresis"},
    {"lr-warmup-iters", "schedule.warmup_steps"},
    {"use-distributed-optimizer", "zero.stage", "1"},
    {"overlap-grad-reduce", "zero.overlap", "true"},
    {"train-data-path", "data.train"},
    {"data-path", "data.train"},
    {"valid-data-path", "data.valid"},
    {"tokenizer-model", "data.tokenizer"},
    {"split", "data.split"},
    {"finetune", "checkpoint.load", "weights"},
    {"max-restarts", "launch.max_restarts"},
    {"save-interval", "checkpoint.every"},
    {"async-save", "checkpoint.async", "true"},
    {"log-interval", "log.every"},
};

}  // namespace

const Alias* find_alias(const std::string& flag) {
  for (const Alias& a : kAliases)
    if (flag == a.flag) return &a;
  return nullptr;
}

std::vector<std::string> alias_names(const std::vector<std::string>& patterns) {
  std::vector<std::string> out;
  for (const Alias& a : kAliases)
    if (admits(patterns, a.key)) out.emplace_back(a.flag);
  return out;
}

std::string alias_help(const std::vector<std::string>& patterns) {
  Config defaults;
  std::vector<Option> options = list_options(defaults);
  std::erase_if(options, [](Option& o) { return !restrict_to_implemented(o); });
  std::string out;
  for (const Alias& a : kAliases)
    if (admits(patterns, a.key) &&
        std::any_of(options.begin(), options.end(), [&](const Option& o) { return o.key() == a.key; }))
      out += fmt::format("  --{:<38} = --{}{}\n", a.flag, a.key, a.value ? fmt::format(" {}", a.value) : "");
  return out;
}

}  // namespace gt
