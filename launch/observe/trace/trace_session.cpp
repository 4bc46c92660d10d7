#include "launch/observe/trace/trace_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/core/host.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

constexpr int kTag = 1;
constexpr int kPings = 32;
constexpr size_t kMostEntries = size_t{1} << 20;  // 48 MB
constexpr size_t kHostChars = 64;

template <class T>
void send(ProcessGroup& g, T* data, size_t n, int to) {
  g.send(host_tensor(std::span(data, n)), to, kTag, {}).wait({});
}
template <class T>
void receive(ProcessGroup& g, T* data, size_t n, int from) {
  g.recv(host_tensor(std::span(data, n)), from, kTag, {}).wait({});
}

struct Head {  // precedes a rank's entries
  int64_t entries = 0, truncated = 0;
  char host[kHostChars] = {};
};

Head head_of(const TraceRecorder& r) {
  Head h;
  h.entries = static_cast<int64_t>(r.entries().size());
  h.truncated = r.full() ? 1 : 0;
  host_name().copy(h.host, kHostChars - 1);
  return h;
}

RankTrace rank_trace(const Mesh& mesh, int rank, const Head& h) {
  RankTrace t;
  t.rank = rank;
  t.pp = mesh.shape().coord(Axis::kPp, rank);
  t.dp = mesh.shape().coord(Axis::kDp, rank);
  t.tp = mesh.shape().coord(Axis::kTp, rank);
  t.host = h.host;
  t.truncated = h.truncated != 0;
  return t;
}

}  // namespace

TraceSession::TraceSession(const Mesh& mesh, TraceWindow window, bool all_ranks)
    : mesh_(mesh), window_(window), all_(all_ranks) {
  for (int r = 0; r < mesh.shape().world(); ++r)
    if (traced(r)) ranks_.push_back(r);
}

bool TraceSession::traced(int rank) const {
  return all_ || (mesh_.shape().coord(Axis::kDp, rank) == 0 && mesh_.shape().coord(Axis::kTp, rank) == 0);
}

void TraceSession::begin_step(int64_t step) {
  if (!records(step) || !traced(mesh_.rank())) return;
  if (open()) {  // spans since the previous step belong to no traced step
    tp_->clear();
    dp_->clear();
    return;
  }
  compare_clocks(before_);
  listen(true);
  recorder_ = std::make_unique<TraceRecorder>(0);  // sized after the first step
}

void TraceSession::listen(bool on) {
  constexpr size_t kMostCalls = size_t{1} << 16;  // per step
  if (on) {
    tp_ = std::make_unique<CommSpans>(kMostCalls);
    dp_ = std::make_unique<CommSpans>(kMostCalls);
  }
  mesh_.group(Axis::kTp).set_spans(on ? tp_.get() : nullptr);
  if (mesh_.kv().size() > 1) mesh_.kv().set_spans(on ? tp_.get() : nullptr);
  mesh_.group(Axis::kDp).set_spans(on ? dp_.get() : nullptr);
}

void TraceSession::end_step(int64_t step, const PipelineExecutor& executor, const PhaseEnds& phases,
                            double waited_until, double waited_seconds) {
  if (!records(step) || !open()) return;
  if (recorder_->entries().empty()) {
    const auto steps = static_cast<size_t>(std::min<int64_t>(window_.end - step, kMostEntries));
    const size_t each = trace_entries_per_step(executor, *tp_, *dp_);
    recorder_ = std::make_unique<TraceRecorder>(std::min(kMostEntries, steps * each));
  }
  recorder_->add_step(step, executor, phases, waited_until, waited_seconds, *tp_, *dp_);
}

// Rank 0 requests the time from one rank after the other. The fastest reply is the most accurate; its error is at most
// half the round trip.
void TraceSession::compare_clocks(std::vector<Clock>& out) {
  ProcessGroup& world = mesh_.world();
  out.assign(ranks_.size(), {});
  double theirs = 0;
  if (mesh_.rank() != 0) {
    for (int k = 0; k < kPings; ++k) {
      receive(world, &theirs, 1, 0);
      theirs = now();
      send(world, &theirs, 1, 0);
    }
    return;
  }
  for (size_t i = 1; i < ranks_.size(); ++i) {
    Clock best;
    best.error = INFINITY;
    for (int k = 0; k < kPings; ++k) {
      const double begin = now();
      theirs = begin;
      send(world, &theirs, 1, ranks_[i]);
      receive(world, &theirs, 1, ranks_[i]);
      const double end = now(), middle = (begin + end) / 2;
      if ((end - begin) / 2 < best.error) best = {middle, theirs - middle, (end - begin) / 2};
    }
    out[i] = best;
  }
}

// Offsets within their own error are ignored: ranks of one machine share a clock.
void TraceSession::shift(RankTrace& t, const Clock& before, const Clock& after) const {
  t.clock_error = std::max(before.error, after.error);
  if (std::abs(before.offset) <= before.error && std::abs(after.offset) <= after.error) return;
  const double span = after.at - before.at, drift = span > 0 ? (after.offset - before.offset) / span : 0;
  t.clock_offset = before.offset;
  for (TraceEntry& e : t.entries) {
    const double at = static_cast<double>(e.begin) * 1e-9;
    e.begin -= std::llround((before.offset + drift * (at - before.offset - before.at)) * 1e9);
  }
}

std::vector<RankTrace> TraceSession::gather() {
  std::vector<RankTrace> out;
  if (!open()) return out;
  listen(false);
  compare_clocks(after_);
  ProcessGroup& world = mesh_.world();
  Head head = head_of(*recorder_);
  std::vector<TraceEntry> mine(recorder_->entries().begin(), recorder_->entries().end());
  recorder_.reset();
  if (mesh_.rank() != 0) {
    send(world, &head, 1, 0);
    send(world, mine.data(), mine.size(), 0);
    return out;
  }
  out.push_back(rank_trace(mesh_, 0, head));
  out.back().entries = std::move(mine);
  for (size_t i = 1; i < ranks_.size(); ++i) {
    receive(world, &head, 1, ranks_[i]);
    RankTrace t = rank_trace(mesh_, ranks_[i], head);
    t.entries.resize(static_cast<size_t>(head.entries));
    receive(world, t.entries.data(), t.entries.size(), ranks_[i]);
    shift(t, before_[i], after_[i]);
    out.push_back(std::move(t));
  }
  return out;
}

std::string executed_timeline(std::span<const RankTrace> traces, int width) {
  int64_t step = -1;
  for (const RankTrace& t : traces)
    for (const TraceEntry& e : t.entries) step = std::max<int64_t>(step, e.step);
  const Report report = executed_report(traces, step);
  return report.timeline.empty() ? "" : gantt(report, width);
}

std::string clock_text(std::span<const RankTrace> traces) {
  std::string out;
  for (const RankTrace& t : traces)
    out += fmt::format("{}rank {}: {:+.1f} us, error at most {:.1f} us{}", out.empty() ? "" : "; ", t.rank,
                       t.clock_offset * 1e6, t.clock_error * 1e6,
                       t.truncated ? ", recorder full: the end is missing" : "");
  return out;
}

}  // namespace gt
