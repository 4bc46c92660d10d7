#include "parallel/comm/gpu/staged_group.h"

#include <algorithm>
#include <bit>
#include <thread>
#include <vector>

#include "parallel/comm/self_group.h"

namespace gt {
namespace {

constexpr int64_t kLeastBlock = 4096;  // bytes; blocks are powers of two, so that few sizes serve all calls

// Pool of pinned blocks of one group.
class Staging {
 public:
  Staging(const DeviceApi& api, int index) : api_(api), index_(index) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    for (const Block& b : blocks_) {
      api_.free_host(b.data, b.bytes);
      api_.destroy_event(b.read);
    }
  }

  // Returns the smallest free block of at least `bytes` bytes, once its last copy to the device has completed.
  size_t take(int64_t bytes) {
    const auto need = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kLeastBlock))));
    size_t best = blocks_.size();
    for (size_t i = 0; i < blocks_.size(); ++i)
      if (!blocks_[i].taken && blocks_[i].bytes >= need &&
          (best == blocks_.size() || blocks_[i].bytes < blocks_[best].bytes))
        best = i;
    if (best == blocks_.size())
      blocks_.push_back({static_cast<std::byte*>(api_.alloc_host(need)), need, api_.create_event(index_), false});
    while (!api_.done(blocks_[best].read)) std::this_thread::yield();
    blocks_[best].taken = true;
    return best;
  }
  // Releases a block; reusable once the work queued on `s` has read it.
  void give(size_t block, Stream s) {
    api_.record(blocks_[block].read, s);
    blocks_[block].taken = false;
  }
  void give(size_t block) { blocks_[block].taken = false; }
  std::byte* data(size_t block) const { return blocks_[block].data; }

 private:
  struct Block {
    std::byte* data;
    int64_t bytes;
    Event read;  // the copy from it to the device
    bool taken;
  };
  const DeviceApi& api_;
  int index_;
  std::vector<Block> blocks_;
};

class StagedGroup final : public ProcessGroup {
 public:
  StagedGroup(std::unique_ptr<ProcessGroup> inner, const DeviceApi& api, int index)
      : ProcessGroup(inner->rank(), inner->size()), api_(api), staging_(api, index), inner_(std::move(inner)) {}

  std::string_view backend() const override { return inner_->backend(); }
  const CommCounters& counters() const override { return inner_->counters(); }
  void set_spans(CommSpans* spans) override { inner_->set_spans(spans); }
  void set_label(std::string label) override { inner_->set_label(std::move(label)); }
  const std::string& label() const override { return inner_->label(); }
  void barrier() override { inner_->barrier(); }
  void poll() override { inner_->poll(); }
  void abandon(const std::string& why, Exit code) override { inner_->abandon(why, code); }

  Work all_reduce(Tensor t, ReduceOp op, Stream after) override {
    if (on_host(t)) return inner_->all_reduce(t, op, after);
    const size_t b = staging_.take(t.bytes());
    return posted(inner_->all_reduce(download(b, t, 0, after), op, {}), b, t, 0);
  }
  Work all_gather(Tensor shard, Tensor full, Stream after) override {
    if (on_host(full)) return inner_->all_gather(shard, full, after);
    const size_t b = staging_.take(full.bytes());
    const Tensor mine = download(b, shard, rank() * shard.bytes(), after);
    return posted(inner_->all_gather(mine, image(b, full, 0), {}), b, full, 0);
  }
  Work reduce_scatter(Tensor full, Tensor shard, Stream after) override {
    if (on_host(full)) return inner_->reduce_scatter(full, shard, after);
    const size_t b = staging_.take(full.bytes());
    const Tensor all = download(b, full, 0, after);
    const int64_t at = rank() * shard.bytes();  // the sum overwrites this rank's part
    return posted(inner_->reduce_scatter(all, image(b, shard, at), {}), b, shard, at);
  }
  Work broadcast(Tensor t, int root, Stream after) override {
    if (on_host(t)) return inner_->broadcast(t, root, after);
    const size_t b = staging_.take(t.bytes());
    const bool gives = root == rank();
    return posted(inner_->broadcast(gives ? download(b, t, 0, after) : image(b, t, 0), root, {}), b,
                  gives ? Tensor{} : t, 0);
  }
  Work all_to_all(Tensor send, Tensor recv, const PeerCounts& counts, Stream after) override {
    if (on_host(send)) return inner_->all_to_all(send, recv, counts, after);
    const int64_t at = (send.bytes() + 63) / 64 * 64;  // of what is received, behind what is sent
    const size_t b = staging_.take(at + recv.bytes());
    return posted(inner_->all_to_all(download(b, send, 0, after), image(b, recv, at), counts, {}), b, recv, at);
  }
  Work send(Tensor t, int to, int tag, Stream after) override {
    if (on_host(t)) return inner_->send(t, to, tag, after);
    const size_t b = staging_.take(t.bytes());
    return posted(inner_->send(download(b, t, 0, after), to, tag, {}), b, {}, 0);
  }
  Work recv(Tensor t, int from, int tag, Stream after) override {
    if (on_host(t)) return inner_->recv(t, from, tag, after);
    const size_t b = staging_.take(t.bytes());
    return posted(inner_->recv(image(b, t, 0), from, tag, {}), b, t, 0);
  }

 protected:
  void wait(uint64_t ticket, Stream s) override {
    Call& c = calls_[ticket];
    c.inner.wait({});
    if (c.out && c.out.bytes() > 0) {
      api_.copy(c.out.data, staging_.data(c.block) + c.at, c.out.bytes(), s);
      staging_.give(c.block, s);
    } else {
      staging_.give(c.block);
    }
    free_.push_back(ticket);
  }

 private:
  struct Call {
    Work inner;
    size_t block;
    Tensor out;  // device tensor to be filled from the block's bytes at `at`; empty: no output
    int64_t at;
  };

  static bool on_host(const Tensor& t) { return t.device.kind == DeviceKind::kCpu; }
  // A tensor like `t` in the block, at byte `at`.
  Tensor image(size_t block, const Tensor& t, int64_t at) const {
    return {staging_.data(block) + at, t.shape, t.dtype, Device{}};
  }
  // The same, holding the values of `t` after the work queued on `after`; blocks for them.
  Tensor download(size_t block, const Tensor& t, int64_t at, Stream after) const {
    if (t.bytes() > 0) {
      api_.copy(staging_.data(block) + at, t.data, t.bytes(), after);
      api_.synchronize(after);
    }
    return image(block, t, at);
  }
  Work posted(Work inner, size_t block, const Tensor& out, int64_t at) {
    if (free_.empty()) {
      calls_.emplace_back();
      free_.reserve(calls_.size());
      free_.push_back(calls_.size() - 1);
    }
    const uint64_t ticket = free_.back();
    free_.pop_back();
    calls_[ticket] = {inner, block, out, at};
    return Work(this, ticket);
  }

  const DeviceApi& api_;
  Staging staging_;
  std::unique_ptr<ProcessGroup> inner_;  // destroyed first: its calls in flight use the blocks
  std::vector<Call> calls_;
  std::vector<uint64_t> free_;
};

}  // namespace

StagedFactory::StagedFactory(GroupFactory& inner, const DeviceApi& api, int index)
    : inner_(inner),
      api_(api),
      index_(index),
      name_(inner.world_size() > 1 ? cat(inner.backend(), " through pinned memory") : std::string(inner.backend())) {}

std::unique_ptr<ProcessGroup> StagedFactory::make(std::span<const int> world_ranks) {
  auto group = inner_.make(world_ranks);
  if (group->size() == 1) return std::make_unique<SelfGroup>(&api_);
  return std::make_unique<StagedGroup>(std::move(group), api_, index_);
}

}  // namespace gt
