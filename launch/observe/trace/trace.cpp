#include "launch/observe/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace gt {
namespace {

int64_t ns(double seconds) { return static_cast<int64_t>(std::llround(seconds * 1e9)); }

bool receives(TraceKind k) { return k == TraceKind::kRecvForward || k == TraceKind::kRecvBackward; }

Action action_of(const TraceEntry& e) {
  return {e.kind == TraceKind::kMicrobatch ? Act::kBackward : static_cast<Act>(e.kind), e.stage, e.microbatch};
}

TraceKind kind_of(const ActionTime& t) {
  if (t.action.act == t.last) return static_cast<TraceKind>(t.last);
  return t.action.act == Act::kForward ? TraceKind::kMicrobatch : TraceKind::kBackward;
}

}  // namespace

static_assert(static_cast<int>(TraceKind::kReduceTied) == static_cast<int>(Act::kReduceTied));

void TraceRecorder::add(const TraceEntry& e) {
  if (entries_.size() < entries_.capacity())
    entries_.push_back(e);
  else
    full_ = true;
}

void TraceRecorder::add(int64_t step, TraceKind kind, double begin, double end) {
  TraceEntry e;
  e.begin = ns(begin);
  e.duration = std::max<int64_t>(0, ns(end) - e.begin);
  e.step = static_cast<int32_t>(step);
  e.kind = kind;
  add(e);
}

void TraceRecorder::add(int64_t step, const ActionTime& t, double started) {
  TraceEntry e;
  e.begin = ns(started + t.begin);
  e.duration = std::max<int64_t>(0, ns(started + t.end) - e.begin);
  e.bytes = t.bytes;
  e.activation_bytes = t.activation_bytes;
  e.step = static_cast<int32_t>(step);
  e.stage = t.action.stage;
  e.microbatch = t.action.microbatch;
  e.kind = kind_of(t);
  e.live = t.live;
  add(e);
}

void TraceRecorder::add(int64_t step, TraceKind kind, const CommSpan& s) {
  TraceEntry e;
  e.begin = s.begin;
  e.duration = s.end - s.begin;
  e.bytes = s.bytes;
  e.step = static_cast<int32_t>(step);
  e.kind = kind;
  e.op = s.op;
  e.waits = s.waits;
  add(e);
}

void TraceRecorder::add_step(int64_t step, const PipelineExecutor& executor, const PhaseEnds& phases,
                             double waited_until, double waited_seconds, const CommSpans& tp, const CommSpans& dp) {
  add(step, TraceKind::kDataWait, waited_until - waited_seconds, waited_until);
  for (const ActionTime& t : executor.timeline()) add(step, t, executor.started());
  for (const ActionTime& t : executor.transfers()) add(step, t, executor.started());
  constexpr TraceKind kPhases[] = {TraceKind::kReduce, TraceKind::kNorms, TraceKind::kOptimizer, TraceKind::kGather};
  for (size_t p = 0; p < 4; ++p) add(step, kPhases[p], phases[p + 1], phases[p + 2]);
  for (const CommSpan& s : tp.spans()) add(step, TraceKind::kTpCall, s);
  auto action = executor.timeline().begin();  // both are in time order; other dp calls are covered by G and phases
  for (const CommSpan& s : dp.spans()) {
    while (action != executor.timeline().end() && ns(executor.started() + action->end) < s.end) ++action;
    if (action == executor.timeline().end()) break;
    if (ns(executor.started() + action->begin) <= s.begin) add(step, TraceKind::kDpCall, s);
  }
  full_ = full_ || tp.full() || dp.full();
}

size_t trace_entries_per_step(const PipelineExecutor& executor, const CommSpans& tp, const CommSpans& dp) {
  return executor.timeline().size() + executor.transfers().size() + tp.spans().size() + dp.spans().size() + 8;
}

std::vector<RankTrace> simulated_trace(const PipelineSchedule& s, const Report& report, double unit) {
  std::vector<RankTrace> out(report.timeline.size());
  const auto entry = [&](TraceKind kind, int stage, int microbatch, double begin, double end) {
    TraceEntry e;
    e.begin = ns(begin * unit);
    e.duration = ns(end * unit) - e.begin;
    e.step = 1;
    e.stage = static_cast<int16_t>(stage);
    e.microbatch = static_cast<int16_t>(microbatch);
    e.kind = kind;
    return e;
  };
  for (size_t r = 0; r < out.size(); ++r) {
    out[r].rank = out[r].pp = static_cast<int>(r);
    out[r].host = "simulated";
    int live = 0;
    for (const Span& span : report.timeline[r]) {
      const Action& a = span.action;
      const bool down = a.act == Act::kForward;
      live += down ? 1 : 0;
      out[r].entries.push_back(entry(static_cast<TraceKind>(a.act), a.stage, a.microbatch, span.begin, span.end));
      out[r].entries.back().live = live;
      live -= a.act == Act::kBackward || a.act == Act::kBackwardWeight ? 1 : 0;
      if (a.act == Act::kBackwardWeight) continue;
      const int from = a.stage + (down ? -1 : 1), to = a.stage + (down ? 1 : -1);
      const auto message = [&](int peer, TraceKind kind, double at) {
        if (peer < 0 || peer >= s.stages || s.rank_of(peer) == static_cast<int>(r)) return;
        out[r].entries.push_back(entry(kind, a.stage, a.microbatch, at, at));
        out[r].entries.back().bytes = 1;
      };
      message(from, down ? TraceKind::kRecvForward : TraceKind::kRecvBackward, span.begin);
      message(to, down ? TraceKind::kSendForward : TraceKind::kSendBackward, span.end);
    }
  }
  return out;
}

Report executed_report(std::span<const RankTrace> traces, int64_t step) {
  Report report;
  int64_t first = INT64_MAX, last = 0;
  int ranks = 0;
  for (const RankTrace& t : traces) {
    if (t.dp != 0 || t.tp != 0) continue;
    ranks = std::max(ranks, t.pp + 1);
    for (const TraceEntry& e : t.entries) {
      if (e.step != step || !computes(e.kind)) continue;
      first = std::min(first, e.begin);
      last = std::max(last, e.begin + e.duration);
    }
  }
  if (last <= first) return report;
  report.timeline.resize(static_cast<size_t>(ranks));
  report.waiting.resize(static_cast<size_t>(ranks));
  report.peak_in_flight.resize(static_cast<size_t>(ranks));
  const auto ms = [&](int64_t t) { return static_cast<double>(t - first) * 1e-6; };
  double busy = 0;
  for (const RankTrace& t : traces) {
    if (t.dp != 0 || t.tp != 0) continue;
    const auto r = static_cast<size_t>(t.pp);
    for (const TraceEntry& e : t.entries) {
      // As in the logged bubble: waiting for other replicas does not count as work of a stage.
      if (e.step == step && e.kind == TraceKind::kDpCall) busy -= static_cast<double>(e.duration) * 1e-6;
      if (e.step != step || !(computes(e.kind) || receives(e.kind))) continue;
      (computes(e.kind) ? report.timeline : report.waiting)[r].push_back(
          {action_of(e), ms(e.begin), ms(e.begin + e.duration)});
      if (!computes(e.kind)) continue;
      busy += static_cast<double>(e.duration) * 1e-6;
      report.peak_in_flight[r] = std::max(report.peak_in_flight[r], static_cast<int>(e.live));
    }
  }
  report.makespan = ms(last);
  report.bubble = 1 - busy / (report.makespan * ranks);
  return report;
}

}  // namespace gt
