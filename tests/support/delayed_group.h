// Process groups with random delays: before calls, before waits, in polls. The number of delays per rank is limited;
// they are drawn from a seed.
#pragma once
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/core/rng.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Delays of one rank, shared by its groups.
struct Delays {
  uint64_t seed = 1;
  int left = 200;  // remaining delays
  int one_in = 4;  // probability 1 / one_in at each opportunity
  int64_t longest_us = 2000;
  bool waits_only = false;  // delays waits, not calls and polls
  int64_t slept_us = 0;
  int64_t slept_in[kNumCommOps] = {};  // part of slept_us, in calls and waits of this operation
  uint64_t opportunities = 0;          // so far
  void maybe(CommOp op) {
    const int64_t before = slept_us;
    maybe();
    slept_in[static_cast<int>(op)] += slept_us - before;
  }
  // Sleeps for a random time with probability 1 / one_in, while delays remain.
  void maybe() {
    const uint64_t r = splitmix64(seed + opportunities++);
    if (left == 0 || r % static_cast<uint64_t>(one_in) != 0) return;
    --left;
    const auto us = static_cast<int64_t>((r >> 16) % static_cast<uint64_t>(longest_us));
    slept_us += us;
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
};

class DelayedGroup final : public ProcessGroup {
 public:
  DelayedGroup(std::unique_ptr<ProcessGroup> inner, Delays& delays)
      : ProcessGroup(inner->rank(), inner->size()), inner_(std::move(inner)), delays_(delays) {}
  std::string_view backend() const override { return inner_->backend(); }
  Work all_reduce(Tensor t, ReduceOp op, Stream s) override {
    return pass(CommOp::kAllReduce, t, [&] { return inner_->all_reduce(t, op, s); });
  }
  Work all_gather(Tensor a, Tensor b, Stream s) override {
    return pass(CommOp::kAllGather, b, [&] { return inner_->all_gather(a, b, s); });
  }
  Work reduce_scatter(Tensor a, Tensor b, Stream s) override {
    return pass(CommOp::kReduceScatter, a, [&] { return inner_->reduce_scatter(a, b, s); });
  }
  Work broadcast(Tensor t, int root, Stream s) override {
    return pass(CommOp::kBroadcast, t, [&] { return inner_->broadcast(t, root, s); });
  }
  Work all_to_all(Tensor a, Tensor b, const PeerCounts& counts, Stream s) override {
    const CommOp op = counts.send.empty() ? CommOp::kAllToAll : CommOp::kAllToAllV;
    return pass(op, a, [&] { return inner_->all_to_all(a, b, counts, s); });
  }
  Work send(Tensor t, int to, int tag, Stream s) override {
    return pass(CommOp::kSend, t, [&] { return inner_->send(t, to, tag, s); });
  }
  Work recv(Tensor t, int from, int tag, Stream s) override {
    return pass(CommOp::kRecv, t, [&] { return inner_->recv(t, from, tag, s); });
  }
  void abandon(const std::string& message, Exit code) override { inner_->abandon(message, code); }
  void barrier() override {
    if (!delays_.waits_only) delays_.maybe();
    inner_->barrier();
  }
  void poll() override {
    if (!delays_.waits_only) delays_.maybe();
    inner_->poll();
  }

 protected:
  void wait(uint64_t ticket, Stream s) override {
    const int64_t begin = steady_ns();
    Passed& p = passed_[ticket];
    delays_.maybe(p.op);
    p.work.wait(s);
    free_.push_back(ticket);
    record_blocked(p.op, p.bytes, begin, true);
  }

 private:
  struct Passed {
    Work work;
    CommOp op;
    int64_t bytes;
  };
  template <class Call>
  Work pass(CommOp op, const Tensor& full, Call call) {
    const int64_t begin = steady_ns();
    if (!delays_.waits_only) delays_.maybe(op);
    if (free_.empty()) free_.push_back(passed_.size()), passed_.emplace_back();
    const uint64_t ticket = free_.back();
    free_.pop_back();
    passed_[ticket] = {call(), op, full.bytes()};
    record_blocked(op, full.bytes(), begin, false);
    return Work(this, ticket);
  }
  std::unique_ptr<ProcessGroup> inner_;
  Delays& delays_;
  std::vector<Passed> passed_;
  std::vector<uint64_t> free_;
};

class DelayedFactory final : public GroupFactory {
 public:
  // Adds the number of delays to `happened` on destruction.
  DelayedFactory(GroupFactory& inner, uint64_t seed, int delays, std::atomic<int>* happened = nullptr)
      : inner_(inner), most_(delays), happened_(happened) {
    delays_.seed = splitmix64(seed * 1000003 + static_cast<uint64_t>(inner.world_rank()));
    delays_.left = delays;
  }
  int world_rank() const override { return inner_.world_rank(); }
  int world_size() const override { return inner_.world_size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::string_view backend() const override { return inner_.backend(); }
  RankStatus* status() override { return inner_.status(); }
  Delays& delays() { return delays_; }
  std::unique_ptr<ProcessGroup> make(std::span<const int> ranks) override {
    auto group = inner_.make(ranks);
    if (ranks.size() == 1) return group;  // no peers
    return std::make_unique<DelayedGroup>(std::move(group), delays_);
  }
  ~DelayedFactory() override {
    if (happened_ != nullptr) *happened_ += most_ - delays_.left;
  }

 private:
  GroupFactory& inner_;
  const int most_;
  std::atomic<int>* happened_;
  Delays delays_;
};

}  // namespace gt
