// Brings the ranks of a job into being and runs one function on each: alone, as threads of this process, as a rank that
// a launcher started, or by starting this program again under mpirun.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/hosts/rank_env.h"
#include "parallel/comm/process_group.h"

namespace gt {

// What the ranks of a job are started from.
struct JobRequest {
  std::string name;                // subcommand: "train", "tokenizer train"
  LoadedConfig loaded;
  RankEnv env;                     // what a launcher said of this process
  std::vector<std::string> words;  // the command line without the program's name
};

// Runs `body` on every rank that lives in this process and returns the exit code of the job. An error of a rank is
// printed once, with rank, host and place; the other ranks are brought down with it.
Exit run_ranks(const JobRequest&, const std::function<Exit(GroupFactory&)>& body);

// comm.stall_abort_s, which is smaller by default where a supervisor starts a hung job again.
double stall_abort_seconds(const JobRequest&);

// What run_ranks would start the ranks with, as one would type it; "" where this process runs them itself.
std::string start_command(const JobRequest&);

}  // namespace gt
