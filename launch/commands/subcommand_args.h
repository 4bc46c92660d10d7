// Arguments of the subcommands of this folder, one struct each, with fields() lists like the config sections, which
// drive flags, --help and "did you mean" (launch/options/options.h); those of a tool: launch/tools/TOOL/subcommands.h.
// Values only. The flag --max-tokens is the field "max-tokens"; a domain that begins with "required" is mandatory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/samples/sample_order.h"

namespace gt {

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
    v("template", chat_template, "",
      "chat, instruct: chatml, llama3, mistral, plain, or a template file; empty: that of the tokenizer's folder, else "
      "chatml");
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

struct NoArgs {
  template <class V>
  void fields(V&) {}
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

}  // namespace gt
