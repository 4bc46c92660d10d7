// The batch equation: exact division, consistency check, and messages that show every number.
#include "launch/config/batch.h"

#include "tests/launch/commands/deepspeed_fixture.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

TEST_CASE("any of the three batch sizes may be left out, as in DeepSpeed's table") {
  const struct {
    BatchNumbers given;
    int64_t d;
    BatchNumbers solved;
  } cases[] = {
      {{256, 8, 0}, 2, {256, 8, 16}}, {{16, 0, 0}, 2, {16, 8, 1}}, {{0, 8, 3}, 4, {96, 8, 3}},
      {{32, 4, 2}, 4, {32, 4, 2}},    {{64, 0, 4}, 2, {64, 8, 4}}, {{0, 5, 0}, 3, {15, 5, 1}},
      {{1, 0, 0}, 1, {1, 1, 1}},      {{12, 3, 0}, 4, {12, 3, 1}},
  };
  for (const auto& c : cases) {
    BatchNumbers b = c.given;
    INFO(b.global << " " << b.micro << " " << b.accum << " over " << c.d);
    CHECK(solve_batch(b, {.dp = c.d}) == "");
    CHECK(b.global == c.solved.global);
    CHECK(b.micro == c.solved.micro);
    CHECK(b.accum == c.solved.accum);
  }
}

TEST_CASE("inconsistent batch sizes are shown with the ranks, their source and valid alternatives") {
  BatchNumbers b{32, 4, 3};
  CHECK(solve_batch(b, {.tp = 2, .dp = 4, .source = "OMPI_COMM_WORLD_SIZE"}) ==
        "train_batch_size 32 != micro 4 x accumulation 3 x data-parallel 4 = 48\n"
        "  data-parallel 4 = 8 ranks / (tp 2 x pp 1 x cp 1); 8 ranks from OMPI_COMM_WORLD_SIZE\n"
        "  set train_batch_size to 48, or gradient_accumulation_steps to 2, or leave one of the three out");
  const struct {
    BatchNumbers given;
    int64_t d;
    const char* error;
  } cases[] = {
      {{2, 0, 0}, 4, "train_batch_size 2 is too small: micro = 0"},
      {{8, 16, 0}, 1, "train_batch_size 8 is too small: accumulation = 0"},
      {{6, 0, 0}, 4, "6 != micro 1 x accumulation 1 x data-parallel 4 = 4"},
      {{0, 0, 3}, 4, "train_batch_size or train_micro_batch_size_per_gpu is needed"},
      {{0, 0, 0}, 4, "train_batch_size or train_micro_batch_size_per_gpu is needed"},
      {{0, -1, 0}, 1, "train_micro_batch_size_per_gpu -1 is negative"},
      {{8, -2, -4}, 1, "train_micro_batch_size_per_gpu -2 is negative"},
      {{8, 2, -4}, 1, "gradient_accumulation_steps -4 is negative"},
      {{-8, 2, 0}, 1, "train_batch_size -8 is negative"},
      {{0, int64_t{1} << 40, 2}, 4, "is more than"},
      {{int64_t{1} << 41, 0, 0}, 4, "is more than"},
      {{10, int64_t{1} << 39, int64_t{1} << 39}, 4, "is more than"},
  };
  for (const auto& c : cases) {
    BatchNumbers wrong = c.given;
    INFO(c.error);
    CHECK_THAT(solve_batch(wrong, {.dp = c.d}), Contains(c.error));
  }
}

TEST_CASE("data-parallel ranks are the launcher's ranks divided by tp and pp") {
  const LoadedConfig c =
      load_deepspeed({.json = R"({"train_batch_size": 16})", .flags = {"--tp", "2", "--pp", "2"}, .world = 8});
  CHECK(c.config.parallel.dp == 2);
  CHECK(c.config.train.micro_batch == 8);
  CHECK(c.config.train.grad_accum == 1);
  CHECK_THAT(deepspeed_problems({.json = R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                                             "gradient_accumulation_steps": 3})",
                                 .flags = {"--tp", "2"},
                                 .world = 8}),
             Catch::StartsWith("batch: train_batch_size 32 != micro 4 x accumulation 3 x data-parallel 4 = 48") &&
                 Contains("8 ranks from OMPI_COMM_WORLD_RANK"));
}
