// The oracle: runs a layout as threads of this process and holds it against one rank, and, bit by bit, against the same
// cuts without pipeline, recomputation and ZeRO. `gpttrain verify` and the tests ask it the same question.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/verify/compare.h"

namespace gt {

struct VerifyOptions {
  int steps = 3;
  // Every step looks at all tensors and starts from what one rank has after the step before. Else the layout runs
  // freely: gradients of the first step are looked at, the rest after the last.
  bool follow = true;
};

struct Verdict {
  std::vector<Difference> close;  // against one rank
  std::vector<Difference> exact;  // against flat(layout): differences only, empty when there are none
  bool bits = true;               // against flat(layout) at all: not for runs of another device, which rounds otherwise
  const Difference* bad() const;  // the first thing that is not as it must be; nullptr: the layout is right
};

class Verifier {
 public:
  explicit Verifier(const VerifyOptions& options) : options_(options) {}

  // `layout`: checked, already small enough. Hooks apply to the layout, never to what it is held against.
  Verdict check(const Config& layout, const MeshHooks* hooks = nullptr);
  // The layout's run was made elsewhere (launched ranks).
  Verdict judge(const Config& layout, const MeshResult& run);
  // The run that the layout has to make; points into what this object knows until the next call.
  MeshRun run_of(const Config& layout);
  int reference_runs() const { return runs_; }

 private:
  using Known = std::map<std::string, MeshResult>;  // by config
  MeshRun plain_run(const Config&) const;
  const MeshResult& single(const Config& layout);
  const MeshResult& twin(const Config& layout);
  VerifyOptions options_;
  Known singles_, twins_;
  int runs_ = 0;
};

}  // namespace gt
