#include "launch/ranks/ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "launch/ranks/agree.h"
#include "launch/ranks/spawn.h"
#include "launch/train/engine_options.h"
#include "parallel/comm/mpi_group.h"
#include "parallel/comm/self_group.h"
#include "parallel/comm/stall_monitor.h"
#include "parallel/comm/thread_group.h"

namespace gt {
namespace {

// The stall monitor ends a run that hangs (exit 124). Should it fail itself, every wait has a deadline of its own.
std::chrono::milliseconds deadline(const Config& config) {
  const double s = config.comm.stall_abort_s;
  if (s == 0) return std::chrono::hours(24 * 365);
  return std::chrono::milliseconds(static_cast<int64_t>((std::max(s, 600.0) + 60) * 1e3));
}

StallOptions stall_options(const Config& config) {
  return {.abort_seconds = config.comm.stall_abort_s, .run_dir = config.run_dir(), .say = {}, .end = {}};
}

void print_error(const std::exception& e, const Config& config, int rank, int world) {
  if (const auto* agreed = dynamic_cast<const AgreedError*>(&e); agreed != nullptr && !agreed->speaker()) return;
  std::string who;
  if (world > 1 && dynamic_cast<const AgreedError*>(&e) == nullptr) {  // an error of one rank: say which
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    who = fmt::format("rank {} ({} pid {}, {}): ", rank, host, getpid(), mesh_shape(config).place(rank));
  }
  fmt::print(stderr, "gpttrain: {}{}\n", who, e.what());
}

Exit code_of(const std::exception& e) {
  const auto* error = dynamic_cast<const Error*>(&e);
  return error != nullptr ? error->code() : Exit::kInternal;
}

Exit run_threads(const Config& config, const std::function<Exit(GroupFactory&)>& body) {
  const int world = static_cast<int>(config.world());
  ThreadWorld ranks(world, deadline(config));
  StallMonitor monitor(ranks.board(), -1, stall_options(config));
  std::mutex mutex;
  bool failed = false;
  Exit result = Exit::kOk;
  std::vector<std::thread> team;
  for (int r = 0; r < world; ++r)
    team.emplace_back([&, r] {
      try {
        const auto factory = ranks.factory(r);
        const Exit code = body(*factory);
        factory->status()->enter(RunPhase::kDone, factory->status()->slot().step.load());
        const std::lock_guard lock(mutex);
        if (r == 0 && !failed) result = code;
      } catch (const std::exception& e) {
        {
          const std::lock_guard lock(mutex);
          const bool agreed = dynamic_cast<const AgreedError*>(&e) != nullptr;
          const int first = ranks.failed_rank();
          if (agreed || first < 0 || first == r) {  // the others are its victims
            print_error(e, config, r, world);
            if (!failed) result = code_of(e);
            failed = true;
          }
        }
        ranks.abort(r, e.what(), code_of(e));
      }
    });
  for (std::thread& t : team) t.join();
  return result;
}

Exit run_alone(const Config& config, GroupFactory& factory, const std::function<Exit(GroupFactory&)>& body,
               StallMonitor* monitor) {
  try {
    return body(factory);
  } catch (const std::exception& e) {
    if (monitor != nullptr) monitor->failed();
    print_error(e, config, factory.world_rank(), factory.world_size());
    // Peers wait for this rank in their next collective: bring the job down, unless all of them know.
    if (factory.world_size() > 1 && dynamic_cast<const AgreedError*>(&e) == nullptr)
      abort_world(static_cast<int>(code_of(e)));
    return code_of(e);
  }
}

}  // namespace

Exit run_ranks(const Command& command, const std::function<Exit(GroupFactory&)>& body) {
  const Config& config = command.loaded.config;
  const int world = static_cast<int>(config.world());
  if (command.env.launched()) {
    MpiFactory factory(deadline(config));
    StallMonitor monitor(factory.board(), factory.board_rank(), stall_options(config));
    return run_alone(config, factory, body, &monitor);
  }
  if (world == 1) {
    SelfFactory factory;
    return run_alone(config, factory, body, nullptr);
  }
  if (config.launch.ranks == "threads") return run_threads(config, body);
  SpawnOptions options;
  options.grace_s = static_cast<int>(config.launch.grace_s);
  return static_cast<Exit>(launch_ranks(world, command.words, options));
}

}  // namespace gt
