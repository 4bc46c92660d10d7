// `gpttrain eval`: arguments and functions, rows of the table in launch/commands/subcommands.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "launch/ranks/command.h"

namespace gt {

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

Exit run_eval(const Command&);

}  // namespace gt
