// Layouts with fewer data-parallel replicas.
#include "launch/ranks/start/elastic.h"

#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

LoadedConfig job(std::vector<std::string> more) {
  std::vector<std::string> flags{"--data.train", "mock", "--model.layers", "4", "--device.kind", "cpu"};
  flags.insert(flags.end(), more.begin(), more.end());
  return load_config({.flags = flags});
}

}  // namespace

TEST_CASE("fewer replicas: the most that fit the slots with the same global batch") {
  const LoadedConfig c =
      job({"--dp", "4", "--pp", "2", "--train.global_batch", "12", "--train.micro_batch", "3", "--launch.min_dp", "1"});
  CHECK(c.config.train.grad_accum == 1);
  CHECK(fewer_replicas(c, 100) == Replicas{3, 2, 2});  // 4 sequences a replica: 3 does not divide them
  CHECK(fewer_replicas(c, 6) == Replicas{3, 2, 2});
  CHECK(fewer_replicas(c, 5) == Replicas{2, 3, 2});
  CHECK(fewer_replicas(c, 2) == Replicas{1, 3, 4});
  CHECK(fewer_replicas(c, 1) == std::nullopt);
}

TEST_CASE("fewer replicas: never fewer than launch.min_dp and none by default") {
  const std::vector<std::string> flags{"--dp", "4", "--train.global_batch", "8", "--train.micro_batch", "2"};
  CHECK(fewer_replicas(job(flags), 3) == std::nullopt);
  std::vector<std::string> some = flags;
  some.insert(some.end(), {"--launch.min_dp", "2"});
  CHECK(fewer_replicas(job(some), 3) == Replicas{2, 2, 2});  // 3 does not divide 8
  CHECK(fewer_replicas(job(some), 1) == std::nullopt);
  some.back() = "3";
  CHECK(fewer_replicas(job(some), 3) == std::nullopt);
  some.back() = "5";
  CHECK_THROWS_WITH(job(some), Contains("launch.min_dp") && Contains("at most 4"));
}

TEST_CASE("fewer replicas: their microbatches satisfy the rules of the schedule") {
  const LoadedConfig c = job({"--dp", "3", "--pp", "2", "--parallel.schedule", "interleaved", "--parallel.vpp", "2",
                              "--train.global_batch", "12", "--train.micro_batch", "1", "--launch.min_dp", "1"});
  REQUIRE(fewer_replicas(c, 4).has_value());
  CHECK(fewer_replicas(c, 4)->grad_accum % 2 == 0);
}

TEST_CASE("flags of fewer replicas override those of the job") {
  LoadedConfig c = job({"--dp", "3", "--train.global_batch", "12", "--train.grad_accum", "1", "--launch.min_dp", "1"});
  const Replicas r = *fewer_replicas(c, 2);
  std::vector<std::string> flags{"--dp", "3", "--train.global_batch", "12", "--train.grad_accum", "1"};
  for (const std::string& f : replica_flags(c.config, r)) flags.push_back(f);
  const Config is = job(flags).config;
  CHECK(is.parallel.dp == 2);
  CHECK(is.train.global_batch == 12);
  CHECK(is.train.micro_batch == r.micro_batch);
  CHECK(is.train.grad_accum == r.grad_accum);
}

TEST_CASE("launch.min_dp without effect is reported") {
  const auto notes = [](std::vector<std::string> more) {
    std::string out;
    for (const std::string& n : job(std::move(more)).notes) out += n + "\n";
    return out;
  };
  CHECK_THAT(notes({"--dp", "2", "--launch.min_dp", "1"}), Contains("without launch.max_restarts"));
  CHECK_THAT(notes({"--dp", "2", "--launch.min_dp", "1", "--launch.max_restarts", "3"}),
             Contains("no other machine is used"));
  TempDir dir;
  write_file(dir / "hosts", "far0 slots=1\nfar1 slots=1\n");
  CHECK_THAT(
      notes({"--dp", "2", "--launch.min_dp", "1", "--launch.max_restarts", "3", "--launch.hostfile", dir / "hosts"}),
      !Contains("min_dp"));
}
