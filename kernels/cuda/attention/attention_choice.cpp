#include "kernels/cuda/attention/attention_choice.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_memory.h"
#include "kernels/cuda/attention/cudnn_library.h"
#include "kernels/cuda/table.h"

namespace gt::cuda {
namespace {

using By = AttentionBy;

// Process-wide attention settings and pending log messages. Thread-safe: ranks may be threads of one process.
class AttentionSettings {
 public:
  std::atomic<By> by{By::kAuto};
  std::atomic<bool> deterministic{true};

  // Queues `line` for the log unless `key` was already reported.
  void note(const std::string& key, const std::string& line) {
    const std::lock_guard lock(mutex_);
    if (reported_.insert(key).second) news_ += (news_.empty() ? "" : "\n") + line;
  }
  // Queues a message that our own kernels run calls of this kind, and why. Called on every such op; Requires: string
  // literals.
  void note_own(const char* what, const char* why) {
    const std::lock_guard lock(mutex_);
    if (own_.insert(why).second) news_ += cat(news_.empty() ? "" : "\n", what, ": our own kernels; ", why);
  }
  std::string take_news() {
    const std::lock_guard lock(mutex_);
    return std::exchange(news_, {});
  }

 private:
  std::mutex mutex_;
  std::set<std::string> reported_;
  std::set<const char*> own_;
  std::string news_;
};

AttentionSettings& rule() {
  static AttentionSettings r;
  return r;
}

template <class Args>
constexpr bool kIsBackward = std::is_same_v<Args, AttentionGrad>;

// cudnn-frontend places 4 bytes per row of scores in front of the engine's workspace; cuDNN requires 16-byte alignment.
constexpr const char* kUnaligned =
    "batch x heads x seq is not a multiple of 4, so cuDNN's workspace would not be aligned";

// Returns why cuDNN does not support a call; nullptr when it may.
template <class Args>
const char* unsuited(const Args& args) {
  const AttentionSpec& a = args.spec;
  bool aligned = aligned16({args.q.data(), args.k.data(), args.v.data(), args.out.data, args.lse.data});
  if constexpr (kIsBackward<Args>)
    aligned = aligned && aligned16({args.dout.data, args.dq.data(), args.dk.data(), args.dv.data()});
  if (args.q.rows.dtype == DType::kF32) return "tensors are f32, and cuDNN's attention takes bf16 and fp16";
  if (a.softcap > 0) return "attention scores have a soft cap, which cuDNN's attention does not compute here";
  if (a.full) return "attention is bidirectional, and only causal attention is given to cuDNN here";
  if (a.documents)
    return "documents are packed (data.pack documents), and cuDNN's attention is not given their boundaries here";
  if (a.drop) return "attention dropout is a function of module and sample here, which cuDNN does not compute";
  if (a.queries != a.keys || a.first_query != a.first_key)
    return "queries and keys are different parts of a sequence, and cuDNN's attention is given whole ones here";
  if (a.head_dim % 8 != 0) return "head_dim is not a multiple of 8";
  if (!aligned) return "a tensor does not begin at a multiple of 16 bytes";
  if (kIsBackward<Args> && a.batch * a.heads * a.queries % 4 != 0) return kUnaligned;
  return nullptr;
}

template <class Args>
AttentionCall call_of(const Args& args) {
  const AttentionSpec& a = args.spec;
  AttentionCall c{.batch = a.batch,
                  .seq = a.queries,
                  .heads = a.heads,
                  .kv_heads = a.kv_heads,
                  .head_dim = a.head_dim,
                  .type = args.q.rows.dtype,
                  .scale = a.scale,
                  .window = a.window < a.queries ? a.window : 0,
                  .backward = kIsBackward<Args>,
                  .deterministic = !kIsBackward<Args> || rule().deterministic,
                  .pitch = {args.q.pitch(), args.k.pitch(), args.v.pitch()}};
  if constexpr (kIsBackward<Args>) c.grad_pitch = {args.dq.pitch(), args.dk.pitch(), args.dv.pitch()};
  return c;
}

const char* pass_of(const AttentionCall& c) { return c.backward ? "attention backward" : "attention forward"; }

std::string shape_of(const AttentionCall& c) {
  return cat(c.batch, " x ", c.seq, " tokens, ", c.heads, " heads of ", c.head_dim,
             c.kv_heads == c.heads ? "" : cat(" on ", c.kv_heads, " KV heads"),
             c.window == 0 ? "" : cat(", window ", c.window), ", ", name_of(c.type));
}

[[noreturn]] void refuse(const AttentionCall& c, const std::string& why) {
  fail(Exit::kUsage, "device.attention: cudnn was requested, but it does not support this ", pass_of(c), " (",
       shape_of(c), "): ", why, ". Use --device.attention auto: our own kernels then replace cuDNN");
}

void note_cudnn(const AttentionCall& c, const AttentionPlan& plan) {
  const char* how = !c.backward       ? ""
                    : c.deterministic ? ", deterministic (train.deterministic false may be faster)"
                                      : ", sums in any order (train.deterministic false)";
  rule().note(pass_of(c), cat(pass_of(c), ": ", cudnn_name(), how, ", workspace ",
                              (plan.workspace() + (1 << 20) - 1) >> 20, " MiB for ", shape_of(c)));
}

// cuDNN handle and plan cache of one stream. Caches negative results too.
class AttentionPlans {
 public:
  explicit AttentionPlans(cudaStream_t stream) : handle_(open_cudnn(stream, &obstacle_)) {}

  // Returns false when our own kernels must run the call; they overwrite any partial cuDNN output.
  bool run(const AttentionCall& call, const AttentionPointers& pointers, Context& c) {
    Entry& e = find(call);
    if (e.plan == nullptr) return false;
    const std::string why = e.plan->run(pointers, c.scratch(e.plan->workspace()));
    if (why.empty()) {
      if (!std::exchange(e.has_run, true)) note_cudnn(call, *e.plan);
      return true;
    }
    // A plan that ran before does not fail by itself: another fault is pending, which a fallback must not hide.
    GT_CHECK(!e.has_run, "running cuDNN's ", pass_of(call), ": ", why);
    cudaGetLastError();  // a sticky error is reported by the launch of our own kernel
    leave_to_own(call, cat("cuDNN has a plan and fails to run it: ", why));
    e.failed.swap(e.plan);
    return false;
  }

  int64_t workspace() const {
    int64_t most = 0;
    for (const Entry& e : entries_)
      if (e.plan) most = std::max(most, e.plan->workspace());
    return most;
  }

 private:
  struct Entry {
    AttentionCall call;
    std::unique_ptr<AttentionPlan> plan;    // nullptr: our own kernels
    std::unique_ptr<AttentionPlan> failed;  // part of its work may be queued
    bool has_run = false;
  };

  Entry& find(const AttentionCall& call) {
    const auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.call == call; });
    if (it != entries_.end() && (it->plan || rule().by != By::kCudnn)) return *it;
    std::string why = obstacle_;
    auto plan = handle_ ? plan_attention(handle_.get(), call, &why) : nullptr;
    if (plan == nullptr) leave_to_own(call, why);
    entries_.push_back({call, std::move(plan), nullptr});
    return entries_.back();
  }

  static void leave_to_own(const AttentionCall& call, const std::string& why) {
    if (rule().by == By::kCudnn) refuse(call, why);
    rule().note(cat(pass_of(call), why), cat(pass_of(call), ": our own kernels for ", shape_of(call), "; ", why));
  }

  std::string obstacle_;
  CudnnHandle handle_;  // declared before the plans, so destroyed after them
  std::vector<Entry> entries_;
};

// Plan caches of all streams. Each cache is used only by the thread of its stream.
class AllPlans {
 public:
  AttentionPlans& of(const Context& c) {
    const std::lock_guard lock(mutex_);
    auto& plans = plans_[&c];
    if (!plans) plans = std::make_unique<AttentionPlans>(c.stream);
    return *plans;
  }
  const AttentionPlans* find(const Context& c) {
    const std::lock_guard lock(mutex_);
    const auto it = plans_.find(&c);
    return it == plans_.end() ? nullptr : it->second.get();
  }
  void drop(const Context& c) {
    std::unique_ptr<AttentionPlans> gone;  // destroyed outside the lock
    const std::lock_guard lock(mutex_);
    if (const auto it = plans_.find(&c); it != plans_.end()) {
      gone = std::move(it->second);
      plans_.erase(it);
    }
  }

 private:
  std::mutex mutex_;
  std::map<const Context*, std::unique_ptr<AttentionPlans>> plans_;
};

AllPlans& all_plans() {
  static auto* const p = new AllPlans;  // never destroyed: the driver may be unloaded at process exit
  return *p;
}

// Runs a call on cuDNN; returns false when our own kernels must run it.
template <class Args>
bool try_cudnn(Context& c, const Args& a, const AttentionPointers& p) {
  if (rule().by == By::kOwn || !cudnn_unavailable().empty()) return false;
  if (const char* why = unsuited(a)) {
    if (rule().by == By::kCudnn) refuse(call_of(a), why);
    rule().note_own(why == kUnaligned ? "attention backward" : "attention", why);
    return false;
  }
  return all_plans().of(c).run(call_of(a), p, c);
}

}  // namespace

void attention(const Attention& a, Stream s) {
  if (a.out.numel() == 0) return;
  Context& c = enter(s, "attention");
  check_attention("attention", a);
  const AttentionPointers p{.q = a.q.data(), .k = a.k.data(), .v = a.v.data(), .out = a.out.data, .lse = a.lse.data};
  if (!try_cudnn(c, a, p)) return own_attention(a, s);
  leave(c, "attention");
}

void attention_grad(const AttentionGrad& a, Stream s) {
  if (a.q.rows.numel() + a.k.rows.numel() == 0) return;
  Context& c = enter(s, "attention_grad");
  check_attention_grad(a);
  const AttentionPointers p{.q = a.q.data(),
                            .k = a.k.data(),
                            .v = a.v.data(),
                            .out = a.out.data,
                            .lse = a.lse.data,
                            .dout = a.dout.data,
                            .dq = a.dq.data(),
                            .dk = a.dk.data(),
                            .dv = a.dv.data()};
  if (!try_cudnn(c, a, p)) return own_attention_grad(a, s);
  leave(c, "attention_grad");
}

void tune_attention(const AttentionTuning& t) {
  GT_REQUIRE(t.by != By::kCudnn || cudnn_unavailable().empty(), Exit::kUsage,
             "device.attention: cudnn was requested, but ", cudnn_unavailable(),
             ". Use --device.attention auto: our own kernels then do it");
  rule().by = t.by;
  rule().deterministic = t.deterministic;
  if (t.by == By::kOwn)
    rule().note("own", "attention: our own kernels (device.attention own)");
  else if (!cudnn_unavailable().empty())
    rule().note("obstacle", cat("attention: our own kernels; ", cudnn_unavailable()));
}

std::string take_attention_log() { return rule().take_news(); }

std::string attention_library() {
  return cudnn_unavailable().empty() ? cudnn_name() : cat("attention by our own kernels; ", cudnn_unavailable());
}

int64_t planned_attention_bytes(const AttentionGrad& a) {
  if (rule().by == By::kOwn || !cudnn_unavailable().empty() || unsuited(a) != nullptr) return own_attention_scratch(a);
  return graph_bytes(call_of(a)) + engine_bytes(call_of(a));
}

int64_t held_attention_bytes(const Context& c) {
  const AttentionPlans* plans = all_plans().find(c);
  return plans != nullptr ? plans->workspace() : 0;
}

void drop_attention_plans(const Context& c) { all_plans().drop(c); }

}  // namespace gt::cuda
