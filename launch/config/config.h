// Options of a run: one struct per section, whose fields() list (launch/options/options.h) drives the JSON file,
// --section.key flags, --help, config.json and error messages.
// Values only; the trainer applies them. In user input, 0 or "" means "derive it"; after load_config every field is
// filled in.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launch/hosts/launch_config.h"
#include "launch/options/options.h"
#include "model/families/family.h"

namespace gt {

struct ModelConfig : TransformerConfig {
  ModelConfig() { ffn = 0; }
  std::string arch = "gpt2", init = "normal";
  int64_t loss_chunk = 0;
  template <class V>
  void fields(V& v) {
    v("arch", arch, family_choices(), "model family: what the decisions of this section are where they are not given");
    TransformerConfig::fields(v);
    v("init", init, "normal|torch42",
      "initial weights: by name from train.seed; or llm.c's, which are PyTorch's numbers after manual_seed(42)");
    v("loss_chunk", loss_chunk, "0.. rows", "rows of logits that exist at once; 0: automatic, some 64 MiB on a CPU, a GiB on a GPU");
  }
};

struct ParallelConfig {
  int64_t tp = 1, pp = 1, dp = 0, vpp = 1, cp = 1, ep = 1, recompute_layers = 0;
  bool dynamic_shapes = false;
  std::string sequence_parallel = "auto", schedule = "1f1b", partition = "flops", recompute = "none";
  template <class V>
  void fields(V& v) {
    v("tp", tp, "1..1024 ranks", "tensor parallel: each layer split over this many neighbouring ranks");
    v("pp", pp, "1..1024 stages", "pipeline parallel: layers split into this many stages");
    v("dp", dp, "0..65536 replicas", "data parallel; 0: 1, or world / (tp x pp) under a launcher");
    v("vpp", vpp, "1..64 chunks", "model chunks a pipeline rank; more than 1 with schedule interleaved or a file");
    v("cp", cp, "1..1024 ranks", "context parallel: the sequence split over ranks");
    v("ep", ep, "1..1024 ranks", "expert parallel");
    v("sequence_parallel", sequence_parallel, "auto|true|false",
      "cut tokens over the tp ranks between tensor-parallel layers; auto: where tp > 1 divides model.seq");
    v("schedule", schedule, "1f1b|gpipe|interleaved|zb-h1|FILE", "pipeline schedule, or file:PATH of a written one");
    v("partition", partition, "flops|uniform|parameters|RULE",
      "layers of each of the pp x vpp stages: balance FLOPs, layer counts, parameters, layers whose type matches "
      "type:REGEX, or blocks a stage as in 4,4");
    v("recompute", recompute, "none|selective|full",
      "computed again in the backward instead of kept: nothing, outputs of norms and GELUs, whole blocks");
    v("recompute_layers", recompute_layers, "0..65536 blocks",
      "recompute the first so many blocks of each stage; 0: all");
    v("dynamic_shapes", dynamic_shapes, "",
      "announce each tensor between stages by a header of 48 bytes, so that microbatches may differ in shape; "
      "the data loader's never do");
  }
};

struct ZeroConfig {
  int64_t stage = 1, bucket_bytes = 25 << 20, prefetch = 1, persist_numel = 100000;
  bool overlap = true, allow_unused = false, prescale = false;
  double predivide_factor = 1;
  std::string grad_reduce = "auto", offload = "none", grad_op = "mean";
  template <class V>
  void fields(V& v) {
    v("stage", stage, "0..3",
      "what data-parallel ranks share out: 1 optimizer state, 2 gradients too, 3 parameters too");
    v("bucket_bytes", bucket_bytes, "1.. bytes", "gradients reduced in one go");
    v("overlap", overlap, "", "reduce gradients during the backward pass");
    v("grad_reduce", grad_reduce, "auto|each|end",
      "stages 2 and 3 reduce gradients after each microbatch (memory) or at the end of the step (traffic); auto: end "
      "at "
      "stage 2 with a pipeline, else each");
    v("prefetch", prefetch, "0..64 scopes", "stage 3: blocks gathered ahead of the one in use");
    v("persist_numel", persist_numel, "0.. elements", "stage 3: blocks and layers of fewer parameters stay whole");
    v("allow_unused", allow_unused, "", "a parameter without a gradient in a step has one of 0; else it ends the run");
    v("offload", offload, "none|optimizer|parameters",
      "keep optimizer state, or parameters too, in host memory; on a CPU they are there anyway");
    v("prescale", prescale, "",
      "divide gradients by dp before the data-parallel ranks add them up instead of after it: half reduce_dtype then "
      "overflows later and loses small ones sooner");
    v("predivide_factor", predivide_factor, ">0..1e9",
      "divide gradients by this before they are added up, the sum by dp / this; 1: all of it after");
    v("grad_op", grad_op, "mean|sum", "gradients of the data-parallel ranks: their mean, or dp times it");
  }
};

struct PrecisionConfig {
  std::string amp = "O0", dtype = "fp32", loss_scale = "none", loss_scale_profile = "deepspeed";
  double loss_scale_init = 0, loss_scale_min = 0, loss_scale_max = 0;
  int64_t loss_scale_window = 0, loss_scale_delta = -1, loss_scale_hysteresis = 0, max_consecutive_skips = 50;
  bool loss_scale_consecutive_hysteresis = false, fp8_skip_ends = false, stochastic_rounding = false;
  bool tf32 = false, fp8_fast_accum = true;
  std::string keep_norm_fp32 = "auto", master_weights = "auto", reduce_dtype = "fp32", grad_dtype = "fp32";
  std::string qat = "off", fp8 = "off";
  template <class V>
  void fields(V& v) {
    v("amp", amp, "O0|O1|O2|O3 (the letter O, not zero)",
      "mixed precision: O0 FP32; O1 FP32 weights, products in half; O2 half weights with FP32 masters; O3 all half");
    v("dtype", dtype, "fp32|bf16|fp16", "what half is at O1 to O3: bf16 unless told; fp32 at O0");
    v("loss_scale", loss_scale, "none|dynamic|NUMBER",
      "factor of the loss; none: the level's, dynamic with fp16 at O1 and O2, else 1");
    v("loss_scale_profile", loss_scale_profile, "deepspeed|deepspeed-0.16|apex|megatron|torch",
      "dynamic: whose rule; it sets init, window, delta, hysteresis, min and max");
    v("loss_scale_init", loss_scale_init, "0..1e28", "dynamic: scale of the first step; 0: the profile's");
    v("loss_scale_window", loss_scale_window, "0.. steps", "dynamic: clean steps to a doubling; 0: the profile's");
    v("loss_scale_delta", loss_scale_delta, "-1.. steps",
      "dynamic: clean steps after an overflow that do not count; -1: the profile's");
    v("loss_scale_hysteresis", loss_scale_hysteresis, "0..", "dynamic: overflows to a halving; 0: the profile's");
    v("loss_scale_min", loss_scale_min, "0..1e28", "dynamic: never below; 0: the profile's");
    v("loss_scale_max", loss_scale_max, "0..1e38", "dynamic: never above; 0: the profile's; above 1e28: 1e28");
    v("loss_scale_consecutive_hysteresis", loss_scale_consecutive_hysteresis, "",
      "dynamic: a clean step restores the hysteresis");
    v("max_consecutive_skips", max_consecutive_skips, "1.. steps",
      "so many steps in a row without finite gradients end the run with exit code 17");
    v("keep_norm_fp32", keep_norm_fp32, "auto|true|false",
      "O2, O3: weights of norms stay FP32; auto: at O2 they do, at O3 not");
    v("master_weights", master_weights, "auto|true|false",
      "O2, O3: FP32 copies of half weights, which are what is trained; auto: at O2 there are, at O3 not");
    v("stochastic_rounding", stochastic_rounding, "",
      "bf16 weights without masters are rounded at random after each step, so that small updates add up");
    v("reduce_dtype", reduce_dtype, "fp32|bf16|fp16",
      "type that gradients get before data-parallel ranks add them up");
    v("grad_dtype", grad_dtype, "fp32|bf16",
      "type in which gradients are kept and added up over microbatches: bf16 takes half the memory, and rounds sums");
    v("tf32", tf32, "",
      "GPU: products of FP32 round their factors to TF32 (10 bits of mantissa, sums in FP32), which is several times as fast");
    v("fp8", fp8, "off|current|delayed",
      "O2: products of the blocks' linear layers read numbers of 8 bits, scaled by their tensor's largest element: "
      "now, or of the last 1024 steps");
    v("fp8_skip_ends", fp8_skip_ends, "", "fp8: not in the first block and in the last");
    v("fp8_fast_accum", fp8_fast_accum, "",
      "fp8 on a GPU: products of the forward pass keep fewer bits of their sums (Hopper: about 14), which is faster; "
      "gradients never do");
    v("qat", qat, "off|int8",
      "quantization-aware training: forward and backward see weights by row, and what enters linear layers, as int8");
  }
};

struct OptimConfig {
  std::string type = "adamw", lamb_variant = "paper";
  double lr = 3e-4, eps = 1e-8, weight_decay = 0.1, grad_clip = 1, momentum = 0, dampening = 0;
  double lamb_min_coeff = 0.01, lamb_max_coeff = 10, lamb_min_norm = 0, lamb_max_norm = 0;
  bool bias_correction = true, nesterov = false;
  bool lamb_eps_inside_sqrt = false, lamb_grad_averaging = true, lamb_adam_w_mode = true, lamb_nvlamb = false;
  std::vector<double> betas = {0.9, 0.95};
  std::vector<std::string> groups, no_decay;
  template <class V>
  void fields(V& v) {
    v("type", type, "adamw|adam|lamb|sgd|lion|adagrad", "optimizer; it sets defaults of eps, betas and weight_decay");
    v("lr", lr, ">0..100", "peak learning rate");
    v("betas", betas, "0..<1", "decay of the first and second moment");
    v("eps", eps, ">0..1", "added to the root of the second moment");
    v("weight_decay", weight_decay, "0..10",
      "decoupled (adamw, lamb, lion) or added to the gradient (adam, sgd); not on biases and norms");
    v("groups", groups, "",
      "parameter groups, each \"REGEX lr_scale=X weight_decay=X betas=X/X\", keys as wanted; the first that finds a "
      "parameter's name");
    v("no_decay", no_decay, "", "regular expressions: parameters whose names they find get no weight decay either");
    v("grad_clip", grad_clip, "0..1e9", "limit of the global gradient norm; 0: off");
    v("bias_correction", bias_correction, "", "adamw, adam, lamb deepspeed: correct the moments' start at 0");
    v("momentum", momentum, "0..<1", "sgd: share of the last step in this one");
    v("dampening", dampening, "0..1", "sgd: share of the gradient that momentum leaves out");
    v("nesterov", nesterov, "", "sgd: Nesterov's momentum");
    v("lamb_variant", lamb_variant, "paper|apex|deepspeed", "which LAMB: their steps differ threefold");
    v("lamb_min_norm", lamb_min_norm, "0..", "lamb paper: lower limit of a weight's norm in its trust ratio");
    v("lamb_max_norm", lamb_max_norm, "0..", "lamb paper: upper limit of it; 0: none");
    v("lamb_min_coeff", lamb_min_coeff, "0..", "lamb deepspeed: lower limit of the trust ratio");
    v("lamb_max_coeff", lamb_max_coeff, ">0..", "lamb deepspeed: upper limit of it");
    v("lamb_eps_inside_sqrt", lamb_eps_inside_sqrt, "", "lamb deepspeed: eps inside the root");
    v("lamb_grad_averaging", lamb_grad_averaging, "", "lamb apex: the first moment averages");
    v("lamb_adam_w_mode", lamb_adam_w_mode, "", "lamb apex: decoupled weight decay; off: added to the gradient");
    v("lamb_nvlamb", lamb_nvlamb, "", "lamb apex: trust ratio also where there is no weight decay");
  }
};

struct ScheduleConfig {
  std::string type = "cosine", decay_shape = "linear", anneal = "cos", warmup_type = "log", unit = "steps";
  int64_t warmup_steps = 0, total_steps = 0, decay_steps = 0;
  int64_t first_steps = 2000, second_steps = -1, first_stairs = 0, second_stairs = -1, decay_step_size = 0;
  int64_t range_steps = 2000;
  double min_lr = 0, start_lr = 0, pct_start = 0.3, div_factor = 25, final_div_factor = 1e4;
  double min_momentum = 0.85, max_momentum = 0.95, warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  double decay_lr_rate = 0, decay_mom_rate = 0, range_rate = 1;
  bool three_phase = false, cycle_momentum = true, ds_exact = false, range_staircase = false;
  template <class V>
  void fields(V& v) {
    v("type", type,
      "cosine|linear|constant|inverse_sqrt|wsd|one_cycle_torch|one_cycle|warmup|warmup_decay|warmup_cosine|"
      "lr_range_test",
      "how the learning rate goes; `gpttrain lr` draws it");
    v("unit", unit, "steps|samples",
      "what the lengths of the curve are counted in; with samples another batch size keeps the curve");
    v("warmup_steps", warmup_steps, "0.. steps", "rise from start_lr to optim.lr");
    v("start_lr", start_lr, "0..100", "where the rise begins (not reached: step 1 is above it)");
    v("min_lr", min_lr, "0..100", "where the decay ends; one_cycle: both ends of the cycle");
    v("total_steps", total_steps, "0.. steps", "length of the curve; 0: train.steps");
    v("decay_steps", decay_steps, "0.. steps", "wsd: of the decay at the end; 0: a tenth of total_steps");
    v("decay_shape", decay_shape, "linear|cosine|exponential|minus_sqrt", "wsd: of the decay");
    v("pct_start", pct_start, ">0..<1", "one_cycle_torch: share of the rise");
    v("anneal", anneal, "cos|linear", "one_cycle_torch: form of rise and fall");
    v("div_factor", div_factor, ">0..", "one_cycle_torch: optim.lr / this is the beginning");
    v("final_div_factor", final_div_factor, ">0..", "one_cycle_torch: the beginning / this is the end");
    v("three_phase", three_phase, "", "one_cycle_torch: as long down as up, then to the end");
    v("cycle_momentum", cycle_momentum, "", "one_cycle_torch, one_cycle: momentum (beta1) falls as the rate rises");
    v("min_momentum", min_momentum, "0..<1", "one_cycle_torch, one_cycle: its lower end");
    v("max_momentum", max_momentum, "0..<1", "one_cycle_torch, one_cycle: its upper end");
    v("ds_exact", ds_exact, "", "DeepSpeed's schedules number for number, defects included");
    v("warmup_type", warmup_type, "log|linear", "warmup, warmup_decay, warmup_cosine: form of the rise");
    v("warmup_min_ratio", warmup_min_ratio, "0..1", "warmup_cosine: beginning, as a share of optim.lr");
    v("cos_min_ratio", cos_min_ratio, "0..1", "warmup_cosine: end, as a share of optim.lr");
    v("first_steps", first_steps, "1.. steps", "one_cycle: of the rise");
    v("second_steps", second_steps, "-1.. steps", "one_cycle: of the fall; -1: as many");
    v("first_stairs", first_stairs, "0..", "one_cycle: rise by so many stairs; 0: a slope");
    v("second_stairs", second_stairs, "-1..", "one_cycle: fall by so many; -1: as the rise");
    v("decay_step_size", decay_step_size, "0.. steps", "one_cycle: unit of the decay after the cycle; 0: none");
    v("decay_lr_rate", decay_lr_rate, "0..", "one_cycle: lr = min_lr / (1 + this a unit)");
    v("decay_mom_rate", decay_mom_rate, "0..", "one_cycle: momentum likewise (ds_exact: it grows)");
    v("range_steps", range_steps, "1.. steps", "lr_range_test: start_lr x (1 + range_rate x step / this)");
    v("range_rate", range_rate, ">0..", "lr_range_test: growth");
    v("range_staircase", range_staircase, "", "lr_range_test: in stairs of range_steps");
  }
};

struct TrainSection {
  int64_t steps = 1000, micro_batch = 0, global_batch = 0, grad_accum = 0, seed = 1234, eval_every = 0, eval_steps = 10;
  bool deterministic = true, pld = false;
  double pld_theta = 0.5, pld_gamma = 0.001;
  std::string loss_mean = "token";
  template <class V>
  void fields(V& v) {
    v("steps", steps, "1.. steps", "optimizer steps of the whole run");
    v("micro_batch", micro_batch, "0.. sequences", "sequences a rank passes through the model at once; 0: derived");
    v("global_batch", global_batch, "0.. sequences", "sequences a step, = micro_batch x grad_accum x dp; 0: derived");
    v("grad_accum", grad_accum, "0.. microbatches", "microbatches a step and replica; 0: derived");
    v("seed", seed, "0..", "weights and data order");
    v("eval_every", eval_every, "0.. steps", "evaluate every this many steps; 0: never");
    v("eval_steps", eval_steps, "1.. steps", "global batches of one evaluation");
    v("deterministic", deterministic, "",
      "same inputs, same bits; false: on GPUs cuDNN's attention backward and NCCL may add in any order, faster");
    v("loss_mean", loss_mean, "token|microbatch",
      "loss of a step: mean over the tokens of the global batch that carry loss, or mean of the microbatches' means");
    v("pld", pld, "",
      "progressive layer drop: steps leave blocks out, block i of L with probability i/L (1 - theta(step))");
    v("pld_theta", pld_theta, "0..1", "progressive layer drop: what theta falls to from 1; at 1 no block is left out");
    v("pld_gamma", pld_gamma, "0..", "progressive layer drop: how fast, as exp(-gamma step)");
  }
};

struct DataConfig {
  std::vector<DataSource> train, valid;
  std::string tokenizer, split = "969,30,1", order = "epoch", curriculum = "none";
  bool allow_change = false, eod_mask_loss = false;
  int64_t curriculum_min = 8, curriculum_max = 0, curriculum_steps = 0, curriculum_step = 8, curriculum_root = 2;
  std::vector<double> curriculum_lengths, curriculum_until;
  template <class V>
  void fields(V& v) {
    v("train", train, "PREFIX|FILE",
      "token files PREFIX.bin + PREFIX.idx; a file of text or JSON lines, which is tokenized once; llm.c's .bin or a "
      "pattern of them; several with weights: 0.7 A 0.3 B");
    v("valid", valid, "PREFIX|FILE", "the same, to evaluate on; without it data.split cuts data.train");
    v("tokenizer", tokenizer, "",
      "SentencePiece model that made the tokens, or that tokenizes files of text; checked, and used to generate text");
    v("split", split, "", "shares of data.train for training, validation, test; unused when data.valid is given");
    v("order", order, "epoch|megatron|sequential|llmc|llmc_shuffled",
      "order of the samples; llmc: windows of llm.c's files as they lie, llmc_shuffled: as its CUDA trainer does");
    v("eod_mask_loss", eod_mask_loss, "", "predicting the end of a document carries no loss");
    v("curriculum", curriculum, "none|fixed_linear|fixed_root|fixed_discrete",
      "sequences grow: each step takes the first tokens of its samples, and more of them as training goes on");
    v("curriculum_min", curriculum_min, "1..1048576 tokens", "fixed_linear, fixed_root: length at the beginning");
    v("curriculum_max", curriculum_max, "0..1048576 tokens", "length at the end; 0: model.seq");
    v("curriculum_steps", curriculum_steps, "0..1000000000000 steps", "until the end is reached; 0: train.steps");
    v("curriculum_step", curriculum_step, "1..1048576 tokens", "lengths are multiples of this");
    v("curriculum_root", curriculum_root, "1..1000", "fixed_root: 2 for the square root; 1 is fixed_linear");
    v("curriculum_lengths", curriculum_lengths, "1..1048576 list of tokens", "fixed_discrete: lengths one after the other");
    v("curriculum_until", curriculum_until, "1..1000000000000 list of steps",
      "fixed_discrete: last step of each length but the last");
    v("allow_change", allow_change, "", "resume on other data, or in another order, than the checkpoint's");
  }
};

struct CheckpointConfig {
  std::string dir, every = "auto", resume = "auto", when_busy = "wait", load_from, fail_policy = "continue";
  std::string hash = "none", commit = "rename", staging_bytes = "auto", direct_io = "auto", tag_validation = "warn";
  int64_t keep = 3, keep_every = 0, keep_best = 1, part_bytes = int64_t{64} << 30, threads = 2;
  double mtbf_hours = 0;
  bool async = true, readback = false, index_h5 = false, read_once = false;
  std::vector<std::string> load = {"all"}, allow_change, allow_missing, allow_extra;
  template <class V>
  void fields(V& v) {
    v("dir", dir, "", "where checkpoints go; empty: RUN/checkpoints");
    v("every", every, "auto|STEPS",
      "save every so many steps, and at the end; 0: only at the end; auto: after 5 minutes, then as often as the cost "
      "of a save and mtbf_hours make best");
    v("mtbf_hours", mtbf_hours, "0..1e6 hours",
      "every auto: mean time between failures of the whole job; 0: 50000 / ranks, from 0.5 to 24");
    v("keep", keep, "2..1000", "newest checkpoints kept");
    v("keep_every", keep_every, "0.. steps", "and every step that this divides; 0: none");
    v("keep_best", keep_best, "0..1000, or true or false", "and so many of the best validation losses; true: 1");
    v("async", async, "", "write while training goes on, from a copy in host memory");
    v("staging_bytes", staging_bytes, "auto|BYTES",
      "most that the copy may take of a rank's host memory; auto: what is left there. What does not fit is "
      "written while training waits");
    v("part_bytes", part_bytes, "1048576.. bytes", "a rank begins another file before one grows beyond; 64 GiB");
    v("threads", threads, "1..64 threads", "of a rank that write a checkpoint: one fills and checks, the others write");
    v("direct_io", direct_io, "auto|off", "auto: large files past the kernel's copy, where the file system takes that");
    v("when_busy", when_busy, "wait|skip", "a save is due and the one before is not done");
    v("fail_policy", fail_policy, "continue|abort",
      "three saves in a row failed: abort ends the run with code 74 before more work is at risk");
    v("readback", readback, "", "read every shard again from the disk before its checkpoint counts as written");
    v("commit", commit, "rename|marker",
      "what makes an attempt a checkpoint: a rename of its folder, or, on file systems that do not rename folders in "
      "one piece, its manifest, written last");
    v("index_h5", index_h5, "",
      "write index.h5 too: every tensor whole, as virtual data sets over the shards, for h5py");
    v("tag_validation", tag_validation, "warn|ignore|fail",
      "ranks that disagree about which checkpoint they write never write it: say so, say nothing, or end with code 70");
    v("hash", hash, "none|sha256", "of each shard in manifest.json, for who signs that; ckpt verify checks it");
    v("resume", resume, "auto|never|STEP", "auto: the newest good checkpoint; a number: exactly that step");
    v("read_once", read_once, "",
      "a load reads each block once in a data-parallel group, for slow disks: one rank reads it and sends it on");
    v("load_from", load_from, "",
      "another run or checkpoint that this run begins with, as long as it has no checkpoint of its own");
    v("load", load, "", "what is taken from load_from: all, or some of weights optim schedule data");
    v("allow_change", allow_change, "", "keys or sections that may differ from the checkpoint's: optim.lr schedule");
    v("allow_missing", allow_missing, "",
      "tensors that the checkpoint may lack, which begin afresh: master/head.weight optim/*");
    v("allow_extra", allow_extra, "", "tensors of the checkpoint that may be left out: master/head.weight optim/*");
  }

  // Requires: a checked config.
  bool saves_by_time() const { return every == "auto"; }
  int64_t save_steps() const { return saves_by_time() ? 0 : std::stoll(every); }  // 0: saves are driven by time
};

struct LogConfig {
  std::string dir = "runs", name, progress = "auto", trace_steps, trace_ranks = "pp";
  std::string level = "info", samples_tensorboard, samples_csv, flops_file;
  int64_t every = 1, lamb_every = 0, flops_step = 0, flops_depth = -1, flops_top = 1;
  double flops_recompute_factor = 0;
  bool tensorboard = true, comm = false, timers = false, memory = false, config = false, flops_detailed = true;
  template <class V>
  void fields(V& v) {
    v("dir", dir, "", "folder of all runs");
    v("name", name, "", "the run's folder below log.dir; empty: the config file's name, or gpt2-LxH");
    v("every", every, "1.. steps", "steps between two lines and two points of a curve");
    v("lamb_every", lamb_every, "0.. steps", "lamb: log the trust ratio of every tensor so often; 0: never");
    v("tensorboard", tensorboard, "", "write TensorBoard event files");
    v("comm", comm, "", "at the end a table of the communication of the training steps: calls, bytes, time");
    v("samples_tensorboard", samples_tensorboard, "FOLDER",
      "TensorBoard curves under DeepSpeed's names over samples instead of steps; empty: none");
    v("samples_csv", samples_csv, "FOLDER", "the same numbers, a CSV file a curve; empty: none");
    v("timers", timers, "", "say every log.every steps where the time went; the curves of log.samples_* get it too");
    v("memory", memory, "", "say every log.every steps what memory holds");
    v("flops_step", flops_step, "0.. steps",
      "print after this step what each module of the model computed in it, FLOPs and seconds; 0: never");
    v("flops_depth", flops_depth, "-1..16 levels", "levels of modules in that table below the whole model; -1: all");
    v("flops_top", flops_top, "1..1000 modules", "modules of each level that its summary names");
    v("flops_detailed", flops_detailed, "", "the table has every module, not only the summary");
    v("flops_file", flops_file, "FILE", "where the table goes; empty: to the log");
    v("flops_recompute_factor", flops_recompute_factor, "0..1",
      "share of the forward that the table counts again in the backward, for recomputation");
    v("config", config, "", "print the effective config at the start; RUN/config.json holds it anyway");
    v("level", level, "debug|info|warning|error|critical", "from warning on: little is printed, as with --quiet");
    v("progress", progress, "auto|on|off", "progress bar instead of lines; auto: on a terminal");
    v("trace_steps", trace_steps, "FIRST:END",
      "record steps FIRST to END - 1 in RUN/trace-FIRST.json.gz, for ui.perfetto.dev; empty: none");
    v("trace_ranks", trace_ranks, "pp|all", "whom to trace: the pipeline of (dp 0, tp 0), or every rank");
  }
};

struct DeviceConfig {
  std::string kind = "auto", isa = "auto", gemm_tune = "heuristic", gemm_plans, graphs = "auto", attention = "auto";
  int64_t threads = 0;
  template <class V>
  void fields(V& v) {
    v("kind", kind, "auto|cpu|cuda", "where to compute");
    v("threads", threads, "0..1024 threads", "host threads a rank; 0: cores / local ranks, at least 1");
    v("isa", isa, "auto|scalar|avx2|avx512|avx512_bf16", "instruction set of the CPU kernels");
    v("gemm_tune", gemm_tune, "heuristic|auto",
      "GPU: take cuBLASLt's first suggestion for each product, or time 16 once and keep the fastest in device.gemm_plans");
    v("gemm_plans", gemm_plans, "FILE",
      "GPU: algorithms chosen before, for the same bits again; empty: none, or with auto a file in ~/.cache/gpttrain");
    v("graphs", graphs, "auto|on|off",
      "GPU: replay compute actions as CUDA graphs from their second run on, with the same bits; auto: where there is one");
    v("attention", attention, "auto|cudnn|own",
      "GPU: attention by cuDNN where it takes the shape, else by our own kernels; by cuDNN or not at all; by our own");
  }
};

struct CommConfig {
  std::string backend = "auto", nccl_library, interface;
  double stall_warn_s = 0, stall_abort_s = 600;
  template <class V>
  void fields(V& v) {
    v("backend", backend, "auto|nccl|direct|staged",
      "between GPUs; direct: in the one GPU that ranks which are threads share; staged: through host memory; auto: direct "
      "where it can be, else NCCL where it loads and a trial of it passes, else staged");
    v("nccl_library", nccl_library, "path", "of NCCL; empty: libnccl.so.2 by the rules of the loader");
    v("interface", interface, "NAME|a.b.c.d/n",
      "network interface or IPv4 subnet for ranks of several machines (Open MPI, NCCL); empty: their own choice; ranks of "
      "one machine use no network");
    v("stall_warn_s", stall_warn_s, "0..86400 seconds",
      "a wait in a step that takes longer is reported with who has not arrived; 0: max(10, 5 x p99 step)");
    v("stall_abort_s", stall_abort_s, "0..1000000 seconds",
      "a wait that takes longer ends the run with exit code 124 and RUN/hang-TIME; 0: never");
  }
};

struct FaultConfig {
  std::string spike_action = "warn", inject;
  double spike_z = 6;
  int64_t bad_steps = 3, skip_batches = 200, max_rollbacks = 3, replica_check_every = 100, recheck_every = 0;
  template <class V>
  void fields(V& v) {
    v("spike_z", spike_z, ">0..1e9 deviations",
      "a loss, or the logarithm of a gradient norm, so far above the median of the last 128 good steps is a spike");
    v("spike_action", spike_action, "skip|rollback|warn|off",
      "what becomes of a spike: skip leaves its update out, rollback loads an older checkpoint at once, warn takes the "
      "update and reports it, off does not look; an update that is not finite is always left out");
    v("bad_steps", bad_steps, "1..1000000 steps",
      "so many left out in a row: go back to a checkpoint 100 steps older; when only clipped gradient norms rose: take it");
    v("skip_batches", skip_batches, "0..1000000 batches", "then pass over so many around the bad one");
    v("max_rollbacks", max_rollbacks, "0..1000", "further ones end the run with exit code 17; 1000 good steps forget them");
    v("replica_check_every", replica_check_every, "0..1000000000 steps",
      "compare what several ranks hold every so many steps and before every checkpoint; a difference ends the run with "
      "exit code 16; 0: never");
    v("recheck_every", recheck_every, "0..1000000000 steps",
      "run one step in so many twice and compare the gradients, for machines that are not trusted; 0: never");
    v("inject", inject, "", "faults on demand, for tests: kill@step:rank=1,step=5 nan@grad:param=embed.weight,step=9");
  }
};

struct Config {
  ModelConfig model;
  ParallelConfig parallel;
  ZeroConfig zero;
  PrecisionConfig precision;
  OptimConfig optim;
  ScheduleConfig schedule;
  TrainSection train;
  DataConfig data;
  CheckpointConfig checkpoint;
  LogConfig log;
  DeviceConfig device;
  LaunchConfig launch;
  CommConfig comm;
  FaultConfig fault;

  // Requires: a checked config. Sequence parallelism is off with one TP rank regardless of the option.
  bool sequence_parallel() const {
    return parallel.tp > 1 && parallel.sequence_parallel != "false" && model.seq % parallel.tp == 0;
  }
  int64_t world() const { return parallel.tp * parallel.pp * parallel.dp; }
  std::string run_dir() const { return log.dir + "/" + log.name; }
  std::string checkpoint_dir() const { return checkpoint.dir.empty() ? run_dir() + "/checkpoints" : checkpoint.dir; }
};

// Returns all options in section order; their targets point into `config`.
std::vector<Option> list_options(Config& config);

struct ConfigSource {
  std::string file;                 // --config; "" = none
  std::vector<std::string> flags;   // "--section.key" and values, as on the command line; override the file, and the
                                    // last occurrence wins
  int external_world = 0;           // ranks of an external launcher; 0: none
  bool needs_data = false;          // data.train is mandatory (subcommands train and bench data)
  std::string deepspeed;            // --deepspeed_config: a path, base64:TEXT; overrides `file`. "" = none
  bool allow_unknown_keys = false;  // in the DeepSpeed file: ignored with a note
  std::string world_source = {};    // launcher variable that set external_world
  std::vector<std::string> other_flags = {};  // flags of the subcommand, for "did you mean"
  std::string command = "train";              // the subcommand, for "see gpttrain train --help"
  std::vector<std::string> keys = {};         // accepted as flags by it (KeyFilter); empty: all
  Problems problems = {};                     // already found on the command line
  // Sections and keys to read from `file`, ignoring the rest, for files that the user did not write. Empty: read
  // everything and report unknown keys.
  std::vector<std::string> only = {};
};

struct LoadedConfig {
  Config config;                              // checked and complete
  std::map<std::string, std::string> origin;  // key → "configs/x.json:14" or "--tp"; absent: default or derived
  std::vector<std::string> notes;             // translations and derived values, for the start banner
};

// Reads files and flags and derives unset values. Throws one kUsage error that lists every problem; an unknown flag or
// key comes with a suggestion. No side effects beyond reading the files.
LoadedConfig load_config(const ConfigSource& source);

// Returns source.problems plus those of source.flags alone: unknown flags, flags without effect on the subcommand and
// values outside their domain. For subcommands whose config file is not known yet.
Problems check_flags(const ConfigSource& source);

// Returns whether a flag name (without dashes) is a config key or an alias of one.
bool is_config_flag(const std::string& name);

// Returns whether `key` matches one of the patterns: a key, or a section with a trailing dot. Empty: matches all.
bool admits(const std::vector<std::string>& patterns, const std::string& key);

// Returns the effective config as JSON with all defaults. Round-trips through load_config to the same text.
std::string config_json(const Config& config);

// Returns the --help text of the config keys that match `patterns` (admits), by section.
std::string config_help(const std::vector<std::string>& patterns = {});

}  // namespace gt
