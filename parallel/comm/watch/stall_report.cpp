#include "parallel/comm/watch/stall_report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace gt {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

std::string seconds(double s) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", s);
  return text;
}

double since(int64_t then, int64_t now) { return static_cast<double>(now - then) * 1e-9; }
bool is_message(const CommCall& c) { return c.op == CommOp::kSend || c.op == CommOp::kRecv; }

// Indices of the ranks that `r` waits for.
std::vector<int> edges_of(const std::vector<RankView>& ranks, size_t r) {
  std::vector<int> out;
  const RankView& me = ranks[r];
  if (!me.waits || me.frozen) return out;
  const GroupView* mine = me.find(me.wait_key);
  for (size_t q = 0; q < ranks.size(); ++q) {
    if (q == r) continue;
    const GroupView* g = ranks[q].find(me.wait_key);
    if (is_message(me.wait_call)) {
      if (g != nullptr && g->rank == me.wait_call.peer) out.push_back(static_cast<int>(q));
    } else if (g != nullptr && (g->posted <= me.wait_seq || ranks[q].frozen)) {
      out.push_back(static_cast<int>(q));
    } else if (g == nullptr && mine != nullptr && mine->size == static_cast<int>(ranks.size())) {
      out.push_back(static_cast<int>(q));  // a group of all ranks that it has left: it has ended
    }
  }
  return out;
}

void reach(const std::vector<std::vector<int>>& edges, int from, std::vector<bool>& reached) {
  if (reached[static_cast<size_t>(from)]) return;
  reached[static_cast<size_t>(from)] = true;
  for (int to : edges[static_cast<size_t>(from)]) reach(edges, to, reached);
}

// Finds two members of the waiting rank's group that made different calls with the same number.
std::optional<Diagnosis> find_desync(const std::vector<RankView>& ranks, const CommBoard& board) {
  const auto here = static_cast<size_t>(board.ranks);  // the last calls of remote ranks are not available
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankView& me = ranks[r];
    if (!me.waits || is_message(me.wait_call)) continue;
    for (size_t q = 0; q < std::min(here, ranks.size()); ++q) {
      const GroupView* g = ranks[q].find(me.wait_key);
      const OpEntry* e = g != nullptr ? board.pages[q].find(me.wait_key, me.wait_seq) : nullptr;
      if (e == nullptr || me.wait_call.agrees(e->call.load())) continue;
      Diagnosis d{StallKind::kDesync, {static_cast<int>(r), static_cast<int>(q)}, ""};
      const GroupView* mine = me.find(me.wait_key);
      d.desync_calls = cat(g->label, " #", me.wait_seq, ": rank ", mine != nullptr ? mine->rank : -1, " (world rank ",
                           me.world_rank, ") called ", to_string(me.wait_call), ", rank ", g->rank, " (world rank ",
                           ranks[q].world_rank, ") called ", to_string(e->call.load()));
      return d;
    }
  }
  return std::nullopt;
}

// Follows the lowest edges from the lowest rank with edges; returns the cycle reached, or nothing.
std::vector<int> find_cycle(const std::vector<std::vector<int>>& edges) {
  size_t at = 0;
  while (at < edges.size() && edges[at].empty()) ++at;
  std::vector<int> path;
  while (at < edges.size() && !edges[at].empty()) {
    const auto again = std::find(path.begin(), path.end(), static_cast<int>(at));
    if (again != path.end()) return {again, path.end()};
    path.push_back(static_cast<int>(at));
    at = static_cast<size_t>(edges[at].front());
  }
  return {};
}

std::string wait_text(const RankView& r, const std::string& host) {
  const GroupView* g = r.find(r.wait_key);
  return cat(who(r, host), " has waited ", seconds(r.waited_s), " in ", g != nullptr ? g->label : "a group", " #",
             r.wait_seq, " ", to_string(r.wait_call), ", ", to_string(r.phase), ", ", position_text(r.step, r.where));
}

// State of a rank that has not arrived, and its last call in the group that waits for it, or in any group.
std::string absent_text(const RankView& r, const RankView& waiter, int64_t now, const std::string& host) {
  std::string doing = "runs, in no collective";
  if (r.phase == RunPhase::kDone) doing = "has ended";
  if (r.phase == RunPhase::kFailed) doing = "has failed";
  if (r.frozen) doing = cat("frozen, no sign of life for ", seconds(r.silent_s));
  const GroupView* g = r.find(waiter.wait_key);
  if (g == nullptr || g->posted + g->messages == 0)
    for (const GroupView& other : r.groups)
      if (g == nullptr || other.last_start > g->last_start) g = &other;
  std::string last = "no call so far";
  if (g != nullptr && g->posted + g->messages > 0)
    last = cat("last call: ", g->label, " #", is_message(g->last) ? g->messages - 1 : g->posted - 1, " ",
               to_string(g->last), " ", seconds(since(g->last_start, now)), " ago, ",
               position_text(g->last_step, g->last_where));
  return cat(who(r, host), ": ", doing, "; ", to_string(r.phase), ", ", position_text(r.step, r.where), "; ", last);
}

}  // namespace

const GroupView* RankView::find(uint64_t key) const {
  for (const GroupView& g : groups)
    if (g.key == key) return &g;
  return nullptr;
}

std::vector<RankView> read_board(const CommBoard& board, int64_t now) {
  std::vector<RankView> out;
  for (int i = 0; i < board.ranks; ++i) {
    const RankPages& p = board.pages[i];
    const RankSlot& s = p.rank;
    RankView r;
    r.world_rank = s.world_rank.load(kRelaxed);
    r.pid = s.pid.load(kRelaxed);
    r.step = s.step.load(kRelaxed);
    r.where = s.where.load(kRelaxed);
    r.phase = s.phase.load(kRelaxed);
    r.coordinates = s.coordinates.load();
    const int64_t beat = s.beat.load(kRelaxed), waiting = s.wait_start.load(std::memory_order_acquire);
    r.silent_s = beat == 0 ? 0 : std::max(0.0, since(beat, now));
    r.frozen = r.silent_s > kFrozenSeconds && r.phase != RunPhase::kDone && r.phase != RunPhase::kFailed;
    r.waits = waiting != 0;
    r.waited_s = r.waits ? since(waiting, now) : 0;
    r.limit_s = static_cast<double>(s.warn_ns.load(kRelaxed)) * 1e-9;
    r.wait_key = s.wait_key.load(kRelaxed);
    r.wait_seq = s.wait_seq.load(kRelaxed);
    r.wait_call = s.wait_call.load();
    for (const GroupSlot& g : p.group) {
      const uint64_t key = g.key.load(std::memory_order_acquire);
      if (key == 0) continue;
      r.groups.push_back({key, g.label.load(), static_cast<int>(g.rank.load(kRelaxed)),
                          static_cast<int>(g.size.load(kRelaxed)), g.posted.load(kRelaxed), g.messages.load(kRelaxed),
                          g.last.load(), g.last_start.load(kRelaxed), g.last_step.load(kRelaxed),
                          g.last_where.load(kRelaxed)});
    }
    out.push_back(std::move(r));
  }
  return out;
}

Diagnosis diagnose(const std::vector<RankView>& ranks, const CommBoard* board) {
  if (board != nullptr)
    if (const auto d = find_desync(ranks, *board)) return *d;
  std::vector<std::vector<int>> edges;
  for (size_t r = 0; r < ranks.size(); ++r) edges.push_back(edges_of(ranks, r));
  std::vector<bool> reached(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r)
    for (int to : edges[r]) reach(edges, to, reached);
  Diagnosis d;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (reached[r] && edges[r].empty() && (!ranks[r].waits || ranks[r].frozen)) d.ranks.push_back(static_cast<int>(r));
  if (!d.ranks.empty()) {
    d.kind = StallKind::kLate;
    return d;
  }
  d.ranks = find_cycle(edges);
  if (!d.ranks.empty()) {
    d.kind = StallKind::kDeadlock;
    return d;
  }
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].waits && edges[r].empty()) d.ranks.push_back(static_cast<int>(r));
  return d;
}

bool late_on_checkpoint_io(const Diagnosis& d, const std::vector<RankView>& ranks) {
  return d.kind == StallKind::kLate && std::all_of(d.ranks.begin(), d.ranks.end(), [&](int r) {
           const RankView& v = ranks[static_cast<size_t>(r)];
           return !v.frozen && (v.phase == RunPhase::kSave || v.phase == RunPhase::kLoad);
         });
}

void shorten_limits_for_frozen(std::vector<RankView>& ranks, const CommBoard* board) {
  const auto frozen = [](const RankView& v) { return v.frozen; };
  if (std::none_of(ranks.begin(), ranks.end(), frozen)) return;
  const Diagnosis d = diagnose(ranks, board);
  if (d.kind != StallKind::kLate ||
      !std::all_of(d.ranks.begin(), d.ranks.end(), [&](int r) { return ranks[static_cast<size_t>(r)].frozen; }))
    return;
  for (RankView& r : ranks) r.limit_s = std::min(r.limit_s, kStepLimitSeconds);
}

std::optional<int> longest_wait(const std::vector<RankView>& ranks, double factor, double at_least) {
  std::optional<int> worst;
  double most = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankView& v = ranks[r];
    if (!v.waits || v.frozen) continue;
    const double beyond = v.waited_s - std::max(factor * v.limit_s, at_least);
    if (beyond >= 0 && (!worst || beyond > most)) worst = static_cast<int>(r), most = beyond;
  }
  return worst;
}

std::string who(const RankView& r, const std::string& host) {
  return cat("rank ", r.world_rank, " (", r.host.empty() ? host : r.host, r.pid > 0 ? cat(" pid ", r.pid) : "",
             r.coordinates.empty() ? "" : ", " + r.coordinates, ")");
}

std::string position_text(int64_t step, uint64_t where) {
  std::string s = cat("step ", step);
  if (where != kNoPosition)
    s += cat(", stage ", static_cast<int32_t>(where >> 32), ", microbatch ", static_cast<int32_t>(where));
  return s;
}

std::string stall_text(const std::vector<RankView>& ranks, const Diagnosis& d, int waiter, int64_t now,
                       const std::string& host) {
  const RankView& first = ranks[static_cast<size_t>(waiter)];
  std::string names, text;
  for (int r : d.ranks) names += cat(names.empty() ? "" : ", ", ranks[static_cast<size_t>(r)].world_rank);
  switch (d.kind) {
    case StallKind::kLate: text = cat("stalled: not arrived: rank ", names); break;
    case StallKind::kDesync: text = cat("stalled: the ranks disagree: ", d.desync_calls); break;
    case StallKind::kDeadlock: text = cat("stalled: deadlock, ranks ", names, " wait for each other"); break;
    case StallKind::kTransport: {
      const GroupView* g = first.find(first.wait_key);
      int here = 0;
      for (const RankView& r : ranks) here += r.find(first.wait_key) != nullptr;
      const bool elsewhere = g != nullptr && here < g->size;
      text = elsewhere ? cat("stalled: waiting for ranks on other machines, or their messages do not get through; ",
                             g->size - here, " of ", g->size, " ranks of the group are not on ", host)
                       : cat("stalled: all ranks have arrived, but messages do not get through to rank ", names);
    }
  }
  if (d.kind == StallKind::kLate)
    for (int r : d.ranks) text += "\n  " + absent_text(ranks[static_cast<size_t>(r)], first, now, host);
  text += cat("\n  ", wait_text(first, host), " (reported after ", seconds(first.limit_s), ")");
  for (size_t r = 0; r < ranks.size(); ++r) {
    const bool reported =
        std::count(d.ranks.begin(), d.ranks.end(), static_cast<int>(r)) > 0 && d.kind == StallKind::kLate;
    if (ranks[r].waits && static_cast<int>(r) != waiter && !reported) text += "\n  " + wait_text(ranks[r], host);
  }
  return text;
}

std::string board_text(const std::vector<RankView>& ranks, int64_t now, const std::string& host) {
  std::string text = cat("what the ranks on ", host, " do");
  for (const RankView& r : ranks)
    text += "\n  " + (r.waits && !r.frozen ? wait_text(r, host) : absent_text(r, r, now, host));
  return text;
}

void dump_board(const CommBoard& board, const std::vector<RankView>& ranks, int64_t now, const std::string& folder) {
  std::ofstream slots(folder + "/slots-" + std::to_string(ranks.empty() ? 0 : ranks[0].world_rank) + ".txt");
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankView& v = ranks[r];
    slots << "rank " << v.world_rank << " pid " << v.pid << " " << v.coordinates << ": " << to_string(v.phase) << ", "
          << position_text(v.step, v.where) << (v.frozen ? ", frozen" : "");
    if (v.waits) slots << ", waits since " << v.waited_s << " s: " << to_string(v.wait_call) << " #" << v.wait_seq;
    slots << "\n";
    for (const GroupView& g : v.groups)
      slots << "  " << g.label << " (rank " << g.rank << " of " << g.size << "): " << g.posted << " collectives, "
            << g.messages << " messages, last " << to_string(g.last) << " at "
            << position_text(g.last_step, g.last_where) << "\n";
    std::ofstream ring(folder + "/rank-" + std::to_string(v.world_rank) + ".txt");
    ring << "seconds ago\tstep, stage, microbatch\tgroup\tnumber\tcall\n";
    const RankPages& p = board.pages[r];
    const uint64_t end = p.rank.ops.load(std::memory_order_acquire);
    for (uint64_t i = end > RankPages::kRing ? end - RankPages::kRing : 0; i < end; ++i) {
      const OpEntry& e = p.ring[i % RankPages::kRing];
      const GroupView* g = v.find(e.key.load(kRelaxed));
      ring << since(e.time.load(kRelaxed), now) << "\t" << position_text(e.step.load(kRelaxed), e.where.load(kRelaxed))
           << "\t" << (g != nullptr ? g->label : "a group that has ended") << "\t" << e.seq.load(kRelaxed) << "\t"
           << to_string(e.call.load()) << "\n";
    }
  }
}

}  // namespace gt
