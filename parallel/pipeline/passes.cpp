// Passes over compute-only schedules: insert messages and gradient reductions.
#include <algorithm>

#include "kernels/core/check.h"
#include "parallel/pipeline/pipeline_schedule.h"

namespace gt {
namespace {

bool weight_pass(Act a) { return a == Act::kBackward || a == Act::kBackwardWeight; }

std::string token(const Action& a) { return to_string(Program{a}); }

// The gradients of both copies are final at the end of their programs.
void add_reduce_tied(PipelineSchedule& s) {
  s.program.front().push_back({Act::kReduceTied, 0});
  if (s.ranks > 1) s.program.back().push_back({Act::kReduceTied, static_cast<int16_t>(s.stages - 1)});
}

}  // namespace

// Replays all ranks in rounds, one action per rank and round, once its input has been sent. A send is inserted at the
// producer and the matching receive on the peer at the same moment, so all programs follow one total order. Synchronous
// sends therefore cannot deadlock, and several communicators get a consistent order of calls on every host.
void add_send_recv(PipelineSchedule& s) {
  const auto m = static_cast<size_t>(s.microbatches);
  std::vector<char> sent[2];  // [0: forward, 1: backward][receiving stage, microbatch]
  for (auto& table : sent) table.assign(static_cast<size_t>(s.stages) * m, 0);
  const auto at = [&](int stage, int microbatch) {
    return static_cast<size_t>(stage) * m + static_cast<size_t>(microbatch);
  };
  std::vector<Program> out(s.program.size());
  std::vector<size_t> next(s.program.size(), 0);

  const auto step = [&](size_t r) {  // one action of rank r; false: it is finished or blocked
    if (next[r] == s.program[r].size()) return false;
    const Action a = s.program[r][next[r]];
    const bool down = a.act == Act::kForward, up = a.act == Act::kBackward || a.act == Act::kBackwardInput;
    GT_CHECK(down || up || a.act == Act::kBackwardWeight || a.act == Act::kReduceGrads || a.act == Act::kReduceTied,
             "rank ", r, " has ", token(a), " already: sends and receives are added once, to compute actions");
    GT_CHECK(
        a.stage >= 0 && a.stage < s.stages && a.microbatch < s.microbatches && (a.microbatch >= 0 || (!down && !up)),
        "rank ", r, ": ", token(a), " leaves ", s.stages, " stages and ", s.microbatches, " microbatches");
    if (down && a.stage > 0 && !sent[0][at(a.stage, a.microbatch)]) return false;
    if (up && a.stage < s.stages - 1 && !sent[1][at(a.stage, a.microbatch)]) return false;
    out[r].push_back(a);
    ++next[r];
    if (!down && !up) return true;
    const int to = a.stage + (down ? 1 : -1);
    if (to < 0 || to >= s.stages) return true;
    sent[down ? 0 : 1][at(to, a.microbatch)] = 1;
    const auto peer = static_cast<size_t>(s.rank_of(to));
    if (peer == r) return true;  // passed in memory
    out[r].push_back({down ? Act::kSendForward : Act::kSendBackward, a.stage, a.microbatch});
    out[peer].push_back({down ? Act::kRecvForward : Act::kRecvBackward, static_cast<int16_t>(to), a.microbatch});
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < s.program.size(); ++r) moved = step(r) || moved;
  }
  std::string stuck;
  for (size_t r = 0; r < s.program.size(); ++r)
    if (next[r] < s.program[r].size())
      stuck += cat(stuck.empty() ? "" : ", ", "rank ", r, " before ", token(s.program[r][next[r]]));
  GT_REQUIRE(stuck.empty(), Exit::kUsage, "schedule ", s.name, " stalls: ", stuck,
             " (each waits for a message that is never sent)");
  s.program = std::move(out);
}

void add_reduce_grads(PipelineSchedule& s, bool tied) {
  bool backward = false;
  for (Program& p : s.program) {
    Program out;
    out.reserve(p.size() + static_cast<size_t>(s.stages / s.ranks) + 1);
    for (size_t k = 0; k < p.size(); ++k) {
      out.push_back(p[k]);
      if (!weight_pass(p[k].act)) continue;
      backward = true;
      const bool more = std::any_of(p.begin() + static_cast<ptrdiff_t>(k) + 1, p.end(),
                                    [&](Action b) { return b.stage == p[k].stage && weight_pass(b.act); });
      if (more) continue;
      const int16_t stage = p[k].stage;
      if (k + 1 < p.size() && p[k + 1].act == Act::kSendBackward && p[k + 1].stage == stage) out.push_back(p[++k]);
      out.push_back({Act::kReduceGrads, stage});
    }
    p = std::move(out);
  }
  if (tied && backward) add_reduce_tied(s);
}

void complete_schedule(PipelineSchedule& s, bool tied) {
  const auto any = [&](auto&& which) {
    return std::any_of(s.program.begin(), s.program.end(), [&](const Program& p) {
      return std::any_of(p.begin(), p.end(), [&](Action a) { return which(a.act); });
    });
  };
  const bool reduced = any([](Act a) { return a == Act::kReduceGrads; });
  const bool tied_already = any([](Act a) { return a == Act::kReduceTied; });
  const bool messages = any([](Act a) { return a >= Act::kSendForward && a <= Act::kRecvBackward; });
  GT_REQUIRE(reduced || !tied_already, Exit::kUsage, "schedule ", s.name,
             " has T without G: write the G of every stage too, or leave both out");
  if (!reduced)
    add_reduce_grads(s, tied);
  else if (tied && !tied_already)
    add_reduce_tied(s);
  if (!messages) add_send_recv(s);
}

}  // namespace gt
