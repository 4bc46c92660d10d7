// bench_gemm: GFLOP/s of our gemm (packed weights, our threads, epilogue) against a direct oneDNN matmul on whole
// matrices, on the shapes of GPT-2 124M or Llama 1B. Runs of both alternate and medians are compared, so that external
// load affects both. A single thread is measured in processor time, which excludes time taken by other programs. Usage:
// bench_gemm [threads=1] [rows=256] [repeats=15] [type=f32|bf16|f16] [model=124m|llama-1b]. With a 16-bit type operands
// and results have that type and weight gradients are f32, as in training at AMP O2. Plain oneDNN uses the same types,
// except f16, which it lacks on CPUs: there it computes in f32.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <dnnl.hpp>
#include <string_view>
#include <vector>

#include "kernels/backend.h"

extern "C" void omp_set_num_threads(int);

namespace {

using gt::DType;
using gt::Epilogue;
using gt::Gemm;
using gt::Tensor;
using Memory = dnnl::memory;

struct Case {
  const char* name;
  const char* pass;
  int64_t m, n, k;
  bool trans_a, trans_b, accumulate, weight;
  Epilogue epilogue;
};

std::vector<Case> cases(int64_t rows, bool llama) {
  struct Layer {
    const char* name;
    int64_t in, out;
  };
  const std::vector<Layer> gpt2{
      {"qkv", 768, 2304}, {"out", 768, 768}, {"up", 768, 3072}, {"down", 3072, 768}, {"head", 768, 50304}};
  const std::vector<Layer> llama_1b{
      {"qkv", 2048, 3072}, {"out", 2048, 2048}, {"up", 2048, 16384}, {"down", 8192, 2048}, {"head", 2048, 128256}};
  std::vector<Case> all;
  for (const Layer& l : llama ? llama_1b : gpt2) {
    all.push_back({l.name, "fwd", rows, l.out, l.in, false, true, false, true, Epilogue::kNone});
    if (l.out == 3072 && !llama)
      all.push_back({l.name, "fwd+gelu", rows, l.out, l.in, false, true, false, true, Epilogue::kGelu});
    all.push_back({l.name, "dX", rows, l.in, l.out, false, false, false, true, Epilogue::kNone});
    if (l.in == 3072)
      all.push_back({l.name, "dX+gelu'", rows, l.in, l.out, false, false, false, true, Epilogue::kGeluGrad});
    all.push_back({l.name, "dW", l.out, l.in, rows, true, false, true, false, Epilogue::kNone});
  }
  return all;
}

// Multiples of 1/1024 of magnitude below 0.5, rounded to the 16-bit type if there is one.
Tensor tensor(std::vector<float>& data, int64_t rows, int64_t cols, DType type = DType::kF32) {
  data.resize(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i * 2654435761u >> 12 & 1023) / 1024 - 0.5f;
  const Tensor t{reinterpret_cast<std::byte*>(data.data()), {rows, cols}, DType::kF32, {}};
  if (type == DType::kF32) return t;
  Tensor rounded = t;
  rounded.dtype = type;
  std::vector<float> all = data;
  Tensor from = t;
  from.data = reinterpret_cast<std::byte*>(all.data());
  gt::cpu_backend().ops->cast({from, rounded}, {});
  return rounded;
}

// oneDNN on the whole matrices, plain layouts, its own OpenMP threads.
class Plain {
 public:
  Plain(const Case& c, const Gemm& g) {
    const auto matrix = [&](const Tensor& t, int64_t rows, int64_t cols, bool trans) {
      const auto type = t.dtype == DType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
      return Memory({{rows, cols}, type, trans ? Memory::dims{1, rows} : Memory::dims{cols, 1}}, engine_, t.data);
    };
    const Memory a = matrix(g.a, c.m, c.k, c.trans_a), b = matrix(g.b, c.k, c.n, c.trans_b),
                 out = matrix(g.out, c.m, c.n, false);
    dnnl::primitive_attr attr;
    if (c.accumulate) {
      dnnl::post_ops ops;
      ops.append_sum(1.0f);
      attr.set_post_ops(ops);
    }
    matmul_ = dnnl::matmul({{a.get_desc(), b.get_desc(), out.get_desc()}, attr, engine_});
    args_ = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, out}};
  }
  void run() {
    matmul_.execute(stream_, args_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul matmul_;
  std::unordered_map<int, Memory> args_;
};

double now(bool alone) {
  timespec t;
  clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class F>
double seconds(bool alone, F&& f) {
  const double start = now(alone);
  f();
  return now(alone) - start;
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<long>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  // oneDNN alone runs on OpenMP, whose idle threads spin by default and would take a core from the next measurement.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    setenv("OMP_WAIT_POLICY", "passive", 1);  // read when the library is loaded, so the program restarts itself
    execv("/proc/self/exe", argv);
  }
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int threads = argument(1, 1), rows = argument(2, 256), repeats = argument(3, 15);
  const std::string_view name = argc > 4 ? argv[4] : "f32";
  const DType type = name == "bf16" ? DType::kBF16 : name == "f16" ? DType::kF16 : DType::kF32;
  const gt::Backend& cpu = gt::cpu_backend();
  const gt::Stream stream = cpu.device->open_stream(0, threads);
  omp_set_num_threads(threads);  // for the plain calls
  std::printf("%s, %s, %d threads, %d rows; GF/s\n", cpu.device->describe(0).c_str(), gt::name_of(type), threads, rows);
  std::printf("%-6s %-9s %7s %7s %7s %9s %9s %6s\n", "layer", "pass", "m", "n", "k", "ours", "oneDNN", "ratio");
  std::vector<double> ratios;
  for (const Case& c : cases(rows, argc > 5 && std::string_view(argv[5]) == "llama-1b")) {
    std::vector<float> a, b, out, aux;
    Gemm g{.a = c.trans_a ? tensor(a, c.k, c.m, type) : tensor(a, c.m, c.k, type),
           .b = c.trans_b ? tensor(b, c.n, c.k, type) : tensor(b, c.k, c.n, type),
           .out = tensor(out, c.m, c.n, c.accumulate ? DType::kF32 : type),
           .trans_a = c.trans_a,
           .trans_b = c.trans_b,
           .accumulate = c.accumulate,
           .epilogue = c.epilogue,
           .b_version = c.weight ? 1 : 0};
    if (c.epilogue != Epilogue::kNone) g.aux = tensor(aux, c.m, c.n, type);
    Gemm alone = g;  // as many bytes or more: an f16 matrix is in a block large enough for f32
    for (Tensor* t : {&alone.a, &alone.b, &alone.out})
      if (t->dtype == DType::kF16) t->dtype = DType::kF32;
    Plain plain(c, alone);
    std::vector<double> ours, theirs;
    for (int i = -2; i < repeats; ++i) {  // two rounds of warming up
      const double x = seconds(threads == 1, [&] { cpu.ops->gemm(g, stream); });
      const double y = seconds(threads == 1, [&] { plain.run(); });
      if (i >= 0) ours.push_back(x), theirs.push_back(y);
    }
    const double gflop = 2e-9 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
    const double x = gflop / median(ours), y = gflop / median(theirs);
    ratios.push_back(x / y);
    std::printf("%-6s %-9s %7lld %7lld %7lld %9.1f %9.1f %6.2f\n", c.name, c.pass, static_cast<long long>(c.m),
                static_cast<long long>(c.n), static_cast<long long>(c.k), x, y, x / y);
  }
  std::printf("ratio: median %.2f, least %.2f\n", median(ratios), *std::min_element(ratios.begin(), ratios.end()));
  cpu.device->close_stream(stream);
}
