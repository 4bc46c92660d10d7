// `gpttrain bench` and its subcommands: arguments and functions, rows of the table in launch/commands/subcommands.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "launch/ranks/command.h"

namespace gt {

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

Exit run_bench(const Command&);
Exit run_bench_ceilings(const Command&);
Exit run_bench_ops(const Command&);
Exit run_bench_peer(const Command&);
Exit run_bench_suite(const Command&);
Exit run_bench_roofline(const Command&);
Exit run_bench_comm(const Command&);
Exit run_bench_data(const Command&);

}  // namespace gt
