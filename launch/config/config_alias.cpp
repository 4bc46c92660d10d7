#include "launch/config/config_alias.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
    {"no-bos", "data.no_bos", "true", false},
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
    {"hidden-dropout", "model.dropout"},
    {"attention-dropout", "model.attn_dropout"},
    {"init-method-std", "model.init_std"},
    {"untie-embeddings-and-output-weights", "model.tied", "false"},
    {"micro-batch-size", "train.micro_batch"},
    {"global-batch-size", "train.global_batch"},
    {"train-iters", "train.steps"},
    {"eval-interval", "train.eval_every"},
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
    {"split", "data.split"},
    {"max-restarts", "launch.max_restarts"},
    {"save-interval", "checkpoint.every"},
    {"async-save", "checkpoint.async", "true"},
    {"log-interval", "log.every"},
};

// Names in Hugging Face's configs and trainer, torchtune, nanoGPT and llm.c. Not accepted, but recognized.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"model_type", "model.arch"},
    {"n_layer", "model.layers"},
    {"n_layers", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"depth", "model.layers"},
    {"n_embd", "model.hidden"},
    {"d_model", "model.hidden"},
    {"dim", "model.hidden"},
    {"embed_dim", "model.hidden"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"num_heads", "model.heads"},
    {"n_kv_head", "model.kv_heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"num_kv_heads", "model.kv_heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"intermediate_size", "model.ffn"},
    {"vocab_size", "model.vocab"},
    {"block_size", "model.seq"},
    {"n_ctx", "model.seq"},
    {"n_positions", "model.seq"},
    {"context_length", "model.seq"},
    {"sequence_length", "model.seq"},
    {"max_length", "model.seq"},
    {"max_seq_len", "model.seq"},
    {"max_seq_length", "model.seq"},
    {"max_sequence_length", "model.seq"},
    {"max_position_embeddings", "model.seq"},
    {"tie_word_embeddings", "model.tied"},
    {"rms_norm_eps", "model.norm_eps"},
    {"layer_norm_epsilon", "model.norm_eps"},
    {"initializer_range", "model.init_std"},
    {"sliding_window", "model.window"},
    {"lora_r", "model.lora_rank"},
    {"lora_target_modules", "model.lora_targets"},
    {"tensor_parallel_degree", "parallel.tp"},
    {"tensor_parallel_size", "parallel.tp"},
    {"pipeline_parallel_degree", "parallel.pp"},
    {"pipeline_parallel_size", "parallel.pp"},
    {"data_parallel_size", "parallel.dp"},
    {"gradient_checkpointing", "parallel.recompute"},
    {"activation_checkpointing", "parallel.recompute"},
    {"batch_size", "train.micro_batch"},
    {"device_batch_size", "train.micro_batch"},
    {"local_batch_size", "train.micro_batch"},
    {"per_device_train_batch_size", "train.micro_batch"},
    {"total_batch_size", "train.global_batch"},
    {"grad_accum_steps", "train.grad_accum"},
    {"max_iters", "train.steps"},
    {"max_steps", "train.steps"},
    {"num_steps", "train.steps"},
    {"num_iterations", "train.steps"},
    {"epochs", "train.steps"},
    {"num_epochs", "train.steps"},
    {"num_train_epochs", "train.steps"},
    {"eval_iters", "train.eval_steps"},
    {"optimizer", "optim.type"},
    {"optim", "optim.type"},
    {"learning_rate", "optim.lr"},
    {"adam_epsilon", "optim.eps"},
    {"grad_clip", "optim.grad_clip"},
    {"max_grad_norm", "optim.grad_clip"},
    {"lr_scheduler", "schedule.type"},
    {"lr_scheduler_type", "schedule.type"},
    {"warmup", "schedule.warmup_steps"},
    {"warmup_iters", "schedule.warmup_steps"},
    {"warmup_iterations", "schedule.warmup_steps"},
    {"lr_decay_iters", "schedule.total_steps"},
    {"mixed_precision", "precision.amp"},
    {"dataset", "data.train"},
    {"train_file", "data.train"},
    {"tokenizer", "data.tokenizer"},
    {"tokenizer_model", "data.tokenizer"},
    {"tokenizer_path", "data.tokenizer"},
    {"packing", "data.pack"},
    {"save_steps", "checkpoint.every"},
    {"save_every", "checkpoint.every"},
    {"checkpoint_every", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"resume_from_checkpoint", "checkpoint.resume"},
    {"out_dir", "log.dir"},
    {"output_dir", "log.dir"},
    {"run_name", "log.name"},
    {"logging_steps", "log.every"},
};

std::string with_underscores(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace

const Alias* find_alias(const std::string& flag) {
  for (const Alias& a : kAliases)
    if (flag == a.flag) return &a;
  return nullptr;
}

std::span<const std::pair<std::string_view, std::string_view>> names_elsewhere() { return kElsewhere; }

std::string key_elsewhere(std::string_view name) {
  const std::string word = with_underscores(name);
  for (const Alias& a : kAliases)
    if (a.value == nullptr && with_underscores(a.flag) == word) return a.key;
  for (const auto& [there, key] : kElsewhere)
    if (there == word) return std::string(key);
  return "";
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
