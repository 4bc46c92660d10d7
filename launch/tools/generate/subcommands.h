// `gpttrain generate`: arguments and functions, rows of the table in launch/commands/subcommands.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "launch/ranks/command.h"

namespace gt {

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
    v("temperature", temperature, "0..100",
      "sampling temperature; 0: greedy (generation_config.json of an imported folder sets this and other defaults)");
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

Exit run_generate(const Command&);

}  // namespace gt
