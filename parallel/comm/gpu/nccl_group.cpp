#include "parallel/comm/gpu/nccl_group.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "parallel/comm/gpu/nccl_engine.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/self_group.h"

namespace gt {
namespace {

constexpr uint64_t kTraceNumbers = uint64_t{1} << 30;  // disjoint from those of the host's groups

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(NcclEngine& engine, std::unique_ptr<ProcessGroup> inner, std::vector<int> ranks, uint64_t number)
      : ProcessGroup(inner->rank(), inner->size()),
        engine_(engine),
        inner_(std::move(inner)),
        ranks_(std::move(ranks)),
        number_(number) {
    trace_ = engine_.side().trace(kTraceNumbers + number, ranks_.front(), rank(), size());
    inner_->barrier();
    trace_.connect();
    lane_ = &engine_.add_lane(rank(), size(), label(), trace_, counters_, agreement());
    lane_->peers = ranks_, lane_->number = number_;
    engine_.start(*lane_, shared_id());
    making_ = inner_->counters();
  }
  ~NcclGroup() override {
    engine_.remove(*lane_);
    for (const Channel& c : channels_) engine_.remove(*c.lane);
    trace_.close();
  }

  std::string_view backend() const override { return "nccl"; }
  bool capturable() const override { return engine_.options().captures; }
  Work all_reduce(Tensor t, ReduceOp op, Stream s) override {
    if (on_host(t)) return inner_->all_reduce(t, op, s);
    return collective(all_reduce_call(*this, t, op), t, {}, s);
  }
  Work all_gather(Tensor shard, Tensor full, Stream s) override {
    if (on_host(full)) return inner_->all_gather(shard, full, s);
    return collective(all_gather_call(*this, shard, full), full, shard, s);
  }
  Work reduce_scatter(Tensor full, Tensor shard, Stream s) override {
    if (on_host(full)) return inner_->reduce_scatter(full, shard, s);
    return collective(reduce_scatter_call(*this, full, shard), full, shard, s);
  }
  Work broadcast(Tensor t, int root, Stream s) override {
    if (on_host(t)) return inner_->broadcast(t, root, s);
    return collective(broadcast_call(*this, t, root), t, {}, s);
  }
  Work all_to_all(Tensor send, Tensor recv, const PeerCounts& counts, Stream s) override {
    if (on_host(send)) return inner_->all_to_all(send, recv, counts, s);
    return collective(all_to_all_call(*this, send, recv, counts), send, recv, s, counts);
  }
  Work send(Tensor t, int to, int tag, Stream s) override {
    if (on_host(t)) return inner_->send(t, to, tag, s);
    return message(CommOp::kSend, t, to, tag, s);
  }
  Work recv(Tensor t, int from, int tag, Stream s) override {
    if (on_host(t)) return inner_->recv(t, from, tag, s);
    return message(CommOp::kRecv, t, from, tag, s);
  }
  void barrier() override { inner_->barrier(); }
  void poll() override {
    inner_->poll();
    engine_.poll();
  }
  void abandon(const std::string& why, Exit code) override {
    engine_.abort(why, code);
    inner_->abandon(why, code);
  }
  const CommCounters& counters() const override {
    sum_ = counters_;
    sum_.add(inner_->counters());
    sum_.add(making_, -1);
    return sum_;
  }
  void set_spans(CommSpans* spans) override {
    ProcessGroup::set_spans(spans);
    inner_->set_spans(spans);
  }
  void set_label(std::string label) override {
    inner_->set_label(label);
    lane_->label = label;
    ProcessGroup::set_label(std::move(label));
  }

 protected:
  void wait(uint64_t ticket, Stream s) override {
    const int64_t begin = steady_ns();
    const CommCall call = engine_.wait(ticket, s);
    record_blocked(call.op, call.bytes(), begin, true);
  }

 private:
  struct Channel {  // messages of one direction, peer and tag
    bool sends;
    int peer, tag;
    NcclLane* lane;
  };

  // Created by rank 0; if that fails, all ranks throw.
  nccl::UniqueId shared_id() {
    struct {
      nccl::UniqueId id{};
      int32_t good = 1;
    } sent;
    std::string why;
    if (rank() == 0) {
      try {
        sent.id = engine_.new_id();
      } catch (const Error& e) {
        sent.good = 0;
        why = e.what();
      }
    }
    sent = broadcast_value(*inner_, sent);
    if (sent.good == 0) fail(Exit::kInternal, why.empty() ? "rank 0 could not create a communicator id" : why);
    return sent.id;
  }

  // Returns whether all ranks pass true, over the host's group; not counted as a call.
  std::function<bool(bool)> agreement() {
    if (!engine_.options().captures) return {};
    return [this](bool mine) {
      const CommCounters before = inner_->counters();
      const int32_t all = min_over(*inner_, mine ? 1 : 0);
      making_.add(inner_->counters());
      making_.add(before, -1);
      return all == 1;
    };
  }

  static bool on_host(const Tensor& t) { return t.device.kind == DeviceKind::kCpu; }

  Work collective(const CommCall& call, const Tensor& a, const Tensor& b, Stream after, const PeerCounts& counts = {}) {
    const int64_t now = steady_ns();
    const uint64_t seq = posted_++;
    count_call(counters_, call, rank(), size(), counts);
    trace_.collective(call, seq, now);
    if (const std::string calls = trace_.disagreement(call, seq); !calls.empty())
      fail(Exit::kInternal, label(), ": ", calls);
    return posted(*lane_, call, a, b, after, seq, now, counts);
  }

  Work message(CommOp op, const Tensor& t, int peer, int tag, Stream after) {
    const CommCall call = message_call(*this, op, t, peer, tag);
    const int64_t now = steady_ns();
    const uint64_t seq = messages_++;
    count_call(counters_, call, rank(), size());
    trace_.message(call, seq, now);
    return posted(channel(op == CommOp::kSend, peer, tag), call, t, {}, after, seq, now);
  }

  Work posted(NcclLane& lane, const CommCall& call, const Tensor& a, const Tensor& b, Stream after, uint64_t seq,
              int64_t begin, const PeerCounts& counts = {}) {
    const uint64_t ticket = engine_.post(lane, call, a, b, after, seq, counts);
    record_blocked(call.op, call.bytes(), begin, false);
    return Work(this, ticket);
  }

  // The sender creates the id of a channel's communicator at its first message and sends it to the receiver as a note.
  NcclLane& channel(bool sends, int peer, int tag) {
    for (const Channel& c : channels_)
      if (c.sends == sends && c.peer == peer && c.tag == tag) return *c.lane;
    NcclLane& lane = engine_.add_lane(
        sends ? 0 : 1, 2, cat(label(), ", messages ", sends ? "to" : "from", " rank ", peer, " with tag ", tag), trace_,
        counters_);
    lane.max_ctas = engine_.options().p2p_ctas;
    channels_.push_back({sends, peer, tag, &lane});
    Note note{number_, static_cast<uint64_t>(tag), {}};
    const int other = ranks_[static_cast<size_t>(peer)];
    if (sends) {
      const nccl::UniqueId id = engine_.new_id();
      std::memcpy(note.text.data(), id.internal, sizeof id.internal);
      engine_.side().leave(other, note);
      engine_.start(lane, id);
    } else {
      engine_.start_from_note(lane, other, note);
    }
    return lane;
  }

  NcclEngine& engine_;
  std::unique_ptr<ProcessGroup> inner_;
  const std::vector<int> ranks_;  // world ranks
  const uint64_t number_;
  NcclLane* lane_ = nullptr;
  std::vector<Channel> channels_;
  uint64_t posted_ = 0, messages_ = 0;
  CommCounters making_;  // the host group's counts from building this group; subtracted, as no caller made them
  mutable CommCounters sum_;
};

}  // namespace

NcclFactory::NcclFactory(GroupFactory& inner, std::shared_ptr<const nccl::Api> api, const DeviceApi& device, int index,
                         void* (*raw)(Stream), NcclOptions options)
    : inner_(inner), device_(device), index_(index) {
  auto* side = dynamic_cast<SideChannel*>(&inner);
  GT_CHECK(side != nullptr, "NCCL groups over the ", inner.backend(), " backend, which has no side channel");
  side->open_notes();
  engine_ = std::make_unique<NcclEngine>(*side, std::move(api), device, index, raw, options);
}

NcclFactory::~NcclFactory() = default;

std::unique_ptr<ProcessGroup> NcclFactory::make(std::span<const int> world_ranks) {
  auto group = inner_.make(world_ranks);
  const uint64_t number = made_++;
  if (group->size() == 1) return std::make_unique<SelfGroup>(&device_);
  std::vector<int> ranks(world_ranks.begin(), world_ranks.end());
  return std::make_unique<NcclGroup>(*engine_, std::move(group), std::move(ranks), number);
}

std::string NcclFactory::probe(std::chrono::milliseconds limit) {
  std::vector<int> everyone(static_cast<size_t>(world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const int64_t bytes = 4;
  int32_t one = 1, sum = 0;
  engine_->set_deadline(limit);
  void* memory = device_.alloc(index_, bytes);
  const Stream s = device_.open_stream(index_, 1);
  std::string why;
  try {
    const auto group = make(everyone);
    group->set_label("NCCL's trial");
    device_.copy(memory, &one, bytes, s);
    const Tensor t{static_cast<std::byte*>(memory), {1}, DType::kI32, s.device};
    group->all_reduce(t, ReduceOp::kSum, s).wait({});
    device_.copy(&sum, memory, bytes, s);
    device_.synchronize(s);
    if (sum != world_size()) why = cat("the sum of ", world_size(), " ones is ", sum);
  } catch (const std::exception& e) { why = e.what(); }
  device_.close_stream(s);
  device_.free(index_, memory, bytes);
  engine_->set_deadline(engine_->options().deadline);
  return why;
}

}  // namespace gt
