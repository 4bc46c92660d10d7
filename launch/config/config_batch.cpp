#include "launch/config/config_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "launch/config/batch.h"
#include "launch/options/near_numbers.h"

namespace gt {
namespace {

class BatchRules {
 public:
  BatchRules(Config& c, const CheckContext& context, const RuleContext& rules) : c_(c), context_(context), x_(rules) {}

  void check() {
    TrainSection& t = c_.train;
    const int64_t dp = c_.parallel.dp;
    if (!known({"train.micro_batch", "train.grad_accum", "train.global_batch", "parallel.dp"})) return;
    // Keeps products of legal values far below 2^63.
    constexpr int64_t kMost = int64_t{1} << 40, kMostOfOne = int64_t{1} << 20;
    for (const auto& [key, value, most] : {std::tuple{"train.micro_batch", t.micro_batch, kMostOfOne},
                                           {"train.grad_accum", t.grad_accum, kMostOfOne},
                                           {"train.global_batch", t.global_batch, kMost}})
      if (value > most) return bad(key, fmt::format("{} is more than {}", value, most));
    if (t.micro_batch && t.global_batch && t.grad_accum) {
      const bool fm = from_flag("train.micro_batch"), fg = from_flag("train.global_batch"),
                 fa = from_flag("train.grad_accum");
      if (fm && fg && !fa) t.grad_accum = 0;
      if (fm && fa && !fg) t.global_batch = 0;
      if (fg && fa && !fm) t.micro_batch = 0;
    }
    if (context_.deepspeed) {
      batch_of_deepspeed();
      return countable();
    }
    if (!t.global_batch) {
      if (!t.micro_batch) t.micro_batch = 8;
      if (!t.grad_accum) t.grad_accum = 1;
      if (t.micro_batch > kMost / t.grad_accum / dp)
        return bad("train.micro_batch", fmt::format("micro_batch {} x grad_accum {} x dp {} is more than {}",
                                                    t.micro_batch, t.grad_accum, dp, kMost));
      t.global_batch = t.micro_batch * t.grad_accum * dp;
    } else if (t.micro_batch && t.grad_accum) {
      if (t.global_batch != t.micro_batch * t.grad_accum * dp) mismatch();
    } else if (t.micro_batch) {
      third("micro_batch", t.micro_batch, "grad_accum", t.grad_accum);
    } else {
      const int64_t share = t.global_batch / dp;  // only global_batch given: largest micro_batch ≤ 8 that divides
      if (!t.grad_accum)
        for (int64_t b = std::min<int64_t>(8, share); b >= 1 && !t.grad_accum; --b)
          if (share % b == 0) t.grad_accum = share / b;
      third("grad_accum", std::max<int64_t>(t.grad_accum, 1), "micro_batch", t.micro_batch);
    }
    countable();
  }

 private:
  bool known(std::initializer_list<const char*> keys) const {
    return std::all_of(keys.begin(), keys.end(), [&](const char* key) { return x_.known(key); });
  }
  bool from_flag(const std::string& key) const { return x_.where(key).rfind("--", 0) == 0; }
  void bad(const std::string& key, std::string reason, std::string fix = "") {
    x_.bad(key, std::move(reason), std::move(fix));
  }

  // Checks that the token counts of the run and of an evaluation fit 64 bits.
  void countable() {
    const TrainSection& t = c_.train;
    if (!known({"model.seq", "train.steps", "train.eval_steps"}) || t.global_batch < 1) return;
    const int64_t steps = (int64_t{1} << 62) / t.global_batch / c_.model.seq;
    for (const auto& [key, value] : {std::pair{"train.steps", t.steps}, {"train.eval_steps", t.eval_steps}})
      if (value > steps)
        bad(key,
            fmt::format("{} steps of global_batch {} x model.seq {} are more than 2^62 tokens", value, t.global_batch,
                        c_.model.seq),
            fmt::format("at most {}", steps));
  }

  void batch_of_deepspeed() {
    const ParallelConfig& p = c_.parallel;
    TrainSection& t = c_.train;
    BatchNumbers b{t.global_batch, t.micro_batch, t.grad_accum};
    const BatchRanks ranks{p.tp, p.pp, p.cp, p.dp, context_.world_source};
    if (const std::string wrong = solve_batch(b, ranks); !wrong.empty()) return bad("batch", wrong);
    t.global_batch = b.global, t.micro_batch = b.micro, t.grad_accum = b.accum;
  }

  void mismatch() {
    const TrainSection& t = c_.train;
    const int64_t dp = c_.parallel.dp, unit = t.micro_batch * dp;
    std::string fix = fmt::format("nearest: global_batch {}", t.micro_batch * t.grad_accum * dp);
    if (t.global_batch % unit == 0)
      fix += fmt::format(", or grad_accum {}", t.global_batch / unit);
    else
      fix += fmt::format(", or global_batch {} with grad_accum left out", list_of(multiples(unit, t.global_batch)));
    if (t.global_batch % (t.grad_accum * dp) == 0)
      fix += fmt::format(", or micro_batch {}", t.global_batch / (t.grad_accum * dp));
    bad("train.global_batch",
        fmt::format("global_batch {} ≠ micro_batch {} × grad_accum {} × dp {}", t.global_batch, t.micro_batch,
                    t.grad_accum, dp),
        fix);
  }

  void third(const char* given, int64_t value, const char* other, int64_t& out) {
    const int64_t dp = c_.parallel.dp, global = c_.train.global_batch;
    if (value > global || global % (value * dp))
      return bad(
          "train.global_batch",
          fmt::format("global_batch {} is not {} {} × {} × dp {} for any {}", global, given, value, other, dp, other),
          fmt::format("nearest: {}", list_of(multiples(value * dp, global))));
    out = global / (value * dp);
  }

  Config& c_;
  const CheckContext& context_;
  const RuleContext& x_;
};

}  // namespace

void check_batch(Config& c, const CheckContext& context, const RuleContext& rules) {
  BatchRules(c, context, rules).check();
}

}  // namespace gt
