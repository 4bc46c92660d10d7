// Ranks that torchrun's variables start, without MPI.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "kernels/core/check.h"
#include "launch/hosts/socket_job.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const std::string kTiny =
    "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --schedule.type constant "
    "--train.steps 4 --checkpoint.every 2 ";

// A shell command that runs rank `rank` of 4 with `here` ranks on each machine; `more`: further variables.
std::string rank_command(int rank, int here, int port, const std::string& args, const std::string& more = "") {
  return fmt::format(
      "env RANK={} WORLD_SIZE=4 LOCAL_RANK={} LOCAL_WORLD_SIZE={} MASTER_ADDR=127.0.0.1 MASTER_PORT={} {} {}/gpttrain "
      "{}",
      rank, rank % here, here, port, more, binary_dir(), args);
}

// Runs all ranks, prints the exit code of each as "rank 2: 0".
std::string all_ranks(int here, int port, const std::string& args, const std::string& more = "") {
  std::string out;
  for (int r = 0; r < 4; ++r)
    out += fmt::format("({}; echo \"rank {}: $?\") & ", rank_command(r, here, port, args, more), r);
  return out + "wait";
}

RankEnv torchrun_env(int rank, int world, int local_rank, int local_world) {
  RankEnv e;
  e.source = "RANK";
  e.rank = rank, e.world = world, e.local_rank = local_rank, e.local_world = local_world;
  return e;
}

Lookup lookup(const std::map<std::string, std::string>& variables) {
  return [&variables](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

}  // namespace

TEST_CASE("torchrun's variables: which are needed and what they mean") {
  std::map<std::string, std::string> v{
      {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
  const RankEnv env = torchrun_env(3, 4, 1, 2);
  CHECK(uses_sockets(env));
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    std::map<std::string, std::string> less = v;
    less.erase(name);
    CHECK_THROWS_WITH(socket_job(env, lookup(less)), Contains(cat(name, " is not set")) && Contains("rank 3 of 4"));
  }
  SocketJob job = socket_job(env, lookup(v));
  CHECK(job.port == 29500);
  CHECK(job.ports == 1);
  CHECK(job.secret == "");
  v["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // its store listens at MASTER_PORT
  v["TORCHELASTIC_RUN_ID"] = "none";
  job = socket_job(env, lookup(v));
  CHECK(job.port == 29501);
  CHECK(job.ports == 8);
  CHECK(job.secret == "");
  v["TORCHELASTIC_RUN_ID"] = "blue-42", v["TORCHELASTIC_RESTART_COUNT"] = "1";
  job = socket_job(env, lookup(v));
  CHECK(job.secret == "blue-42");
  CHECK(job.id == "blue-42/1");
  v["GPTTRAIN_JOB_SECRET"] = "word";
  CHECK(socket_job(env, lookup(v)).secret == "word");
  for (const char* port : {"0", "65536", "-1", "x", "65535"}) {
    v["MASTER_PORT"] = port;
    CHECK_THROWS_WITH(socket_job(env, lookup(v)), Contains("MASTER_PORT"));
  }
  v["MASTER_PORT"] = "29500";
  for (const RankEnv& wrong : {torchrun_env(3, 4, 2, 2), torchrun_env(0, 4, 1, 2), torchrun_env(3, 4, 0, 2)})
    CHECK_THROWS_WITH(socket_job(wrong, lookup(v)), Contains("LOCAL_WORLD_SIZE"));
}

TEST_CASE("a torchrun that srun started decides which rank a process is") {
  std::map<std::string, std::string> v{{"RANK", "9"},         {"WORLD_SIZE", "16"},          {"LOCAL_RANK", "1"},
                                       {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_ID", "0"},
                                       {"PMIX_RANK", "1"},    {"LOCAL_WORLD_SIZE", "8"}};
  CHECK_THROWS_WITH(find_rank_env(lookup(v)), Contains("two launchers disagree"));
  v["TORCHELASTIC_RUN_ID"] = "x";
  const RankEnv env = find_rank_env(lookup(v));
  CHECK(uses_sockets(env));
  CHECK(env.rank == 9);
  CHECK(env.local_world == 8);
}

TEST_CASE("four ranks by torchrun's variables train as threads do, with ranks on one machine and on two") {
  TempDir dir;
  must(kTiny + "--tp 2 --pp 2 --launch.ranks threads --log.name threads", dir);
  for (const int here : {4, 2}) {
    const std::string name = fmt::format("sockets{}", here);
    const Outcome r =
        shell(all_ranks(here, free_port(), kTiny + "--tp 2 --pp 2 --log.name " + name, "GPTTRAIN_JOB_SECRET=blue"),
              dir.path());
    INFO(r.out);
    for (int k = 0; k < 4; ++k) CHECK(r.prints(fmt::format("rank {}: 0", k)));
    const Outcome same = gpttrain("ckpt diff runs/threads runs/" + name, dir.path());
    INFO(same.out);
    CHECK(same.code == 0);
  }
}

TEST_CASE("starts by torchrun's variables that cannot work end with the reason and a code of the table") {
  TempDir dir;
  const std::string run = kTiny + "--dp 4 --launch.start_timeout_s 2 ";
  const Outcome missing = shell("env RANK=1 WORLD_SIZE=4 " + binary_dir() + "/gpttrain " + run, dir.path());
  INFO(missing.out);
  CHECK(missing.code == 2);
  CHECK(missing.prints("MASTER_ADDR is not set"));
  const Outcome alone = shell(rank_command(0, 4, free_port(), run), dir.path());
  INFO(alone.out);
  CHECK(alone.code == 74);
  CHECK(alone.prints("ranks [1,2,3] of 4 did not connect to rank 0 on "));
  CHECK(alone.prints("launch.start_timeout_s"));
  const Outcome open = shell(rank_command(0, 2, free_port(), run), dir.path());
  INFO(open.out);
  CHECK(open.code == 2);
  CHECK(open.prints("GPTTRAIN_JOB_SECRET"));
  const int port = free_port();
  const std::string one = rank_command(0, 2, port, run, "GPTTRAIN_JOB_SECRET=blue"),
                    two = rank_command(2, 2, port, run, "GPTTRAIN_JOB_SECRET=red");
  const Outcome wrong =
      shell("(" + one + "; echo \"rank 0: $?\") & (" + two + "; echo \"rank 2: $?\") & wait", dir.path());
  INFO(wrong.out);
  CHECK(wrong.prints("rank 0: 74"));
  CHECK(wrong.prints("rank 2: 2"));
  CHECK(wrong.prints("its job secret differs"));
  CHECK(wrong.prints("had another job secret"));
}

TEST_CASE("a killed rank by torchrun's variables ends the others with its name") {
  TempDir dir;
  const Outcome r =
      shell(all_ranks(4, free_port(), kTiny + "--dp 4 --train.steps 100000 --fault.inject exit@step:rank=2,step=2,n=9"),
            dir.path());
  INFO(r.out);
  CHECK(r.prints("rank 2: 9"));
  for (const int k : {0, 1, 3}) CHECK_FALSE(r.prints(fmt::format("rank {}: 0", k)));
  CHECK((r.prints("connection to rank 2 ended") || r.prints("rank 2 (")));
}

TEST_CASE("torchrun itself starts ranks: its store keeps MASTER_PORT") {
  const std::string python = source_dir() + "/build/hf/bin/python";
  if (!std::filesystem::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  TempDir dir;
  must(kTiny + "--dp 2 --launch.ranks threads --log.name threads", dir);
  const Outcome r = shell(fmt::format("{} -m torch.distributed.run --standalone --nproc-per-node 2 --no-python "
                                      "{}/gpttrain {} --dp 2 --log.name torchrun",
                                      python, binary_dir(), kTiny),
                          dir.path());
  INFO(r.out);
  REQUIRE(r.code == 0);
  CHECK(gpttrain("ckpt diff runs/threads runs/torchrun", dir.path()).code == 0);
}

// srun and torchrun send SIGTERM to the other ranks once the first has ended with 75.
TEST_CASE("a rank that gets SIGTERM while it closes after a stop ends with 75 nevertheless") {
  TempDir dir;
  const std::string log = dir / "runs/x/log.jsonl";
  const auto has_end = [&] {
    return std::filesystem::exists(log) && Outcome{0, read_file(log)}.prints("\"type\": \"end\"");
  };
  const Outcome r = gpttrain(kTiny + "--train.steps 1000 --fault.inject delay@step:ms=1200 --log.name x", dir.path(),
                             60, [&](int pid) {
                               if (!wait_for_step(log, 1)) return;
                               kill(pid, SIGUSR1);  // the step ends later than a second request would count as such
                               while (kill(pid, 0) == 0 && !has_end()) usleep(100);
                               kill(pid, SIGTERM);
                             });
  INFO(r.out);
  CHECK(r.code == 75);
  CHECK(r.prints("everything is saved"));
}
