// Groups that sleep at random in the communication path: before calls, before waits, in polls. A number of delays
// for each rank, drawn from a seed.
#pragma once
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/core/rng.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Of one rank, shared by its groups.
struct Delays {
  uint64_t seed = 1;
  int left = 200;           // delays still to come
  int one_in = 4;           // of the places that could sleep
  int64_t longest_us = 2000;
  int64_t slept_us = 0;
  uint64_t places = 0;
  void maybe() {
    const uint64_t r = splitmix64(seed + places++);
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
    return pass([&] { return inner_->all_reduce(t, op, s); });
  }
  Work all_gather(Tensor a, Tensor b, Stream s) override { return pass([&] { return inner_->all_gather(a, b, s); }); }
  Work reduce_scatter(Tensor a, Tensor b, Stream s) override {
    return pass([&] { return inner_->reduce_scatter(a, b, s); });
  }
  Work broadcast(Tensor t, int root, Stream s) override { return pass([&] { return inner_->broadcast(t, root, s); }); }
  Work send(Tensor t, int to, int tag, Stream s) override { return pass([&] { return inner_->send(t, to, tag, s); }); }
  Work recv(Tensor t, int from, int tag, Stream s) override {
    return pass([&] { return inner_->recv(t, from, tag, s); });
  }
  void barrier() override {
    delays_.maybe();
    inner_->barrier();
  }
  void poll() override {
    delays_.maybe();
    inner_->poll();
  }

 protected:
  void wait(uint64_t ticket, Stream s) override {
    delays_.maybe();
    works_[ticket].wait(s);
    free_.push_back(ticket);
  }

 private:
  template <class Call>
  Work pass(Call call) {
    delays_.maybe();
    if (free_.empty()) free_.push_back(works_.size()), works_.emplace_back();
    const uint64_t ticket = free_.back();
    free_.pop_back();
    works_[ticket] = call();
    return Work(this, ticket);
  }
  std::unique_ptr<ProcessGroup> inner_;
  Delays& delays_;
  std::vector<Work> works_;
  std::vector<uint64_t> free_;
};

class DelayedFactory final : public GroupFactory {
 public:
  // The number of delays that came about is added to `happened` at the end.
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
  std::unique_ptr<ProcessGroup> make(std::span<const int> ranks) override {
    return std::make_unique<DelayedGroup>(inner_.make(ranks), delays_);
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
