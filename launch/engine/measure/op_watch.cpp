#include "launch/engine/measure/op_watch.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/core/host.h"

namespace gt {

// Operands of an op, by name. Ops that only check or update (sums, clipping, optimizers) have control operands only: a
// rerun step writes nothing through them.
struct Operands {
  struct One {
    const char* name;
    Tensor tensor;
    OperandRole role;
  };
  One list[24];
  int count = 0;
};

namespace {

thread_local OpWatch* running = nullptr;

template <class Args>
Operands operands_of(const Args& args) {
  Operands o;
  each_operand(args, [&](const char* name, const Tensor& t, OperandRole role) {
    if (role != OperandRole::kControl && t && t.numel() > 0) o.list[o.count++] = {name, t, role};
  });
  return o;
}

// Returns a non-finite value unchanged, and 0 for any other: only the former are reported.
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

bool is_real(DType t) { return t == DType::kF32 || t == DType::kF64 || t == DType::kBF16 || t == DType::kF16; }

}  // namespace

// Wrappers find their object through a thread-local: a rank computes on one thread.
struct OpWatch::Hook {
  static const OpTable& table() {
    static const OpTable t{.name = "observed",
#define X(entry, Args, ...) .entry = [](const Args& a, Stream s) { running->call(running->real_.entry, a, s); },
                           GT_OPS(X)
#undef X
    };
    return t;
  }
};

void OpWatch::begin(const ParamStore& store, const RankStatus& status, std::vector<Injection> faults,
                    bool check_values) {
  parameters_ = store.parameters();
  status_ = &status;
  faults_ = std::move(faults);
  injected_.assign(faults_.size(), false);
  check_values_ = check_values;
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
  backend_.replays = false;  // every op must run through the table
}

void OpWatch::end() {
  table_ = real_;
  backend_.replays = replays_;
  running = nullptr;
  timer_ = nullptr;
}

template <class Args>
void OpWatch::call(Kernel<Args> kernel, const Args& args, Stream s) {
  constexpr OpInfo kInfo = OpOf<Args>::kInfo;
  const Operands operands = operands_of(args);
  if (timer_ != nullptr) {
    const double begin = now();
    kernel(args, s);
    backend_.device->synchronize(s);
    const double seconds = now() - begin;
    const Parameter* p = parameter_of(operands);
    timer_->add(kInfo.leaf, direction_of(args), p != nullptr ? &counted_parameter(p->name, kInfo.kind) : nullptr,
                seconds);
    return;
  }
  const bool check_values = check_values_ && !found_;
  float value = 0;
  const Operands::One* bad_input = nullptr;
  for (int k = 0; k < operands.count && check_values && bad_input == nullptr; ++k)
    if (reads(operands.list[k].role) && first_bad_element(operands.list[k].tensor, s, &value) >= 0)
      bad_input = &operands.list[k];
  kernel(args, s);
  inject(operands, s);
  for (int k = 0; k < operands.count && check_values; ++k) {
    const Operands::One& o = operands.list[k];
    const int64_t at = writes(o.role) ? first_bad_element(o.tensor, s, &value) : -1;
    if (at < 0) continue;
    found_ =
        BadOp{fmt::format("{}{}: {}, element {} of {}, is {}; {}", kInfo.name, with(operands), o.name, at,
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
    if (!gradient && (lies_in(parameter->fp8_data.rowwise) || lies_in(parameter->fp8_data.columnwise)))
      return parameter;
  }
  return nullptr;
}

const Parameter* OpWatch::parameter_of(const Operands& o) const {
  for (int k = 0; k < o.count; ++k)
    if (const Parameter* p = parameter_at(o.list[k].tensor.data, writes(o.list[k].role))) return p;
  return nullptr;
}

// Returns " with layers.1.mlp.up.weight", " for the gradient of layers.1.norm1.weight"; "" for an op on activations
// only.
std::string OpWatch::with(const Operands& o) const {
  for (int k = 0; k < o.count; ++k)
    if (const Parameter* p = parameter_at(o.list[k].tensor.data, writes(o.list[k].role)))
      return (writes(o.list[k].role) ? " for the gradient of " : " with ") + p->name;
  return "";
}

void OpWatch::inject(const Operands& o, Stream s) {
  const auto where = status_->slot().where.load(std::memory_order_relaxed);
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Injection& f = faults_[i];
    const bool backward = f.site == "backward";
    bool meant = false;
    for (int k = 0; k < o.count; ++k) {
      const Parameter* p = parameter_at(o.list[k].tensor.data, backward);
      meant = meant || (p != nullptr && p->name == f.param && writes(o.list[k].role) == backward);
    }
    if (!meant || injected_[i] || (f.microbatch >= 0 && static_cast<int32_t>(where) != f.microbatch)) continue;
    for (int k = 0; k < o.count; ++k) {
      const Tensor& t = o.list[k].tensor;
      if (!writes(o.list[k].role) || t.dtype != DType::kF32 || f.index >= t.numel()) continue;
      const float x =
          f.action == "nan" ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
      backend_.device->copy(t.data + f.index * static_cast<int64_t>(sizeof x), &x, sizeof x, s);
      backend_.device->synchronize(s);
      if (const Parameter* p = parameter_at(t.data, true); p != nullptr && p->squares != nullptr) *p->squares = -1;
      injected_[i] = true;
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
