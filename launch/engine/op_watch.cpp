#include "launch/engine/op_watch.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/core/host.h"

namespace gt {

// What an op reads and writes, by name. Ops that only judge or update (sums, clipping, optimizers) have none: a step
// that is run again writes nothing there.
struct Operands {
  struct One {
    const char* name;
    Tensor tensor;
    bool out;
  };
  const char* op = "";
  One list[12];
  int count = 0;
  Operands& in(const char* name, const Tensor& t) { return add({name, t, false}); }
  Operands& out(const char* name, const Tensor& t) { return add({name, t, true}); }

 private:
  Operands& add(const One& o) {
    if (o.tensor && o.tensor.numel() > 0) list[count++] = o;
    return *this;
  }
};

namespace {

thread_local OpWatch* running = nullptr;

void list(const Gemm& a, Operands& o) {
  o.in("a", a.a).in("b", a.b).in("bias", a.bias).out("out", a.out);
  if (a.epilogue == Epilogue::kGelu) o.out("aux", a.aux);
  if (a.epilogue == Epilogue::kGeluGrad) o.in("aux", a.aux);
  o.out("dbias", a.dbias);
}
void list(const GemmFp8& a, Operands& o) { o.in("a", a.a).in("b", a.b).in("bias", a.bias).out("out", a.out); }
void list(const QuantizeFp8& a, Operands& o) { o.in("x", a.x).in("pre", a.pre).out("sums", a.sums); }
void list(const Add& a, Operands& o) { o.in("a", a.a).in("b", a.b).out("out", a.out); }
void list(const Axpy& a, Operands& o) { o.in("x", a.x).in("y", a.y).out("y", a.y); }
void list(const Copy& a, Operands& o) { o.in("src", a.src).out("dst", a.dst); }
void list(const AddBias& a, Operands& o) { o.in("x", a.x).in("bias", a.bias).out("out", a.out); }
void list(const SumRows& a, Operands& o) { o.in("x", a.x).out("out", a.out); }
void list(const Cast& a, Operands& o) { o.in("src", a.src).out("dst", a.dst); }
void list(const Gelu& a, Operands& o) { o.in("x", a.x).out("out", a.out); }
void list(const GeluGrad& a, Operands& o) { o.in("x", a.x).in("dout", a.dout).out("dx", a.dx); }
void list(const Dropout& a, Operands& o) { o.in("x", a.x).out("out", a.out); }
void list(const LayerNorm& a, Operands& o) {
  o.in("x", a.x).in("delta", a.delta).in("gamma", a.gamma).in("beta", a.beta);
  o.out("sum", a.sum).out("out", a.out).out("mean", a.mean).out("rstd", a.rstd);
}
void list(const LayerNormGrad& a, Operands& o) {
  o.in("x", a.x).in("rstd", a.rstd).in("dout", a.dout).in("dsum", a.dsum);
  o.out("dx", a.dx).out("dgamma", a.dgamma).out("dbeta", a.dbeta).out("ddelta", a.ddelta).out("dbias", a.dbias);
}
void list(const Attention& a, Operands& o) { o.in("qkv", a.qkv).out("out", a.out).out("lse", a.lse); }
void list(const AttentionGrad& a, Operands& o) {
  o.in("qkv", a.qkv).in("out", a.out).in("lse", a.lse).in("dout", a.dout).out("dqkv", a.dqkv);
}
void list(const Embedding& a, Operands& o) { o.in("table", a.table).out("out", a.out); }
void list(const EmbeddingGrad& a, Operands& o) { o.in("dout", a.dout).out("dtable", a.dtable); }
void list(const AddPosition& a, Operands& o) { o.in("x", a.x).in("pos", a.pos).out("x", a.x); }
void list(const PositionGrad& a, Operands& o) { o.in("dout", a.dout).out("dpos", a.dpos); }
void list(const CrossEntropy& a, Operands& o) {
  o.in("logits", a.logits).in("seed", a.seed).out("loss", a.loss).out("dlogits", a.dlogits);
}
// The statistics of a rank whose columns are all padding are -inf by rights.
void list(const CrossEntropyStats& a, Operands& o) { o.in("logits", a.logits); }
void list(const CrossEntropyGrad& a, Operands& o) {
  o.in("logits", a.logits).in("seed", a.seed).out("loss", a.loss).out("dlogits", a.dlogits);
}
template <class Args>
void list(const Args&, Operands&) {}

// A value that is not finite as it is, any other as 0: only the former are told about.
float widened(const std::byte* p, DType t) {
  uint64_t bits = 0;
  std::memcpy(&bits, p, static_cast<size_t>(size_of(t)));
  const int mantissa = t == DType::kF64 ? 52 : t == DType::kF32 ? 23 : t == DType::kBF16 ? 7 : 10;
  const int width = static_cast<int>(8 * size_of(t));
  const uint64_t exponent = (uint64_t{1} << (width - 1)) - (uint64_t{1} << mantissa);
  if ((bits & exponent) != exponent) return 0;
  if ((bits & ((uint64_t{1} << mantissa) - 1)) != 0) return std::numeric_limits<float>::quiet_NaN();
  return bits >> (width - 1) != 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
}

// The forward multiplies with the transposed weight; with codes of 8 bits only its operands are both f8e4m3.
bool forward_product(const Gemm& g) { return g.trans_b; }
bool forward_product(const GemmFp8& g) { return g.a.dtype == DType::kF8E4M3; }
template <class Args>
bool forward_product(const Args&) {
  return false;
}

bool is_real(DType t) { return t == DType::kF32 || t == DType::kF64 || t == DType::kBF16 || t == DType::kF16; }

}  // namespace

// Wrappers find their object by thread: a rank computes on one.
struct OpWatch::Hook {
  static const OpTable& table() {
    static const OpTable t{.name = "observed",
#define X(entry, Args, amp) .entry = [](const Args& a, Stream s) { running->call(running->real_.entry, #entry, a, s); },
                           GT_OPS(X)
#undef X
    };
    return t;
  }
};

void OpWatch::begin(const ParamStore& store, const RankStatus& status, std::vector<Injection> plants, bool look) {
  parameters_ = store.parameters();
  status_ = &status;
  plants_ = std::move(plants);
  planted_.assign(plants_.size(), false);
  look_ = look;
  found_.reset();
  watch_thread();
}

void OpWatch::begin_timing(const ParamStore& store, ModuleTimer& to) {
  parameters_ = store.parameters();
  timer_ = &to;
  watch_thread();
}

void OpWatch::watch_thread() {
  running = this;
  const char* name = table_.name;
  table_ = Hook::table();
  table_.name = name;
  backend_.replays = false;  // every op is to be seen when it runs
}

void OpWatch::end() {
  table_ = real_;
  backend_.replays = replays_;
  running = nullptr;
  timer_ = nullptr;
}

template <class Args>
void OpWatch::call(Kernel<Args> kernel, const char* entry, const Args& args, Stream s) {
  Operands operands;
  operands.op = entry;
  list(args, operands);
  if (timer_ != nullptr) {
    const double begin = now();
    kernel(args, s);
    backend_.device->synchronize(s);
    const double seconds = now() - begin;
    const Parameter* p = parameter_of(operands);
    timer_->add(entry, p != nullptr ? &p->name : nullptr, forward_product(args), seconds);
    return;
  }
  const bool look = look_ && !found_;
  float value = 0;
  const Operands::One* bad_input = nullptr;
  for (int k = 0; k < operands.count && look && bad_input == nullptr; ++k)
    if (!operands.list[k].out && first_bad_element(operands.list[k].tensor, s, &value) >= 0)
      bad_input = &operands.list[k];
  kernel(args, s);
  plant(operands, s);
  for (int k = 0; k < operands.count && look; ++k) {
    const Operands::One& o = operands.list[k];
    const int64_t at = o.out ? first_bad_element(o.tensor, s, &value) : -1;
    if (at < 0) continue;
    found_ =
        BadOp{fmt::format("{}{}: {}, element {} of {}, is {}; {}", entry, with(operands), o.name, at,
                          to_string(o.tensor.shape), value,
                          bad_input == nullptr ? std::string("its operands are finite")
                                               : fmt::format("its operand {} was not finite before", bad_input->name)),
              bad_input == nullptr, status_->slot().where.load(std::memory_order_relaxed), steady_ns()};
    return;
  }
}

const Parameter* OpWatch::parameter_at(const std::byte* p, bool gradient) const {
  for (const Parameter* parameter : parameters_) {
    const auto lies_in = [p](const Tensor& t) { return t && p >= t.data && p < t.data + t.bytes(); };
    if (lies_in(gradient ? parameter->grad : parameter->value)) return parameter;
    if (!gradient && (lies_in(parameter->codes.rows) || lies_in(parameter->codes.columns))) return parameter;
  }
  return nullptr;
}

const Parameter* OpWatch::parameter_of(const Operands& o) const {
  for (int k = 0; k < o.count; ++k)
    if (const Parameter* p = parameter_at(o.list[k].tensor.data, o.list[k].out)) return p;
  return nullptr;
}

// " with layers.1.mlp.up.weight", " for the gradient of layers.1.norm1.weight"; "" for an op among activations.
std::string OpWatch::with(const Operands& o) const {
  for (int k = 0; k < o.count; ++k)
    if (const Parameter* p = parameter_at(o.list[k].tensor.data, o.list[k].out))
      return (o.list[k].out ? " for the gradient of " : " with ") + p->name;
  return "";
}

void OpWatch::plant(const Operands& o, Stream s) {
  const auto where = status_->slot().where.load(std::memory_order_relaxed);
  for (size_t i = 0; i < plants_.size(); ++i) {
    const Injection& f = plants_[i];
    const bool backward = f.site == "backward";
    bool meant = false;
    for (int k = 0; k < o.count; ++k) {
      const Parameter* p = parameter_at(o.list[k].tensor.data, backward);
      meant = meant || (p != nullptr && p->name == f.param && o.list[k].out == backward);
    }
    if (!meant || planted_[i] || (f.microbatch >= 0 && static_cast<int32_t>(where) != f.microbatch)) continue;
    for (int k = 0; k < o.count; ++k) {
      const Tensor& t = o.list[k].tensor;
      if (!o.list[k].out || t.dtype != DType::kF32 || f.index >= t.numel()) continue;
      const float x =
          f.action == "nan" ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
      backend_.device->copy(t.data + f.index * static_cast<int64_t>(sizeof x), &x, sizeof x, s);
      backend_.device->synchronize(s);
      planted_[i] = true;
      break;
    }
  }
}

int64_t OpWatch::first_bad_element(const Tensor& t, Stream s, float* value) {
  if (!is_real(t.dtype)) return -1;
  host_.resize(static_cast<size_t>(t.bytes()));
  backend_.device->copy(host_.data(), t.data, t.bytes(), s);
  backend_.device->synchronize(s);
  for (int64_t k = 0; k < t.numel(); ++k)
    if (*value = widened(host_.data() + k * size_of(t.dtype), t.dtype); !std::isfinite(*value)) return k;
  return -1;
}

}  // namespace gt
