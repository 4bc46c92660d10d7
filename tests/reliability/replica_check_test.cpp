// Silent data corruption: a flipped bit that changes no loss and no file is detected by comparing replicas.
#include "launch/engine/replica_check.h"

#include <random>

#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/support/goal.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kTiny =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --schedule.type constant "
    "--launch.ranks threads --train.steps 12 --fault.replica_check_every 4 ";

std::vector<std::vector<ReplicaClaim>> claims(const std::vector<uint32_t>& crcs) {
  std::vector<std::vector<ReplicaClaim>> all;
  for (const uint32_t c : crcs) all.push_back({{7, 10, 1, 0}, {9, 10, c, 1}});
  return all;
}

}  // namespace

TEST_CASE("a deviating replica of three is named, of two both are, and an unreplicated range is not checked", "[R25]") {
  CHECK(compare_replicas(claims({5, 5, 5, 5})).equal);
  const ReplicaVerdict one = compare_replicas(claims({5, 5, 6, 5}));
  CHECK_FALSE(one.equal);
  CHECK(one.majority);
  CHECK(one.odd == std::vector<int>{2});
  CHECK(one.key == 9);
  CHECK(one.holders == 4);
  CHECK(compare_replicas(claims({6, 5, 5})).odd == std::vector<int>{0});
  const ReplicaVerdict two = compare_replicas(claims({5, 6}));
  CHECK_FALSE(two.equal);
  CHECK_FALSE(two.majority);
  CHECK(two.odd == std::vector<int>{0, 1});
  std::vector<std::vector<ReplicaClaim>> apart = claims({5, 6});
  apart[1][1].key = 10;  // a different range
  const ReplicaVerdict none = compare_replicas(apart);
  CHECK(none.equal);
  CHECK(none.covered == 20);
  CHECK(none.held == 40);
}

TEST_CASE("a flipped bit of a weight that several ranks hold ends the run with 16, named, before it is saved",
          "[R25]") {
  struct Layout {
    std::string flags, param;
    int ranks;
    bool majority;
  };
  const std::vector<Layout> layouts = {{"--dp 4 --zero 0 ", "layers.1.mlp.up.weight", 4, true},
                                       {"--tp 4 ", "layers.1.norm1.weight", 4, true},
                                       {"--tp 2 --dp 2 --zero 0 ", "final_norm.bias", 4, true},
                                       {"--tp 2 --pp 2 ", "layers.0.norm2.bias", 2, false}};
  const int injections = goal_size(kSanitized ? 3 : 20, 100);
  std::mt19937_64 random(goal_seed());
  int found = 0;
  for (int k = 0; k < injections; ++k) {
    const Layout& l = layouts[static_cast<size_t>(k) % layouts.size()];
    // A mantissa or sign bit: invisible in the loss.
    const int bit = static_cast<int>(random() % 23), rank = static_cast<int>(random() % static_cast<uint64_t>(l.ranks));
    TempDir dir;
    const Outcome r = gpttrain(
        kTiny + l.flags +
            cat("--log.name x --checkpoint.every 3 --checkpoint.async false --fault.inject flip@master:rank=", rank,
                ",step=6,index=", random() % 8, ",bit=", bit, ",param=", l.param),
        dir.path());
    INFO(l.flags << " bit " << bit << " rank " << rank << "\n" << r.out);
    CHECK(r.code == 16);
    CHECK(r.prints("step 6: master/" + l.param));
    CHECK(r.prints(l.majority ? cat("rank ", rank, " (") : "which of them is correct is unknown"));
    CHECK_FALSE(std::filesystem::exists(dir / "runs/x/checkpoints/step-000000006"));
    CHECK(std::filesystem::exists(dir / "runs/x/checkpoints/step-000000003"));
    found += r.code == 16 && r.prints("step 6: master/" + l.param);
  }
  print_figure("R25", cat(found, "/", injections, " flipped bits found at the next check, rank named"));
}

TEST_CASE("healthy ranks are equal under every kind of layout and level, and the log states the coverage", "[R25]") {
  for (const std::string layout :
       {"--tp 2 --dp 2 --zero 0 --parallel.sequence_parallel true", "--pp 2 --dp 2 --zero 1", "--dp 2 --zero 3",
        "--tp 2 --pp 2 --model.tied false --amp O2 --precision.dtype bf16",
        "--dp 2 --zero 2 --optim.type lamb --amp O1", "--pp 2 --dp 2 --amp O1 --model.lora_rank 2",
        "--dp 2 --amp O2 --precision.qat int8"}) {
    if (kSanitized && layout.find("lamb") == std::string::npos) continue;
    TempDir dir;
    const Outcome r = gpttrain(kTiny + layout + " --fault.recheck_every 3 --log.name x", dir.path());
    INFO(layout << "\n" << r.out);
    CHECK(r.code == 0);
    CHECK((r.prints("replicas are equal: ") || r.prints("replicas: no weights or optimizer state have a second copy")));
    CHECK(!r.prints("replicas are equal: 0 %"));
  }
}

TEST_CASE("a 16-bit weight that differs from its rounded master is found", "[R25]") {
  TempDir dir;
  const Outcome r =
      gpttrain(kTiny + "--tp 2 --amp O2 --log.name x --fault.inject flip@value:rank=1,step=8,bit=3", dir.path());
  INFO(r.out);
  CHECK(r.code == 16);
  CHECK(r.prints("is not its rounded master"));
}

TEST_CASE("a step run twice with two different gradients ends the run with 16", "[R25]") {
  TempDir dir;
  const Outcome r = gpttrain(kTiny +
                                 "--pp 2 --fault.recheck_every 5 --log.name x --fault.inject "
                                 "scale@grad:rank=1,step=5,n=2,param=final_norm.weight",
                             dir.path());
  INFO(r.out);
  CHECK(r.code == 16);
  CHECK(r.prints("step 5 run twice gave different gradients: grad/final_norm.weight"));
  CHECK(r.prints("rank 1 ("));
}
