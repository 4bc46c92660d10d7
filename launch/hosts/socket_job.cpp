#include "launch/hosts/socket_job.h"

#include <cstdlib>

#include "kernels/core/check.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

int port_of(const std::string& text) {
  int64_t port = 0;
  GT_REQUIRE(parse_int(text.c_str(), port) && port > 0 && port < 65536, Exit::kUsage,
             "the environment has MASTER_PORT=", text, ", expected a port from 1 to 65535");
  return static_cast<int>(port);
}

}  // namespace

SocketJob socket_job(const RankEnv& env, const Lookup& lookup) {
  const auto text = [&](const char* name) {
    const char* value = lookup(name);
    return std::string(value ? value : "");
  };
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
    GT_REQUIRE(!text(name).empty(), Exit::kUsage, "according to RANK and WORLD_SIZE this is rank ", env.rank, " of ",
               env.world, ", but ", name,
               " is not set; start the ranks with torchrun --no-python, mpirun, srun or gpttrain itself, or unset RANK "
               "and WORLD_SIZE if they mean something else");
  GT_REQUIRE(env.local_rank < env.local_world && env.local_world <= env.world && env.local_rank <= env.rank &&
                 env.rank - env.local_rank + env.local_world <= env.world,
             Exit::kUsage, "LOCAL_RANK ", env.local_rank, " of LOCAL_WORLD_SIZE ", env.local_world,
             " does not fit RANK ", env.rank, " of WORLD_SIZE ", env.world, ": the ranks of a machine are consecutive");
  SocketJob job{.rank = env.rank, .world = env.world, .local_rank = env.local_rank, .local_world = env.local_world};
  constexpr int kPorts = 8;
  const bool occupied = text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  job.host = text("MASTER_ADDR");
  job.port = port_of(text("MASTER_PORT")) + (occupied ? 1 : 0);
  job.ports = occupied ? kPorts : 1;
  GT_REQUIRE(job.port + job.ports - 1 < 65536, Exit::kUsage, "MASTER_PORT ", text("MASTER_PORT"),
             occupied ? ": the ranks use the next 8 ports, which must be below 65536" : ": not a port");
  const std::string run = text("TORCHELASTIC_RUN_ID");
  job.id = run + '/' + text("TORCHELASTIC_RESTART_COUNT");
  job.secret = text("GPTTRAIN_JOB_SECRET");
  if (job.secret.empty() && run != "none") job.secret = run;  // "none": torchrun's default
  return job;
}

SocketJob socket_job(const RankEnv& env) {
  return socket_job(env, [](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace gt
