// Emulates the part of cuBLASLt that this backend calls: plain loops in double over column-major matrices, with the
// epilogues as NVIDIA documents them. Offers three equivalent algorithms. The second is the fastest by the emulated
// clock, and all take half the time with fast accumulation (CUBLASLT_MATMUL_DESC_FAST_ACCUM; exact here too). Refuses
// algorithms that it did not make. Aborts where a GPU would fault or behaviour is unknown: a bias that is not 16-byte
// aligned; a fused bias gradient with unaligned operands or odd sizes.
//
// GPTTRAIN_EMULATED_EPILOGUES limits the heuristic, to exercise the backend's fallbacks: `none`, `bias` (alone) or
// `no_bias_gradients`. `slow_bias_gradients` or `slow_gelu` make these epilogues slow. With `refused` the heuristic
// offers all epilogues and cublasLtMatmul refuses them. GPTTRAIN_EMULATED_REFUSES=02: algorithms that cublasLtMatmul
// refuses. A refusal leaves an error for cudaGetLastError. GPTTRAIN_EMULATED_ALGORITHMS=FILE: appends how often each
// algorithm ran, one line per process at exit.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "kernels/core/fp8.h"
#include "tests/cuda/emulation/device_memory.h"
#include "tests/cuda/emulation/emulate.h"
#include "tests/cuda/emulation/graphs.h"
#include "tests/cuda/emulation/health.h"
#include "tests/cuda/emulation/watch.h"

namespace {

struct Desc {
  bool tf32;
  std::map<int, std::vector<char>> attributes;
  template <class T>
  T get(int key, T otherwise) const {
    const auto i = attributes.find(key);
    if (i == attributes.end()) return otherwise;
    if (i->second.size() != sizeof(T)) std::abort();  // the backend passed the wrong type
    std::memcpy(&otherwise, i->second.data(), sizeof(T));
    return otherwise;
  }
};

struct Layout {
  cudaDataType_t type;
  int64_t rows, cols, ld;
};

Desc& desc_of(cublasLtMatmulDesc_t d) { return *reinterpret_cast<Desc*>(d); }
const Layout& layout_of(cublasLtMatrixLayout_t l) { return *reinterpret_cast<Layout*>(l); }
cublasLtEpilogue_t epilogue_of(const Desc& d) {
  return d.get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
}

bool eight_bits(cudaDataType_t t) { return t == CUDA_R_8F_E4M3 || t == CUDA_R_8F_E5M2; }

double get(const void* p, cudaDataType_t t, int64_t i) {
  if (eight_bits(t))
    return gt::fp8_decode(static_cast<const uint8_t*>(p)[i],
                          gt::fp8_format(t == CUDA_R_8F_E5M2 ? gt::DType::kF8E5M2 : gt::DType::kF8E4M3));
  if (t == CUDA_R_32F) return static_cast<const float*>(p)[i];
  if (t == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return __half2float(static_cast<const __half*>(p)[i]);
}

// Rounds to 10 mantissa bits, nearest even.
double in_tf32(double v) {
  const auto f = static_cast<float>(v);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
  float rounded;
  std::memcpy(&rounded, &bits, 4);
  return rounded;
}

void put(void* p, cudaDataType_t t, int64_t i, double v) {
  if (t == CUDA_R_32F)
    static_cast<float*>(p)[i] = static_cast<float>(v);
  else if (t == CUDA_R_16BF)
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(static_cast<float>(v));
  else
    static_cast<__half*>(p)[i] = __float2half_rn(static_cast<float>(v));
}

// As Hopper's nvjet kernels (cuBLASLt 13.1) round a product before they add bf16.
double rounded(double v, cudaDataType_t t) {
  return t == CUDA_R_16BF ? __bfloat162float(__float2bfloat16_rn(static_cast<float>(v))) : v;
}

constexpr uint64_t kMade = 0x656D756C61746564;  // first word of our algorithms; the second is the index
constexpr std::array<double, 3> kMicroseconds{3, 1, 2};

struct Runs {
  std::array<long, 3> count{};
  ~Runs() {
    const char* file = std::getenv("GPTTRAIN_EMULATED_ALGORITHMS");
    if (file != nullptr) std::ofstream(file, std::ios::app) << count[0] << ' ' << count[1] << ' ' << count[2] << '\n';
  }
};
Runs runs;  // serialized by OnDevice

bool made_here(const cublasLtMatmulAlgo_t* a) {
  return a != nullptr && a->data[0] == kMade && a->data[1] < kMicroseconds.size();
}

// GPTTRAIN_EMULATED_REFUSES lists algorithm indices.
bool refuses(uint64_t algorithm) {
  const char* which = std::getenv("GPTTRAIN_EMULATED_REFUSES");
  return which != nullptr && std::string(which).find(std::to_string(algorithm)) != std::string::npos;
}

bool multiple_of_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

double tanh_part(double x) { return std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)); }
double gelu(double x) { return 0.5 * x * (1 + tanh_part(x)); }
double gelu_slope(double x) {
  const double t = tanh_part(x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

struct GemmArgs {
  Desc d;
  Layout a, b, o;
  const void *A, *B, *C;
  void* D;
  float scale, keep;
  uint64_t algorithm;

  bool ta() const { return d.get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T; }
  bool tb() const { return d.get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T; }
  int64_t m() const { return ta() ? a.cols : a.rows; }
  int64_t k() const { return ta() ? a.rows : a.cols; }
  int64_t n() const { return tb() ? b.rows : b.cols; }
  const float* factor(int which) const { return static_cast<const float*>(d.get<const void*>(which, nullptr)); }
  const float* factor_a() const { return factor(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER); }
  const float* factor_b() const { return factor(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER); }
  bool fast() const { return d.get<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0) != 0; }
  bool legal() const;
  void die_of_faults() const;
  void report_accesses() const;
  void run() const;
};

// Restrictions of sm_90 tensor cores on FP8 operands; fast accumulation exists for FP8 only.
bool GemmArgs::legal() const {
  if (!eight_bits(a.type)) return !fast();
  const bool formats = eight_bits(b.type) && (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3);
  const bool sizes = a.ld % 16 == 0 && b.ld % 16 == 0 && o.ld % 16 == 0 && o.cols % 16 == 0;
  const bool aligned = multiple_of_16(A) && multiple_of_16(B) && multiple_of_16(D) && multiple_of_16(factor_a()) &&
                       multiple_of_16(factor_b());
  return formats && ta() && !tb() && sizes && aligned && factor_a() != nullptr && factor_b() != nullptr;
}

constexpr const char *kSlowBiasGradients = "slow_bias_gradients", *kSlowGelu = "slow_gelu", *kRefused = "refused";
std::string epilogues() {
  const char* limit = std::getenv("GPTTRAIN_EMULATED_EPILOGUES");
  return limit != nullptr ? limit : "all";
}

bool is_gelu_grad(cublasLtEpilogue_t e) { return e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD; }
bool is_gelu(cublasLtEpilogue_t e) { return e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
bool is_bias_grad(cublasLtEpilogue_t e) { return e == CUBLASLT_EPILOGUE_DGELU_BGRAD || e == CUBLASLT_EPILOGUE_BGRADB; }

bool is_slow(cublasLtEpilogue_t e) {
  return epilogues() == kSlowBiasGradients ? is_bias_grad(e)
                                           : epilogues() == kSlowGelu && (is_gelu(e) || is_gelu_grad(e));
}

void GemmArgs::die_of_faults() const {
  const cublasLtEpilogue_t e = epilogue_of(d);
  const void* bias = d.get<void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr);
  if (e != CUBLASLT_EPILOGUE_DEFAULT && bias != nullptr && !multiple_of_16(bias))
    gt::emulated::die("a bias in an epilogue that does not begin at a multiple of 16 bytes");
  const bool even = o.rows % 8 == 0 && o.cols % 8 == 0 && multiple_of_16(A) && multiple_of_16(B) && multiple_of_16(D);
  if (e == CUBLASLT_EPILOGUE_BGRADB && !even)
    gt::emulated::die("fused bias gradient with unaligned operands or odd sizes");
}

void GemmArgs::report_accesses() const {
  constexpr const char* kWhat = "cublasLtMatmul";
  const auto bytes = [](int64_t elements, cudaDataType_t t) {
    return static_cast<size_t>(elements) * (t == CUDA_R_32F ? 4 : eight_bits(t) ? 1 : 2);
  };
  const cublasLtEpilogue_t e = epilogue_of(d);
  const auto bias_type = static_cast<cudaDataType_t>(d.get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, o.type));
  auto* bias = d.get<void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr);
  auto* aux = d.get<void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr);
  gt::emulated::watch::reads(A, bytes(a.rows * a.cols, a.type), kWhat);
  gt::emulated::watch::reads(B, bytes(b.rows * b.cols, b.type), kWhat);
  if (keep != 0) gt::emulated::watch::reads(C, bytes(o.rows * o.cols, o.type), kWhat);
  gt::emulated::watch::writes(D, bytes(o.rows * o.cols, o.type), kWhat);
  if (e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
    gt::emulated::watch::reads(bias, bytes(o.rows, bias_type), kWhat);
  if (is_bias_grad(e))
    gt::emulated::watch::writes(bias, bytes(e == CUBLASLT_EPILOGUE_BGRADB ? o.cols : o.rows, bias_type), kWhat);
  if (is_gelu(e)) gt::emulated::watch::writes(aux, bytes(o.rows * o.cols, o.type), kWhat);
  if (is_gelu_grad(e)) gt::emulated::watch::reads(aux, bytes(o.rows * o.cols, o.type), kWhat);
}

void GemmArgs::run() const {
  const gt::emulated::OnDevice now;
  report_accesses();
  ++runs.count[algorithm];
  gt::emulated::clock_us += kMicroseconds[algorithm] / (fast() ? 2 : 1);
  gt::emulated::clock_us += is_slow(epilogue_of(d)) ? 100 : 0;
  const bool at = ta(), bt = tb();
  const int64_t rows = m(), inner = k(), cols = n();
  const cublasLtEpilogue_t e = epilogue_of(d);
  auto* bias = d.get<void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr);
  const auto bias_type = static_cast<cudaDataType_t>(d.get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, o.type));
  auto* aux = d.get<void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr);
  const auto aux_type =
      static_cast<cudaDataType_t>(d.get<int32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, o.type));
  const auto aux_ld = d.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
  const double factors = eight_bits(a.type) ? double{*factor_a()} * double{*factor_b()} : 1;
  std::vector<double> of_rows(static_cast<size_t>(rows));  // row sums of D before rounding
  for (int64_t j = 0; j < cols; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      double s = 0;
      for (int64_t x = 0; x < inner; ++x) {
        const double l = get(A, a.type, at ? x + i * a.ld : i + x * a.ld),
                     r = get(B, b.type, bt ? j + x * b.ld : x + j * b.ld);
        s += d.tf32 ? in_tf32(l) * in_tf32(r) : l * r;
      }
      s *= scale * factors;
      if (keep != 0) s = rounded(s, o.type) + keep * get(C, o.type, i + j * o.ld);
      if (e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) s += get(bias, bias_type, i);
      if (is_gelu(e)) {
        put(aux, aux_type, i + j * aux_ld, s);
        s = gelu(s);
      }
      if (is_gelu_grad(e)) s *= gelu_slope(get(aux, aux_type, i + j * aux_ld));
      of_rows[static_cast<size_t>(i)] += s;
      put(D, o.type, i + j * o.ld, s);
    }
  }
  // BGRADB: sums of op(B)'s columns over the inner dimension. Overwrites, never accumulates.
  for (int64_t i = 0; e == CUBLASLT_EPILOGUE_DGELU_BGRAD && i < rows; ++i)
    put(bias, bias_type, i, of_rows[static_cast<size_t>(i)]);
  for (int64_t j = 0; e == CUBLASLT_EPILOGUE_BGRADB && j < cols; ++j) {
    double s = 0;
    for (int64_t x = 0; x < inner; ++x) s += get(B, b.type, bt ? j + x * b.ld : x + j * b.ld);
    put(bias, bias_type, j, s);
  }
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) {
  return *h = reinterpret_cast<cublasLtHandle_t>(8), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasLtGetStatusName(cublasStatus_t s) {
  return s == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
         : s == CUBLAS_STATUS_SUCCESS     ? "CUBLAS_STATUS_SUCCESS"
                                          : "emulated";
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "an error of the emulation"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t c, cudaDataType_t) {
  const bool tf32 = c == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (c != CUBLAS_COMPUTE_32F && !tf32) return CUBLAS_STATUS_NOT_SUPPORTED;
  *d = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc{tf32, {}});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return delete &desc_of(d), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void* p,
                                              size_t n) {
  desc_of(d).attributes[a].assign(static_cast<const char*>(p), static_cast<const char*>(p) + n);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType t, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
  *l = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{t, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  return delete &layout_of(l), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  return *p = reinterpret_cast<cublasLtMatmulPreference_t>(8), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t* result, int* found) {
  const std::string have = epilogues();
  const cublasLtEpilogue_t e = epilogue_of(desc_of(d));
  const bool plain = e == CUBLASLT_EPILOGUE_DEFAULT, bias = e == CUBLASLT_EPILOGUE_BIAS;
  const bool without = have == "no_bias_gradients" && !is_bias_grad(e);
  const bool all = have == "all" || have == kSlowBiasGradients || have == kSlowGelu || have == kRefused;
  *found = all || plain || without || (bias && have == "bias") ? std::min(requested, 3) : 0;
  for (int i = 0; i < *found; ++i) {
    result[i] = {};
    result[i].algo.data[0] = kMade;
    result[i].algo.data[1] = static_cast<uint64_t>(i);
    result[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t*) {
  return made_here(algo) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// alpha and beta are read at call time, whenever the GEMM runs.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t la, const void* B, cublasLtMatrixLayout_t lb, const void* beta,
                              const void* C, cublasLtMatrixLayout_t, void* D, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* algo, void*, size_t, cudaStream_t stream) {
  if (!made_here(algo)) return CUBLAS_STATUS_INVALID_VALUE;
  const GemmArgs p{desc_of(desc),
                   layout_of(la),
                   layout_of(lb),
                   layout_of(ld),
                   A,
                   B,
                   C,
                   D,
                   *static_cast<const float*>(alpha),
                   *static_cast<const float*>(beta),
                   algo->data[1]};
  if (p.m() != p.o.rows || p.n() != p.o.cols || p.k() != (p.tb() ? p.b.cols : p.b.rows))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!p.legal()) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool fused = epilogue_of(p.d) != CUBLASLT_EPILOGUE_DEFAULT;
  if (refuses(p.algorithm) || (fused && epilogues() == kRefused)) {
    gt::emulated::leave_error(cudaErrorInvalidValue);
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  p.die_of_faults();
  gt::emulated::queue(stream, [p] { p.run(); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
