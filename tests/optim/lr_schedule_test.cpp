#include "optim/lr_schedule.h"

#include "kernels/core/check.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("cosine with warm-up follows the golden curve") {
  const auto s = make_lr_schedule({.type = "cosine", .peak = 6e-4, .min_lr = 6e-5, .warmup_steps = 3, .total_steps = 12});
  const double golden[] = {2e-4, 4e-4, 6e-4, 5.83717e-4, 5.36832e-4, 4.65e-4, 3.76885e-4, 2.83115e-4, 1.95e-4, 1.23168e-4, 7.6283e-5, 6e-5};
  for (int t = 1; t <= 12; ++t) CHECK(s->at(t) == Approx(golden[t - 1]).epsilon(1e-5));
  CHECK(s->at(40) == Approx(6e-5));
}

TEST_CASE("linear and constant schedules start at the first step and end where they should") {
  const auto l = make_lr_schedule({.type = "linear", .peak = 1, .min_lr = 0.5, .warmup_steps = 0, .total_steps = 10});
  CHECK(l->at(1) == Approx(0.95));
  CHECK(l->at(10) == Approx(0.5));
  const auto c = make_lr_schedule({.type = "constant", .peak = 2, .warmup_steps = 4, .total_steps = 4});
  CHECK(c->at(1) == Approx(0.5));
  CHECK(c->at(99) == Approx(2));
}

TEST_CASE("an unknown schedule is a usage error that lists the known ones") {
  try {
    make_lr_schedule({.type = "cosin"});
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kUsage);
    CHECK(std::string(e.what()).find("cosine") != std::string::npos);
  }
}
