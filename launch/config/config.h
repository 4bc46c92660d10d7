// Options of a run: one struct per section, whose fields() list (launch/options/options.h) drives the JSON file,
// --section.key flags, --help, config.json and error messages. A section of a library (model, optim, schedule, zero,
// checkpoint, …) adds to the options which that library lists what a run derives them from.
// Values only; the trainer applies them. In user input, 0 or "" means "derive it"; after load_config every field is
// filled in.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "autograd/precision.h"
#include "checkpoint/options.h"
#include "data/samples/curriculum.h"
#include "data/samples/dataset.h"
#include "kernels/device_options.h"
#include "launch/config/foreign_config.h"
#include "launch/config/values/guard_options.h"
#include "launch/config/values/layout_options.h"
#include "launch/hosts/launch_config.h"
#include "launch/options/on_off.h"
#include "launch/options/options.h"
#include "model/families/family.h"
#include "model/layer_drop.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer_options.h"
#include "parallel/zero/options.h"

namespace gt {

enum class WeightInit : uint8_t { kNormal, kTorch42 };
constexpr std::array<const char*, 2> names_of(WeightInit) { return {"normal", "torch42"}; }

struct ModelConfig : TransformerConfig {
  ModelConfig() { ffn = 0; }
  std::string arch = "gpt2";
  WeightInit init = WeightInit::kNormal;
  int64_t loss_chunk = 0;
  std::string lora_base;
  template <class V>
  void fields(V& v) {
    v("arch", arch, family_choices(), "model family; sets the defaults of this section");
    TransformerConfig::fields(v);
    v("init", init, "",
      "initial weights: random by train.seed and parameter name; torch42: llm.c's, PyTorch after manual_seed(42)");
    v("lora_base", lora_base, "", "Hugging Face folder of the base weights of the adapters; set by --from");
    v("loss_chunk", loss_chunk, "0.. rows",
      "rows of logits per chunk of the loss; 0: about 64 MiB on a CPU, 1 GiB on a GPU");
  }
};

struct ParallelConfig : LayoutOptions {
  int64_t tp = 1, pp = 1, dp = 0, cp = 1, ep = 1;
  AutoBool sequence_parallel = AutoBool::kAuto;
  template <class V>
  void fields(V& v) {
    v("tp", tp, "1..1024 ranks", "tensor-parallel size: each layer is split over this many adjacent ranks");
    v("pp", pp, "1..1024 stages", "pipeline-parallel size: number of stages");
    v("dp", dp, "0..65536 replicas", "data-parallel size; 0: 1, or world / (tp x pp) under a launcher");
    v("cp", cp, "1..1024 ranks", "context-parallel size: the sequence is split over ranks");
    v("ep", ep, "1..64 ranks", "expert-parallel size: data-parallel ranks over which the experts are split");
    v("sequence_parallel", sequence_parallel, "",
      "shard activations over the tp ranks along the sequence outside tensor-parallel layers; auto: if tp > 1 divides "
      "model.seq");
    LayoutOptions::fields(v);
  }
};

enum class Offload : uint8_t { kNone, kOptimizer, kParameters };
enum class GradOp : uint8_t { kMean, kSum };
constexpr std::array<const char*, 3> names_of(Offload) { return {"none", "optimizer", "parameters"}; }
constexpr std::array<const char*, 2> names_of(GradOp) { return {"mean", "sum"}; }

struct ZeroConfig : ZeroOptions {
  bool prescale = false;
  double predivide_factor = 1;
  Offload offload = Offload::kNone;
  GradOp grad_op = GradOp::kMean;
  template <class V>
  void fields(V& v) {
    ZeroOptions::fields(v);
    v("offload", offload, "", "keep optimizer state, or also parameters, in host memory; no effect on a CPU");
    v("prescale", prescale, "",
      "divide gradients by dp before the data-parallel reduction instead of after: with a 16-bit reduce_dtype, fewer "
      "overflows but more underflows");
    v("predivide_factor", predivide_factor, ">0..1e9",
      "divide gradients by this before the data-parallel reduction and by dp / this after; 1: all after");
    v("grad_op", grad_op, "", "data-parallel gradient reduction: mean or sum");
  }
};

struct PrecisionConfig {
  AmpLevel amp = AmpLevel::kO0;
  DType dtype = DType::kF32, reduce_dtype = DType::kF32, grad_dtype = DType::kF32;
  std::string loss_scale = "none";
  LossScaleProfile loss_scale_profile = LossScaleProfile::kDeepSpeed;
  double loss_scale_init = 0, loss_scale_min = 0, loss_scale_max = 0;
  int64_t loss_scale_window = 0, loss_scale_delta = -1, loss_scale_hysteresis = 0, max_consecutive_skips = 50;
  bool loss_scale_consecutive_hysteresis = false, fp8_skip_ends = false, stochastic_rounding = false;
  bool tf32 = false, fp8_fast_accum = true;
  AutoBool keep_norm_fp32 = AutoBool::kAuto, master_weights = AutoBool::kAuto;
  Fp8Recipe fp8 = Fp8Recipe::kOff;
  FrozenWeights frozen_weights = FrozenWeights::kSame;
  Qat qat = Qat::kOff;
  template <class V>
  void fields(V& v) {
    v("amp", amp, "(the letter O, not zero)",
      "mixed precision: O0 FP32; O1 FP32 weights, 16-bit GEMMs; O2 16-bit weights with FP32 master weights; O3 all "
      "16-bit");
    v("dtype", dtype, "fp32|bf16|fp16", "16-bit type at O1 to O3 (default bf16); fp32 at O0");
    v("loss_scale", loss_scale, "none|dynamic|NUMBER",
      "loss scale; none: the level's default, dynamic with fp16 at O1 and O2, else 1");
    v("loss_scale_profile", loss_scale_profile, "",
      "dynamic: scaling rule; sets the defaults of init, window, delta, hysteresis, min and max");
    v("loss_scale_init", loss_scale_init, "0..1e28", "dynamic: scale of the first step; 0: the profile's");
    v("loss_scale_window", loss_scale_window, "0.. steps",
      "dynamic: steps without overflow before the scale doubles; 0: the profile's");
    v("loss_scale_delta", loss_scale_delta, "-1.. steps",
      "dynamic: steps after an overflow that do not count towards the window; -1: the profile's");
    v("loss_scale_hysteresis", loss_scale_hysteresis, "0..",
      "dynamic: overflows before the scale halves; 0: the profile's");
    v("loss_scale_min", loss_scale_min, "0..1e28", "dynamic: lower limit; 0: the profile's");
    v("loss_scale_max", loss_scale_max, "0..1e38", "dynamic: upper limit, at most 1e28; 0: the profile's");
    v("loss_scale_consecutive_hysteresis", loss_scale_consecutive_hysteresis, "",
      "dynamic: a step without overflow restores the hysteresis");
    v("max_consecutive_skips", max_consecutive_skips, "1.. steps",
      "consecutive steps with non-finite gradients that end the run with exit code 17");
    v("keep_norm_fp32", keep_norm_fp32, "", "O2, O3: keep norm weights in FP32; auto: true at O2, false at O3");
    v("master_weights", master_weights, "",
      "O2, O3: keep FP32 master copies of 16-bit weights for the optimizer; auto: true at O2, false at O3");
    v("stochastic_rounding", stochastic_rounding, "",
      "round bf16 weights without master weights stochastically after each update, so that small updates are not lost");
    v("reduce_dtype", reduce_dtype, "fp32|bf16|fp16", "dtype of the data-parallel gradient reduction");
    v("grad_dtype", grad_dtype, "fp32|bf16",
      "dtype in which gradients are stored and accumulated over microbatches: bf16 halves the memory and rounds the "
      "sums");
    v("tf32", tf32, "", "GPU: FP32 GEMMs in TF32 (10-bit mantissa, FP32 accumulation), several times faster");
    v("fp8", fp8, "",
      "O2: run the blocks' linear layers in FP8 (E4M3 activations and weights, E5M2 gradients) with per-tensor scaling "
      "from the current amax or that of the last 1024 steps");
    v("fp8_skip_ends", fp8_skip_ends, "", "fp8: keep the first and the last block in 16 bits");
    v("fp8_fast_accum", fp8_fast_accum, "",
      "fp8 on a GPU: forward GEMMs accumulate with fewer bits (Hopper: about 14), which is faster; backward GEMMs "
      "never do");
    v("frozen_weights", frozen_weights, "",
      "LoRA: frozen linear layers have the dtype of the others, or are held in int8 with a scale per row and "
      "dequantized where they are used");
    v("qat", qat, "",
      "quantization-aware training: linear layers use int8 weights (per row) and int8 inputs in forward and backward");
  }
};

// Dtype of Muon's Newton-Schulz iterations.
enum class MuonDType : uint8_t { kAuto, kFp32, kBf16 };
constexpr std::array<const char*, 3> names_of(MuonDType) { return {"auto", "fp32", "bf16"}; }

struct OptimConfig : OptimizerOptions {
  OptimConfig() { weight_decay = 0.1f; }
  double lr = 3e-4, grad_clip = 1;
  std::vector<double> betas = {0.9, 0.95};
  std::vector<std::string> group_texts, no_decay;
  MuonDType muon_dtype = MuonDType::kAuto;
  template <class V>
  void fields(V& v) {
    OptimizerOptions::fields(v);
    v("lr", lr, ">0..100", "peak learning rate");
    v("betas", betas, "0..<1", "decay of the first and second moment");
    v("groups", group_texts, "",
      "parameter groups, each \"REGEX lr_scale=X weight_decay=X betas=X/X rule=adamw\" with any of the keys; the first "
      "match of a parameter's name applies; rule=adamw: for weights that muon would update");
    v("no_decay", no_decay, "", "regular expressions: parameters whose names match get no weight decay either");
    v("grad_clip", grad_clip, "0..1e9", "limit of the global gradient norm; 0: off");
    v("muon_dtype", muon_dtype, "", "muon: dtype of Newton-Schulz; auto: fp32 at O0, else bf16");
  }
};

enum class LengthUnit : uint8_t { kSteps, kSamples };
constexpr std::array<const char*, 2> names_of(LengthUnit) { return {"steps", "samples"}; }

struct ScheduleConfig : LrOptions {
  LengthUnit unit = LengthUnit::kSteps;
  template <class V>
  void fields(V& v) {
    LrOptions::fields(v);
    v("unit", unit, "", "unit of the schedule's lengths; with samples the schedule does not depend on the batch size");
  }
};

enum class LossMean : uint8_t { kToken, kMicrobatch };
constexpr std::array<const char*, 2> names_of(LossMean) { return {"token", "microbatch"}; }

struct TrainSection {
  int64_t steps = 1000, micro_batch = 0, global_batch = 0, grad_accum = 0, seed = 1234, eval_every = 0, eval_steps = 10;
  bool deterministic = true;
  LossMean loss_mean = LossMean::kToken;
  LayerDrop layer_drop;
  template <class V>
  void fields(V& v) {
    v("steps", steps, "1.. steps", "optimizer steps of the whole run");
    v("micro_batch", micro_batch, "0.. sequences", "sequences per microbatch and rank; 0: derived");
    v("global_batch", global_batch, "0.. sequences", "sequences per step = micro_batch x grad_accum x dp; 0: derived");
    v("grad_accum", grad_accum, "0.. microbatches", "microbatches per step and replica; 0: derived");
    v("seed", seed, "0..", "seed of weights and data order");
    v("eval_every", eval_every, "0.. steps", "evaluate every this many steps; 0: never");
    v("eval_steps", eval_steps, "1.. steps", "global batches per evaluation");
    v("deterministic", deterministic, "",
      "bitwise reproducible runs; false: on GPUs, cuDNN's attention backward and NCCL may reduce in any order "
      "(faster)");
    v("loss_mean", loss_mean, "",
      "normalization of the loss: mean over the unmasked tokens of the global batch, or mean of the microbatch means");
    layer_drop.fields(v);
  }
};

struct DataConfig {
  std::vector<DataSource> train, valid;
  std::string tokenizer, split = "969,30,1";
  SampleOrder order = SampleOrder::kEpoch;
  Packing pack = Packing::kStream;
  bool allow_change = false, eod_mask_loss = false, no_bos = false;
  MaskingOptions masking;
  std::string mask_token = "[MASK]", cls_token = "[CLS]", sep_token = "[SEP]", pad_token;
  Curriculum curriculum;
  template <class V>
  void fields(V& v) {
    v("train", train, "PREFIX|FILE",
      "token files PREFIX.bin + PREFIX.idx; a text or JSON-lines file, tokenized once; llm.c's .bin or a glob of them; "
      "several with weights: 0.7 A 0.3 B");
    v("valid", valid, "PREFIX|FILE", "the same for evaluation; without it data.split divides data.train");
    v("tokenizer", tokenizer, "",
      "SentencePiece model, tokenizer.json, vocab.json, vocab.txt, tekken.json, tiktoken's ranks, or a folder with "
      "one, of the tokens or for "
      "tokenizing text files; checked, kept in checkpoints, and used for generation");
    v("split", split, "", "proportions of data.train for training, validation, test; ignored if data.valid is given");
    v("order", order, "",
      "order of the samples; llmc: windows of llm.c's files in file order; llmc_shuffled: as llm.c's CUDA trainer");
    v("pack", pack, "",
      "how documents fill samples; stream: attention crosses their ends; documents: attention and positions stay "
      "inside each document, whose first token is not a target");
    v("eod_mask_loss", eod_mask_loss, "", "mask the loss of end-of-document targets");
    v("no_bos", no_bos, "",
      "leave out what the tokenizer puts around every text as the model was trained (BOS, sometimes EOS): from text "
      "files, and from prompts and tasks of generate and eval");
    masking.fields(v);
    v("mask_token", mask_token, "", "masked language models: piece of the tokenizer that stands for a hidden token");
    v("cls_token", cls_token, "", "masked language models: piece before a sentence pair");
    v("sep_token", sep_token, "", "masked language models: piece after each sentence");
    v("pad_token", pad_token, "", "masked language models: piece after a short pair; empty: the tokenizer's padding");
    curriculum.fields(v);
    v("allow_change", allow_change, "", "resume on other data, or in another order, than the checkpoint's");
  }
};

enum class WhenBusy : uint8_t { kWait, kSkip };
enum class FailPolicy : uint8_t { kContinue, kAbort };
enum class TagValidation : uint8_t { kWarn, kIgnore, kFail };
constexpr std::array<const char*, 2> names_of(WhenBusy) { return {"wait", "skip"}; }
constexpr std::array<const char*, 2> names_of(FailPolicy) { return {"continue", "abort"}; }
constexpr std::array<const char*, 3> names_of(TagValidation) { return {"warn", "ignore", "fail"}; }

struct CheckpointConfig : Retention, WriteOptions, FitOptions {
  CheckpointConfig() {
    threads = 2;
    direct_io = DirectIo::kAuto;
  }
  std::string dir, every = "auto", staging_bytes = "auto", resume = "auto", load_from;
  double mtbf_hours = 0;
  bool async = true;
  WhenBusy when_busy = WhenBusy::kWait;
  FailPolicy fail_policy = FailPolicy::kContinue;
  TagValidation tag_validation = TagValidation::kWarn;
  std::vector<std::string> load = {"all"}, allow_change;
  template <class V>
  void fields(V& v) {
    v("dir", dir, "", "checkpoint folder; empty: RUN/checkpoints");
    v("every", every, "auto|STEPS",
      "steps between saves, plus one at the end; 0: only at the end; auto: after 5 minutes, then at the optimal "
      "interval for the cost of a save and mtbf_hours");
    v("mtbf_hours", mtbf_hours, "0..1e6 hours",
      "every auto: mean time between failures of the whole job; 0: 50000 / ranks, from 0.5 to 24");
    Retention::fields(v);
    v("async", async, "", "write asynchronously during training, from a snapshot in host memory");
    v("staging_bytes", staging_bytes, "auto|BYTES",
      "limit of a rank's snapshot in host memory; auto: free memory; training waits for the write if it does not fit");
    v("when_busy", when_busy, "", "action if a save is due while the previous one is running");
    v("fail_policy", fail_policy, "", "after three consecutive failed saves: continue, or abort with exit code 74");
    WriteOptions::fields(v);
    v("tag_validation", tag_validation, "",
      "if ranks disagree on the checkpoint to write, it is not written: warn, ignore, or exit with code 70");
    v("resume", resume, "auto|never|STEP", "auto: the newest valid checkpoint; a number: exactly that step");
    v("load_from", load_from, "", "run or checkpoint to start from if this run has no checkpoint of its own");
    v("load", load, "", "parts loaded from load_from: all, or some of weights optim schedule data");
    v("allow_change", allow_change, "", "keys or sections that may differ from the checkpoint's: optim.lr schedule");
    FitOptions::fields(v);
  }

  // Requires: a checked config.
  bool saves_by_time() const { return every == "auto"; }
  int64_t save_steps() const { return saves_by_time() ? 0 : std::stoll(every); }  // 0: saves are driven by time
};

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kCritical };
enum class TraceRanks : uint8_t { kPipeline, kAll };
constexpr std::array<const char*, 5> names_of(LogLevel) { return {"debug", "info", "warning", "error", "critical"}; }
constexpr std::array<const char*, 2> names_of(TraceRanks) { return {"pp", "all"}; }

struct LogConfig {
  std::string dir = "runs", name, trace_steps, samples_tensorboard, samples_csv, flops_file, prometheus;
  LogLevel level = LogLevel::kInfo;
  OnOff progress = OnOff::kAuto;
  TraceRanks trace_ranks = TraceRanks::kPipeline;
  int64_t every = 1, lamb_every = 0, flops_step = 0, flops_depth = -1, flops_top = 1;
  int64_t report_every = 0, norms_every = 0, histograms_every = 0;
  double flops_recompute_factor = 0;
  bool report = true, tensorboard = true, csv = false, comm = false, timers = false, memory = false, config = false,
       flops_detailed = true;
  template <class V>
  void fields(V& v) {
    v("dir", dir, "", "folder of all runs");
    v("name", name, "", "the run's folder below log.dir; empty: the config file's name, or gpt2-LxH");
    v("every", every, "1.. steps", "steps between log lines and curve points");
    v("lamb_every", lamb_every, "0.. steps", "lamb: steps between logs of every tensor's trust ratio; 0: never");
    v("tensorboard", tensorboard, "", "write TensorBoard event files");
    v("csv", csv, "", "write RUN/metrics.csv, one row per step");
    v("prometheus", prometheus, "[ADDRESS:]PORT",
      "rank 0 answers GET /metrics there with the newest values, in Prometheus' text format; without an address only "
      "on 127.0.0.1; empty: no port is opened");
    v("report", report, "", "write RUN/report.html at the end; gpttrain report writes it for any run folder");
    v("report_every", report_every, "0.. steps", "also write the report every this many steps; 0: only at the end");
    v("norms_every", norms_every, "0.. steps",
      "steps between logs of gradient norms by layer, the norm of all parameters and that of their update; such a step "
      "copies this rank's parameters to host memory; 0: never");
    v("histograms_every", histograms_every, "0.. steps",
      "steps between histograms of every parameter, its gradient and its update in TensorBoard; 0: never");
    v("comm", comm, "", "print a table of communication at the end: calls, bytes, time");
    v("samples_tensorboard", samples_tensorboard, "FOLDER",
      "TensorBoard curves under DeepSpeed's names over samples instead of steps; empty: none");
    v("samples_csv", samples_csv, "FOLDER", "the same as CSV, one file per curve; empty: none");
    v("timers", timers, "", "log a time breakdown every log.every steps, also in the curves of log.samples_*");
    v("memory", memory, "", "log memory use every log.every steps");
    v("flops_step", flops_step, "0.. steps", "print FLOPs and time of each module in this step; 0: never");
    v("flops_depth", flops_depth, "-1..16 levels", "levels of modules in that table below the whole model; -1: all");
    v("flops_top", flops_top, "1..1000 modules", "modules per level in the summary");
    v("flops_detailed", flops_detailed, "", "list every module, not only the summary");
    v("flops_file", flops_file, "FILE", "file of the table; empty: the log");
    v("flops_recompute_factor", flops_recompute_factor, "0..1",
      "fraction of the forward that the table counts again in the backward, for recomputation");
    v("config", config, "", "print the effective config at the start; RUN/config.json holds it anyway");
    v("level", level, "", "warning and above: quiet output, as with --quiet");
    v("progress", progress, "", "progress bar instead of lines; auto: on a terminal");
    v("trace_steps", trace_steps, "FIRST:END",
      "record steps FIRST to END - 1 in RUN/trace-FIRST.json.gz, for ui.perfetto.dev; empty: none");
    v("trace_ranks", trace_ranks, "", "ranks to trace: the pipeline of (dp 0, tp 0), or all");
  }
};

enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };
constexpr std::array<const char*, 3> names_of(DeviceChoice) { return {"auto", "cpu", "cuda"}; }

struct DeviceConfig {
  DeviceChoice kind = DeviceChoice::kAuto;
  int64_t threads = 0;
  CpuIsa isa = CpuIsa::kAuto;
  GemmTune gemm_tune = GemmTune::kHeuristic;
  std::string gemm_plans;
  OnOff graphs = OnOff::kAuto;
  AttentionBy attention = AttentionBy::kAuto;
  template <class V>
  void fields(V& v) {
    v("kind", kind, "", "compute device");
    v("threads", threads, "0..1024 threads", "host threads per rank; 0: cores / local ranks, at least 1");
    v("isa", isa, "",
      "instruction set of the CPU kernels; amx: also f32 GEMMs run on its tiles, as sums of bf16 products; avx512 and "
      "below: in f32 arithmetic");
    v("gemm_tune", gemm_tune, "",
      "GPU: use cuBLASLt's first heuristic for each GEMM, or time up to 32 candidates once and store the fastest in "
      "device.gemm_plans");
    v("gemm_plans", gemm_plans, "FILE",
      "GPU: file of previously chosen algorithms, for bitwise reproducibility; empty: none, or with auto a file in "
      "~/.cache/gpttrain");
    v("graphs", graphs, "",
      "GPU: replay compute actions as CUDA graphs from their second run on, bitwise identical; auto: if there is a "
      "GPU");
    v("attention", attention, "",
      "GPU: auto: cuDNN if it supports the shape, else our own kernels; cudnn: only cuDNN; own: only our kernels");
  }
};

enum class CommBackend : uint8_t { kAuto, kNccl, kDirect, kStaged };
constexpr std::array<const char*, 4> names_of(CommBackend) { return {"auto", "nccl", "direct", "staged"}; }

struct CommConfig {
  CommBackend backend = CommBackend::kAuto;
  std::string nccl_library, interface;
  double stall_warn_s = 0, stall_abort_s = 600;
  template <class V>
  void fields(V& v) {
    v("backend", backend, "",
      "transport between GPUs; direct: within one GPU shared by ranks as threads; staged: through host memory; auto: "
      "direct if possible, else NCCL if it loads and passes a trial, else staged");
    v("nccl_library", nccl_library, "path", "path of NCCL; empty: libnccl.so.2 as found by the loader");
    v("interface", interface, "NAME|a.b.c.d/n",
      "network interface or IPv4 subnet for ranks of several machines (Open MPI, NCCL); empty: their own choice; ranks "
      "of one machine use no network");
    v("stall_warn_s", stall_warn_s, "0..86400 seconds",
      "report longer waits in a step with the missing ranks; 0: max(10, 5 x p99 step)");
    v("stall_abort_s", stall_abort_s, "0..1000000 seconds",
      "longer waits end the run with exit code 124 and RUN/hang-TIME; 0: never");
  }
};

struct FaultConfig : GuardOptions {
  std::string inject;
  int64_t skip_batches = 200, replica_check_every = 100, recheck_every = 0, peer_copies = 0, peer_copy_every = 1;
  template <class V>
  void fields(V& v) {
    GuardOptions::fields(v);
    v("skip_batches", skip_batches, "0..1000000 batches", "batches to skip around the anomalous one after a rollback");
    v("replica_check_every", replica_check_every, "0..1000000000 steps",
      "steps between checks that replicated state is identical on all ranks, also before every checkpoint; a "
      "difference ends the run with exit code 16; 0: never");
    v("recheck_every", recheck_every, "0..1000000000 steps",
      "run every Nth step twice and compare the gradients, for unreliable hardware; 0: never");
    v("peer_copies", peer_copies, "0..8 machines",
      "with launch.max_restarts: keep copies of each rank's state in the memory of its machine and of N others, so "
      "that a restart loses no step; 0: restart from the newest checkpoint");
    v("peer_copy_every", peer_copy_every, "1..1000000 steps", "steps between such copies");
    v("inject", inject, "", "fault injection, for tests: kill@step:rank=1,step=5 nan@grad:param=embed.weight,step=9");
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
    return parallel.tp > 1 && parallel.sequence_parallel != AutoBool::kFalse && model.seq % parallel.tp == 0;
  }
  int64_t world() const { return parallel.tp * parallel.pp * parallel.dp; }
  std::string run_dir() const { return log.dir + "/" + log.name; }
  std::string checkpoint_dir() const { return checkpoint.dir.empty() ? run_dir() + "/checkpoints" : checkpoint.dir; }
};

// Returns all options in section order; their targets point into `config`.
std::vector<Option> list_options(Config& config);

// A model that exists, and what a run of it takes where the user sets nothing.
struct GivenModel {
  ModelConfig model;
  std::string file;       // that describes it
  std::string folder;     // absolute; of the weights
  std::string tokenizer;  // data.tokenizer; "": none
  std::string name;       // log.name
};

// Value of a key that nothing else sets: the default of another trainer whose command line this is.
struct AbsentSetting {
  std::string key;
  std::vector<std::string> words;  // as in command-line syntax
  std::string there;               // as the other trainer writes it, for the start block: "--adam-beta2 0.999"
};

struct ConfigSource {
  std::string file;                // --config; "" = none
  std::vector<std::string> flags;  // "--section.key" and values, as on the command line; override the file, and the
                                   // last occurrence wins
  int external_world = 0;          // ranks of an external launcher; 0: none
  bool needs_data = false;         // data.train is mandatory (subcommands train and bench data)
  ForeignReader foreign = {};      // another trainer's file, which overrides `file`; empty: none
  std::string world_source = {};   // launcher variable that set external_world
  const ForeignNames* names = nullptr;        // of another trainer, for suggestions; nullptr: none
  std::vector<std::string> other_flags = {};  // flags of the subcommand, for "did you mean"
  std::string command = "train";              // the subcommand, for "see gpttrain train --help"
  std::vector<std::string> keys = {};         // accepted as flags by it (KeyFilter); empty: all
  Problems problems = {};                     // already found on the command line
  // Sections and keys to read from `file`, ignoring the rest, for files that the user did not write. Empty: read
  // everything and report unknown keys.
  std::vector<std::string> only = {};
  // Its values take the place of the family's; what the user sets may not contradict them. nullptr: none.
  const GivenModel* given = nullptr;
  std::vector<AbsentSetting> absent = {};  // override the defaults, a family's too; given weights override them
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

// Returns whether a key of section model, "dropout", concerns training alone: weights fit any value of it.
bool of_training(const std::string& model_key);

// Returns whether a flag name (without dashes) is a config key or an alias of one.
bool is_config_flag(const std::string& name);

// Returns whether `key` matches one of the patterns: a key, or a section with a trailing dot. Empty: matches all.
bool admits(const std::vector<std::string>& patterns, const std::string& key);

// Returns the effective config as JSON with all defaults. Round-trips through load_config to the same text.
std::string config_json(const Config& config);

// Returns the --help text of the config keys that match `patterns` (admits), by section.
std::string config_help(const std::vector<std::string>& patterns = {});

}  // namespace gt
