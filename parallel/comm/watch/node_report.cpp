#include "parallel/comm/watch/node_report.h"

#include <cstring>

namespace gt {
namespace {

constexpr uint64_t kMaxRanks = 4096, kMaxGroups = 256, kMaxText = 1024;

struct Writer {
  std::string out;
  template <class T>
  void number(T v) {
    static_assert(std::is_trivially_copyable_v<T>);
    out.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  void text(std::string_view s) {
    s = s.substr(0, kMaxText);
    number(static_cast<uint64_t>(s.size()));
    out.append(s);
  }
  void call(const CommCall& c) {
    number(c.op), number(c.reduce), number(c.dtype), number(c.count), number(c.peer), number(c.tag);
  }
};

struct Reader {
  std::string_view in;
  bool good = true;
  template <class T>
  void number(T& v) {
    if (!(good = good && in.size() >= sizeof v)) return;
    std::memcpy(&v, in.data(), sizeof v);
    in.remove_prefix(sizeof v);
  }
  uint64_t count(uint64_t most) {
    uint64_t n = 0;
    number(n);
    good = good && n <= most;
    return good ? n : 0;
  }
  void text(std::string& s) {
    const uint64_t n = count(kMaxText);
    if (!(good = good && in.size() >= n)) return;
    s.assign(in.substr(0, n));
    for (char& c : s)
      if (static_cast<unsigned char>(c) < ' ') c = ' ';  // the text is printed in messages
    in.remove_prefix(n);
  }
  template <class E>
  void choice(E& e, E last) {
    number(e);
    good = good && e >= E{} && e <= last;
    if (!good) e = E{};
  }
  void call(CommCall& c) {
    choice(c.op, kLastOp), choice(c.reduce, kLastReduce), choice(c.dtype, kLastDType);
    number(c.count), number(c.peer), number(c.tag);
  }
  static constexpr CommOp kLastOp = static_cast<CommOp>(kNumCommOps - 1);
  static constexpr ReduceOp kLastReduce = ReduceOp::kMin;
  static constexpr DType kLastDType = DType::kI8;
};

void write(Writer& w, const GroupView& g, int64_t now) {
  w.number(g.key), w.text(g.label), w.number(g.rank), w.number(g.size), w.number(g.posted), w.number(g.messages);
  w.call(g.last), w.number(now - g.last_start), w.number(g.last_step), w.number(g.last_where);
}

void read(Reader& r, GroupView& g, int64_t now) {
  int64_t age = 0;
  r.number(g.key), r.text(g.label), r.number(g.rank), r.number(g.size), r.number(g.posted), r.number(g.messages);
  r.call(g.last), r.number(age), r.number(g.last_step), r.number(g.last_where);
  g.last_start = static_cast<int64_t>(static_cast<uint64_t>(now) - static_cast<uint64_t>(age));
}

}  // namespace

std::string encode(const NodeReport& report, int64_t now) {
  Writer w;
  w.text(report.host), w.text(report.verdict), w.number(static_cast<uint64_t>(report.ranks.size()));
  for (const RankView& v : report.ranks) {
    w.number(v.world_rank), w.number(v.pid), w.number(v.step), w.number(v.where), w.number(v.phase),
        w.text(v.coordinates);
    w.number(uint8_t{v.frozen}), w.number(v.silent_s), w.number(uint8_t{v.waits}), w.number(v.waited_s);
    w.number(v.limit_s), w.number(v.wait_key), w.number(v.wait_seq), w.call(v.wait_call);
    w.number(static_cast<uint64_t>(v.groups.size()));
    for (const GroupView& g : v.groups) write(w, g, now);
  }
  return std::move(w.out);
}

std::optional<NodeReport> decode(std::string_view bytes, int64_t now) {
  Reader r{bytes};
  NodeReport out;
  r.text(out.host), r.text(out.verdict);
  for (uint64_t n = r.count(kMaxRanks); n > 0 && r.good; --n) {
    RankView& v = out.ranks.emplace_back();
    uint8_t frozen = 0, waits = 0;
    r.number(v.world_rank), r.number(v.pid), r.number(v.step), r.number(v.where);
    r.choice(v.phase, RunPhase::kFailed), r.text(v.coordinates);
    r.number(frozen), r.number(v.silent_s), r.number(waits), r.number(v.waited_s);
    r.number(v.limit_s), r.number(v.wait_key), r.number(v.wait_seq), r.call(v.wait_call);
    v.frozen = frozen != 0, v.waits = waits != 0;
    v.host = out.host;
    for (uint64_t g = r.count(kMaxGroups); g > 0 && r.good; --g) read(r, v.groups.emplace_back(), now);
  }
  if (!r.good || !r.in.empty() || out.ranks.empty()) return std::nullopt;
  return out;
}

}  // namespace gt
