// Slurm batch script: its requests, rejected layouts, and its behaviour with replacements for srun and scontrol.
#include "launch/ranks/start/sbatch.h"

#include "launch/commands/cli.h"
#include "launch/commands/subcommands.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

std::string script(std::vector<std::string> words, int64_t nodes) {
  for (const char* w : {"--data.train", "mock", "--log.name", "a job"}) words.emplace_back(w);
  return sbatch_script(parse_command(words, RankEnv{}), nodes);
}

}  // namespace

TEST_CASE("a batch script requests the nodes and tasks of the layout, and refuses to split groups") {
  const std::string s =
      script({"launch", "--max-restarts", "9", "--tp", "2", "--pp", "2", "--dp", "2", "--device.threads", "4"}, 2);
  for (const char* line : {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=4\n", "#SBATCH --cpus-per-task=4\n",
                           "#SBATCH --gpus-per-node=4\n", "#SBATCH --signal=USR1@300", "#SBATCH --requeue\n",
                           "--job-name='a job'", " --tp 2 --pp 2 --dp 2 "})
    CHECK_THAT(s, Contains(line));
  CHECK_THAT(s, !Contains("max-restarts") && !Contains(" launch "));
  CHECK_THAT(script({"--tp", "2", "--device.kind", "cpu"}, 1), !Contains("gpus"));
  CHECK_THROWS_WITH(script({"--tp", "2", "--dp", "3"}, 4), Contains("6 ranks") && Contains("do not divide evenly"));
  CHECK_THROWS_WITH(script({"--tp", "4"}, 2), Contains("split a tensor-parallel group of 4"));
}

TEST_CASE("a batch script requeues only after an interrupted run") {
  const TempDir dir;
  write_file(dir / "job.sh", script({"--tp", "2", "--device.kind", "cpu"}, 1));
  write_file(dir / "scontrol", cat("#!/bin/sh\necho \"$*\" >", dir / "requeued", "\n"));
  for (const int code : {0, 75, 17}) {
    write_file(dir / "srun", cat("#!/bin/sh\necho \"$*\" >", dir / "srun.words", "\nexit ", code, "\n"));
    for (const char* tool : {"srun", "scontrol"})
      std::filesystem::permissions(dir / tool, std::filesystem::perms::owner_all);
    const Outcome r = shell("SLURM_JOB_ID=42 PATH=" + dir.path() + ":$PATH bash job.sh", dir.path());
    INFO(r.out);
    CHECK(r.code == code);
    CHECK(std::filesystem::remove(dir / "requeued") == (code == 75));
    CHECK_THAT(read_file(dir / "srun.words"), Contains("--mpi=pmix") && Contains("--tp 2"));
  }
}
