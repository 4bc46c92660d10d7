// `gpttrain verify`: arguments and functions, rows of the table in launch/commands/subcommands.cpp.
#pragma once
#include <cstdint>
#include <string>

#include "launch/ranks/command.h"

namespace gt {

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

Exit run_verify(const Command&);

}  // namespace gt
