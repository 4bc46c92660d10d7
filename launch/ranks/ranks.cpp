#include "launch/ranks/ranks.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/hosts/network.h"
#include "launch/hosts/rank_slots.h"
#include "launch/hosts/socket_job.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/crash.h"
#include "launch/ranks/device_groups.h"
#include "launch/ranks/join_machines.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/stack_watch.h"
#include "launch/ranks/start/bundle.h"
#include "launch/ranks/start/launcher_output.h"
#include "launch/ranks/start/spawn.h"
#include "launch/ranks/start/start_limits.h"
#include "launch/ranks/start/start_watch.h"
#include "parallel/comm/messages/mpi_group.h"
#include "parallel/comm/messages/socket_address.h"
#include "parallel/comm/messages/socket_group.h"
#include "parallel/comm/self_group.h"
#include "parallel/comm/threads/thread_group.h"
#include "parallel/comm/watch/stall_monitor.h"
#include "parallel/mesh.h"

namespace gt {
namespace {

StallOptions stall_options(const JobRequest& command) {
  const Config& config = command.loaded.config;
  return {.abort_seconds = stall_abort_seconds(command),
          .run_dir = config.run_dir(),
          .verdict = report_verdict,
          .print = {},
          .dump_requests = dump_requests,
          .stacks = watched_stacks,
          .end = {}};
}

std::string coordinates(const ParallelConfig& p, int rank) {
  MeshShape shape;
  shape.pp = static_cast<int>(p.pp), shape.dp = static_cast<int>(p.dp), shape.tp = static_cast<int>(p.tp);
  return shape.coordinates(rank);
}

Exit code_of(const std::exception& e) {
  const auto* error = dynamic_cast<const Error*>(&e);
  return error != nullptr ? error->code() : is_no_thread(e) ? Exit::kUsage : Exit::kInternal;
}

void print_error(const std::exception& e, const Config& config, int rank, int world) {
  if (const auto* agreed = dynamic_cast<const AgreedError*>(&e); agreed != nullptr && !agreed->prints()) return;
  std::string who;
  if (world > 1 && dynamic_cast<const AgreedError*>(&e) == nullptr) {  // error of a single rank: name it
    who = fmt::format("rank {} ({} pid {}, {}): ", rank, host_name(), getpid(), coordinates(config.parallel, rank));
  }
  fmt::print(stderr, "gpttrain: {}{}\n", who, is_no_thread(e) ? no_thread_text() : printable_lines(e.what()));
  if (code_of(e) == Exit::kHardware) report_verdict(who + e.what());
}

Exit run_threads(const JobRequest& command, const std::function<Exit(GroupFactory&)>& body) {
  const Config& config = command.loaded.config;
  const int world = static_cast<int>(config.world());
  ThreadWorld ranks(world, wait_deadline(config));
  StallMonitor monitor(ranks.board(), -1, stall_options(command));
  const CrashNotes notes(ranks.board(), -1);
  install_crash_handlers();
  std::mutex mutex;
  bool failed = false;
  Exit result = Exit::kOk;
  std::vector<std::thread> team;
  const auto run = [&](int r) {
    try {
      const StackWatch watched(r);
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
        if (agreed || (!failed && (first < 0 || first == r))) {  // the others fail as a consequence
          print_error(e, config, r, world);
          if (!failed) result = code_of(e);
          failed = true;
        }
      }
      ranks.abort(r, e.what(), code_of(e));
    }
  };
  for (int r = 0; r < world; ++r) try {
      team.emplace_back(run, r);
    } catch (const std::system_error& e) {
      const std::lock_guard lock(mutex);
      print_error(e, config, r, world);
      result = code_of(e);
      failed = true;
      ranks.abort(r, e.what(), code_of(e));
      break;
    }
  for (std::thread& t : team) t.join();
  return result;
}

Exit run_alone(const Config& config, GroupFactory& factory, const std::function<Exit(GroupFactory&)>& body,
               StallMonitor& monitor, MessageFactory* ranks) {
  try {
    return body(factory);
  } catch (const std::exception& e) {
    // The monitor names the dead rank and ends this process within 3 s.
    if (dynamic_cast<const RankDied*>(&e) != nullptr) std::this_thread::sleep_for(std::chrono::seconds(5));
    monitor.failed();
    print_error(e, config, factory.world_rank(), factory.world_size());
    // Peers are blocked in their next collective: abort the job, unless all ranks agreed on the error.
    if (ranks != nullptr && dynamic_cast<const AgreedError*>(&e) == nullptr) ranks->abort(static_cast<int>(code_of(e)));
    return code_of(e);
  }
}

// Applies slots and variables if this process runs all ranks of the machine.
void take_own_slots(const LaunchConfig& launch, const SpawnOptions& options) {
  for (const auto& [name, value] : options.variables) setenv(name.c_str(), value.c_str(), 1);
  restrict_to_slots(launch, options.hosts.empty() ? std::vector<int>() : options.hosts[0].slots, 0, 1);
}

// Connects the ranks that a launcher started: by MPI, or by sockets if it only set variables.
std::unique_ptr<MessageFactory> connect(const JobRequest& command) {
  const Config& c = command.loaded.config;
  const RankEnv& env = command.env;
  GT_REQUIRE(env.source != "SLURM_PROCID", Exit::kUsage, "this srun step has no PMIx, through which the ranks of MPI ",
             "find each other; use srun --mpi=pmix gpttrain ...");
  if (!uses_sockets(env)) return std::make_unique<MpiFactory>(wait_deadline(c));
  SocketJob job = socket_job(env);
  const bool one_machine = env.local_world == env.world;
  double limit = c.launch.start_timeout_s;
  if (limit <= 0) limit = default_start_seconds(env.world, one_machine);
  job.limit = std::chrono::milliseconds(static_cast<int64_t>(1e3 * limit));
  job.stopped = stop_requested;
  job.reports_abort = !started_by_launch_ranks();
  if (!one_machine && !c.comm.interface.empty())
    job.address = interface_addresses(interface_here(c.comm.interface)).front();
  return std::make_unique<SocketFactory>(job, wait_deadline(c));
}

// Ranks that meet at a loopback address are on one machine, whatever LOCAL_WORLD_SIZE is: so are their monitors.
std::string network_of_monitors(const Config& config, const RankEnv& env) {
  const char* host = std::getenv("MASTER_ADDR");
  const bool loopback = uses_sockets(env) && host != nullptr && is_loopback_name(host);
  return config.comm.interface.empty() && loopback ? "127.0.0.0/8" : config.comm.interface;
}

// Runs `body` in a process that a launcher started as a rank.
Exit run_rank(const JobRequest& command, const std::function<Exit(GroupFactory&)>& body) {
  const Config& config = command.loaded.config;
  const RankEnv& env = command.env;
  const int threads = static_cast<int>(std::max<int64_t>(1, config.device.threads));
  if (const char* slots = std::getenv(kSlotsVariable); started_by_launch_ranks())
    restrict_to_slots(config.launch, slots_of_rank(slots ? slots : "", env.rank), env.local_rank, env.local_world);
  // On one machine the parent process has already checked the limits.
  if (env.local_rank == 0 && (env.local_world != env.world || !started_by_launch_ranks()))
    require_limits(std::max(1, env.local_world), threads);
  set_network_environment(env, config.comm.interface);
  // Ranks of this program's mpirun end with it or its daemon, also when that is killed.
  if (started_by_launch_ranks() && env.source == "OMPI_COMM_WORLD_RANK") prctl(PR_SET_PDEATHSIG, SIGKILL);
  report_start(env.rank, coordinates(config.parallel, env.rank));
  std::optional<ConnectionGuard> guard;
  if (env.local_world != env.world && !uses_sockets(env)) guard.emplace();
  const std::unique_ptr<MessageFactory> factory = connect(command);
  if (factory->world_rank() == 0) report_started();
  const StackWatch watched(factory->world_rank());
  StallOptions watch = stall_options(command);
  join_machines(*factory, network_of_monitors(config, env), guard ? &*guard : nullptr, watch);
  StallMonitor monitor(factory->board(), factory->board_rank(), std::move(watch));
  const CrashNotes notes(factory->board(), factory->board_rank());
  install_crash_handlers();
  return run_alone(config, *factory, body, monitor, factory.get());
}

}  // namespace

double stall_abort_seconds(const JobRequest& command) {
  const Config& c = command.loaded.config;
  const bool chosen = command.loaded.origin.count("comm.stall_abort_s") > 0;
  if (chosen || c.launch.max_restarts == 0) return c.comm.stall_abort_s;
  return (c.comm.stall_warn_s > 0 ? c.comm.stall_warn_s : 10) + 10;
}

Exit run_ranks(const JobRequest& command, const std::function<Exit(GroupFactory&)>& body) {
  const Config& config = command.loaded.config;
  const int world = static_cast<int>(config.world());
  const int threads = static_cast<int>(std::max<int64_t>(1, config.device.threads));
  install_dump_signal();
  if (command.env.launched()) return run_rank(command, body);
  SpawnOptions options = spawn_options(config);
  options.stall_abort_s = stall_abort_seconds(command);
  options.resumable = command.name == "train";
  if (world == 1 && is_local_only(options.hosts)) {
    require_limits(1, threads);
    take_own_slots(config.launch, options);
    SelfFactory factory;
    const StackWatch watched(0);
    StallMonitor monitor(factory.board(), 0, stall_options(command));
    const CrashNotes notes(factory.board(), 0);
    install_crash_handlers();
    return run_alone(config, factory, body, monitor, nullptr);
  }
  if (config.launch.ranks == RankKind::kThreads) {
    require_limits(1, world * threads);
    take_own_slots(config.launch, options);
    return run_threads(command, body);
  }
  for (const std::string& note : command.loaded.notes)  // other notes are printed by the ranks
    if (note.rfind("launch: ", 0) == 0) fmt::print(stderr, "gpttrain: {}\n", note);
  return static_cast<Exit>(launch_ranks(world, command.words, options));
}

const char* comm_backend(const Config& config, const RankEnv& env) {
  if (config.world() == 1) return "self";
  if (env.launched()) return uses_sockets(env) ? "socket" : "mpi";
  if (config.launch.ranks == RankKind::kThreads) return "thread";
  if (config.launch.launcher == Launcher::kSlurm) return "mpi";
  return is_local_only(chosen_hosts(config.launch)) || find_program("mpirun").empty() ? "socket" : "mpi";
}

std::string start_command(const JobRequest& command) {
  const Config& config = command.loaded.config;
  SpawnOptions options = spawn_options(config);
  options.only_shown = true;
  const int world = static_cast<int>(config.world());
  if (command.env.launched() || config.launch.ranks == RankKind::kThreads ||
      (world == 1 && is_local_only(options.hosts)))
    return "";
  return command_line(job_command(world, false, command.words, options));
}

}  // namespace gt
