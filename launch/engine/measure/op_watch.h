// Finds the first op of one rank whose result is not finite. A step is rerun with every result checked (too slow for
// every step); otherwise ops are called directly. Also injects non-finite values into the result of an op, for tests.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "launch/engine/inject.h"
#include "launch/engine/measure/module_timer.h"
#include "parallel/comm/watch/rank_status.h"
#include "parallel/zero/param_store.h"

namespace gt {

struct BadOp {
  std::string
      text;  // "gemm with layers.1.mlp.up.weight: out, element 17 of [64, 128], is inf; its operands are finite"
  bool made_here = false;        // its operands were finite
  uint64_t where = kNoPosition;  // stage and microbatch
  int64_t time = 0;              // steady_ns
};

class OpWatch {
 public:
  explicit OpWatch(const Backend& real) : real_(*real.ops), table_(*real.ops), backend_(real), replays_(real.replays) {
    backend_.ops = &table_;
  }
  OpWatch(const OpWatch&) = delete;
  OpWatch& operator=(const OpWatch&) = delete;

  // Returns a backend like the given one whose ops can be observed. Owned by this object.
  const Backend& backend() const { return backend_; }

  // Starts observing the ops called by this thread. `faults`: injected faults of sites forward and backward.
  // `check_values`: checks for non-finite values.
  void begin(const ParamStore&, const RankStatus&, std::vector<Injection> faults, bool check_values);
  // Starts timing the ops called by this thread, each until completion, into `to`.
  void begin_timing(const ParamStore&, ModuleTimer& to);
  void end();
  const std::optional<BadOp>& first_bad() const { return found_; }  // of the last observation

 private:
  struct Hook;
  template <class Args>
  void call(Kernel<Args> kernel, const Args&, Stream);
  const Parameter* parameter_at(const std::byte*, bool gradient) const;
  const Parameter* parameter_of(const struct Operands&) const;
  std::string with(const struct Operands&) const;
  void inject(const struct Operands&, Stream);
  void watch_thread();
  int64_t first_bad_element(const Tensor&, Stream, float* value);

  const OpTable real_;
  OpTable table_;
  Backend backend_;
  const bool replays_;  // when not observing
  std::vector<Parameter*> parameters_;
  const RankStatus* status_ = nullptr;
  std::vector<Injection> faults_;
  std::vector<bool> injected_;
  bool check_values_ = false;
  ModuleTimer* timer_ = nullptr;
  std::optional<BadOp> found_;
  std::vector<std::byte> host_;
};

}  // namespace gt
