// Verification oracle: runs a layout as threads of this process. Compares it with one rank within tolerance, and
// bitwise with the same sharding without pipeline, recomputation and ZeRO. Used by `gpttrain verify` and the tests.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/tools/verify/compare.h"

namespace gt {

struct VerifyOptions {
  int steps = 3;
  // true: every step records all tensors and starts from the one-rank state after the previous step. false: the layout
  // runs freely; gradients are recorded in the first step, everything else after the last.
  bool follow = true;
};

struct VerifyResult {
  std::vector<Difference> close;  // against one rank
  std::vector<Difference> exact;  // against flat(layout): mismatches only
  int64_t forgiven = 0;           // of `close`: what one rank's own rounding explains
  // compare with flat(layout); false for runs on another device, which round differently
  bool bits = true;
  int64_t calls = 0;              // of all ranks in their groups that are those derived without running; 0: not derived
  const Difference* bad() const;  // first violation; nullptr: the layout is correct
};

class Verifier {
 public:
  explicit Verifier(const VerifyOptions& options) : options_(options) {}

  // `layout`: checked and shrunk. Hooks apply to the layout, never to its references.
  VerifyResult check(const Config& layout, const MeshHooks* hooks = nullptr);
  // Compares a run of the layout made elsewhere (launched ranks).
  VerifyResult compare_run(const Config& layout, const MeshResult& run);
  // Returns the run that the layout has to execute; valid until the next call on this object.
  MeshRun run_of(const Config& layout);
  int reference_runs() const { return runs_; }

 private:
  using ResultCache = std::map<std::string, MeshResult>;  // by config
  MeshRun plain_run(const Config&) const;
  const MeshResult& single(const Config& layout);
  MeshResult single_in_f32(const Config& layout);
  const MeshResult& flat_run(const Config& layout);
  VerifyOptions options_;
  ResultCache one_rank_runs_, flat_runs_;
  int runs_ = 0;
};

}  // namespace gt
