// Emulates the backend's cuDNN interface (cudnn_library.h, attention_cudnn.h) with plain loops, to test selection,
// plans and workspaces without cuDNN. GPTTRAIN_EMULATED_CUDNN=1 enables it. Like the real one on many GPUs, it supports
// no backward for head dims above 128 and none for a single token. Workspaces are overwritten entirely; the engine's
// part must be 16-byte aligned. GPTTRAIN_EMULATED_CUDNN_RUNS=N: a plan runs N times, then fails.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_memory.h"
#include "kernels/cuda/attention/cudnn_library.h"
#include "tests/cuda/emulation/device_memory.h"
#include "tests/cuda/emulation/graphs.h"
#include "tests/cuda/emulation/watch.h"

namespace gt::cuda {
namespace {

class LoopPlan final : public AttentionPlan {
 public:
  LoopPlan(const AttentionCall& call, cudaStream_t s) : c_(call), stream_(s) {}

  int64_t workspace() const override {
    return c_.backward && c_.deterministic ? 2 * c_.batch * c_.heads * c_.seq * c_.seq : 512;
  }

  std::string run(const AttentionPointers& p, void* workspace) override {
    static const char* most = std::getenv("GPTTRAIN_EMULATED_CUDNN_RUNS");
    if (most != nullptr && runs_++ == std::atoi(most)) return "CUDNN_STATUS_EXECUTION_FAILED";
    if (graph_bytes(c_) % 16 != 0) return "misaligned address";
    emulated::queue(stream_, [this, p, workspace] { compute(p, workspace); });
    return {};
  }

 private:
  void compute(const AttentionPointers& p, void* workspace) {
    const emulated::OnDevice now;
    report_accesses(p, workspace);
    std::memset(workspace, 0xFF, static_cast<size_t>(workspace_));
    if (c_.backward) zero_gradients(p);
    for (int64_t b = 0; b < c_.batch; ++b)
      for (int64_t h = 0; h < c_.heads; ++h) c_.backward ? backward(p, b, h) : forward(p, b, h);
  }

  using Pitch = std::array<int64_t, 3>;
  // Calls f(address, bytes) for every row of a view of q (which 0), k or v, or of their gradients.
  template <class F>
  void each_row(std::byte* at, const Pitch& pitch, size_t which, F f) const {
    const int64_t heads = which == 0 ? c_.heads : c_.kv_heads;
    for (int64_t r = 0; r < c_.batch * c_.seq; ++r)
      f(at + r * pitch[which] * 2, static_cast<size_t>(heads * c_.head_dim * 2));
  }
  void zero_gradients(const AttentionPointers& p) const {
    const auto zero = [](std::byte* row, size_t bytes) { std::memset(row, 0, bytes); };
    each_row(p.dq, c_.grad_pitch, 0, zero), each_row(p.dk, c_.grad_pitch, 1, zero);
    each_row(p.dv, c_.grad_pitch, 2, zero);
  }

  void report_accesses(const AttentionPointers& p, void* workspace) const {
    const char* what = "cuDNN";
    const auto out = static_cast<size_t>(c_.batch * c_.seq * c_.heads * c_.head_dim * 2),
               lse = static_cast<size_t>(c_.batch * c_.seq * c_.heads * 4);
    const auto reads = [&](std::byte* row, size_t bytes) { emulated::watch::reads(row, bytes, what); };
    const auto writes = [&](std::byte* row, size_t bytes) { emulated::watch::writes(row, bytes, what); };
    emulated::watch::writes(workspace, static_cast<size_t>(workspace_), what);
    each_row(p.q, c_.pitch, 0, reads), each_row(p.k, c_.pitch, 1, reads), each_row(p.v, c_.pitch, 2, reads);
    if (!c_.backward) {
      emulated::watch::writes(p.out, out, what);
      return emulated::watch::writes(p.lse, lse, what);
    }
    emulated::watch::reads(p.out, out, what);
    emulated::watch::reads(p.dout, out, what);
    emulated::watch::reads(p.lse, lse, what);
    each_row(p.dq, c_.grad_pitch, 0, writes), each_row(p.dk, c_.grad_pitch, 1, writes);
    each_row(p.dv, c_.grad_pitch, 2, writes);
  }

  // Offset of the first element of token t of sequence b: of query head h, of its group's key or value head, of an
  // output row; of gradients with `pitch` their own.
  int64_t at_q(int64_t b, int64_t t, int64_t h, const Pitch& pitch) const {
    return (b * c_.seq + t) * pitch[0] + h * c_.head_dim;
  }
  int64_t at_kv(int64_t b, int64_t t, int64_t h, int64_t pitch) const {
    return (b * c_.seq + t) * pitch + h / (c_.heads / c_.kv_heads) * c_.head_dim;
  }
  int64_t at_q(int64_t b, int64_t t, int64_t h) const { return at_q(b, t, h, c_.pitch); }
  int64_t at_k(int64_t b, int64_t t, int64_t h) const { return at_kv(b, t, h, c_.pitch[1]); }
  int64_t at_v(int64_t b, int64_t t, int64_t h) const { return at_kv(b, t, h, c_.pitch[2]); }
  int64_t at_out(int64_t b, int64_t t, int64_t h) const { return ((b * c_.seq + t) * c_.heads + h) * c_.head_dim; }

  double get(const std::byte* p, int64_t i) const {
    return c_.type == DType::kBF16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p)[i])
                                   : __half2float(reinterpret_cast<const __half*>(p)[i]);
  }
  void put(std::byte* p, int64_t i, double v) const {
    if (c_.type == DType::kBF16)
      reinterpret_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(static_cast<float>(v));
    else
      reinterpret_cast<__half*>(p)[i] = __float2half_rn(static_cast<float>(v));
  }
  double dot(const std::byte* x, int64_t i, const std::byte* y, int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < c_.head_dim; ++d) sum += get(x, i + d) * get(y, j + d);
    return sum;
  }
  float& lse(const AttentionPointers& p, int64_t b, int64_t h, int64_t t) const {
    return reinterpret_cast<float*>(p.lse)[(b * c_.heads + h) * c_.seq + t];
  }

  int64_t first_key(int64_t query) const { return c_.window > 0 ? std::max<int64_t>(0, query - c_.window + 1) : 0; }

  void forward(const AttentionPointers& p, int64_t b, int64_t h) {
    for (int64_t t = 0; t < c_.seq; ++t) {
      const int64_t begin = first_key(t);
      std::vector<double> s(static_cast<size_t>(t + 1), -INFINITY);
      double top = -INFINITY, total = 0;
      for (int64_t u = begin; u <= t; ++u) {
        s[static_cast<size_t>(u)] = c_.scale * dot(p.q, at_q(b, t, h), p.k, at_k(b, u, h));
        top = std::max(top, s[static_cast<size_t>(u)]);
      }
      for (double& x : s) total += x = std::exp(x - top);
      for (int64_t d = 0; d < c_.head_dim; ++d) {
        double sum = 0;
        for (int64_t u = begin; u <= t; ++u) sum += s[static_cast<size_t>(u)] * get(p.v, at_v(b, u, h) + d);
        put(p.out, at_out(b, t, h) + d, sum / total);
      }
      lse(p, b, h, t) = static_cast<float>(top + std::log(total));
    }
  }

  // Accumulates dk and dv over the query heads of a group, rounding each time as cuDNN rounds partial results of a
  // group.
  void backward(const AttentionPointers& p, int64_t b, int64_t h) {
    const auto n = static_cast<size_t>(c_.seq * c_.head_dim);
    std::vector<double> dk(n), dv(n);
    for (int64_t t = 0; t < c_.seq; ++t) {
      const int64_t q = at_q(b, t, h), o = at_out(b, t, h);
      const double delta = dot(p.dout, o, p.out, o);
      std::vector<double> dq(static_cast<size_t>(c_.head_dim));
      for (int64_t u = first_key(t); u <= t; ++u) {
        const int64_t k = at_k(b, u, h);
        const double weight = std::exp(c_.scale * dot(p.q, q, p.k, k) - lse(p, b, h, t));
        const double ds = c_.scale * weight * (dot(p.dout, o, p.v, at_v(b, u, h)) - delta);
        for (int64_t d = 0; d < c_.head_dim; ++d) {
          const auto i = static_cast<size_t>(u * c_.head_dim + d);
          dq[static_cast<size_t>(d)] += ds * get(p.k, k + d);
          dk[i] += ds * get(p.q, q + d);
          dv[i] += weight * get(p.dout, o + d);
        }
      }
      const int64_t to = at_q(b, t, h, c_.grad_pitch);
      for (int64_t d = 0; d < c_.head_dim; ++d) put(p.dq, to + d, dq[static_cast<size_t>(d)]);
    }
    for (int64_t u = 0; u < c_.seq; ++u)
      for (int64_t d = 0; d < c_.head_dim; ++d) {
        const auto i = static_cast<size_t>(u * c_.head_dim + d);
        const int64_t k = at_kv(b, u, h, c_.grad_pitch[1]) + d, v = at_kv(b, u, h, c_.grad_pitch[2]) + d;
        put(p.dk, k, get(p.dk, k) + dk[i]);
        put(p.dv, v, get(p.dv, v) + dv[i]);
      }
  }

  const AttentionCall c_;
  const cudaStream_t stream_;
  const int64_t workspace_ = workspace();
  int runs_ = 0;
};

}  // namespace

const std::string& cudnn_unavailable() {
  static const char* set = std::getenv("GPTTRAIN_EMULATED_CUDNN");
  static const std::string obstacle = set != nullptr && *set == '1' ? "" : "there is no cuDNN on the emulated device";
  return obstacle;
}

const std::string& cudnn_name() {
  static const std::string name = "emulated cuDNN";
  return name;
}

CudnnHandle open_cudnn(cudaStream_t s, std::string*) {
  return {reinterpret_cast<cudnnContext*>(s), [](cudnnContext*) {}};
}

std::unique_ptr<AttentionPlan> plan_attention(cudnnContext* handle, const AttentionCall& call, std::string* why) {
  if (call.backward && call.head_dim > 128) return *why = "hidden_dim above 128", nullptr;
  if (call.backward && call.seq == 1) return *why = "s_q = s_kv = 1 is not supported", nullptr;
  return std::make_unique<LoopPlan>(call, reinterpret_cast<cudaStream_t>(handle));
}

}  // namespace gt::cuda
