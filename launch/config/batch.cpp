#include "launch/config/batch.h"

#include <fmt/format.h>

#include <utility>

namespace gt {
namespace {

constexpr int64_t kMost = int64_t{1} << 40, kMostOfOne = int64_t{1} << 20;  // keeps all products far below 2^63

std::string ranks_text(const BatchRanks& r) {
  const int64_t world = r.tp * r.pp * r.cp * r.dp;
  const std::string ranks = fmt::format("{} rank{}", world, world == 1 ? "" : "s");
  return fmt::format("\n  data-parallel {} = {} / (tp {} x pp {} x cp {}); {} from {}", r.dp, ranks, r.tp, r.pp, r.cp,
                     ranks, r.source.empty() ? "this command's tp x pp x dp" : r.source);
}

std::string too_much(const BatchNumbers& b, int64_t d) {
  return fmt::format(
      "micro {} x accumulation {} x data-parallel {} is more than {}, or one of the first two more than {}", b.micro,
      b.accum, d, kMost, kMostOfOne);
}

std::string mismatch(const BatchNumbers& b, const BatchRanks& r) {
  const int64_t product = b.micro * b.accum * r.dp;
  std::string fix = fmt::format("\n  set train_batch_size to {}", product);
  if (b.global % (b.micro * r.dp) == 0)
    fix += fmt::format(", or gradient_accumulation_steps to {}", b.global / (b.micro * r.dp));
  if (b.global % (b.accum * r.dp) == 0)
    fix += fmt::format(", or train_micro_batch_size_per_gpu to {}", b.global / (b.accum * r.dp));
  return fmt::format("train_batch_size {} != micro {} x accumulation {} x data-parallel {} = {}", b.global, b.micro,
                     b.accum, r.dp, product) +
         ranks_text(r) + fix + ", or leave one of the three out";
}

}  // namespace

std::string solve_batch(BatchNumbers& b, const BatchRanks& r) {
  const int64_t d = r.dp;
  for (const auto& [name, value] : {std::pair{"train_batch_size", b.global},
                                    {"train_micro_batch_size_per_gpu", b.micro},
                                    {"gradient_accumulation_steps", b.accum}})
    if (value < 0) return fmt::format("{} {} is negative; 1 or more, or leave it out", name, value);
  if (b.global == 0 && b.micro == 0)
    return "train_batch_size or train_micro_batch_size_per_gpu is needed" + ranks_text(r) +
           "\n  or set train.global_batch or train.micro_batch";
  if (b.global > kMost) return fmt::format("{} is more than {}", b.global, kMost);
  if (b.global == 0) {
    if (b.accum == 0) b.accum = 1;
    if (b.micro > kMostOfOne || b.accum > kMostOfOne || b.micro > kMost / b.accum / d) return too_much(b, d);
    b.global = b.micro * b.accum * d;
  } else if (b.micro == 0) {
    if (b.accum == 0) b.accum = 1;
    b.micro = b.global / d / b.accum;
  } else if (b.accum == 0) {
    b.accum = b.global / b.micro / d;
  }
  if (b.micro == 0 || b.accum == 0)
    return fmt::format("train_batch_size {} is too small: {} = 0 with micro {}, accumulation {}, data-parallel {}",
                       b.global, b.micro == 0 ? "micro" : "accumulation", b.micro, b.accum, d) +
           ranks_text(r) +
           fmt::format("\n  set train_batch_size to {} or more", (b.micro == 0 ? b.accum : b.micro) * d);
  if (b.micro > kMostOfOne || b.accum > kMostOfOne || b.micro > kMost / b.accum / d) return too_much(b, d);
  if (b.global != b.micro * b.accum * d) return mismatch(b, r);
  return "";
}

}  // namespace gt
