#include "launch/observe/trace/trace_json.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <tuple>

#include "kernels/core/check.h"
#include "launch/options/json_text.h"
#include "launch/ranks/run_file.h"
#include "parallel/comm/call.h"

namespace gt {
namespace {

struct Style {
  const char *label, *category, *color;
  Track track;
};

const Style& style_of(TraceKind k) {
  static constexpr Style kStyles[] = {
      {"F", "forward", "thread_state_running", Track::kCompute},
      {"B", "backward", "thread_state_iowait", Track::kCompute},
      {"I", "backward_input", "thread_state_iowait", Track::kCompute},
      {"W", "backward_weight", "thread_state_runnable", Track::kCompute},
      {"F>", "p2p", "rail_response", Track::kSend},
      {"F<", "p2p", "rail_response", Track::kRecv},
      {"B>", "p2p", "rail_animation", Track::kSend},
      {"B<", "p2p", "rail_animation", Track::kRecv},
      {"G", "reduce", "rail_load", Track::kDp},
      {"T", "reduce", "rail_load", Track::kDp},
      {"reduce", "reduce", "rail_load", Track::kDp},
      {"norms", "grad_norm", "generic_work", Track::kHost},
      {"opt", "optimizer", "good", Track::kCompute},
      {"gather", "zero_gather_wait", "rail_load", Track::kDp},
      {"data", "data_wait", "bad", Track::kLoader},
      {"", "tp_exposed", "rail_load", Track::kTp},
      {"", "dp_exposed", "rail_load", Track::kDp},
      {"FB", "microbatch", "thread_state_running", Track::kCompute},
  };
  return kStyles[static_cast<size_t>(k)];
}

constexpr const char* kTracks[] = {"compute", "tp", "pp send", "pp recv", "dp", "copy", "loader", "host"};

bool sends(TraceKind k) { return k == TraceKind::kSendForward || k == TraceKind::kSendBackward; }
bool receives(TraceKind k) { return k == TraceKind::kRecvForward || k == TraceKind::kRecvBackward; }
bool down(TraceKind k) { return k == TraceKind::kSendForward || k == TraceKind::kRecvForward; }

std::string quoted(const std::string& s) {
  std::string out;
  append_json_string(out, s);
  return out;
}

class Writer {
 public:
  Writer(std::span<const RankTrace> traces, const TraceInfo& info) : traces_(traces), info_(info) {
    for (const RankTrace& t : traces)
      for (const TraceEntry& e : t.entries) zero_ = std::min(zero_, e.begin);
    find_messages();
  }

  std::string text() {
    out_ = "{\"displayTimeUnit\":\"ms\",\"otherData\":{";
    for (size_t i = 0; i < info_.other.size(); ++i)
      put("{}{}:{}", i ? "," : "", quoted(info_.other[i].first), quoted(info_.other[i].second));
    out_ += "},\"traceEvents\":[";
    int order = 0;
    for (const RankTrace& t : traces_) rank(t, order++);
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  // (step, dp, tp, direction, receiving stage, microbatch)
  using Message = std::tuple<int32_t, int, int, bool, int, int>;
  struct Ends {
    const TraceEntry *sent = nullptr, *received = nullptr;
  };

  template <class... A>
  void put(fmt::format_string<A...> f, A&&... a) {
    fmt::format_to(std::back_inserter(out_), f, std::forward<A>(a)...);
  }
  void event() { out_ += first_ ? (first_ = false, "\n") : ",\n"; }
  double us(int64_t at) const { return static_cast<double>(at - zero_) * 1e-3; }

  static Message message_of(const RankTrace& t, const TraceEntry& e) {
    const bool d = down(e.kind);
    return {e.step, t.dp, t.tp, d, sends(e.kind) ? e.stage + (d ? 1 : -1) : e.stage, e.microbatch};
  }

  void find_messages() {
    for (const RankTrace& t : traces_)
      for (const TraceEntry& e : t.entries) {
        if (e.bytes == 0 || !(sends(e.kind) || receives(e.kind))) continue;
        Ends& ends = messages_[message_of(t, e)];
        const TraceEntry*& end = sends(e.kind) ? ends.sent : ends.received;
        if (end == nullptr || end->begin < e.begin) end = &e;  // skips the header
      }
  }

  void name(int pid, const char* what, const std::string& key, const std::string& value, int tid = 0) {
    event();
    put("{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"{}\":{}}}}}", what, pid, tid, key, value);
  }

  void rank(const RankTrace& t, int order) {
    name(t.rank, "process_name", "name",
         quoted(fmt::format("rank {} pp{} dp{} tp{} {}", t.rank, t.pp, t.dp, t.tp, t.host)));
    name(t.rank, "process_sort_index", "sort_index", std::to_string(order));
    std::vector<const TraceEntry*> entries;
    bool used[std::size(kTracks)] = {};
    for (const TraceEntry& e : t.entries) {
      entries.push_back(&e);
      used[static_cast<size_t>(style_of(e.kind).track)] = true;
    }
    for (size_t k = 0; k < std::size(kTracks); ++k) {
      if (!used[k]) continue;
      name(t.rank, "thread_name", "name", quoted(kTracks[k]), static_cast<int>(k));
      name(t.rank, "thread_sort_index", "sort_index", std::to_string(k), static_cast<int>(k));
    }
    std::stable_sort(entries.begin(), entries.end(), [](const TraceEntry* a, const TraceEntry* b) {
      return std::tuple(style_of(a->kind).track, a->begin) < std::tuple(style_of(b->kind).track, b->begin);
    });
    for (const TraceEntry* e : entries) slice(t, *e);
  }

  void slice(const RankTrace& t, const TraceEntry& e) {
    const Style& style = style_of(e.kind);
    const bool waits = e.waits || (sends(e.kind) && e.bytes == 0);
    const bool call = e.kind == TraceKind::kTpCall || e.kind == TraceKind::kDpCall;
    const std::string where = e.stage < 0        ? ""
                              : e.microbatch < 0 ? fmt::format(" s{}", e.stage)
                                                 : fmt::format(" m{} s{}", e.microbatch, e.stage);
    event();
    put("{{\"name\":\"{}{}{}\",\"cat\":\"{}\",\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},\"pid\":{},\"tid\":{},"
        "\"cname\":\"{}\",\"args\":{{\"step\":{}",
        waits ? "wait " : "", call ? name_of(e.op) : style.label, where, style.category, us(e.begin),
        static_cast<double>(e.duration) * 1e-3, t.rank, static_cast<int>(style.track), style.color, e.step);
    if (e.microbatch >= 0) put(",\"microbatch\":{}", e.microbatch);
    if (e.stage >= 0) put(",\"stage\":{}", e.stage);
    if (e.bytes > 0) put(",\"bytes\":{}", e.bytes);
    if (computes(e.kind)) work(e);
    out_ += "}}";
    if (computes(e.kind)) counters(t, e);
    if (e.bytes > 0 && (sends(e.kind) || receives(e.kind))) arrow(t, e);
  }

  void work(const TraceEntry& e) {
    if (info_.tokens > 0) put(",\"tokens\":{}", info_.tokens);
    if (static_cast<size_t>(e.stage) >= info_.stage_flops.size()) return;
    const double forwards = e.kind == TraceKind::kMicrobatch ? 3 : e.kind == TraceKind::kBackward ? 2 : 1;
    put(",\"flops\":{:.0f}", forwards * info_.stage_flops[static_cast<size_t>(e.stage)]);
  }

  void counter(const RankTrace& t, const char* what, int64_t at, int64_t value) {
    event();
    put("{{\"name\":\"{}\",\"ph\":\"C\",\"ts\":{:.3f},\"pid\":{},\"args\":{{\"value\":{}}}}}", what, us(at), t.rank,
        value);
  }

  void counters(const RankTrace& t, const TraceEntry& e) {
    const int64_t end = e.begin + e.duration;
    const bool releases = e.kind != TraceKind::kForward && e.kind != TraceKind::kBackwardInput;
    counter(t, "in flight", e.begin, e.live);
    if (releases) counter(t, "in flight", end, e.live - 1);
    if (e.activation_bytes > 0) counter(t, "activation bytes", end, e.activation_bytes);
  }

  // From the start of the send to the end of the receiver's wait.
  void arrow(const RankTrace& t, const TraceEntry& e) {
    const Message m = message_of(t, e);
    const Ends& ends = messages_.at(m);
    if (ends.sent == nullptr || ends.received == nullptr || (&e != ends.sent && &e != ends.received)) return;
    const auto [step, dp, tp, d, stage, microbatch] = m;
    const bool out = &e == ends.sent;
    event();
    put("{{\"name\":\"{}\",\"cat\":\"p2p\",\"ph\":\"{}\",{}\"id\":\"{}.{}.{}.{}{}.{}\",\"ts\":{:.3f},\"pid\":{},"
        "\"tid\":{}}}",
        d ? "activation" : "gradient", out ? "s" : "f", out ? "" : "\"bp\":\"e\",", step, dp, tp, d ? "F" : "B", stage,
        microbatch, us(out ? e.begin : e.begin + e.duration), t.rank, static_cast<int>(style_of(e.kind).track));
  }

  std::span<const RankTrace> traces_;
  const TraceInfo& info_;
  int64_t zero_ = INT64_MAX;
  std::map<Message, Ends> messages_;
  std::string out_;
  bool first_ = true;
};

}  // namespace

std::string trace_json(std::span<const RankTrace> traces, const TraceInfo& info) { return Writer(traces, info).text(); }

void write_gzip(const std::string& path, const std::string& json) {
  const int fd = open_run_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  GT_REQUIRE(fd >= 0, Exit::kIo, path, ": cannot be opened: ", open_error(errno));
  const gzFile file = gzdopen(fd, "wb6");
  GT_CHECK(file != nullptr);
  constexpr size_t kBlock = size_t{1} << 24;
  bool good = true;
  for (size_t at = 0; good && at < json.size(); at += kBlock) {
    const auto n = static_cast<unsigned>(std::min(kBlock, json.size() - at));
    good = gzwrite(file, json.data() + at, n) == static_cast<int>(n);
  }
  GT_REQUIRE((gzclose(file) == Z_OK) && good, Exit::kIo, path, ": ", json.size(),
             " bytes could not be written: ", std::strerror(errno));
}

}  // namespace gt
