// Arguments of each subcommand, one struct each, with fields() lists like the config sections, which drive flags,
// --help and "did you mean" (launch/options/options.h). Values only. The flag --max-tokens is the field "max-tokens"; a
// domain that begins with "required" is mandatory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/samples/sample_order.h"

namespace gt {

const char* device_type_names();  // launch/plan/machine_types.h

struct TrainArgs {
  std::string from;
  bool force = false, quiet = false, dry_run = false, lr_range_test = false, ignore_unknown = false;
  int64_t print_sbatch = 0;
  template <class V>
  void fields(V& v) {
    v("from", from, "",
      "start a run from a Hugging Face folder: its architecture, weights and tokenizer; everything else by flags");
    v("ignore-unknown", ignore_unknown, "", "--from: ignore unknown keys of config.json, which may change the model");
    v("force", force, "", "allow a fresh start (--checkpoint.resume never) in a run directory that is not empty");
    v("quiet", quiet, "", "print only the first loss, evaluations, warnings and the end");
    v("dry-run", dry_run, "",
      "print the start block and whether the run fits in memory, without starting or writing anything; exit code 0 in "
      "both cases");
    v("print-sbatch", print_sbatch, "0..100000 nodes",
      "print a Slurm batch script that runs this on N nodes and requeues after an interruption; 0: none");
    v("lr_range_test", lr_range_test, "",
      "raise the learning rate from optim.lr / 100 to 10 x optim.lr (or as set by schedule.type lr_range_test) and "
      "suggest a peak; saves no checkpoint");
  }
};

struct TokenizerTrainArgs {
  std::vector<std::string> input, special;
  std::string type = "bpe", output, control, json_key = "text";
  int64_t vocab = 8192, seed = 1234, threads = 0;
  double sample_mb = 20, coverage = 0.9995;
  template <class V>
  void fields(V& v) {
    v("input", input, "required",
      "text or JSON lines: files, folders, patterns, - for standard input; gzip is unpacked");
    v("json-key", json_key, "", "JSON lines: the field that holds the text");
    v("vocab", vocab, "16..1000000 tokens", "size of the vocabulary");
    v("type", type, "bpe|unigram", "segmentation model");
    v("output", output, "required", "X.model; X.vocab and X.meta.json are written beside it");
    v("sample-mb", sample_mb, ">0..10000 MB", "amount of text sampled for training, by lines");
    v("coverage", coverage, "0.98..1", "fraction of characters covered by pieces; others use byte fallback");
    v("special", special, "", "additional symbols that are never split, after <|endoftext|> and newline");
    v("control", control, "",
      "comma-separated names of control symbols, which no text contains; masked language models need CLS,SEP,MASK, "
      "which become [CLS], [SEP] and [MASK]");
    v("seed", seed, "0..", "seed of the line sampling");
    v("threads", threads, "0..1024 threads", "threads that read the inputs; 0: all cores");
  }
};

struct TokenizerEncodeArgs {
  std::vector<std::string> text, input;
  std::string tokenizer, ids_binary;
  bool pieces = false;
  int64_t threads = 0;
  template <class V>
  void fields(V& v) {
    v("tokenizer", tokenizer, "required",
      "SentencePiece model, tokenizer.json, vocab.json, vocab.txt, tekken.json, tiktoken's ranks, or a folder with "
      "one");
    v("text", text, "", "text to encode, one line each; ids are those of the text alone, without BOS and EOS");
    v("input", input, "",
      "files, folders, patterns, -; without --text and --input standard input; of JSON lines in files the field text");
    v("pieces", pieces, "", "print pieces instead of ids");
    v("ids-binary", ids_binary, "u16|i32", "write little-endian ids without line structure; newlines are encoded too");
    v("threads", threads, "0..1024 threads", "0: all cores");
  }
};

struct TokenizerDecodeArgs {
  std::vector<std::string> ids, input;
  std::string tokenizer, ids_binary;
  bool pieces = false;
  template <class V>
  void fields(V& v) {
    v("tokenizer", tokenizer, "required",
      "SentencePiece model, tokenizer.json, vocab.json, vocab.txt, tekken.json, tiktoken's ranks, or a folder with "
      "one");
    v("ids", ids, "", "token ids, or pieces with --pieces");
    v("input", input, "", "files, folders, patterns, -; without --ids and --input standard input");
    v("pieces", pieces, "", "read pieces instead of ids");
    v("ids-binary", ids_binary, "u16|i32", "read little-endian ids without line structure");
  }
};

struct DataPrepareArgs {
  std::vector<std::string> input;
  std::string tokenizer, output, format = "auto", json_key = "text", split_docs = "file", on_bad = "fail", separator;
  std::string chat_template;
  int64_t threads = 0, memory_mb = 512, max_doc_mb = 64, max_tokens = 0;
  bool no_eod = false, no_bos = false, strict_utf8 = false, check_cache = false, force = false, ignore_unknown = false;
  template <class V>
  void fields(V& v) {
    v("input", input, "required", "text or JSON lines: files, folders, patterns, -; gzip is unpacked");
    v("tokenizer", tokenizer, "required",
      "SentencePiece model, tokenizer.json, vocab.json, vocab.txt, tekken.json, tiktoken's ranks, or a folder with "
      "one");
    v("output", output, "required",
      "PREFIX: PREFIX.bin, PREFIX.idx, PREFIX.meta.json (chat, instruct: PREFIX.mask) are written");
    v("format", format, "auto|jsonl|text|chat|instruct",
      "auto: .jsonl .json .ndjson and files that begin with JSON objects are JSON lines, the rest is text; chat: JSON "
      "lines of {\"messages\": [{\"role\", "
      "\"content\"}...]}; instruct: of {\"instruction\", \"input\", \"output\"}; both also write PREFIX.mask: loss on "
      "the "
      "assistant's tokens only");
    v("template", chat_template, "", "chat, instruct: chatml (default), llama3, mistral, plain, or a template file");
    v("max-tokens", max_tokens, "0..1048576 tokens", "chat, instruct: truncate longer conversations; 0: unlimited");
    v("ignore-unknown", ignore_unknown, "",
      "chat, instruct: pass over keys that may change what a message or line means, such as tool_calls");
    v("json-key", json_key, "", "JSON lines: the field that holds the text");
    v("split-docs", split_docs, "file|blank-line|line|sep",
      "text: document separator; sep: a line equal to --separator");
    v("separator", separator, "", "--split-docs sep: the line between documents, such as % or <|endoftext|>");
    v("no-eod", no_eod, "", "do not end each document with <|endoftext|>");
    v("no-bos", no_bos, "",
      "do not write what the tokenizer puts around every text as the model was trained: BOS, sometimes EOS");
    v("threads", threads, "0..1024 threads", "encoder threads; 0: all cores, within memory-mb");
    v("memory-mb", memory_mb, "1..1048576 MB", "memory limit; does not affect the output");
    v("on-bad", on_bad, "fail|skip", "action on invalid JSON, a missing key, or a line above max-doc-mb");
    v("strict-utf8", strict_utf8, "",
      "treat invalid UTF-8 as an error too; otherwise its bytes become U+FFFD and are counted");
    v("max-doc-mb", max_doc_mb, "1..4096 MB", "longest line");
    v("check-cache", check_cache, "", "encode every 1024th document again without the word cache, and compare");
    v("force", force, "", "start over and replace existing output");
  }
};

struct DataInspectArgs {
  std::string path, tokenizer, split = "all", shares = "969,30,1";
  SampleOrder data_order = SampleOrder::kEpoch;
  int64_t doc = -1, sample = -1, seq = 1024, samples = 10, seed = 1234, dp = 1, micro_batch = 1;
  bool order = false, full = false;
  template <class V>
  void fields(V& v) {
    v("path", path, "required", "PREFIX of the token files, or llm.c's .bin or a glob of them; also positional");
    v("tokenizer", tokenizer, "", "also print text; must be the tokenizer of the tokens");
    v("doc", doc, "0..", "print this document");
    v("full", full, "", "--doc: print it completely; otherwise the first 256 tokens");
    v("sample", sample, "0..", "print this sample of seq + 1 tokens");
    v("order", order, "", "print the start of each sample as CSV");
    v("samples", samples, "1..", "--order: number of samples; with data.order megatron that of the whole run");
    v("seq", seq, "1.. tokens", "--sample, --order: length of a sample");
    v("seed", seed, "0..", "--sample, --order: train.seed of the run");
    v("data.order", data_order, "", "--sample, --order: as in the run");
    v("dp", dp, "1..1048576", "--data.order llmc, llmc_shuffled: parallel.dp of the run");
    v("micro-batch", micro_batch, "1..1048576", "--data.order llmc, llmc_shuffled: train.micro_batch of the run");
    v("split", split, "all|train|valid|test", "--sample, --order: one split of the file, or all as with data.valid");
    v("data.split", shares, "", "--split: the proportions");
  }
};

struct EvalArgs {
  std::string load, split = "valid", out;
  std::vector<std::string> tasks;
  int64_t steps = 0;
  template <class V>
  void fields(V& v) {
    v("load", load, "required", "checkpoint folder, a step of it, or a run directory");
    v("split", split, "train|valid|test", "split to evaluate");
    v("steps", steps, "0.. batches",
      "number of global batches (train.global_batch of the run); 0: the whole split once");
    v("tasks", tasks, "FILE",
      "multiple-choice questions instead of a split: JSON lines of {\"context\", \"choices\": [...], \"answer\": "
      "index} "
      "and optionally \"task\", \"id\"; contexts begin with the tokenizer's BOS if it has one, unless --no-bos");
    v("out", out, "FILE",
      "write the results with standard errors as one JSON object; appended as a line if the file is X.jsonl");
  }
};

struct GenerateArgs {
  std::string load, prompt, prompt_file, tokenizer;
  std::vector<std::string> stop;
  int64_t max_tokens = 64, top_k = 0, seed = 1, num_samples = 1, batch = 8, shift = 0;
  double temperature = 0.8, top_p = 1;
  bool json = false, no_cache = false;
  template <class V>
  void fields(V& v) {
    v("load", load, "required", "checkpoint folder, a step of it, or a run directory");
    v("prompt", prompt, "",
      "prompt text, after the tokenizer's BOS if it has one (--no-bos: without it); -: standard input; empty: a new "
      "document");
    v("prompt-file", prompt_file, "FILE",
      "file with one prompt per line, or X.jsonl with \"prompt\" or \"text\" fields; -: standard input");
    v("num-samples", num_samples, "1..1000000", "texts for each prompt");
    v("max-tokens", max_tokens, "1..1048576 tokens", "maximum number of new tokens");
    v("stop", stop, "", "strings that end a text; not printed");
    v("temperature", temperature, "0..100", "sampling temperature; 0: greedy");
    v("top-k", top_k, "0.. tokens", "sample from the k most probable tokens; 0: all");
    v("top-p", top_p, ">0..1", "nucleus sampling: sample from the smallest set of tokens with this probability");
    v("seed", seed, "0..", "seed of the sampling");
    v("batch", batch, "1..4096 texts", "texts decoded concurrently per data-parallel replica");
    v("shift", shift, "0..1048576 tokens",
      "tokens by which a full context window advances, each time recomputing the window; 0: an eighth");
    v("tokenizer", tokenizer, "",
      "SentencePiece model, tokenizer.json, vocab.json, vocab.txt, tekken.json or a folder with one; empty: the run's");
    v("json", json, "", "print one JSON object per completed text");
    v("no-cache", no_cache, "", "recompute all keys and values for every token; slower, same texts on a CPU");
  }
};

struct ScheduleArgs {
  int64_t pp = 0, vpp = 0, microbatches = 0, extra_in_flight = 0, boundary_bytes = 0, tied_bytes = 0;
  std::string comm;
  std::string schedule = "1f1b", check, trace;
  std::vector<double> cost = {1, 2};
  double transfer = 0, wire = 0, tied_wire = 0;
  bool tied = false;
  template <class V>
  void fields(V& v) {
    v("schedule", schedule, "1f1b|gpipe|interleaved|zb-h1|forward|FILE", "a pipeline schedule, or file:PATH");
    v("pp", pp, "0..256 stages", "pipeline ranks; 0: 4, or the file's");
    v("vpp", vpp, "0..64 chunks", "model chunks per rank; 0: 1 (interleaved: 2), or the file's");
    v("microbatches", microbatches, "0..4096", "microbatches per step; 0: 2 pp, or the file's");
    v("extra_in_flight", extra_in_flight, "0..1024 microbatches", "1f1b: as parallel.extra_in_flight");
    v("cost", cost, ">0..", "time of a forward and of a backward");
    v("transfer", transfer, "0..1e9",
      "time between the send of an activation or gradient and its arrival, as in --cost");
    v("wire", wire, "0..1e9",
      "how long an activation or gradient occupies the line before that; the next one waits meanwhile");
    v("tied_wire", tied_wire, "0..1e9", "with --tied: how long the tied gradient occupies it");
    v("comm", comm, "FILE",
      "transfers from this result of `gpttrain bench comm --out`; --cost is in milliseconds then");
    v("boundary_bytes", boundary_bytes, "0.. bytes", "with --comm: size of an activation between stages");
    v("tied_bytes", tied_bytes, "0.. bytes", "with --comm and --tied: size of the tied gradient");
    v("tied", tied, "", "first and last stage have tied embeddings: adds T");
    v("check", check, "", "schedule file: check whether a run would accept it, print nothing else");
    v("trace", trace, "", "also write the simulated step to this file, for ui.perfetto.dev (X.json.gz, X.json)");
  }
};

struct ReportArgs {
  std::vector<std::string> runs;
  std::string output;
  template <class V>
  void fields(V& v) {
    v("runs", runs, "required", "run folders; several are overlaid; also positional");
    v("output", output, "FILE", "the page; empty: RUN/report.html, of several runs report.html");
  }
};

struct CompareArgs {
  std::vector<std::string> runs;
  std::string html;
  bool json = false;
  template <class V>
  void fields(V& v) {
    v("runs", runs, "required", "two or more run folders; also positional");
    v("html", html, "FILE", "also write the report of all runs, with their curves overlaid");
    v("json", json, "", "print one JSON object");
  }
};

struct WatchArgs {
  std::string run;
  double interval = 2;
  bool once = false;
  template <class V>
  void fields(V& v) {
    v("run", run, "required", "run folder; also positional");
    v("interval", interval, ">0..3600 seconds", "time between two updates");
    v("once", once, "", "show the present state and end");
  }
};

struct PlanArgs {
  int64_t devices = 0, devices_per_node = 0, top = 10, trials = -1;
  bool search = false, require_match = false, json = false, calibrate = false, why = false;
  std::string device_type = "H100", device_figures, profile, fit, rows, output;
  std::vector<std::string> keep;
  double price = 0, watts = 0, tokens = 0;
  template <class V>
  void fields(V& v) {
    v("devices", devices, "0..1048576", "number of devices; 0: tp x pp x dp of the config");
    v("device_type", device_type, device_type_names(), "device type; need not be present on this machine");
    v("device_figures", device_figures, "",
      "a device that --device_type does not list, as in 989T,80G,3.35T: dense 16-bit FLOP/s, memory, its bytes/s; "
      "then, if "
      "known, bytes/s of an all-reduce inside a node and of the node's ports");
    v("devices_per_node", devices_per_node, "0..1024",
      "devices connected by fast links; 0: typical of the device type");
    v("search", search, "", "list the fastest layouts that fit instead of planning the config's own");
    v("top", top, "1..1000 layouts", "--search: number of layouts to list");
    v("keep", keep, "", "--search: keys to fix, as in parallel.tp=8");
    v("profile", profile, "",
      "machine constants and block times fitted by --fit: FILE, or FILE:NAME; empty: typical of the device type");
    v("require_match", require_match, "", "exit with code 2 if the plan does not fit");
    v("calibrate", calibrate, "",
      "--device_type cpu: measure the ops and the communication of the config's step, or of --search's layouts, on "
      "this machine first, for at most about a minute; kept in the user's cache folder for later plans and runs");
    v("trials", trials, "-1..64 layouts",
      "--search --calibrate: train this many of the layouts planned fastest for some steps each, for at most "
      "about 150 seconds, and list them first, by their measured steps; -1: 24");
    v("why", why, "", "name the limiting term and the smallest changes that fit or that are faster");
    v("tokens", tokens, "0..1e18 tokens", "tokens to train on, for time, energy and cost; 0: those of train.steps");
    v("price", price, "0..1e6", "price per device hour, to estimate the cost of the run");
    v("watts", watts, "0..1e5 W", "power per device with its share of the machine, to estimate the energy of the run");
    v("json", json, "", "print the plan as JSON");
    v("fit", fit, "",
      "fit machine constants and block times to a table of measured steps (CSV) and write them to --output");
    v("rows", rows, "", "predict every row of a table of measured steps (CSV), with --profile if given");
    v("output", output, "", "output file of --fit (JSON) or --rows (CSV); empty: standard output (--rows only)");
  }
};

struct LrArgs {
  std::string csv;
  template <class V>
  void fields(V& v) {
    v("csv", csv, "", "write step,lr[,beta1,beta2] of every step to this file; -: to standard output, nothing else");
  }
};

struct CkptArgs {
  std::string dir;
  bool json = false;
  template <class V>
  void fields(V& v) {
    v("dir", dir, "required", "checkpoint folder or run directory; also positional");
    v("json", json, "", "print one JSON object");
  }
};

struct CkptInspectArgs {
  std::string dir, tensor;
  bool stats = false, json = false;
  template <class V>
  void fields(V& v) {
    v("dir", dir, "required", "checkpoint folder, a step of it, or run directory; also positional");
    v("tensor", tensor, "", "only this tensor, for example master/embed.weight");
    v("stats", stats, "", "read the tensors: min, max, mean, rms, number of non-finite elements");
    v("json", json, "", "print one JSON object");
  }
};

struct CkptVerifyArgs {
  std::string dir;
  bool all = false, deep = false, json = false;
  template <class V>
  void fields(V& v) {
    v("dir", dir, "required", "a step; or checkpoint folder or run directory for its newest step; also positional");
    v("all", all, "", "every step of the folder");
    v("deep", deep, "", "also open the shards with libhdf5 in a child process and compare the contents");
    v("json", json, "", "print one JSON object");
  }
};

struct CkptDiffArgs {
  std::vector<std::string> checkpoints;
  double tol = 0;
  int64_t show = 10;
  bool json = false;
  template <class V>
  void fields(V& v) {
    v("checkpoints", checkpoints, "required", "two: steps, checkpoint folders or run directories; also positional");
    v("tol", tol, "0..1e9", "largest difference relative to the tensor's largest magnitude that counts as equal");
    v("show", show, "1..", "number of worst tensors and state entries to print");
    v("json", json, "", "print one JSON object");
  }
};

struct CkptPruneArgs {
  std::string dir;
  int64_t keep = 3, keep_every = 0, keep_best = 1;
  bool dry_run = false, json = false;
  template <class V>
  void fields(V& v) {
    v("dir", dir, "required", "checkpoint folder or run directory; also positional");
    v("keep", keep, "1..100000", "newest steps kept");
    v("keep-every", keep_every, "0.. steps", "also keep every step divisible by this; 0: none");
    v("keep-best", keep_best, "0..1000, or true or false",
      "also keep the steps of this many best validation losses; true: 1");
    v("dry-run", dry_run, "", "report what would be removed and why, without removing it");
    v("json", json, "", "print one JSON object");
  }
};

struct ExportArgs {
  std::string load, format = "safetensors", dtype, naming, output, max_shard = "5GB";
  int64_t step = -1;
  bool force = false;
  template <class V>
  void fields(V& v) {
    v("load", load, "required", "checkpoint folder, a step of it, or a run directory");
    v("step", step, "0..", "step of the folder; default: the newest valid one");
    v("format", format, "safetensors|hdf5|peft",
      "safetensors: a folder; hdf5: one file, native names; both with adapters merged. peft: the adapters alone, as "
      "PEFT "
      "reads them");
    v("dtype", dtype, "f32|bf16|f16|int8",
      "dtype of the weights; default: f32, for a Hugging Face folder that of the folder that the run began from; int8: "
      "matrices quantized per row, each with its .scale");
    v("naming", naming, "hf|native",
      "hf: Hugging Face folder of the model's family with tokenizer.json; default: hf for safetensors, native for int8 "
      "and hdf5");
    v("max-shard", max_shard, "SIZE",
      "safetensors: maximum file size, as in 500MB, 5GB; larger exports are split, with an index");
    v("output", output, "required", "folder (safetensors) or file (hdf5)");
    v("force", force, "", "replace existing output");
  }
};

struct ImportArgs {
  std::string from, output, tokenizer;
  int64_t heads = 0;
  bool allow_nonfinite = false, ignore_unknown = false;
  template <class V>
  void fields(V& v) {
    v("from", from, "required",
      "Hugging Face folder (safetensors) of a family of model.arch, PEFT folder of LoRA adapters, our HDF5 export, or "
      "llm.c GPT-2 .bin");
    v("output", output, "required", "checkpoint folder; step-000000000 is written there");
    v("tokenizer", tokenizer, "",
      "SentencePiece model, tokenizer.json, vocab.json, vocab.txt, tekken.json or tiktoken's ranks to keep with the "
      "weights, instead of the "
      "folder's");
    v("heads", heads, "0..65536",
      "attention heads, if the file does not contain them (foreign HDF5); 0: from the file");
    v("allow-nonfinite", allow_nonfinite, "", "accept weights with NaN or infinity");
    v("ignore-unknown", ignore_unknown, "", "ignore unknown keys of config.json, which may change the model");
  }
};

struct BenchArgs {
  int64_t warmup = -1, steps = 0;
  std::string out, history;
  template <class V>
  void fields(V& v) {
    v("warmup", warmup, "-1..1000000 steps", "warm-up steps; -1: 20, on a CPU 5");
    v("steps", steps, "0..1000000 steps", "measured steps; 0: at least 50, on a CPU 10, and at least 20 seconds");
    v("out", out, "FILE", "write the result as one JSON object; appended as a line if the file is X.jsonl");
    v("history", history, "FILE", "append the result as a line and print its ratio to the last comparable one");
  }
};

struct NoArgs {
  template <class V>
  void fields(V&) {}
};

struct BenchOpsArgs {
  bool gemms = false;
  template <class V>
  void fields(V& v) {
    v("gemms", gemms, "", "only GEMMs");
  }
};

struct CeilingsArgs {
  std::string output;
  template <class V>
  void fields(V& v) {
    v("output", output, "FILE", "output file; empty: the user's cache folder, from which training reads it");
  }
};

struct PeerArgs {
  std::string run, pattern, unit = "ms", note, out;
  int64_t tokens = 0, skip = 5, pairs = 5, steps = 0, warmup = -1;
  template <class V>
  void fields(V& v) {
    v("run", run, "required", "shell command of the baseline; its output is parsed for step lines");
    v("pattern", pattern, "REGEX",
      "regular expression of a step line of the baseline, with the number as first group; empty: llm.c, llmq, or N "
      "tokens/s");
    v("unit", unit, "ms|s|tokens/s", "unit of that number");
    v("tokens", tokens, "0.. tokens", "tokens per step of the baseline; 0: same as ours");
    v("skip", skip, "0..1000000 steps", "warm-up steps of the baseline to ignore");
    v("pairs", pairs, "1..1000", "pairs of runs, ours and the baseline's");
    v("steps", steps, "0..1000000 steps", "our measured steps, as in gpttrain bench");
    v("warmup", warmup, "-1..1000000 steps", "our warm-up steps, as in gpttrain bench");
    v("note", note, "", "stored with the result: the baseline's commit, precision, bytes of optimizer state");
    v("out", out, "FILE", "write the result as one JSON object; appended as a line if the file is X.jsonl");
  }
};

struct SuiteArgs {
  std::vector<std::string> cases;
  std::string scale = "auto", device = "auto", out;
  int64_t runs = 5, warmup = 20, steps = 100;
  template <class V>
  void fields(V& v) {
    v("case", cases, "NAME", "cases as in DP_1x1x1_2_1536x16; default: every published one that fits the machine");
    v("scale", scale, "auto|full|tiny",
      "tiny: an eighth of the width, a quarter of the layers, 128 tokens; auto: tiny on a CPU");
    v("device", device, "auto|cpu|cuda", "compute device");
    v("runs", runs, "1..100", "runs of a case, each a fresh process; the result is their median");
    v("warmup", warmup, "0..1000000 steps", "warm-up steps of a run");
    v("steps", steps, "1..1000000 steps", "measured steps of a run; their mean is the run's time");
    v("out", out, "FILE", "write the result as one JSON object; appended as a line if the file is X.jsonl");
  }
};

struct RooflineArgs {
  std::string ceilings = "auto";
  template <class V>
  void fields(V& v) {
    v("ceilings", ceilings, "auto|planning|FILE",
      "auto: stored results of bench ceilings for this device, else planning; planning: assumed rates of an H200; or a "
      "file of bench ceilings --output");
  }
};

struct CommArgs {
  int64_t most = 16;
  std::string out;
  template <class V>
  void fields(V& v) {
    v("most", most, "1..4096 MiB", "largest tensor; sizes start at 4 KiB and quadruple");
    v("out", out, "FILE", "write the result as one JSON object; appended as a line if the file is X.jsonl");
  }
};

struct DataBenchArgs {
  int64_t steps = 0;
  std::string out;
  template <class V>
  void fields(V& v) {
    v("steps", steps, "0..1000000 steps", "measured steps; 0: at least 20, and at least 2 seconds");
    v("out", out, "FILE", "write the result as one JSON object; appended as a line if the file is X.jsonl");
  }
};

struct CheckArgs {
  std::vector<std::string> file;
  std::string folder, marker;
  bool here = false, links = false;
  template <class V>
  void fields(V& v) {
    v("file", file, "PATH", "additional files that every host must have, of the same size");
    v("here", here, "", "print the facts of this machine as JSON, nothing else; what check runs on each host");
    v("folder", folder, "PATH", "--here: folder whose free disk space is reported");
    v("marker", marker, "PATH", "--here: a file whose first bytes are reported");
    v("links", links, "", "only measure latency and bandwidth of each pair of ranks");
  }
};

struct CompletionArgs {
  std::string shell = "bash";
  template <class V>
  void fields(V& v) {
    v("shell", shell, "bash|zsh|fish", "shell that the script is for");
  }
};

struct VerifyArgs {
  std::string on = "threads";
  int64_t steps = 3, ranks = 8, sample = 0;
  bool matrix = false, types = false;
  template <class V>
  void fields(V& v) {
    v("static", types, "",
      "prove the layout of the whole model without running it: from how every op and collective of two steps changes "
      "what is split, equal or a partial sum along each mesh axis");
    v("on", on, "threads|here", "threads: ranks as threads of this process; here: ranks and device as in training");
    v("steps", steps, "1..100 steps", "optimizer steps compared");
    v("matrix", matrix, "",
      "every legal layout instead of the given one, at every level of mixed "
      "precision unless --amp names one");
    v("ranks", ranks, "1..64 ranks", "--matrix: maximum ranks of a layout");
    v("sample", sample, "0.. layouts", "--matrix: number of layouts, sampled with train.seed; 0: all");
  }
};

}  // namespace gt
