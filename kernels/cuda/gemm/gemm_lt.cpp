// GEMMs on cuBLASLt. Row-major operands are passed swapped: out^T = op(b)^T op(a)^T in column-major terms. A plan
// (descriptors, algorithm) is made once per key and stream; a call only changes pointers. Algorithm selection:
// gemm_choices.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "kernels/core/fp8.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/gemm/gemm_choices.h"
#include "kernels/cuda/gemm/gemm_timer.h"
#include "kernels/cuda/table.h"

namespace gt::cuda {

namespace {

constexpr int kCandidates = 32;  // algorithms to time

std::string text_of(cublasStatus_t s) { return cat(cublasLtGetStatusName(s), ": ", cublasLtGetStatusString(s)); }

void check_lt(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(Exit::kInternal, "cuda gemm: ", what, ": ", text_of(status));
}

cudaDataType_t lt_type(DType t, const char* tensor) {
  switch (t) {
    case DType::kF32: return CUDA_R_32F;
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF16: return CUDA_R_16F;
    default: fail(Exit::kUsage, "cuda gemm: ", tensor, " is ", name_of(t), "; f32, bf16 and f16 are supported");
  }
}

// Epilogues that cuBLASLt fuses; our own kernels do the rest afterwards. kBiasGrad: sums of the second operand.
// kGeluBiasGrad: sums of the GELU gradient's result. The values are stored in plan files: append only.
enum class Fused : int32_t { kNone, kBias, kGelu, kGeluBias, kGeluGrad, kBiasGrad, kGeluBiasGrad };

constexpr bool adds_bias(Fused f) { return f == Fused::kBias || f == Fused::kGeluBias; }
constexpr bool sums_bias(Fused f) { return f == Fused::kBiasGrad || f == Fused::kGeluBiasGrad; }
constexpr bool has_gelu(Fused f) {
  return f == Fused::kGelu || f == Fused::kGeluBias || f == Fused::kGeluGrad || f == Fused::kGeluBiasGrad;
}
// The next form with fewer fused epilogues.
constexpr Fused less(Fused f) {
  return f == Fused::kGeluBias ? Fused::kBias : f == Fused::kGeluBiasGrad ? Fused::kGeluGrad : Fused::kNone;
}

struct Key {
  int64_t m, n, k;
  int32_t in, out, bias;  // cudaDataType_t; in: of a; bias -1: none
  int32_t trans_a, trans_b, accumulate;
  Fused fused;
  int32_t align_a, align_b, align_out;  // bytes: 16 or the largest smaller power of two that divides the address
  int32_t in_b;
  int32_t fast;  // fast accumulation: fewer bits than f32
};
static_assert(sizeof(Key) == 3 * 8 + 12 * 4);  // hashed bytewise: no padding

struct KeyHash {
  size_t operator()(const Key& k) const {
    uint64_t h = 0xCBF29CE484222325ull;
    const auto* p = reinterpret_cast<const unsigned char*>(&k);
    for (size_t i = 0; i < sizeof(Key); ++i) h = (h ^ p[i]) * 0x100000001B3ull;
    return h;
  }
};
struct KeyEqual {
  bool operator()(const Key& a, const Key& b) const { return std::memcmp(&a, &b, sizeof(Key)) == 0; }
};

// Key of a GEMM in plan files.
std::string text_of(const Key& k) {
  return cat("m ", k.m, " n ", k.n, " k ", k.k, " types ", k.in, k.in_b == k.in ? "" : cat('x', k.in_b), ' ', k.out,
             ' ', k.bias, k.fast ? " fast" : "", " trans ", k.trans_a, k.trans_b, " accumulate ", k.accumulate,
             " epilogue ", static_cast<int>(k.fused), " align ", k.align_a, ' ', k.align_b, ' ', k.align_out);
}

// Whether an unfused GEMM followed by our own kernel may be faster. A fused bias alone is free.
constexpr bool may_run_unfused(Fused f) { return has_gelu(f) || sums_bias(f); }

// Key suffix of entries that record the fastest form; their index is a Fused.
constexpr const char* kForm = " form";

// Arguments of one GEMM. FP8 operands have a scale each, in device memory. `sums`: where cuBLASLt writes a bias
// gradient, overwriting it.
struct GemmArgs : Gemm {
  Tensor a_scale, b_scale, sums;
};

int32_t alignment(const void* p) {
  const auto bits = reinterpret_cast<uintptr_t>(p) | 16u;
  return static_cast<int32_t>(bits & (~bits + 1));
}

struct Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algo{};
  bool found = false;                             // false: cuBLASLt has no algorithm for this key, or its call failed
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;  // of the heuristic, or of the failed call
  std::optional<Fused> form;                      // fastest form, for GEMMs that may run unfused

  Plan() = default;
  Plan(const Plan&) = delete;
  ~Plan() {
    if (first != nullptr) cublasLtMatrixLayoutDestroy(first);
    if (second != nullptr) cublasLtMatrixLayoutDestroy(second);
    if (out != nullptr) cublasLtMatrixLayoutDestroy(out);
    if (desc != nullptr) cublasLtMatmulDescDestroy(desc);
  }
};

template <class T>
void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_lt(cublasLtMatmulDescSetAttribute(d, attribute, &value, sizeof value), "setting an attribute");
}

cublasLtEpilogue_t lt_epilogue(Fused f) {
  switch (f) {
    case Fused::kBias: return CUBLASLT_EPILOGUE_BIAS;
    case Fused::kGelu: return CUBLASLT_EPILOGUE_GELU_AUX;
    case Fused::kGeluBias: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Fused::kGeluGrad: return CUBLASLT_EPILOGUE_DGELU;
    case Fused::kBiasGrad: return CUBLASLT_EPILOGUE_BGRADB;  // operands are swapped: cuBLASLt's b is our a
    case Fused::kGeluBiasGrad: return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    default: return CUBLASLT_EPILOGUE_DEFAULT;
  }
}

}  // namespace

class GemmPlans {
 public:
  explicit GemmPlans(int device) : identity_(gemm_identity(device)) {
    check_lt(cublasLtCreate(&lt_), "opening the library");
    check(cudaMalloc(&workspace_, kGemmWorkspaceBytes), "workspace of a stream for matrix products");
  }
  GemmPlans(const GemmPlans&) = delete;
  ~GemmPlans() {
    plans_.clear();
    cudaFree(workspace_);
    cublasLtDestroy(lt_);
  }

  // Returns the plan of GEMM `g`, creating it at first use. Creation may time algorithms on `c` with the data of `g`.
  Plan& plan(const Key& key, Context& c, const GemmArgs& g) {
    auto it = plans_.find(key);
    if (it == plans_.end()) {
      it = plans_.try_emplace(key).first;
      make(key, it->second, c, g);
    }
    return it->second;
  }

  // Returns the fastest form, starting from `first`: cuBLASLt's fused kernels may be slower than an unfused GEMM
  // followed by our own kernel. Uses the table's entry, or time(form) in microseconds; otherwise `first`.
  template <class Time>
  Fused form(const Key& key, Plan& p, Fused first, const Time& time) {
    if (p.form) return *p.form;
    const auto fits = [&](const GemmChoice& c) {
      Fused f = first;
      while (static_cast<int>(f) != c.index && may_run_unfused(f)) f = less(f);
      return static_cast<int>(f) == c.index;
    };
    const auto fastest = [&] {
      std::optional<GemmChoice> best;
      for (Fused f = first;; f = less(f)) {
        const std::optional<double> us = time(f);
        if (us && (!best || *us < 0.99 * best->us)) best = GemmChoice{{}, static_cast<int>(f), *us};
        if (!may_run_unfused(f)) return best;
      }
    };
    const auto choice = GemmChoices::instance().choose(text_of(key) + kForm, identity_, fits, fastest);
    p.form = choice ? static_cast<Fused>(choice->index) : first;
    return *p.form;
  }

  // Queues a GEMM with its result in `out`, for timing. Returns false when this form is not supported.
  bool trial(Context& c, const Plan& p, const GemmArgs& g, Fused fused, void* out) {
    return p.found && queue(c, p, p.algo, g, fused, out) == CUBLAS_STATUS_SUCCESS;
  }

  // Queues a GEMM. Returns false when cuBLASLt does not support this form, from now on too; Plan::status holds the
  // reason.
  bool run(Context& c, Plan& p, const GemmArgs& g, Fused fused) {
    if (!p.found) return false;
    p.status = queue(c, p, p.algo, g, fused, g.out.data);
    return p.found = p.status == CUBLAS_STATUS_SUCCESS;
  }

 private:
  // cublasLtMatmul may refuse what the heuristic suggests.
  cublasStatus_t queue(Context& c, const Plan& p, const cublasLtMatmulAlgo_t& algo, const GemmArgs& g, Fused fused,
                       void* out) {
    point_to_scales(p, g);
    point_to_epilogue(p, g, fused);
    const float one = 1, beta = g.accumulate ? 1.0f : 0.0f;
    const cublasStatus_t status =
        cublasLtMatmul(lt_, p.desc, &one, g.b.data, p.first, g.a.data, p.second, &beta, g.out.data, p.out, out, p.out,
                       &algo, workspace_, kGemmWorkspaceBytes, c.stream);
    if (status != CUBLAS_STATUS_SUCCESS) cudaGetLastError();  // clear it: the next launch must not report it
    return status;
  }

  // Operands are passed swapped, and their scales with them.
  void point_to_scales(const Plan& p, const GemmArgs& g) {
    if (!g.a_scale) return;
    set(p.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(g.b_scale.data));
    set(p.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(g.a_scale.data));
  }

  void point_to_epilogue(const Plan& p, const GemmArgs& g, Fused fused) {
    if (adds_bias(fused) || sums_bias(fused))
      set(p.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
          static_cast<const void*>(adds_bias(fused) ? g.bias.data : g.sums.data));
    if (has_gelu(fused)) set(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(g.aux.data));
  }

  void make(const Key& key, Plan& p, Context& c, const GemmArgs& g) {
    const auto in = static_cast<cudaDataType_t>(key.in), in_b = static_cast<cudaDataType_t>(key.in_b),
               out = static_cast<cudaDataType_t>(key.out);
    // CUBLAS_COMPUTE_32F: no TF32 for f32 inputs, f32 accumulation for 16-bit inputs.
    const bool tf32 = in == CUDA_R_32F && gemm_in_tf32;
    check_lt(cublasLtMatmulDescCreate(&p.desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "making a descriptor");
    set(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(p.desc, CUBLASLT_MATMUL_DESC_TRANSB, key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, lt_epilogue(key.fused));
    if (key.bias >= 0) set(p.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, key.bias);
    if (key.fast) set(p.desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    point_to_scales(p, g);
    point_to_epilogue(p, g, key.fused);  // the heuristic checks the alignment of addresses
    if (has_gelu(key.fused)) set(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
    const auto layout = [](cublasLtMatrixLayout_t* l, cudaDataType_t t, int64_t rows, int64_t cols) {
      check_lt(cublasLtMatrixLayoutCreate(l, t, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), rows),
               "making a layout");
    };
    key.trans_b ? layout(&p.first, in_b, key.k, key.n) : layout(&p.first, in_b, key.n, key.k);
    key.trans_a ? layout(&p.second, in, key.m, key.k) : layout(&p.second, in, key.k, key.m);
    layout(&p.out, out, key.n, key.m);

    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(cublasLtMatmulPreferenceCreate(&preference), "making a preference");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check_lt(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
               "setting a preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmWorkspaceBytes));
    // Split-k partial sums are reduced in f32, never in a 16-bit output type.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(out == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                   : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.align_b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.align_a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.align_out));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.align_out));
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> suggested{};
    int found = 0;
    p.status =
        cublasLtMatmulAlgoGetHeuristic(lt_, p.desc, p.first, p.second, p.out, p.out, preference,
                                       GemmChoices::instance().times() ? kCandidates : 1, suggested.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (p.status == CUBLAS_STATUS_SUCCESS && found > 0) p.status = suggested[0].state;
    p.found = p.status == CUBLAS_STATUS_SUCCESS && found > 0;
    p.algo = suggested[0].algo;
    if (p.found && GemmChoices::instance().on()) choose(key, p, c, g, {suggested.data(), static_cast<size_t>(found)});
  }

  // Replaces the heuristic's first algorithm by the one of the process-wide table.
  void choose(const Key& key, Plan& p, Context& c, const GemmArgs& g,
              std::span<const cublasLtMatmulHeuristicResult_t> suggested) {
    const auto fits = [&](const GemmChoice& choice) {
      const auto algo = std::bit_cast<cublasLtMatmulAlgo_t>(choice.algo);
      cublasLtMatmulHeuristicResult_t r{};
      return cublasLtMatmulAlgoCheck(lt_, p.desc, p.first, p.second, p.out, p.out, &algo, &r) ==
                 CUBLAS_STATUS_SUCCESS &&
             r.workspaceSize <= kGemmWorkspaceBytes;
    };
    const auto time = [&]() -> std::optional<GemmChoice> {
      const GemmTimer timer(c, g.out.bytes());
      if (!timer.ready()) return {};
      std::optional<GemmChoice> best;  // among those that run
      for (size_t i = 0; i < suggested.size(); ++i) {
        const cublasLtMatmulAlgo_t& algo = suggested[i].algo;
        if (suggested[i].state != CUBLAS_STATUS_SUCCESS) continue;
        const auto us =
            timer.median_us([&] { return queue(c, p, algo, g, key.fused, timer.out()) == CUBLAS_STATUS_SUCCESS; });
        if (us && (!best || *us < 0.99 * best->us))  // ties: the lower index
          best = GemmChoice{std::bit_cast<decltype(GemmChoice::algo)>(algo), static_cast<int>(i), *us};
      }
      return best;
    };
    if (const auto choice = GemmChoices::instance().choose(text_of(key), identity_, fits, time))
      p.algo = std::bit_cast<cublasLtMatmulAlgo_t>(choice->algo);
  }

  std::string identity_;
  cublasLtHandle_t lt_ = nullptr;
  void* workspace_ = nullptr;
  std::unordered_map<Key, Plan, KeyHash, KeyEqual> plans_;
};

namespace {

GemmPlans& plans_of(Context& c) {
  if (!c.gemm) c.gemm = {new GemmPlans(c.index), [](GemmPlans* p) { delete p; }};
  return *c.gemm;
}

// bf16 gradient of operands of another type, which cuBLASLt does not support; and bf16 weight gradients that are added
// to, since its Hopper kernels (nvjet) round a product to bf16 before they add the output's old value.
bool needs_f32_scratch(const Gemm& g) {
  return g.out.dtype == DType::kBF16 && (g.a.dtype != DType::kBF16 || (g.trans_a && g.accumulate));
}

void validate(const Gemm& g, int64_t m, int64_t n, int64_t k) {
  const int64_t bk = g.trans_b ? g.b.shape.cols() : g.b.shape.rows(),
                bn = g.trans_b ? g.b.shape.rows() : g.b.shape.cols();
  GT_CHECK(bk == k && bn == n && g.out.numel() == m * n, "gemm: a ", to_string(g.a.shape), " b ", to_string(g.b.shape),
           " out ", to_string(g.out.shape), " trans_a ", g.trans_a, " trans_b ", g.trans_b, " do not fit");
  GT_CHECK(!g.accumulate || (!g.bias && g.epilogue == Epilogue::kNone), "gemm: accumulate excludes bias and epilogue");
  GT_CHECK(g.epilogue == Epilogue::kNone || (g.aux && g.aux.numel() == m * n),
           "gemm: a GELU epilogue needs aux [m, n]");
  GT_CHECK(!(g.bias && g.epilogue == Epilogue::kGeluGrad), "gemm: gelu_grad takes no bias");
  GT_CHECK(!g.bias || g.bias.numel() == n, "gemm: bias ", to_string(g.bias.shape), " for ", n, " columns");
  GT_CHECK(!g.dbias || (g.epilogue == Epilogue::kGeluGrad) != g.trans_a,
           "gemm: dbias is summed of a GELU's gradient, or "
           "of a transposed a without an epilogue");
  GT_CHECK(!g.dbias || (g.epilogue != Epilogue::kGelu && g.dbias.numel() == (g.trans_a ? m : n)), "gemm: dbias ",
           to_string(g.dbias.shape), " of ", m, " rows and ", n, " columns");
  GT_REQUIRE(g.a.dtype == g.b.dtype, Exit::kUsage, "cuda gemm: a is ", name_of(g.a.dtype), " and b ",
             name_of(g.b.dtype), "; both must be the same");
  const auto same_or_f32 = [&](const char* name, const Tensor& t) {
    GT_REQUIRE(!t || t.dtype == g.a.dtype || t.dtype == DType::kF32, Exit::kUsage, "cuda gemm: ", name, " is ",
               name_of(t.dtype), " for ", name_of(g.a.dtype), " inputs; the same or f32 is supported");
  };
  if (!needs_f32_scratch(g)) same_or_f32("out", g.out);
  same_or_f32("bias", g.bias);
  if (g.epilogue != Epilogue::kNone) same_or_f32("aux", g.aux);
}

// cuBLASLt's GELU is used for 16-bit outputs, where its error is far below the rounding of the type; f32 outputs use
// our tanhf. It takes the sum before aux is rounded: a GELU recomputed from 16-bit aux may differ in the last bit.
// Bias epilogues read the bias 16 bytes at a time, and no preference attribute covers its alignment. The fused bias
// gradient of a weight-gradient GEMM requires aligned addresses and sizes: few kernels support it.
Fused best_fusion(const Gemm& g, int64_t m, int64_t n) {
  const bool is_16bit =
      g.out.dtype != DType::kF32 && g.aux.dtype == g.out.dtype && n % 8 == 0 && alignment(g.aux.data) == 16;
  const bool placed = !g.bias || alignment(g.bias.data) == 16;
  if (g.epilogue == Epilogue::kGelu && is_16bit && placed) return g.bias ? Fused::kGeluBias : Fused::kGelu;
  if (g.epilogue == Epilogue::kGeluGrad && is_16bit)  // sums in out's type: over thousands of rows too large for f16
    return g.dbias && g.out.dtype == DType::kBF16 ? Fused::kGeluBiasGrad : Fused::kGeluGrad;
  if (g.dbias && g.trans_a) {
    const bool even = m % 8 == 0 && n % 8 == 0 && alignment(g.a.data) == 16 && alignment(g.b.data) == 16 &&
                      alignment(g.out.data) == 16;
    return even ? Fused::kBiasGrad : Fused::kNone;
  }
  return g.bias && placed ? Fused::kBias : Fused::kNone;
}

// Bias gradient by a separate pass over the rows.
void sum_bias(const Gemm& g, Stream s) {
  if (g.dbias) column_sums({.x = g.trans_a ? g.a : g.out, .out = g.dbias, .accumulate = g.accumulate_dbias}, s);
}

// Runs what remains after the GEMM ran with `fused`. sums: see GemmArgs.
void finish(const Gemm& g, Fused fused, const Tensor& sums, Stream s) {
  if (g.bias && fused == Fused::kNone) {
    const Tensor z = g.epilogue == Epilogue::kGelu ? g.aux : g.out;
    add_bias({.x = z, .bias = g.bias, .out = z}, s);
  }
  if (!has_gelu(fused)) {
    if (g.epilogue == Epilogue::kGelu) gelu({.x = g.aux, .out = g.out}, s);
    if (g.epilogue == Epilogue::kGeluGrad) gelu_grad({.x = g.aux, .dout = g.out, .dx = g.out}, s);
  }
  if (!sums_bias(fused)) return sum_bias(g, s);
  if (g.accumulate_dbias) return axpy({.x = sums, .y = g.dbias}, s);
  cast({.src = sums, .dst = g.dbias}, s);
}

// The GEMM writes f32 scratch, which is then accumulated or cast.
void gemm_via_f32(Context& c, const Gemm& g, Stream s) {
  GT_CHECK(!g.bias && g.epilogue == Epilogue::kNone, "gemm: a bf16 result of ", name_of(g.a.dtype),
           " operands is a gradient: without bias and epilogue");
  Gemm matmul = g;
  matmul.out = {c.scratch(g.out.numel() * size_of(DType::kF32)), g.out.shape, DType::kF32, g.out.device};
  matmul.accumulate = false;
  matmul.dbias = {};
  gemm(matmul, s);
  if (g.accumulate)
    axpy({.x = matmul.out, .y = g.out}, s);
  else
    cast({.src = matmul.out, .dst = g.out}, s);
  sum_bias(g, s);
}

}  // namespace

std::string gemm_identity(int device) {
  cudaDeviceProp p{};
  int driver = 0;
  check(cudaGetDeviceProperties(&p, device), "asking for a device's properties");
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  return cat(p.name, ", ", p.multiProcessorCount, " SMs, cuBLASLt ", cublasLtGetVersion(), ", driver ", driver,
             gemm_in_tf32 ? ", TF32" : "");
}

namespace {

// One gemm() call: tries the forms that cuBLASLt may support, the most fused first.
class GemmCall {
 public:
  GemmCall(const Gemm& g, Context& c, Stream s, int64_t m, int64_t n, int64_t k)
      : g_(g), c_(c), s_(s), m_(m), n_(n), k_(k), plans_(plans_of(c)) {}

  // Arguments of the GEMM in form `f`. Without a fused GELU the GEMM's result (z) goes to aux, which the GELU kernel
  // reads.
  GemmArgs target(Fused f) const {
    GemmArgs t{g_, {}, {}, {}};
    if (sums_bias(f))
      t.sums = {c_.scratch(g_.dbias.numel() * size_of(g_.out.dtype)), g_.dbias.shape, g_.out.dtype, g_.out.device};
    if (g_.epilogue == Epilogue::kGelu && !has_gelu(f)) t.out = g_.aux;
    return t;
  }

  void run() {
    for (Fused fused = fastest(best_fusion(g_, m_, n_));; fused = less(fused)) {
      const GemmArgs t = target(fused);
      const Key key = key_of(t, fused);
      Plan& p = plans_.plan(key, c_, t);
      if (plans_.run(c_, p, t, fused)) {
        leave(c_, "gemm");
        return finish(g_, fused, t.sums, s_);
      }
      GT_REQUIRE(fused != Fused::kNone, Exit::kInternal, "cuda gemm: cuBLASLt has no algorithm for m ", m_, " n ", n_,
                 " k ", k_, " ", name_of(t.a.dtype), " -> ", name_of(t.out.dtype), " trans_a ", g_.trans_a, " trans_b ",
                 g_.trans_b, " alignment ", key.align_a, "/", key.align_b, "/", key.align_out, ": ", text_of(p.status));
    }
  }

 private:
  Key key_of(const GemmArgs& t, Fused f) const {
    return {m_,
            n_,
            k_,
            lt_type(t.a.dtype, "a"),
            lt_type(t.out.dtype, "out"),
            adds_bias(f)   ? lt_type(g_.bias.dtype, "bias")
            : sums_bias(f) ? lt_type(t.sums.dtype, "dbias")
                           : -1,
            g_.trans_a,
            g_.trans_b,
            g_.accumulate,
            f,
            alignment(t.a.data),
            alignment(t.b.data),
            alignment(t.out.data),
            lt_type(t.b.dtype, "b"),
            false};
  }

  Plan& plan_of(Fused f) {
    const GemmArgs t = target(f);
    return plans_.plan(key_of(t, f), c_, t);
  }

  // Returns the form to try first. Makes the plans before consulting the table: both take the table's lock.
  Fused fastest(Fused first) {
    if (!GemmChoices::instance().on() || !may_run_unfused(first)) return first;
    Plan& p = plan_of(first);
    if (p.form || !p.found) return p.form.value_or(first);
    for (Fused f = first; may_run_unfused(f); f = less(f)) plan_of(less(f));
    std::optional<GemmTimer> timer;  // created only when there is something to time
    return plans_.form(key_of(target(first), first), p, first, [&](Fused f) -> std::optional<double> {
      if (!timer) timer.emplace(c_, g_.out.bytes() + g_.dbias.bytes());
      return timer->ready() ? median_us(*timer, f) : std::nullopt;
    });
  }

  // Median time of the GEMM and its remaining kernels. Results go to the timer's memory, except the output of a GELU
  // and its aux, which the call itself overwrites next.
  std::optional<double> median_us(const GemmTimer& timer, Fused f) {
    const GemmArgs t = target(f);
    const Plan& p = plan_of(f);
    Gemm rest = g_;
    (g_.epilogue == Epilogue::kGelu ? rest.aux : rest.out).data = timer.out();
    if (g_.dbias) rest.dbias.data = timer.out() + g_.out.bytes();
    return timer.median_us([&] {
      if (!plans_.trial(c_, p, t, f, timer.out())) return false;
      finish(rest, f, t.sums, s_);
      return true;
    });
  }

  const Gemm& g_;
  Context& c_;
  Stream s_;
  int64_t m_, n_, k_;
  GemmPlans& plans_;
};

}  // namespace

void gemm(const Gemm& g, Stream s) {
  const int64_t m = g.trans_a ? g.a.shape.cols() : g.a.shape.rows(),
                k = g.trans_a ? g.a.shape.rows() : g.a.shape.cols();
  const int64_t n = g.out.shape.cols();
  if (g.out.numel() == 0) return sum_bias(g, s);
  Context& c = enter(s, "gemm");
  GemmCall call(g, c, s, m, n, k);
  if (g.a.numel() == 0) {  // k = 0: an empty sum
    const Gemm t = call.target(Fused::kNone);
    if (!g.accumulate) check(cudaMemsetAsync(t.out.data, 0, static_cast<size_t>(t.out.bytes()), c.stream), "gemm");
    finish(g, Fused::kNone, {}, s);
    return leave(c, "gemm");
  }
  validate(g, m, n, k);
  if (needs_f32_scratch(g)) return gemm_via_f32(c, g, s);
  call.run();
}

namespace {

cudaDataType_t lt_fp8_type(DType t, const char* tensor) {
  GT_REQUIRE(is_fp8(t), Exit::kUsage, "cuda gemm_fp8: ", tensor, " is ", name_of(t),
             "; f8e4m3 and f8e5m2 are supported");
  return t == DType::kF8E5M2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

void validate(const GemmFp8& g, int64_t m, int64_t n, int64_t k) {
  GT_CHECK(g.a.numel() == m * k && g.b.shape.cols() == k && g.b.numel() == n * k && (!g.bias || g.bias.numel() == n),
           "gemm_fp8: a ", to_string(g.a.shape), " b ", to_string(g.b.shape), " bias ", to_string(g.bias.shape),
           " out ", to_string(g.out.shape), " do not fit");
  GT_CHECK(m % 16 == 0 && n % 16 == 0 && k % 16 == 0, "gemm_fp8: m ", m, " n ", n, " k ", k, ": no multiples of 16");
  GT_CHECK(!g.bias || !g.accumulate, "gemm_fp8: bias excludes accumulate");
  for (const Tensor& t : {g.a, g.b, g.out, g.a_scale, g.b_scale})
    GT_CHECK(alignment(t.data) == 16, "gemm_fp8: ", name_of(t.dtype), ' ', to_string(t.shape),
             " does not begin at a multiple of 16 bytes");
  GT_REQUIRE(!g.bias || (g.bias.dtype == g.out.dtype && g.out.dtype != DType::kF32), Exit::kUsage,
             "cuda gemm_fp8: bias is ", name_of(g.bias.dtype), " for out in ", name_of(g.out.dtype),
             "; both must have the same 16-bit type");
}

}  // namespace

// FP8 GEMM on tensor cores; Hopper requires both operands with k innermost. E4M3 x E4M3 is a forward GEMM and may use
// fast accumulation; gradient GEMMs never do.
void gemm_fp8(const GemmFp8& g, Stream s) {
  const int64_t m = g.out.shape.rows(), n = g.out.shape.cols(), k = g.a.shape.cols();
  if (g.out.numel() == 0) return;
  validate(g, m, n, k);
  Context& c = enter(s, "gemm_fp8");
  GemmArgs t{{.a = g.a, .b = g.b, .bias = g.bias, .out = g.out, .trans_b = true, .accumulate = g.accumulate},
             g.a_scale,
             g.b_scale,
             {}};
  const bool fast = gemm_fp8_fast && g.a.dtype == DType::kF8E4M3 && g.b.dtype == DType::kF8E4M3;
  Fused fused = g.bias && alignment(g.bias.data) == 16 ? Fused::kBias : Fused::kNone;  // as in best_fusion
  for (;; fused = Fused::kNone) {
    const Key key{m,
                  n,
                  k,
                  lt_fp8_type(g.a.dtype, "a"),
                  lt_type(g.out.dtype, "out"),
                  fused == Fused::kBias ? lt_type(g.bias.dtype, "bias") : -1,
                  false,
                  true,
                  g.accumulate,
                  fused,
                  16,
                  16,
                  16,
                  lt_fp8_type(g.b.dtype, "b"),
                  fast};
    Plan& p = plans_of(c).plan(key, c, t);
    if (plans_of(c).run(c, p, t, fused)) break;
    GT_REQUIRE(fused != Fused::kNone, Exit::kInternal, "cuda gemm_fp8: cuBLASLt has no algorithm for m ", m, " n ", n,
               " k ", k, " ", name_of(g.a.dtype), " x ", name_of(g.b.dtype), " -> ", name_of(g.out.dtype), ": ",
               text_of(p.status));
  }
  leave(c, "gemm_fp8");
  if (g.bias && fused == Fused::kNone) add_bias({.x = g.out, .bias = g.bias, .out = g.out}, s);
}

}  // namespace gt::cuda
