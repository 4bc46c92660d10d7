// The command line: which verb, its own flags, and the config flags that it takes. Parsing and checking only; running a
// verb is the business of launch/verbs.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "launch/config.h"
#include "launch/rank_env.h"

namespace gt {

enum class Verb {
  kShowText,  // --help, --version, no arguments: print Command::text and end with code 0
  kTrain,
  kTokenizerTrain,
  kTokenizerEncode,
  kTokenizerDecode,
  kDataPrepare,
  kDataInspect,
  kEval,
  kGenerate,
  kSchedule,
  kCkptLs,
  kCkptInspect,
  kBench,
};

// One struct a verb, listed like config sections: flag --max-tokens is the field "max-tokens". A domain that begins
// with "required" must be given.
struct TrainArgs {
  bool force = false, quiet = false, dry_run = false;
  template <class V>
  void fields(V& v) {
    v("force", force, "", "allow a fresh start (--checkpoint.resume never) in a run directory that is not empty");
    v("quiet", quiet, "", "print little: the first loss, evaluations, warnings, the end");
    v("dry-run", dry_run, "", "stop after the start block: nothing is started, nothing is written");
  }
};
struct TokenizerTrainArgs {
  std::vector<std::string> input;
  std::string type = "bpe", output;
  int64_t vocab = 8192, threads = 0;
  template <class V>
  void fields(V& v) {
    v("input", input, "required", "text or JSONL files");
    v("vocab", vocab, "16..4194304 tokens", "size of the vocabulary");
    v("type", type, "bpe|unigram", "model");
    v("output", output, "required", "where the model goes, for example tok.model");
    v("threads", threads, "0..1024 threads", "0: all cores");
  }
};
struct TokenizerEncodeArgs {
  std::string model, text, input;
  template <class V>
  void fields(V& v) {
    v("tokenizer", model, "required", "SentencePiece model");
    v("text", text, "", "text to encode");
    v("input", input, "", "file to encode; without --text and --input standard input");
  }
};
struct TokenizerDecodeArgs {
  std::string model;
  std::vector<std::string> ids;
  template <class V>
  void fields(V& v) {
    v("tokenizer", model, "required", "SentencePiece model");
    v("ids", ids, "", "token numbers; without them standard input");
  }
};
struct DataPrepareArgs {
  std::vector<std::string> input;
  std::string tokenizer, output, key = "text";
  int64_t threads = 0;
  bool append_eod = true;
  template <class V>
  void fields(V& v) {
    v("input", input, "required", "text or JSONL files");
    v("tokenizer", tokenizer, "required", "SentencePiece model");
    v("output", output, "required", "prefix: PREFIX.bin and PREFIX.idx are written");
    v("key", key, "", "JSONL: the field that holds the text");
    v("append-eod", append_eod, "", "end each document with <|endoftext|>");
    v("threads", threads, "0..1024 threads", "0: all cores");
  }
};
struct DataInspectArgs {
  std::string path, tokenizer;
  int64_t show = 3;
  template <class V>
  void fields(V& v) {
    v("path", path, "required", "prefix of the token files; also as plain word");
    v("tokenizer", tokenizer, "", "prints text instead of numbers");
    v("show", show, "0..1000000 documents", "how many documents to print");
  }
};
struct EvalArgs {
  std::string load, split = "valid";
  int64_t steps = 0;
  template <class V>
  void fields(V& v) {
    v("load", load, "required", "checkpoint folder, a step of it, or a run directory");
    v("split", split, "train|valid|test", "which part of the data");
    v("steps", steps, "0.. batches", "global batches; 0: the whole split");
  }
};
struct GenerateArgs {
  std::string load, prompt, tokenizer;
  int64_t max_tokens = 64, top_k = 0, seed = 1;
  double temperature = 0.8;
  template <class V>
  void fields(V& v) {
    v("load", load, "required", "checkpoint folder, a step of it, or a run directory");
    v("prompt", prompt, "", "the beginning");
    v("max-tokens", max_tokens, "1..1048576 tokens", "how much to write");
    v("temperature", temperature, "0..100", "0: always the likeliest token");
    v("top-k", top_k, "0.. tokens", "choose among the k likeliest; 0: all");
    v("seed", seed, "0..", "random numbers");
    v("tokenizer", tokenizer, "", "SentencePiece model; empty: the one of the run");
  }
};
struct ScheduleArgs {
  int64_t pp = 4, vpp = 1, microbatches = 8;
  std::string schedule = "1f1b";
  std::vector<double> cost = {1, 2};
  template <class V>
  void fields(V& v) {
    v("pp", pp, "1..256 stages", "pipeline ranks");
    v("vpp", vpp, "1..16 chunks", "model chunks a rank, for interleaved");
    v("microbatches", microbatches, "1..4096", "microbatches a step");
    v("schedule", schedule, "1f1b|gpipe|interleaved|zb-h1", "pipeline schedule");
    v("cost", cost, ">0..", "time of a forward and of a backward: 1,2");
  }
};
struct CkptArgs {
  std::string dir;
  template <class V>
  void fields(V& v) {
    v("dir", dir, "required", "checkpoint folder or run directory; also as plain word");
  }
};
struct BenchArgs {
  int64_t warmup = 5, steps = 20, runs = 1;
  template <class V>
  void fields(V& v) {
    v("warmup", warmup, "0..1000000 steps", "steps before the clock starts");
    v("steps", steps, "1..1000000 steps", "steps measured");
    v("runs", runs, "1..100", "repetitions; the median counts");
  }
};

struct Command {
  Verb verb = Verb::kShowText;
  std::string name;  // "train", "tokenizer train"
  std::string text;  // kShowText
  std::variant<std::monostate, TrainArgs, TokenizerTrainArgs, TokenizerEncodeArgs, TokenizerDecodeArgs, DataPrepareArgs,
               DataInspectArgs, EvalArgs, GenerateArgs, ScheduleArgs, CkptArgs, BenchArgs>
      args;
  // train and bench: the checked config. eval and generate leave it at defaults, for the model is the checkpoint's:
  // load that with load_config({.file = config.json of its run, .flags = config_flags}), which checks the flags.
  LoadedConfig loaded;
  std::string config_file;                // --config
  std::vector<std::string> config_flags;  // as given
  RankEnv env;
  std::vector<std::string> words;  // the command line without the program's name

  template <class T>
  const T& get() const {
    return std::get<T>(args);
  }
};

// Throws one kUsage error with every problem of the command line, the config file and their combinations.
Command parse_command(int argc, const char* const* argv);
Command parse_command(const std::vector<std::string>& words, const RankEnv& env);

// What --version prints: version, git hash, compiler, libraries, processor features. Libraries whose versions only
// other folders know are given by the caller.
std::string version_text(const std::vector<std::string>& libraries = {});

}  // namespace gt
