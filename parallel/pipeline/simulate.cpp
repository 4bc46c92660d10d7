// Simulates all ranks together twice. First with rendezvous sends, which covers systems without any buffering and one
// in-order stream per communicator. Then with asynchronous messages and times, as the executor runs.
#include "parallel/pipeline/simulate.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "parallel/pipeline/check_schedule.h"

namespace gt {
namespace {

bool is_send(Act a) { return a == Act::kSendForward || a == Act::kSendBackward; }
bool is_recv(Act a) { return a == Act::kRecvForward || a == Act::kRecvBackward; }
bool goes_down(Act a) { return a == Act::kForward || a == Act::kSendForward || a == Act::kRecvForward; }

[[noreturn]] void deadlock(const PipelineSchedule& s, const std::vector<size_t>& pc, const char* sends) {
  std::string where;
  for (int r = 0; r < s.ranks; ++r) {
    const size_t k = pc[static_cast<size_t>(r)];
    if (k < s.program[static_cast<size_t>(r)].size()) where += cat("\n  rank ", r, " waits at ", excerpt(s, r, k));
  }
  fail(Exit::kUsage, "schedule ", s.name, ": deadlock with ", sends, " sends:", where);
}

bool finished(const PipelineSchedule& s, const std::vector<size_t>& pc) {
  for (size_t r = 0; r < pc.size(); ++r)
    if (pc[r] < s.program[r].size()) return false;
  return true;
}

// Rendezvous: a send and its receive complete together, when both ranks have reached them. check_schedule() guarantees
// that every compute action follows its receive, so nothing else can block.
void play_rendezvous(const PipelineSchedule& s) {
  std::vector<size_t> pc(s.program.size(), 0);
  const auto skip_compute = [&](size_t r) {
    while (pc[r] < s.program[r].size() && !is_send(s.program[r][pc[r]].act) && !is_recv(s.program[r][pc[r]].act))
      ++pc[r];
    return pc[r] < s.program[r].size();
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < pc.size(); ++r)
      while (skip_compute(r) && is_send(s.program[r][pc[r]].act)) {
        const Action a = s.program[r][pc[r]];
        const bool down = goes_down(a.act);
        const int to = a.stage + (down ? 1 : -1);
        const auto peer = static_cast<size_t>(s.rank_of(to));
        const Action receive{down ? Act::kRecvForward : Act::kRecvBackward, static_cast<int16_t>(to), a.microbatch};
        if (!skip_compute(peer) || !(s.program[peer][pc[peer]] == receive)) break;
        ++pc[r];
        ++pc[peer];
        moved = true;
      }
  }
  if (!finished(s, pc)) deadlock(s, pc, "rendezvous");
}

// Asynchronous messages and times.
class AsyncSimulation {
 public:
  AsyncSimulation(const PipelineSchedule& s, const Cost& c)
      : s_(s),
        cost_(c),
        m_(static_cast<size_t>(s.microbatches)),
        forward_only_(is_forward_only(s)),
        pc_(s.program.size(), 0),
        clock_(s.program.size(), 0),
        free_(s.program.size() * s.program.size(), 0),
        live_(s.program.size(), 0) {
    for (auto& table : arrives_) table.assign(static_cast<size_t>(s.stages) * m_, kNever);
    report_.peak_in_flight.assign(s.program.size(), 0);
    report_.timeline.resize(s.program.size());
  }

  static constexpr double kNever = -1;

  // Sends the messages of rank r up to its next compute action. Returns when that may begin, kNever if it waits or
  // there is none.
  double ready(size_t r) {
    for (; pc_[r] < s_.program[r].size(); ++pc_[r]) {
      const Action& a = s_.program[r][pc_[r]];
      if (computes(a)) return begin_of(r, a);
      pass_on(r, a);
    }
    return kNever;
  }

  // Executes the next compute action of rank r from `begin` on and sends its messages. Returns when it ends.
  double compute(size_t r, double begin) {
    const Action& a = s_.program[r][pc_[r]++];
    const bool down = a.act == Act::kForward;
    clock_[r] = begin + duration(a);
    report_.timeline[r].push_back({a, begin, clock_[r]});
    hand_over(r, a, down);
    if (down) report_.peak_in_flight[r] = std::max(report_.peak_in_flight[r], ++live_[r]);
    if (a.act == Act::kBackward || a.act == Act::kBackwardWeight || (down && forward_only_)) --live_[r];
    ready(r);
    return clock_[r];
  }

  // Every rank has a processor.
  Report play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < pc_.size(); ++r)
        for (double begin = 0; (begin = ready(r)) != kNever; moved = true) compute(r, begin);
    }
    return finish();
  }

  Report finish() {
    if (!finished(s_, pc_)) deadlock(s_, pc_, "buffered");
    double busy = 0;
    for (size_t r = 0; r < pc_.size(); ++r) {
      report_.makespan = std::max(report_.makespan, clock_[r]);
      for (const Span& t : report_.timeline[r]) busy += t.end - t.begin;
    }
    report_.makespan = std::max(report_.makespan, tied_);
    report_.bubble = report_.makespan > 0 ? 1 - busy / (report_.makespan * s_.ranks) : 0;
    return std::move(report_);
  }

 private:
  // Time at which the input of `stage` from the previous stage (down) or the next one arrives on its rank.
  double& arrival(bool down, int stage, int k) {
    return arrives_[down ? 0 : 1][static_cast<size_t>(stage) * m_ + static_cast<size_t>(k)];
  }

  double duration(const Action& a) const {
    const auto st = static_cast<size_t>(a.stage);
    if (a.act == Act::kForward) return cost_.stage_f.empty() ? cost_.f : cost_.stage_f[st];
    if (a.act == Act::kBackward) return cost_.stage_b.empty() ? cost_.b : cost_.stage_b[st];
    if (!cost_.stage_b.empty()) return cost_.stage_b[st] / 2;
    return a.act == Act::kBackwardInput ? cost_.i : cost_.w;
  }

  static bool computes(const Action& a) {
    return !is_send(a.act) && !is_recv(a.act) && a.act != Act::kReduceGrads && a.act != Act::kReduceTied;
  }

  void pass_on(size_t r, const Action& a) {  // receives are posted; compute waits for them
    if (is_send(a.act)) {
      const bool down = goes_down(a.act);
      const int to = a.stage + (down ? 1 : -1);
      arrival(down, to, a.microbatch) = sent(r, static_cast<size_t>(s_.rank_of(to)), cost_.wire);
    }
    if (a.act == Act::kReduceTied && r > 0) tied_ = sent(r, 0, cost_.tied);
  }

  double begin_of(size_t r, const Action& a) {
    const bool down = a.act == Act::kForward;
    if (a.act == Act::kBackwardWeight || (down ? a.stage == 0 : a.stage == s_.stages - 1)) return clock_[r];
    const double t = arrival(down, a.stage, a.microbatch);
    return t == kNever ? kNever : std::max(clock_[r], t);
  }

  // Sends a message that occupies the line for `wire`. Returns when it arrives.
  double sent(size_t from, size_t to, double wire) {
    double& free = free_[from * s_.program.size() + to];
    free = std::max(free, clock_[from]) + wire;
    return free + cost_.p2p;
  }

  // Passes the output to a stage of the same rank, without a message.
  void hand_over(size_t r, const Action& a, bool down) {
    if (a.act == Act::kBackwardWeight) return;
    const int to = a.stage + (down ? 1 : -1);
    if (to < 0 || to >= s_.stages || s_.rank_of(to) != static_cast<int>(r)) return;
    arrival(down, to, a.microbatch) = clock_[r];
  }

  const PipelineSchedule& s_;
  const Cost& cost_;
  const size_t m_;
  const bool forward_only_;
  std::vector<size_t> pc_;
  std::vector<double> clock_;
  std::vector<double> free_;  // [from, to]: when the line between two ranks has sent everything
  double tied_ = 0;           // arrival of the last stage's tied gradients at the first
  std::vector<int> live_;
  std::vector<double> arrives_[2];  // [0: down, 1: up][stage, microbatch]
  Report report_;
};

}  // namespace

Report simulate(const PipelineSchedule& s, const Cost& cost) {
  const auto stages = static_cast<size_t>(s.stages);
  GT_CHECK(cost.stage_f.empty() || cost.stage_f.size() == stages, cost.stage_f.size(), " forward times for ", stages,
           " stages");
  GT_CHECK(cost.stage_b.empty() || cost.stage_b.size() == stages, cost.stage_b.size(), " backward times for ", stages,
           " stages");
  check_schedule(s);
  play_rendezvous(s);
  return AsyncSimulation(s, cost).play();
}

double makespan_on_cores(const PipelineSchedule& s, const Cost& cost, int pipelines, int cores) {
  std::vector<AsyncSimulation> all(static_cast<size_t>(pipelines), AsyncSimulation(s, cost));
  std::vector<double> free(static_cast<size_t>(cores), 0);
  while (true) {
    AsyncSimulation* next = nullptr;
    size_t rank = 0;
    double since = 0;
    for (AsyncSimulation& one : all)
      for (size_t r = 0; r < s.program.size(); ++r)
        if (const double t = one.ready(r); t != AsyncSimulation::kNever && (next == nullptr || t < since))
          next = &one, rank = r, since = t;
    if (next == nullptr) break;
    double& core = *std::min_element(free.begin(), free.end());
    core = next->compute(rank, std::max(since, core));
  }
  double longest = 0;
  for (AsyncSimulation& one : all) longest = std::max(longest, one.finish().makespan);
  return longest;
}

}  // namespace gt
