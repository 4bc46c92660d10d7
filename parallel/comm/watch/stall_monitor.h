// Thread that watches the board of its machine: reports which ranks stall the others and which rank died, and ends a
// hanging run. Reads shared memory only, never the transport, so it works while every rank is blocked in a collective.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/watch/comm_board.h"
#include "parallel/comm/watch/node_link.h"

namespace gt {

struct StallOptions {
  // comm.stall_abort_s: a wait that takes longer ends the run; at least the limit of its phase. 0: never.
  double abort_seconds = 600;
  std::string run_dir;  // parent of hang-<unix time>/ and dump-<unix time>/; "": nothing is written
  // Receives what is reported of the rank that died, stalled the others or was lost, before the run ends; several ranks
  // may report, of which the first to do so is right: the others may see its consequences.
  std::function<void(const std::string&)> verdict = {};
  double tick_seconds = 0.25;
  std::function<void(const std::string&)> print;  // default: one write to standard error
  // Returns how often a dump was requested from this process; each request dumps all ranks of the machine, and each
  // process adds its stacks. Called on the monitor's thread.
  std::function<int()> dump_requests;
  std::function<std::string()> stacks;
  // For jobs of several machines: rank 0's process has the hub, each process of the other machines a link to it. The
  // hub then diagnoses the ranks of all machines and reports lost machines: no packet of their kernel for
  // unreachable_seconds, or no report of their processes, which may be stopped, for lost_seconds.
  std::shared_ptr<NodeHub> hub = {};
  std::shared_ptr<NodeLink> link = {};
  std::string hub_name = {};  // "rank 0 (node1)"
  double lost_seconds = 8, unreachable_seconds = 5;
  // Ends the process; called on every rank's monitor. Default: _exit(code).
  std::function<void(int code, const std::string& report)> end;
};

// One per process. Processes (`local_rank` >= 0): each rank updates its own heartbeat, and the lowest one with a live
// heartbeat reports for the machine. Threads (`local_rank` -1): one monitor for all ranks.
// A wait is compared with the limit of the waiting rank's phase (rank_status.h). Each stall is reported once, and once
// more when it is over. Time in which the whole machine was stopped (suspend, Ctrl-Z) does not count.
class StallMonitor {
 public:
  StallMonitor(const CommBoard&, int local_rank, StallOptions);
  ~StallMonitor();  // marks this rank as ended, so that its end is not reported as a death
  StallMonitor(const StallMonitor&) = delete;
  StallMonitor& operator=(const StallMonitor&) = delete;
  void failed();  // the rank ended with an error, which it reports itself

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
