// bench_gemm: GF/s of our gemm (packed weights, our threads, epilogue) beside plain oneDNN matmul called directly on
// whole matrices, on the shapes of GPT-2 124M. Runs of both alternate and medians are compared, so that load from
// outside hits both. Usage: bench_gemm [threads=1] [rows=256] [repeats=15]
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
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

std::vector<Case> cases(int64_t rows) {
  struct Layer {
    const char* name;
    int64_t in, out;
  };
  std::vector<Case> all;
  for (const Layer& l :
       {Layer{"qkv", 768, 2304}, {"out", 768, 768}, {"up", 768, 3072}, {"down", 3072, 768}, {"head", 768, 50304}}) {
    all.push_back({l.name, "fwd", rows, l.out, l.in, false, true, false, true, Epilogue::kNone});
    if (l.out == 3072)
      all.push_back({l.name, "fwd+gelu", rows, l.out, l.in, false, true, false, true, Epilogue::kGelu});
    all.push_back({l.name, "dX", rows, l.in, l.out, false, false, false, true, Epilogue::kNone});
    if (l.in == 3072)
      all.push_back({l.name, "dX+gelu'", rows, l.in, l.out, false, false, false, true, Epilogue::kGeluGrad});
    all.push_back({l.name, "dW", l.out, l.in, rows, true, false, true, false, Epilogue::kNone});
  }
  return all;
}

Tensor tensor(std::vector<float>& data, int64_t rows, int64_t cols) {
  data.resize(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i * 2654435761u >> 12 & 1023) / 1024 - 0.5f;
  return {reinterpret_cast<std::byte*>(data.data()), {rows, cols}, DType::kF32, {}};
}

// oneDNN on the whole matrices, plain layouts, its own OpenMP threads.
class Plain {
 public:
  Plain(const Case& c, const Gemm& g) {
    const auto matrix = [&](const Tensor& t, int64_t rows, int64_t cols, bool trans) {
      return Memory({{rows, cols}, Memory::data_type::f32, trans ? Memory::dims{1, rows} : Memory::dims{cols, 1}},
                    engine_, t.data);
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

template <class F>
double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<long>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  // oneDNN alone runs on OpenMP, whose idle threads spin by default and would take a core from the next measurement.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    setenv("OMP_WAIT_POLICY", "passive", 1);  // read when the library is loaded: start again
    execv("/proc/self/exe", argv);
  }
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int threads = argument(1, 1), rows = argument(2, 256), repeats = argument(3, 15);
  const gt::Backend& cpu = gt::cpu_backend();
  const gt::Stream stream = cpu.device->open_stream(0, threads);
  omp_set_num_threads(threads);  // for the plain calls
  std::printf("%s, %d threads, %d rows; GF/s\n", cpu.device->describe(0).c_str(), threads, rows);
  std::printf("%-6s %-9s %7s %7s %7s %9s %9s %6s\n", "layer", "pass", "m", "n", "k", "ours", "oneDNN", "ratio");
  std::vector<double> ratios;
  for (const Case& c : cases(rows)) {
    std::vector<float> a, b, out, aux;
    Gemm g{.a = c.trans_a ? tensor(a, c.k, c.m) : tensor(a, c.m, c.k),
           .b = c.trans_b ? tensor(b, c.n, c.k) : tensor(b, c.k, c.n),
           .out = tensor(out, c.m, c.n),
           .trans_a = c.trans_a,
           .trans_b = c.trans_b,
           .accumulate = c.accumulate,
           .epilogue = c.epilogue,
           .b_version = c.weight ? 1 : 0};
    if (c.epilogue != Epilogue::kNone) g.aux = tensor(aux, c.m, c.n);
    Plain plain(c, g);
    std::vector<double> ours, theirs;
    for (int i = -2; i < repeats; ++i) {  // two rounds of warming up
      const double x = seconds([&] { cpu.ops->gemm(g, stream); }), y = seconds([&] { plain.run(); });
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
