// Parent of a job that restarts it from its newest valid checkpoint after a failure that may be transient. The policy
// is a pure function of the attempts' ends; restarts.jsonl in the run folder records them.
#pragma once
#include <cstdint>
#include <string>

#include "launch/ranks/ranks.h"

namespace gt {

// Outcome of one attempt.
struct AttemptEnd {
  int code = 0;
  bool stop_requested = false;  // the supervisor received a stop signal
  bool progressed = false;      // it committed a newer checkpoint, or reached a later step with copies in memory
  double seconds = 0;
  int64_t resumed_from = -1;  // step that the next attempt would resume from; -1: none
  int64_t reached = -1;       // last step in the log; -1: none
  bool elsewhere = false;     // the failing machine has been excluded
  bool machine_lost = false;  // one of its machines no longer answers
  bool finished = false;      // the checkpoint of the run's last step is committed
};

struct RestartDecision {
  bool restart = false;
  double delay_s = 0;
  bool older_step = false;  // resume from an older checkpoint: two attempts died at the same step after the newest
  std::string why;          // reason to stop
};

class RestartPolicy {
 public:
  static constexpr int kFailuresWithoutProgress = 3;
  explicit RestartPolicy(int64_t max_restarts) : left_(max_restarts) {}
  // Never restarts after codes 0, 2, 17 and 65, after 16 unless the host was excluded, after a stop signal, or once the
  // run is finished: what failed then is not training, and would fail again.
  // Otherwise restarts while restarts are left and one of the last three attempts made progress.
  // Delays 0, 1, 2, 4 … 60 s over successive attempts without progress; none after one with progress. Losing a machine
  // uses up a restart but does not count as a failure.
  RestartDecision after(const AttemptEnd&);

 private:
  RestartDecision restart(RestartDecision);  // if one is left
  int64_t left_;
  int failures_ = 0, delays_ = 0;
  int64_t last_from_ = -1, last_reached_ = -1;
};

// Returns whether run_train should supervise: `gpttrain launch` or launch.max_restarts, in a process that is not a
// rank. Throws kUsage if restarts are requested but another launcher is the parent of the ranks.
bool needs_supervisor(const JobRequest&);

// Runs the job; returns the exit code of its last attempt, or kInterrupted if stopped while waiting.
int supervise(const JobRequest&);

}  // namespace gt
