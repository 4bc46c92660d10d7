// The parent of a job: starts it, and starts it again from its newest good checkpoint after an end that may not happen
// twice. What is decided is a pure function of how attempts ended; restarts.jsonl in the run folder tells the story.
#pragma once
#include <cstdint>
#include <string>

#include "launch/ranks/ranks.h"

namespace gt {

// How one attempt ended.
struct AttemptEnd {
  int code = 0;
  bool asked_to_stop = false;  // somebody told the supervisor
  bool progressed = false;     // it committed a newer checkpoint
  double seconds = 0;
  int64_t resumed_from = -1;  // step of the checkpoint that the next attempt would take; -1: none
  int64_t reached = -1;       // last step in the log; -1: none
  bool elsewhere = false;     // the machine that is to blame is left out from now on
  bool machine_lost = false;  // a machine of it does not answer any more
};

struct RestartDecision {
  bool restart = false;
  double delay_s = 0;
  bool older_step = false;  // not from the newest checkpoint: two attempts died at the same step after it
  std::string why;          // of a stop
};

class RestartPolicy {
 public:
  static constexpr int kFailuresWithoutProgress = 3;
  explicit RestartPolicy(int64_t max_restarts) : left_(max_restarts) {}
  // Never again after 0, 2, 17, 65, after 16 unless it goes on elsewhere, or when a stop was asked for; else as long as
  // restarts are left and one of the last three attempts got anywhere. Delays 0, 1, 2, 4 … 60 s; 0 again after 10
  // minutes that got somewhere. The loss of a machine is not the job's failure: it uses up a restart and nothing else.
  RestartDecision after(const AttemptEnd&);

 private:
  RestartDecision restart(RestartDecision);  // if one is left
  int64_t left_;
  int failures_ = 0, delays_ = 0;
  int64_t last_from_ = -1, last_reached_ = -1;
};

// Whether run_train should supervise: `gpttrain launch` or launch.max_restarts, and nobody has started this process as
// a rank. kUsage: restarts are wanted, but another launcher is the ranks' parent.
bool wants_supervisor(const JobRequest&);

// Runs the job of the command; returns the exit code of its last attempt, kInterrupted when it was stopped while
// waiting.
int supervise(const JobRequest&);

}  // namespace gt
