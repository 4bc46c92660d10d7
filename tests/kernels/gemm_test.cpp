// CPU GEMM against f64 sums; determinism, packing and allocations.
#include <dlfcn.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/rng.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/gemm/gemm_cache.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/table.h"
#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/test.h"

using namespace gt;
using cpu::CpuContext;

namespace {

// Calls of operator new while counting, by caller: oneDNN's primitive_execute allocates small tables of its own.
std::atomic<bool> counting{false};
std::atomic<int64_t> ours{0}, of_onednn{0};

void count_allocation(void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  Dl_info info{};
  const bool library = dladdr(caller, &info) != 0 && std::strstr(info.dli_fname, "libdnnl") != nullptr;
  ++(library ? of_onednn : ours);
}

}  // namespace

#ifndef GPT_SANITIZED  // sanitizers replace the allocator: no counting
void* operator new(size_t bytes) {
  count_allocation(__builtin_return_address(0));
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t align) {
  count_allocation(__builtin_return_address(0));
  const auto a = static_cast<size_t>(align);
  if (void* p = std::aligned_alloc(a, (bytes + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
#endif

namespace {

// A host matrix of any floating dtype, filled with uniform values of a named stream.
struct Matrix {
  std::vector<uint64_t> bytes;
  Tensor tensor;
  Matrix() = default;
  Matrix(int64_t rows, int64_t cols, DType type, uint64_t key) {
    bytes.resize(static_cast<size_t>(rows * cols * size_of(type) / 8 + 2));  // never a null pointer
    tensor = {reinterpret_cast<std::byte*>(bytes.data()), {rows, cols}, type, {}};
    for (int64_t i = 0; i < rows * cols; ++i)
      set(i, static_cast<float>(philox(key, static_cast<uint64_t>(i), 0)[0]) / 4294967296.0f - 0.5f);
  }
  void set(int64_t i, float x) { test::set(tensor, i, x); }
  double at(int64_t i) const { return test::get(tensor, i); }
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_grad(double x) {
  const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

struct Options {
  bool trans_a = false, trans_b = false, accumulate = false, bias = false;
  Epilogue epilogue = Epilogue::kNone;
  DType in = DType::kF32, out = DType::kF32, aux = DType::kF32, bias_type = DType::kF32;
  int64_t version = 0;
};

struct Problem {
  int64_t m, n, k;
  Options with;
  Matrix a, b, bias, aux, out, before;
  Gemm args;

  Problem(int64_t m_, int64_t n_, int64_t k_, Options o) : m(m_), n(n_), k(k_), with(o) {
    a = o.trans_a ? Matrix(k, m, o.in, 1) : Matrix(m, k, o.in, 1);
    b = o.trans_b ? Matrix(n, k, o.in, 2) : Matrix(k, n, o.in, 2);
    before = Matrix(m, n, o.out, 5);
    out = Matrix(m, n, o.out, 5);
    args = {.a = a.tensor,
            .b = b.tensor,
            .out = out.tensor,
            .trans_a = o.trans_a,
            .trans_b = o.trans_b,
            .accumulate = o.accumulate,
            .epilogue = o.epilogue,
            .b_version = o.version};
    if (o.bias) args.bias = (bias = Matrix(1, n, o.bias_type, 3)).tensor.view({n});
    if (o.epilogue != Epilogue::kNone) args.aux = (aux = Matrix(m, n, o.aux, 4)).tensor;
  }

  // Largest error against f64 sums, in units of what dtypes and sum length allow.
  double error() const {
    const auto spacing = [](DType t) { return t == DType::kBF16 ? 1.0 / 256 : t == DType::kF16 ? 1.0 / 2048 : 0; };
    const double unit = std::max(spacing(with.out), spacing(with.aux)) + 1e-6 * std::sqrt(k + 1.0) + 2e-6;
    double worst = 0;
    const auto measure = [&](double found, double expected) {
      const double e = std::abs(found - expected) / (unit * std::max(1.0, std::abs(expected)));
      if (!(e <= worst)) worst = std::isnan(e) ? 1e30 : e;
    };
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double z = with.bias ? bias.at(j) : 0;
        for (int64_t p = 0; p < k; ++p)
          z += a.at(with.trans_a ? p * m + i : i * k + p) * b.at(with.trans_b ? j * k + p : p * n + j);
        const int64_t at = i * n + j;
        if (with.accumulate) z += before.at(at);
        if (with.epilogue == Epilogue::kGelu) measure(aux.at(at), z), z = gelu(aux.at(at));
        if (with.epilogue == Epilogue::kGeluGrad) z *= gelu_grad(aux.at(at));
        measure(out.at(at), z);
      }
    }
    return worst;
  }
};

struct Size {
  int64_t m, n, k;
};
const std::vector<Size> kSizes = {{1, 1, 1},      {7, 13, 5},  {65, 129, 33}, {64, 256, 32},
                                  {130, 300, 70}, {1, 300, 9}, {70, 140, 800}};

std::vector<Options> all_options() {
  std::vector<Options> list;
  for (bool trans_a : {false, true}) {
    for (bool trans_b : {false, true}) {
      for (int64_t version : {0, 1}) {
        const Options o{.trans_a = trans_a, .trans_b = trans_b, .version = version};
        const auto add = [&](auto change) {
          Options p = o;
          change(p);
          list.push_back(p);
        };
        add([](Options&) {});
        add([](Options& p) { p.accumulate = true; });
        for (bool bias : {false, true}) {
          if (bias) add([](Options& p) { p.bias = true; });
          for (Epilogue e : {Epilogue::kGelu, Epilogue::kGeluGrad})
            add([&](Options& p) { p.bias = bias, p.epilogue = e; });
        }
      }
    }
  }
  return list;
}

// A version for each dtype of weight: they may use one address in turn.
std::vector<Options> few_options() {
  return {{},
          {.trans_a = true, .accumulate = true},
          {.trans_b = true, .bias = true, .epilogue = Epilogue::kGelu, .version = 1},
          {.epilogue = Epilogue::kGeluGrad, .version = 1},
          {.trans_b = true,
           .bias = true,
           .epilogue = Epilogue::kGelu,
           .in = DType::kBF16,
           .out = DType::kBF16,
           .version = 2},
          {.trans_a = true, .accumulate = true, .in = DType::kF16},
          {.trans_b = true, .bias = true, .in = DType::kF16, .out = DType::kF16, .version = 3}};
}

Stream stream_of(CpuContext& context) { return {{}, &context}; }

void run_all(CpuContext& context, DType in, DType out, DType aux, DType bias, std::span<const Size> sizes = kSizes) {
  for (const Size& size : sizes) {
    for (Options o : all_options()) {
      o.in = in, o.out = out, o.aux = aux, o.bias_type = bias;
      Problem p(size.m, size.n, size.k, o);
      cpu::gemm(p.args, stream_of(context));
      CAPTURE(size.m, size.n, size.k, o.trans_a, o.trans_b, o.accumulate, o.bias, static_cast<int>(o.epilogue),
              o.version);
      REQUIRE(p.error() <= 1);
    }
  }
}

}  // namespace

TEST_CASE("gemm equals sums in double for every transpose, accumulation, bias and epilogue, on odd shapes") {
  CpuContext one(1), three(3);
  constexpr DType f32 = DType::kF32;
  run_all(one, f32, f32, f32, f32);
  run_all(three, f32, f32, f32, f32);
}

TEST_CASE("gemm accepts 16-bit inputs, and f32 or the same 16-bit type for bias, aux and out in any mix") {
  const Size best[] = {{1, 1, 1}, {65, 129, 33}, {70, 260, 9}}, others[] = {{7, 13, 5}, {66, 20, 33}};
  // The best first: oneDNN keeps the limit of its first use, and then has its bf16 kernels.
  for (auto set = static_cast<int>(cpu::best_isa()); set >= static_cast<int>(CpuIsa::kScalar); --set) {
    const auto isa = static_cast<CpuIsa>(set);
    CAPTURE(name_of(isa));
    set_cpu_isa(isa);
    const std::span<const Size> some = isa == cpu::best_isa() ? std::span<const Size>(best) : others;
    for (const DType type : {DType::kBF16, DType::kF16}) {
      CpuContext two(2);  // new: its weights share addresses and versions with the previous one's
      run_all(two, type, DType::kF32, DType::kF32, DType::kF32, some);
      run_all(two, type, type, type, type, some);
      run_all(two, type, type, DType::kF32, DType::kF32, some);
      run_all(two, type, DType::kF32, type, type, some);
    }
  }
  set_cpu_isa(CpuIsa::kAuto);
}

TEST_CASE("gemm rounds to nearest even, and f16 overflow to infinity") {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    CAPTURE(name_of(type));
    const float step = type == DType::kBF16 ? 0x1p-8f : 0x1p-11f;  // half the spacing above 1
    Matrix a(1, 2, type, 1), b(2, 4, type, 2), bias(1, 4, DType::kF32, 3), out(1, 4, type, 4);
    const float sums[] = {1 + step, 1 + 3 * step, 65520.0f, -1e30f};
    for (int i = 0; i < 2; ++i) a.set(i, 0);
    for (int i = 0; i < 8; ++i) b.set(i, 1);
    for (int i = 0; i < 4; ++i) bias.set(i, sums[i]);
    cpu::gemm({.a = a.tensor, .b = b.tensor, .bias = bias.tensor.view({4}), .out = out.tensor}, {});
    CHECK(out.at(0) == 1);
    CHECK(out.at(1) == 1 + 4 * static_cast<double>(step));
    if (type == DType::kF16) CHECK(std::isinf(out.at(2)));
    if (type == DType::kF16) CHECK(out.at(3) == -INFINITY);
    if (type == DType::kBF16) CHECK(std::isfinite(out.at(3)));
  }
}

TEST_CASE("a 16-bit weight is converted and packed once per version") {
  for (const CpuIsa isa : {CpuIsa::kAuto, CpuIsa::kAvx2}) {
    if (cpu::best_isa() < cpu::Isa::kAvx2) continue;
    set_cpu_isa(isa);
    for (const DType type : {DType::kBF16, DType::kF16}) {
      CpuContext context(2);
      CAPTURE(name_of(isa), name_of(type));
      Problem p(65, 300, 40, {.trans_b = true, .in = type, .out = type, .version = 3});
      for (int i = 0; i < 3; ++i) cpu::gemm(p.args, stream_of(context));
      CHECK(context.gemm().packs() == 1);
      CHECK(p.error() <= 1);
      p.args.b_version = 4;
      for (int i = 0; i < 2; ++i) cpu::gemm(p.args, stream_of(context));
      CHECK(context.gemm().packs() == 2);
      CHECK(cpu::weight_copy_bytes(p.args) == cpu::held_copy_bytes(stream_of(context)));
    }
  }
  set_cpu_isa(CpuIsa::kAuto);
}

TEST_CASE("gemm on panels in a blocked layout equals sums in double") {
  CpuContext two(2);
  two.gemm().force_panel_layout(dnnl::memory::format_tag::BA16a64b);
  const Size some[] = {{65, 129, 33}, {64, 260, 9}};  // oneDNN has only its slow reference kernels for these
  run_all(two, DType::kF32, DType::kF32, DType::kF32, DType::kF32, some);
  CHECK(two.gemm().packs() > 0);
}

TEST_CASE("gemm without an inner dimension returns the bias, without rows or columns nothing") {
  CpuContext context(2);
  for (Options o : all_options()) {
    Problem p(5, 6, 0, o);
    cpu::gemm(p.args, stream_of(context));
    CHECK(p.error() <= 1);
    for (const Size& size : {Size{0, 6, 3}, Size{5, 0, 3}}) {
      Problem empty(size.m, size.n, size.k, o);
      cpu::gemm(empty.args, stream_of(context));
    }
  }
}

TEST_CASE("gemm is bitwise independent of the number of threads") {
  for (const Size& size : {Size{257, 700, 129}, Size{3, 1024, 65}, Size{70, 64, 300}}) {
    for (Options o : few_options()) {
      Problem reference(size.m, size.n, size.k, o);
      cpu::gemm(reference.args, {});
      for (int threads : {1, 2, 3, 5}) {
        CpuContext context(threads);
        Problem p(size.m, size.n, size.k, o);
        cpu::gemm(p.args, stream_of(context));
        CAPTURE(size.m, size.n, size.k, threads, o.trans_a, o.trans_b, o.version);
        REQUIRE(std::memcmp(p.out.tensor.data, reference.out.tensor.data, static_cast<size_t>(p.out.tensor.bytes())) ==
                0);
      }
    }
  }
}

TEST_CASE("a GEMM's fused bias gradient is bitwise that of a separate column sum, for every thread count") {
  for (const DType t : {DType::kF32, DType::kBF16})
    for (const DType grad : {DType::kF32, DType::kBF16})
      for (const int64_t rows : {1, 31, 64, 129, 1100}) {  // blocks of 32, tiles of 64 to 256, groups of blocks
        INFO(name_of(t) << ", gradient " << name_of(grad) << ", " << rows << " rows");
        const Matrix dy(rows, 300, t, 1), w(300, 520, t, 2), aux(rows, 520, t, 3), x(rows, 70, t, 4);
        const Matrix dpre(rows, 520, t, 5), dw(300, 70, DType::kF32, 6), first(1, 520, grad, 7);
        for (const int threads : {1, 3}) {
          CpuContext context(threads);
          const Stream s = stream_of(context);
          const auto check_dbias = [&](Gemm g, const Tensor& summed) {
            for (const bool more : {false, true}) {
              Matrix made = first, again = first;
              made.tensor.data = reinterpret_cast<std::byte*>(made.bytes.data());
              again.tensor.data = reinterpret_cast<std::byte*>(again.bytes.data());
              const int64_t n = summed.shape.cols();
              g.dbias = made.tensor.view({520}).slice(0, n), g.accumulate_dbias = more;
              cpu::gemm(g, s);
              cpu::column_sums({.x = summed, .out = again.tensor.view({520}).slice(0, n), .accumulate = more}, s);
              CHECK(made.bytes == again.bytes);
            }
          };
          check_dbias(
              {.a = dy.tensor, .b = w.tensor, .aux = aux.tensor, .out = dpre.tensor, .epilogue = Epilogue::kGeluGrad},
              dpre.tensor);
          check_dbias({.a = dy.tensor, .b = x.tensor, .out = dw.tensor, .trans_a = true}, dy.tensor);
        }
      }
}

TEST_CASE("a packed weight is repacked when its version changes, and only then") {
  CpuContext context(2);
  context.gemm().force_panel_layout(dnnl::memory::format_tag::BA16a64b);
  Problem p(65, 300, 40, {.trans_b = true, .version = 7});
  const auto run = [&] {
    cpu::gemm(p.args, stream_of(context));
    return context.gemm().packs();
  };
  CHECK(run() == 1);
  CHECK(run() == 1);
  CHECK(p.error() <= 1);
  for (int64_t i = 0; i < p.b.tensor.numel(); ++i) p.b.set(i, -2 * static_cast<float>(p.b.at(i)));
  CHECK(run() == 1);
  CHECK(p.error() > 1);  // version 7 promised not to change, so its stale copy is used
  p.args.b_version = 8;
  CHECK(run() == 2);
  CHECK(p.error() <= 1);
  // The other orientation of the same bytes is a separate entry.
  Matrix dy(65, 300, DType::kF32, 9), dx(65, 40, DType::kF32, 9);
  cpu::gemm({.a = dy.tensor, .b = p.b.tensor, .out = dx.tensor, .b_version = 8}, stream_of(context));
  CHECK(context.gemm().packs() == 3);
  CHECK(run() == 3);
}

TEST_CASE("an f32 gemm with AVX-512 is bitwise the sum of fma chains over blocks of the inner dimension") {
  if (cpu::best_isa() < cpu::Isa::kAvx512) return;
  set_cpu_isa(CpuIsa::kAvx512);
  struct Case {
    Size size;
    Options with;
    std::vector<int64_t> blocks;
  };
  const Case cases[] = {
      {{70, 100, 600}, {.trans_b = true, .version = 5}, {512, 88}},
      {{70, 100, 1500}, {.trans_b = true, .accumulate = true, .bias = false}, {1024, 476}},
      {{70, 128, 600}, {.version = 5}, {512, 88}},
      {{66, 300, 401}, {.version = 5}, {201, 200}},
      {{100, 60, 800}, {.trans_a = true}, {384, 208, 208}},
      {{100, 60, 800}, {.trans_a = true, .accumulate = true}, {384, 208, 208}},
      {{192, 100, 1100}, {.trans_b = true, .bias = true, .version = 5}, {1024, 76}},
      {{96, 129, 70}, {.trans_b = true, .accumulate = true}, {70}},
      {{192, 70, 300}, {.version = 5}, {300}},
      {{96, 300, 401}, {.version = 5}, {201, 200}},
      {{256, 300, 600}, {.trans_b = true, .version = 5}, {512, 88}},  // panels packed by the threads that use them
      {{260, 1024, 70}, {.version = 5}, {70}},
      {{3, 5, 1}, {.trans_a = true}, {1}},
      {{65, 130, 97}, {.trans_a = true}, {97}},
      {{130, 65, 97}, {.trans_a = true, .accumulate = true}, {97}},
      {{131, 500, 770}, {.trans_a = true}, {384, 193, 193}},
      {{256, 256, 385}, {.trans_a = true}, {193, 192}},  // the largest of our own kernel
      {{70, 33, 3600},                                   // more blocks than are held at a time
       {.trans_a = true},
       {384, 384, 384, 384, 384, 384, 384, 384, 264, 264}},
      {{33, 70, 3600}, {.trans_a = true, .accumulate = true}, {384, 384, 384, 384, 384, 384, 384, 384, 264, 264}}};
  for (const auto& [size, with, blocks] : cases) {
    CpuContext context(3);
    Problem p(size.m, size.n, size.k, with);
    cpu::gemm(p.args, stream_of(context));
    CAPTURE(size.m, size.n, size.k, with.trans_a, with.trans_b, with.accumulate);
    int64_t wrong = 0;
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        const auto before = static_cast<float>(p.before.at(i * p.n + j));
        const bool sum_first = with.accumulate && !with.trans_b;  // a staged tile is added to out when it is complete
        float z = sum_first ? before : 0;
        int64_t at = 0;
        for (const int64_t depth : blocks) {
          float chain = 0;
          for (const int64_t end = at + depth; at < end; ++at)
            chain = std::fma(static_cast<float>(p.a.at(with.trans_a ? at * p.m + i : i * p.k + at)),
                             static_cast<float>(p.b.at(with.trans_b ? j * p.k + at : at * p.n + j)), chain);
          z = at == depth && !sum_first ? chain : z + chain;
        }
        if (with.bias) z += static_cast<float>(p.bias.at(j));
        wrong += static_cast<float>(p.out.at(i * p.n + j)) != (with.accumulate && !sum_first ? before + z : z);
      }
    }
    CHECK(wrong == 0);
  }
  set_cpu_isa(CpuIsa::kAuto);
}

TEST_CASE("a 16-bit gemm with AVX-512 is bitwise the f32 gemm of its widened operands") {
  if (cpu::best_isa() < cpu::Isa::kAvx512) return;
  set_cpu_isa(CpuIsa::kAvx512);
  const Size sizes[] = {{65, 300, 40}, {256, 300, 400}, {260, 1024, 70}, {300, 200, 130}};  // none by oneDNN in f32
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const Size& size : sizes) {
      for (Options o : all_options()) {
        if (o.trans_a) continue;
        CpuContext context(3);
        o.version *= 9;
        Problem wide(size.m, size.n, size.k, o);
        o.in = type;
        Problem p(size.m, size.n, size.k, o);
        for (auto [from, to] : {std::pair(&p.a, &wide.a), {&p.b, &wide.b}})
          for (int64_t i = 0; i < from->tensor.numel(); ++i) to->set(i, static_cast<float>(from->at(i)));
        cpu::gemm(p.args, stream_of(context));
        cpu::gemm(wide.args, stream_of(context));
        CAPTURE(name_of(type), size.m, size.n, size.k, o.trans_b, o.accumulate, o.bias, static_cast<int>(o.epilogue));
        CHECK((p.out.bytes == wide.out.bytes));
        o.out = type;
        Problem narrow(size.m, size.n, size.k, o);
        cpu::gemm(narrow.args, stream_of(context));
        if (size.k == 40) CHECK(narrow.error() <= 1);
        if (o.accumulate) continue;  // adds to a rounded value
        Matrix rounded(size.m, size.n, type, 0);
        for (int64_t i = 0; i < wide.out.tensor.numel(); ++i) rounded.set(i, static_cast<float>(wide.out.at(i)));
        CHECK((narrow.out.bytes == rounded.bytes));
      }
    }
  }
  set_cpu_isa(CpuIsa::kAuto);
}

TEST_CASE("column panels of an f32 weight are packed once per version") {
  if (cpu::best_isa() < cpu::Isa::kAvx512) return;
  set_cpu_isa(CpuIsa::kAvx512);
  CpuContext context(2);
  Problem forward(65, 300, 40, {.trans_b = true, .version = 7}), backward(65, 1024, 40, {.version = 7});
  for (const int64_t version : {7, 8}) {
    for (Problem* p : {&forward, &backward}) {
      for (int64_t i = 0; i < p->b.tensor.numel(); ++i) p->b.set(i, -2 * static_cast<float>(p->b.at(i)));
      p->args.b_version = version;
      for (int i = 0; i < 3; ++i) cpu::gemm(p->args, stream_of(context));
      CHECK(p->error() <= 1);
    }
    CHECK(context.gemm().packs() == 2 * (version - 6));
  }
  CHECK(cpu::weight_copy_bytes(forward.args) + cpu::weight_copy_bytes(backward.args) ==
        cpu::held_copy_bytes(stream_of(context)));
  Problem many_rows(256, 300, 40, {.trans_b = true, .version = 7});  // keeps no copy
  const int64_t packs = context.gemm().packs(), held = cpu::held_copy_bytes(stream_of(context));
  for (const int64_t version : {7, 8, 8}) {
    for (int64_t i = 0; i < many_rows.b.tensor.numel(); ++i)
      many_rows.b.set(i, -2 * static_cast<float>(many_rows.b.at(i)));
    many_rows.args.b_version = version;
    cpu::gemm(many_rows.args, stream_of(context));
    CHECK(many_rows.error() <= 1);
  }
  CHECK((context.gemm().packs() == packs && cpu::held_copy_bytes(stream_of(context)) == held));
  CHECK(cpu::weight_copy_bytes(many_rows.args) == 0);
  set_cpu_isa(CpuIsa::kAuto);
}

TEST_CASE("a warm gemm allocates no memory and compiles nothing") {
  CpuContext context(2);
  for (const bool blocked : {false, true}) {
    if (blocked) context.gemm().force_panel_layout(dnnl::memory::format_tag::BA16a64b);
    std::vector<Problem> problems;
    for (const Options& o : few_options()) problems.emplace_back(70, 300, 20, o);
    const auto run = [&] {
      for (Problem& p : problems) cpu::gemm(p.args, stream_of(context));
    };
    run();
    run();
    const size_t kernels = context.gemm().kernels();
    ours = of_onednn = 0;
    counting = true;
    run();
    counting = false;
    CHECK(ours == 0);
    CHECK(context.gemm().kernels() == kernels);
    // Allocated inside oneDNN's execute: argument tables, a few per tile.
    CHECK(of_onednn <= static_cast<int64_t>(problems.size()) * 6 * 16);
    UNSCOPED_INFO("allocations inside oneDNN: " << of_onednn.load());
  }
}

TEST_CASE("gemm names mismatched arguments") {
  Matrix a(4, 5, DType::kF32, 1), b(6, 7, DType::kF32, 2), out(4, 7, DType::kF32, 3), type(5, 7, DType::kBF16, 4);
  CHECK_THROWS_WITH(cpu::gemm({.a = a.tensor, .b = b.tensor, .out = out.tensor}, {}),
                    Catch::Contains("[4, 5]") && Catch::Contains("[6, 7]"));
  CHECK_THROWS_WITH(cpu::gemm({.a = a.tensor, .b = type.tensor, .out = out.tensor}, {}), Catch::Contains("bf16"));
  Matrix left(4, 5, DType::kBF16, 6), result(4, 7, DType::kF16, 7);
  CHECK_THROWS_WITH(cpu::gemm({.a = left.tensor, .b = type.tensor, .out = result.tensor}, {}),
                    Catch::Contains("out [4, 7] is f16; gradients of parameters are f32 or bf16"));
  Matrix whole(5, 7, DType::kF32, 8);
  CHECK_THROWS_WITH(cpu::gemm({.a = a.tensor, .b = whole.tensor, .out = result.tensor}, {}), Catch::Contains("gemm"));
}

TEST_CASE("the GELU of epilogues is within 1e-6 of the formula on all instruction sets") {
  std::vector<float> x;
  for (int i = -12000; i <= 12000; ++i) x.push_back(static_cast<float>(i) / 1000);
  for (float e : {-1e30f, -300.0f, -88.0f, -30.0f, -0.0f, 1e-30f, 30.0f, 88.0f, 1e30f}) x.push_back(e);
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    if (isa > cpu::best_isa()) break;
    set_cpu_isa(isa);
    CAPTURE(name_of(isa));
    const cpu::Simd& f = cpu::simd();
    std::vector<float> value(x.size()), grad(x.size(), 1.0f);
    cpu::gelu(f, x.data(), value.data(), static_cast<int64_t>(x.size()));
    cpu::gelu_grad(f, x.data(), grad.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i], value[i], grad[i]);
      REQUIRE(std::abs(value[i] - gelu(x[i])) <= 1e-6 * std::max(1.0, std::abs(static_cast<double>(x[i])) / 4));
      if (std::abs(x[i]) < 1e6f) REQUIRE(std::abs(grad[i] - gelu_grad(x[i])) <= 1e-6);
    }
    // An element's bits do not depend on its position in the row.
    for (int64_t n : {1, 2, 5, 17}) {
      float tail[17];
      cpu::gelu(f, x.data() + 9000, tail, n);
      CHECK(std::memcmp(tail, value.data() + 9000, static_cast<size_t>(n) * 4) == 0);
    }
    float nan = NAN, one = 1;
    cpu::gelu(f, &nan, &nan, 1);
    CHECK(std::isnan(nan));
    cpu::gelu_grad(f, &nan, &one, 1);
    CHECK(std::isnan(one));
  }
  set_cpu_isa(CpuIsa::kAuto);
}
