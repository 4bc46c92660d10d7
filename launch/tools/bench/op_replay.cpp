#include "launch/tools/bench/op_replay.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string_view>

#include "autograd/parameter.h"
#include "kernels/core/rng.h"

namespace gt {

// Writes values into operands; nothing where they will be copied.
class OperandWriter {
 public:
  OperandWriter(const DeviceBench& bench, bool writes) : bench_(bench), writes_(writes) {}

  void normal(const Tensor& t) const {
    if (writes_) bench_.fill_normal(t);
  }
  void put(const Tensor& t, const std::vector<float>& v) const {
    if (!writes_ || !t || t.dtype != DType::kF32) return;
    std::vector<float> host(static_cast<size_t>(t.numel()));
    for (size_t i = 0; i < host.size(); ++i) host[i] = v[i % v.size()];
    copy(t, host.data());
  }
  void ids(const Tensor& t, int64_t vocab) const {
    if (!writes_) return;
    std::vector<int32_t> host(static_cast<size_t>(t.numel()));
    for (size_t i = 0; i < host.size(); ++i) {
      const double u = static_cast<double>(splitmix64(i + 77) >> 11) * 0x1p-53;
      host[i] = static_cast<int32_t>(std::pow(static_cast<double>(vocab), u) - 1);
    }
    copy(t, host.data());
  }
  void integers(const Tensor& t, const std::function<int64_t(int64_t)>& of) const {
    if (!writes_ || !t) return;
    std::vector<int32_t> host(static_cast<size_t>(t.numel()));
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<int32_t>(of(static_cast<int64_t>(i)));
    copy(t, host.data());
  }
  void zero(const Tensor& t) const {
    if (writes_) bench_.backend().device->zero(t.data, t.bytes(), bench_.stream());
  }

 private:
  void copy(const Tensor& t, const void* host) const {
    bench_.backend().device->copy(t.data, host, t.bytes(), bench_.stream());
    bench_.backend().device->synchronize(bench_.stream());
  }
  const DeviceBench& bench_;
  const bool writes_;
};

namespace {

const std::vector<float> kSecondMoments{1e-4f, 3e-4f, 2e-5f};

// Sets the operands of any op by name.
template <class Args>
void settle(Args& args, const OperandWriter& v) {
  static const std::map<std::string_view, std::vector<float>> kUsual = {
      // lr, beta1, two bias corrections, gradient factor, not skipped, ..., beta2
      {"scalars", {1e-4f, 0.9f, 0.1f, 0.05f, 1, 0, 1, 0.95f, 0.1f, 1, 0, 0, 0, 0, 0, 0}},
      {"rstd", {1}},
      {"lse", {7}},
      {"stats", {1}},
      {"seed", {1e-4f}},
      {"amax", {5}},
      {"limits", {4}},
      {"a_scale", {1}},
      {"b_scale", {1}}};
  each_operand(args, [&](const char* name, const Tensor& t, OperandRole) {
    if (const auto it = kUsual.find(name); it != kUsual.end()) v.put(t, it->second);
  });
  // Whole sequences of one document; a rotation that keeps lengths, so that values applied to in place stay normal.
  constexpr float kCos45 = 0.70710678f;  // and the sine
  if constexpr (std::is_same_v<Args, Rope>) v.put(args.table, {kCos45});
  if constexpr (requires { args.positions; }) {
    const int64_t seq = [&] {
      if constexpr (requires { args.rows; })
        return args.rows.seq;
      else
        return int64_t{1};
    }();
    v.integers(args.positions, [&](int64_t i) { return i % seq; });
  }
  if constexpr (requires { args.spec.documents; }) {
    v.integers(args.spec.documents, [&](int64_t i) { return i % args.spec.queries; });
    v.integers(args.spec.lengths, [&](int64_t) { return args.spec.keys; });
  }
  if constexpr (requires { args.b_version; }) args.b_version = args.b_version > 0 ? fresh_version() : 0;
}

uintptr_t number(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) >> 40; }
int64_t offset(const Tensor& t) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.data) & 0xff); }

}  // namespace

OpReplay::OpReplay(const OpCall& call, const DeviceBench& bench, int64_t vocab, const OpReplay* like)
    : bench_(bench), args_(call.args) {
  const OperandWriter values(bench, like == nullptr);
  std::visit(
      [&](auto& args) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(args)>, std::monostate>) {
          std::map<uintptr_t, int64_t> buffer_bytes;
          each_operand(args, [&](const char*, const Tensor& t, OperandRole) {
            if (t) buffer_bytes[number(t)] = std::max(buffer_bytes[number(t)], offset(t) + t.bytes());
          });
          std::map<uintptr_t, size_t> buffer_of;
          for (const auto& [which, bytes] : buffer_bytes) {
            buffer_of[which] = held_.size();
            held_.emplace_back(bytes, bench.stream().device, *bench.backend().device);
          }
          each_operand(args, [&](const char*, Tensor& t, OperandRole) {
            if (!t) return;
            t.data = held_[buffer_of[number(t)]].data() + offset(t);
            t.device = bench.stream().device;
            if (t.dtype == DType::kI32)
              values.ids(t, vocab);
            else if (t.dtype == DType::kF32 || size_of(t.dtype) == 2)
              values.normal(t);
            else
              values.zero(t);
          });
          if constexpr (OverSegments<std::decay_t<decltype(args)>>)
            args.table = table_for(args.table, call.segments, values);
          settle(args, values);
        }
      },
      args_);
  for (size_t k = 0; like != nullptr && k < held_.size(); ++k)
    bench.backend().device->copy(held_[k].data(), like->held_[k].data(), held_[k].bytes(), bench.stream());
  bench.backend().device->synchronize(bench.stream());
}

// Returns a copy of the step's segment table whose tensors have memory of their own.
SegmentTable OpReplay::table_for(const SegmentTable& like, std::vector<Segment> segments, const OperandWriter& values) {
  const auto give = [&](auto*& p, int64_t count, DType type, bool positive) {
    if (p == nullptr) return;
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) & 0xff);
    held_.emplace_back(offset + count * size_of(type), bench_.stream().device, *bench_.backend().device);
    const Tensor t = held_.back().tensor({count}, type, offset);
    values.normal(t);
    if (positive) values.put(t, kSecondMoments);
    p = reinterpret_cast<std::decay_t<decltype(p)>>(t.data);
  };
  tables_.open(like.master, like.grad, like.value);
  for (Segment& s : segments) {
    give(s.master, s.count, like.master, false);
    give(s.grad, s.count, like.grad, false);
    give(s.m, s.count, DType::kF32, false);
    give(s.v, s.count, DType::kF32, true);
    give(s.value, s.count, like.value, false);
    tables_.add(s);
  }
  tables_.upload(static_cast<int64_t>(segments.size()), bench_.stream(), *bench_.backend().device);
  return tables_.tables().front();
}

void OpReplay::change_weight() {
  std::visit(
      [](auto& args) {
        if constexpr (requires { args.b_version; }) args.b_version = args.b_version > 0 ? fresh_version() : 0;
      },
      args_);
}

void OpReplay::operator()() const {
  std::visit(
      [&](const auto& args) {
        using Args = std::decay_t<decltype(args)>;
        if constexpr (!std::is_same_v<Args, std::monostate>) (bench_.ops().*OpOf<Args>::kEntry)(args, bench_.stream());
      },
      args_);
}

}  // namespace gt
