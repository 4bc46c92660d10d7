// Starts the ranks of a job and runs a function on each: one process, threads of this process, a rank of an external
// launcher, or processes that this program starts.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/hosts/rank_env.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Everything needed to start the ranks of a job.
struct JobRequest {
  std::string name;  // subcommand: "train", "tokenizer train"
  LoadedConfig loaded;
  RankEnv env;                     // launcher environment of this process
  std::vector<std::string> words;  // command line without the program's name
};

// Runs `body` on every rank of this process and returns the exit code of the job. An error of a rank is printed once,
// with rank, host and rank coordinates, and aborts the other ranks.
Exit run_ranks(const JobRequest&, const std::function<Exit(GroupFactory&)>& body);

// Returns comm.stall_abort_s, whose default is smaller if a supervisor restarts hung jobs.
double stall_abort_seconds(const JobRequest&);

// Returns the name of the backend that connects CPU ranks of a job started like this: "self", "thread", "socket",
// "mpi".
const char* comm_backend(const Config&, const RankEnv&);

// Returns the shell command with which run_ranks would start the ranks; "" if it needs no launcher.
std::string start_command(const JobRequest&);

}  // namespace gt
