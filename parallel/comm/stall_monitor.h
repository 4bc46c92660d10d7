// A thread that watches the board of its machine: names who keeps the others waiting, says which rank died, and ends a
// run that hangs. Touches shared words only, never the transport, so it works while every rank sits in a collective.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/comm_board.h"
#include "parallel/comm/node_link.h"

namespace gt {

struct StallOptions {
  // comm.stall_abort_s: a wait that takes longer ends the run; at least the limit of its phase. 0: never.
  double abort_seconds = 600;
  std::string run_dir;  // hang-<unix time>/ and dump-<unix time>/ are made in it; "": nothing is written
  std::string verdict_file;  // one line about the rank that died or kept the others waiting; "": not written
  double tick_seconds = 0.25;
  std::function<void(const std::string&)> say;  // default: one write to standard error
  // How often somebody asked this process what it does; each time all ranks of the machine are told about, and each
  // process adds its stacks. Called on the monitor's thread.
  std::function<int()> dump_requests;
  std::function<std::string()> stacks;
  // Of a job of several machines: rank 0's process has the hub, each process of the other machines a link to it. The hub
  // then judges the ranks of all machines, and says which one is lost: no sign of life for lost_seconds.
  std::shared_ptr<NodeHub> hub = {};
  std::shared_ptr<NodeLink> link = {};
  std::string hub_name = {};  // "rank 0 (node1)"
  double lost_seconds = 15;
  // Ends the process; called on every rank's monitor. Default: _exit(code).
  std::function<void(int code, const std::string& report)> end;
};

// One a process. Processes (`local_rank` >= 0): each rank beats for itself, and the lowest one that still beats speaks
// for the machine. Threads (`local_rank` -1): one monitor for all ranks.
// A wait is judged by the limit that the waiting rank's phase has (rank_status.h). Said once a stall, and once more
// when it is over. Time in which the whole machine was stopped (a laptop's lid, Ctrl-Z) does not count.
class StallMonitor {
 public:
  StallMonitor(const CommBoard&, int local_rank, StallOptions);
  ~StallMonitor();  // this rank has ended: nobody mourns it
  StallMonitor(const StallMonitor&) = delete;
  StallMonitor& operator=(const StallMonitor&) = delete;
  void failed();  // it has ended with an error, which it says itself

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
