#include "data/tokenizer/time_budget.h"

#include <ctime>

#include "kernels/core/check.h"

namespace gt {

void TimeBudget::Meter::check(size_t bytes) {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  const int64_t now = t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
  const bool first = last_ < 0;
  const int64_t took = first ? 0 : now - last_;
  last_ = now;
  if (first) return;
  const double seconds = 1e-9 * static_cast<double>(budget_.nanoseconds_ += took);
  const auto all = static_cast<double>(budget_.bytes_ += static_cast<int64_t>(bytes));
  GT_REQUIRE(seconds <= budget_.limit_.seconds + budget_.limit_.seconds_per_byte * all, Exit::kUsage, budget_.what_,
             " (", seconds, " s for ", all, " bytes of text, expected at most ", budget_.limit_.seconds_per_byte * 1e6,
             " us a byte)");
}

}  // namespace gt
