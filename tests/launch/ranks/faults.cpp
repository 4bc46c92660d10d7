#include "tests/launch/ranks/faults.h"

#include <cstring>

namespace gt {
namespace {

class FaultyGroup final : public ProcessGroup {
 public:
  FaultyGroup(std::unique_ptr<ProcessGroup> inner, const SkippedCall& fault)
      : ProcessGroup(inner->rank(), inner->size()), inner_(std::move(inner)), fault_(fault) {}
  std::string_view backend() const override { return inner_->backend(); }
  Work all_reduce(Tensor t, ReduceOp op, Stream s) override {
    return skips(SkippedCall::Op::kAllReduce) ? Work() : inner_->all_reduce(t, op, s);
  }
  Work all_gather(Tensor shard, Tensor full, Stream s) override {
    return skips(SkippedCall::Op::kAllGather) ? Work() : inner_->all_gather(shard, full, s);
  }
  Work reduce_scatter(Tensor full, Tensor shard, Stream s) override {
    return skips(SkippedCall::Op::kReduceScatter) ? Work() : inner_->reduce_scatter(full, shard, s);
  }
  Work broadcast(Tensor t, int root, Stream s) override { return inner_->broadcast(t, root, s); }
  Work all_to_all(Tensor send, Tensor recv, const PeerCounts& counts, Stream s) override {
    return inner_->all_to_all(send, recv, counts, s);
  }
  Work send(Tensor t, int to, int tag, Stream s) override { return inner_->send(t, to, tag, s); }
  Work recv(Tensor t, int from, int tag, Stream s) override { return inner_->recv(t, from, tag, s); }
  void barrier() override { inner_->barrier(); }
  void abandon(const std::string& message, Exit code) override { inner_->abandon(message, code); }
  void poll() override { inner_->poll(); }
  void set_spans(CommSpans* spans) override { inner_->set_spans(spans); }

 protected:
  void wait(uint64_t, Stream) override {}  // tickets belong to the inner group

 private:
  bool skips(SkippedCall::Op op) {
    if (op != fault_.op || label().rfind(fault_.group + " ", 0) != 0) return false;
    return fault_.every || calls_++ == fault_.call;
  }
  std::unique_ptr<ProcessGroup> inner_;
  SkippedCall fault_;
  int calls_ = 0;
};

class FaultyFactory final : public GroupFactory {
 public:
  FaultyFactory(GroupFactory& inner, const SkippedCall& fault) : inner_(inner), fault_(fault) {}
  int world_rank() const override { return inner_.world_rank(); }
  int world_size() const override { return inner_.world_size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::string_view backend() const override { return inner_.backend(); }
  std::unique_ptr<ProcessGroup> make(std::span<const int> ranks) override {
    return std::make_unique<FaultyGroup>(inner_.make(ranks), fault_);
  }

 private:
  GroupFactory& inner_;
  SkippedCall fault_;
};

// Each rank is a thread that lives for one run, so a thread's count is the rank's count.
int doubled_call = 0;
thread_local int bias_calls = 0;

int64_t moved_window = 0;
thread_local bool windows_moved = false;

template <class Args>
Args with_moved_window(Args a) {
  if (windows_moved) a.spec.window = a.spec.window == 0 ? moved_window : 0;
  return a;
}

}  // namespace

std::unique_ptr<GroupFactory> skip_call(GroupFactory& inner, const SkippedCall& fault) {
  return std::make_unique<FaultyFactory>(inner, fault);
}

const Backend& doubled_row_bias(int call) {
  doubled_call = call;
  static OpTable table = *cpu_backend().ops;
  table.add_bias = [](const AddBias& a, Stream s) {
    cpu_backend().ops->add_bias(a, s);
    if (bias_calls++ == doubled_call) cpu_backend().ops->add_bias({.x = a.out, .bias = a.bias, .out = a.out}, s);
  };
  static const Backend backend{DeviceKind::kCpu, &table, cpu_backend().device};
  return backend;
}

const Backend& padded_logits_zero() {
  static OpTable table = *cpu_backend().ops;
  table.cross_entropy = [](const CrossEntropy& a, Stream s) {
    CrossEntropy wrong = a;
    wrong.vocab = a.logits.shape.cols();
    cpu_backend().ops->cross_entropy(wrong, s);
  };
  table.cross_entropy_stats = [](const CrossEntropyStats& a, Stream s) {
    CrossEntropyStats wrong = a;
    wrong.vocab = a.first_col + a.logits.shape.cols();
    cpu_backend().ops->cross_entropy_stats(wrong, s);
  };
  static const Backend backend{DeviceKind::kCpu, &table, cpu_backend().device};
  return backend;
}

const Backend& moved_windows(int64_t window) {
  moved_window = window;
  static OpTable table = *cpu_backend().ops;
  table.attention = [](const Attention& a, Stream s) { cpu_backend().ops->attention(with_moved_window(a), s); };
  table.attention_grad = [](const AttentionGrad& a, Stream s) {
    cpu_backend().ops->attention_grad(with_moved_window(a), s);
  };
  static const Backend backend{DeviceKind::kCpu, &table, cpu_backend().device};
  return backend;
}

void moved_windows_here(bool here) { windows_moved = here; }

const Backend& shifted_positions() {
  static OpTable table = *cpu_backend().ops;
  table.rope = [](const Rope& a, Stream s) {
    Rope wrong = a;
    wrong.rows.first_row += a.rows.seq / 2;
    cpu_backend().ops->rope(wrong, s);
  };
  static const Backend backend{DeviceKind::kCpu, &table, cpu_backend().device};
  return backend;
}

const Backend& norm_of_own_heads() {
  static OpTable table = *cpu_backend().ops;
  table.qk_row_norm = [](const QkRowNorm& a, Stream s) {
    QkRowNorm wrong = a;
    wrong.ranks = 1;
    cpu_backend().ops->qk_row_norm(wrong, s);
  };
  static const Backend backend{DeviceKind::kCpu, &table, cpu_backend().device};
  return backend;
}

const Backend& omitted_weight_decay() {
  static OpTable table = *cpu_backend().ops;
  table.adamw = [](const AdamW& a, Stream s) {
    std::vector<Segment> segments(a.table.segments().begin(), a.table.segments().end());
    for (Segment& g : segments) g.weight_decay = 0;
    AdamW wrong = a;
    wrong.table.host = segments.data();
    wrong.table.device.data = reinterpret_cast<std::byte*>(segments.data());
    cpu_backend().ops->adamw(wrong, s);
  };
  static const Backend backend{DeviceKind::kCpu, &table, cpu_backend().device};
  return backend;
}

}  // namespace gt
