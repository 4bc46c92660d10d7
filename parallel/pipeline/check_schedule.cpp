#include "parallel/pipeline/check_schedule.h"

#include <algorithm>
#include <map>

#include "kernels/core/check.h"

namespace gt {
namespace {

std::string token(const Action& a) { return to_string(Program{a}); }

constexpr unsigned bit(Act a) { return 1U << static_cast<unsigned>(a); }

// Checks the program of one rank from its first action to its last.
class RankCheck {
 public:
  RankCheck(const PipelineSchedule& s, int rank, bool forward_only)
      : s_(s),
        rank_(rank),
        forward_only_(forward_only),
        m_(static_cast<size_t>(s.microbatches)),
        did_(static_cast<size_t>(s.stages) * m_, 0),
        last_input_(static_cast<size_t>(s.stages), -1),
        last_weight_(last_input_),
        last_forward_(last_input_),
        reduced_(static_cast<size_t>(s.stages), 0) {}

  void run() {
    const Program& p = s_.program[static_cast<size_t>(rank_)];
    for (k_ = 0; k_ < p.size(); ++k_) {
      const Action a = p[k_];
      need(a.stage >= 0 && a.stage < s_.stages, "there are stages 0 to ", s_.stages - 1);
      need(s_.rank_of(a.stage) == rank_, "stage ", a.stage, " is on rank ", s_.rank_of(a.stage));
      if (a.act == Act::kReduceGrads || a.act == Act::kReduceTied)
        per_step(a);
      else
        per_microbatch(a);
    }
    complete();
  }

 private:
  template <class... A>
  void need(bool ok, const A&... why) const {
    if (!ok) fail(Exit::kUsage, "schedule ", s_.name, ", rank ", rank_, ": ", excerpt(s_, rank_, k_), ": ", why...);
  }
  unsigned& did(int stage, int microbatch) {
    return did_[static_cast<size_t>(stage) * m_ + static_cast<size_t>(microbatch)];
  }
  bool has(int stage, int microbatch, Act a) { return (did(stage, microbatch) & bit(a)) != 0; }
  bool has_gradient(int stage, int k) { return has(stage, k, Act::kBackward) || has(stage, k, Act::kBackwardInput); }
  bool here(int stage) const { return s_.rank_of(stage) == rank_; }

  void ascending(std::vector<int>& last, const Action& a) {
    int& before = last[static_cast<size_t>(a.stage)];
    need(a.microbatch > before, "after microbatch ", before, "; gradients of a stage accumulate in ascending order");
    before = a.microbatch;
  }

  // Requires that the other end of a message exists and is on another rank.
  void edge(const Action& a, int other) const {
    need(other >= 0 && other < s_.stages, "stage ", a.stage, " of ", s_.stages, " has no neighbour on that side");
    need(!here(other), "stage ", other, " lives on the same rank: no message");
  }

  // Requires that the input of a compute action is available: received, or computed by the adjacent stage on this rank.
  void input_ready(const Action& a, int from, bool down) {
    if (from < 0 || from >= s_.stages) return;
    if (!here(from)) {
      need(has(a.stage, a.microbatch, down ? Act::kRecvForward : Act::kRecvBackward), "before its receive");
    } else {
      need(down ? has(from, a.microbatch, Act::kForward) : has_gradient(from, a.microbatch), "before stage ", from,
           " of the same rank");
    }
  }

  void per_microbatch(const Action& a) {
    const int st = a.stage, k = a.microbatch;
    need(k >= 0 && k < s_.microbatches, "there are microbatches 0 to ", s_.microbatches - 1);
    need(!has(st, k, a.act), "twice");
    switch (a.act) {
      case Act::kForward:
        input_ready(a, st - 1, true);
        ascending(last_forward_, a);
        break;
      case Act::kBackward:
      case Act::kBackwardInput:
        need(has(st, k, Act::kForward), "before its forward");
        need(!has_gradient(st, k), "a second backward of this microbatch");
        input_ready(a, st + 1, false);
        ascending(last_input_, a);
        if (a.act == Act::kBackward) ascending(last_weight_, a);
        break;
      case Act::kBackwardWeight:
        need(has(st, k, Act::kBackwardInput), "before its input gradient (I)");
        ascending(last_weight_, a);
        break;
      case Act::kSendForward:
        edge(a, st + 1);
        need(has(st, k, Act::kForward), "sends before its forward");
        break;
      case Act::kSendBackward:
        edge(a, st - 1);
        need(has_gradient(st, k), "sends before its backward");
        break;
      case Act::kRecvForward: edge(a, st - 1); break;
      case Act::kRecvBackward: edge(a, st + 1); break;
      default: break;
    }
    if (a.act == Act::kBackward || a.act == Act::kBackwardWeight)
      need(!reduced_[static_cast<size_t>(st)], "after this stage's gradients were reduced (G)");
    did(st, k) |= bit(a.act);
  }

  void per_step(const Action& a) {
    need(!forward_only_, "a schedule without backward has no gradients to reduce");
    need(a.microbatch == -1, "reductions belong to the whole step, not to a microbatch");
    if (a.act == Act::kReduceGrads) {
      need(!reduced_[static_cast<size_t>(a.stage)], "twice");
      need(last_weight_[static_cast<size_t>(a.stage)] == s_.microbatches - 1,
           "before the last weight gradient of its stage");
      reduced_[static_cast<size_t>(a.stage)] = 1;
      return;
    }
    need(a.stage == 0 || a.stage == s_.stages - 1, "only the first and the last stage share weights");
    need(!tied_, "twice");
    need(reduced_[static_cast<size_t>(a.stage)], "before G of its stage");
    tied_ = true;
  }

  void complete() {
    const auto missing = [&](int stage, const char* act, int k, const char* why) {
      fail(Exit::kUsage, "schedule ", s_.name, ", rank ", rank_, ": no ", stage, act, k >= 0 ? std::to_string(k) : "",
           why);
    };
    for (int st = rank_; st < s_.stages; st += s_.ranks) {
      for (int k = 0; k < s_.microbatches; ++k) {
        if (!has(st, k, Act::kForward)) missing(st, "F", k, ": every stage forwards every microbatch");
        if (forward_only_) continue;
        if (!has_gradient(st, k)) missing(st, "B", k, ": its activations would leak");
        if (has(st, k, Act::kBackwardInput) && !has(st, k, Act::kBackwardWeight))
          missing(st, "W", k, ": its activations would leak and its weight gradient be lost");
      }
      if (!forward_only_ && !reduced_[static_cast<size_t>(st)])
        missing(st, "G", -1, ": its gradients would not be reduced");
    }
  }

  const PipelineSchedule& s_;
  const int rank_;
  const bool forward_only_;
  const size_t m_;
  size_t k_ = 0;
  std::vector<unsigned> did_;                  // [stage, microbatch] acts so far
  std::vector<int> last_input_, last_weight_;  // [stage] last microbatch of B or I; of B or W
  std::vector<int> last_forward_;              // [stage] of F: a fused loss accumulates its weight gradient in the
                                               // forward
  std::vector<char> reduced_;                  // [stage]
  bool tied_ = false;
};

struct Route {  // source and destination rank of a message, and its direction
  int from, to;
  bool down;
};

Route route_of(const PipelineSchedule& s, const Action& a) {
  const bool down = a.act == Act::kSendForward || a.act == Act::kRecvForward;
  const bool send = a.act == Act::kSendForward || a.act == Act::kSendBackward;
  const int here = s.rank_of(a.stage), there = s.rank_of(a.stage + (down == send ? 1 : -1));
  return send ? Route{here, there, down} : Route{there, here, down};
}

// Requires that the sends and receives of every channel (source, destination, direction) are the same list.
void check_messages(const PipelineSchedule& s) {
  struct End {
    Action action;
    size_t at;  // its position in the program
  };
  struct Channel {
    std::vector<End> sent, received;
  };
  const auto p = static_cast<size_t>(s.ranks);
  std::map<size_t, Channel> channels;  // only those in use: a hostile p would make p * p * 2 too many
  for (const Program& program : s.program)
    for (size_t k = 0; k < program.size(); ++k) {
      const Act act = program[k].act;
      const bool send = act == Act::kSendForward || act == Act::kSendBackward;
      if (!send && act != Act::kRecvForward && act != Act::kRecvBackward) continue;
      const Route e = route_of(s, program[k]);
      Channel& c = channels[(static_cast<size_t>(e.from) * p + static_cast<size_t>(e.to)) * 2 + (e.down ? 1 : 0)];
      (send ? c.sent : c.received).push_back({program[k], k});
    }
  for (const auto& [i, c] : channels) {
    const int from = static_cast<int>(i / 2 / p), to = static_cast<int>(i / 2 % p), by = i % 2 ? 1 : -1;
    for (size_t k = 0; k < std::max(c.sent.size(), c.received.size()); ++k) {
      GT_REQUIRE(k < c.received.size(), Exit::kUsage, "schedule ", s.name, ", rank ", from, ": ",
                 excerpt(s, from, c.sent[k].at), ": no receive for it on rank ", to);
      GT_REQUIRE(k < c.sent.size(), Exit::kUsage, "schedule ", s.name, ", rank ", to, ": ",
                 excerpt(s, to, c.received[k].at), ": no send for it on rank ", from);
      const Action out = c.sent[k].action, in = c.received[k].action;
      GT_REQUIRE(out.stage + by == in.stage && out.microbatch == in.microbatch, Exit::kUsage, "schedule ", s.name,
                 ", rank ", to, ": ", excerpt(s, to, c.received[k].at), ": message ", k, " from rank ", from, " is ",
                 token(out), ": messages do not match or are reordered");
    }
  }
}

}  // namespace

std::string excerpt(const PipelineSchedule& s, int rank, size_t k) {
  constexpr size_t kAround = 4;
  const Program& p = s.program[static_cast<size_t>(rank)];
  const size_t begin = k > kAround ? k - kAround : 0, end = std::min(p.size(), k + kAround + 1);
  std::string out = begin > 0 ? "... " : "";
  for (size_t i = begin; i < end; ++i)
    out += (i > begin ? " " : "") + (i == k ? ">>" + token(p[i]) + "<<" : token(p[i]));
  return out + (end < p.size() ? " ..." : "");
}

bool is_forward_only(const PipelineSchedule& s) {
  const auto backward = [](Action a) { return a.act == Act::kBackward || a.act == Act::kBackwardInput; };
  return std::none_of(s.program.begin(), s.program.end(),
                      [&](const Program& p) { return std::any_of(p.begin(), p.end(), backward); });
}

void check_schedule(const PipelineSchedule& s) {
  GT_REQUIRE(s.ranks >= 1 && s.stages >= s.ranks && s.stages % s.ranks == 0 && s.microbatches >= 1 &&
                 s.program.size() == static_cast<size_t>(s.ranks),
             Exit::kUsage, "schedule ", s.name, " has ", s.program.size(), " programs, ", s.ranks, " ranks, ", s.stages,
             " stages, ", s.microbatches,
             " microbatches: expected one program a rank and a multiple of the ranks as stages");
  const bool forward_only = is_forward_only(s);
  int tied = 0;
  for (int r = 0; r < s.ranks; ++r) {
    RankCheck(s, r, forward_only).run();
    const Program& p = s.program[static_cast<size_t>(r)];
    tied += std::any_of(p.begin(), p.end(), [](Action a) { return a.act == Act::kReduceTied; }) ? 1 : 0;
  }
  GT_REQUIRE(tied == 0 || s.ranks == 1 || tied == 2, Exit::kUsage, "schedule ", s.name,
             ": T is on one end only; both the first and the last rank take part in the sum of tied gradients");
  check_messages(s);
}

}  // namespace gt
