// Every case on every available backend against the reference: CPU with each supported instruction set and one and
// three threads, CUDA where there is a device. On a GPU machine run `test_kernels "parity*"`. GPT_TEST_BACKEND=cuda
// skips the CPU, when another run of the same cases has covered it. GPT_TEST_EVERY: see case_stride().
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "kernels/backend.h"
#include "kernels/core/open_stream.h"
#include "tests/kernels/cases/op_cases.h"
#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

constexpr uint64_t kSeed = 20240611;

// Instruction sets of this processor; set_cpu_isa rejects the others.
std::vector<CpuIsa> instruction_sets() {
  std::vector<CpuIsa> have;
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    try {
      set_cpu_isa(isa);
      have.push_back(isa);
    } catch (const Error&) {
      break;  // ascending: the rest is unsupported too
    }
  }
  set_cpu_isa(CpuIsa::kAuto);
  return have;
}

std::string run_and_compare(const OpCase& c, const Backend& backend, Stream stream, Images* images = nullptr) {
  try {
    Images got = c.run(backend, stream);
    std::string verdict = c.compare(got);
    if (images) *images = std::move(got);
    return verdict;
  } catch (const Error& e) { return cat("throws ", e.what()); }
}

// Runs a case on the CPU with one and three threads: close to the reference, bitwise identical to each other.
void expect_on_cpu(const OpCase& c, const std::string& isa, Stream one, Stream three) {
  Images alone, shared, again;
  INFO("cpu " << isa << ", " << c.op << ' ' << c.name);
  const std::string verdict = run_and_compare(c, cpu_backend(), one, &alone);
  CHECK(verdict == "");
  for (Images* images : {&shared, &again}) *images = c.run(cpu_backend(), three);
  const bool same_bits_on_three_threads = alone == shared, same_bits_again = shared == again;
  CHECK(same_bits_on_three_threads);
  CHECK(same_bits_again);
}

OpCases prepared_cases(const std::string& op) {
  OpCases cases;
  int64_t n = 0;
  for (auto& c : op_cases())
    if (c->op == op && !c->big && n++ % case_stride() == 0) cases.push_back(std::move(c));
  REQUIRE(!cases.empty());
  for (auto& c : cases) c->prepare(kSeed);
  return cases;
}

void expect_parity(const std::string& op) {
  const OpCases cases = prepared_cases(op);
  const std::string only = std::getenv("GPT_TEST_BACKEND") != nullptr ? std::getenv("GPT_TEST_BACKEND") : "";
  REQUIRE((only.empty() || (only == "cuda" && cuda_backend(nullptr) != nullptr)));
  for (const CpuIsa isa : only.empty() ? instruction_sets() : std::vector<CpuIsa>()) {
    set_cpu_isa(isa);
    const OpenStream one(*cpu_backend().device, 0, 1), three(*cpu_backend().device, 0, 3);
    for (const auto& c : cases) expect_on_cpu(*c, name_of(isa), one, three);
  }
  set_cpu_isa(CpuIsa::kAuto);

  const Backend* cuda = cuda_backend(nullptr);
  if (!cuda) return;  // "every available backend takes part" reports it once for all ops
  const OpenStream stream(*cuda->device, 0, 1);
  for (const auto& c : cases) {
    INFO("cuda, " << op << ' ' << c->name);
    Images first, again;
    const std::string verdict = run_and_compare(*c, *cuda, stream, &first);
    CHECK(verdict == "");
    run_and_compare(*c, *cuda, stream, &again);
    const bool same_bits_again = first == again;
    CHECK(same_bits_again);
  }
}

}  // namespace

#define X(entry, Args, ...) \
  TEST_CASE("parity: " #entry " agrees with the reference on every backend") { expect_parity(#entry); }
GT_OPS(X)
#undef X

TEST_CASE("parity: attention of a GPU agrees with the reference with our own kernels too, and in any order") {
  const Backend* cuda = cuda_backend(nullptr);
  if (!cuda || cuda->tune_attention == nullptr) GT_SKIP("there is no GPU");
  const OpenStream stream(*cuda->device, 0, 1);
  for (const char* op : {"attention", "attention_grad"})
    for (const auto& c : prepared_cases(op))
      for (const AttentionTuning& tuning :
           {AttentionTuning{.by = AttentionBy::kOwn}, AttentionTuning{.deterministic = false}}) {
        cuda->tune_attention(tuning);
        INFO("cuda, " << op << ' ' << c->name << ", " << name_of(tuning.by));
        const std::string verdict = run_and_compare(*c, *cuda, stream);
        CHECK(verdict == "");
      }
  cuda->tune_attention({});
  WARN("attention besides our own kernels: " << cuda->attention_library());
}

// In the tests above only the first instruction set applies to oneDNN too, which keeps the limit of its first use.
TEST_CASE("parity: gemm agrees with the reference with every instruction set that oneDNN supports here") {
  const OpenStream one(*cpu_backend().device, 0, 1), three(*cpu_backend().device, 0, 3);
  for (const auto& c : prepared_cases("gemm")) expect_on_cpu(*c, cpu_isa(), one, three);
}

TEST_CASE("parity: every available backend takes part") {
  std::string why;
  if (!cuda_backend(&why)) report_partly_skipped("parity on a GPU: " + why);
  CHECK(first_missing(*cpu_backend().ops) == nullptr);
  std::string sets;
  for (const CpuIsa isa : instruction_sets()) sets += cat(name_of(isa), ' ');
  INFO(sets);
  CHECK(sets.find("scalar") == 0);
}

TEST_CASE("parity: every op has test cases and a benchmark case, with unique names") {
  std::set<std::string> names, tested, timed;
  for (const auto& c : op_cases()) {
    INFO(c->op << ' ' << c->name);
    (c->big ? timed : tested).insert(c->op);
    CHECK(names.insert(cat(c->op, '/', c->name, c->big, c->skew)).second);
  }
#define X(entry, Args, ...)         \
  CHECK(tested.count(#entry) == 1); \
  CHECK(timed.count(#entry) == 1);
  GT_OPS(X)
#undef X
}

TEST_CASE("parity: the comparison detects a wrong value, a missing one, a stray write and a changed input") {
  OpCases cases;
  auto& c = add_case<Add>(cases, "compared");
  c.in(&Add::a, "a", {5}).in(&Add::b, "b", {5}).out(&Add::out, "out", {5});
  c.prepare(kSeed);
  struct Fault {
    const char* expected;
    Kernel<Add> kernel;
  };
  const Fault faults[] = {
      {"", [](const Add& p, Stream s) { reference::add(p, s); }},
      {"is off by", [](const Add& p, Stream s) { reference::add(p, s), p.out.as<float>()[4] *= 1.001f; }},
      {"nan, expected", [](const Add& p, Stream) { p.out.as<float>()[0] = 1; }},
      {"writes outside", [](const Add& p, Stream s) { reference::add(p, s), p.out.as<float>()[5] = 0; }},
      {"writes outside", [](const Add& p, Stream s) { reference::add(p, s), p.out.as<float>()[-1] = 0; }},
      {"changes its input", [](const Add& p, Stream s) { reference::add(p, s), p.a.as<float>()[2] += 1; }},
  };
  for (const Fault& f : faults) {
    OpTable table = reference_ops();
    table.add = f.kernel;
    const Backend faulty{DeviceKind::kCpu, &table, cpu_backend().device};
    const OpenStream stream(*faulty.device, 0, 1);
    const std::string verdict = c.compare(c.run(faulty, stream));
    INFO(verdict);
    CHECK((*f.expected ? verdict.find(f.expected) != std::string::npos : verdict.empty()));
  }
}

TEST_CASE("parity: two seeds draw different inputs") {
  OpCases cases;
  auto& c = add_case<Copy>(cases, "seeded");
  c.in(&Copy::src, "src", {64}).out(&Copy::dst, "dst", {64});
  const OpenStream stream(*cpu_backend().device, 0, 1);
  c.prepare(1);
  const Images first = c.run(cpu_backend(), stream);
  c.prepare(2);
  CHECK(first != c.run(cpu_backend(), stream));
}

namespace {

// Runs a GEMM with a versioned weight repeatedly in the same memory, as a training loop does.
void expect_versions_respected(const Backend& backend) {
  const OpenStream stream(*backend.device, 0, 1);
  constexpr int64_t m = 9, n = 64, k = 48;
  const auto host = [](int64_t count, uint64_t key) {
    std::vector<float> v(static_cast<size_t>(count));
    normal()({reinterpret_cast<std::byte*>(v.data()), {count}, DType::kF32, {}}, key);
    return v;
  };
  const auto make = [&](Shape s) {
    const int64_t bytes = s.numel() * 4;
    return Tensor{static_cast<std::byte*>(backend.device->alloc(0, bytes)), s, DType::kF32, Stream(stream).device};
  };
  const auto upload = [&](const Tensor& t, const std::vector<float>& v) {
    backend.device->copy(t.data, v.data(), t.bytes(), stream);
    backend.device->synchronize(stream);
  };
  for (const bool trans_b : {false, true}) {
    Gemm g;
    g.trans_b = trans_b;
    g.a = make({m, k}), g.b = make(trans_b ? Shape{n, k} : Shape{k, n}), g.out = make({m, n});
    upload(g.a, host(m * k, 1));
    for (const int64_t version : {1, 1, 2, 2, 3}) {
      const std::vector<float> a = host(m * k, 1), b = host(k * n, 100 + static_cast<uint64_t>(version));
      upload(g.b, b);
      g.b_version = version;
      backend.ops->gemm(g, stream);
      std::vector<float> got(m * n), expected(m * n);
      backend.device->copy(got.data(), g.out.data, m * n * 4, stream);
      backend.device->synchronize(stream);
      Gemm r = g;
      const auto at = [](const std::vector<float>& v, Shape s) {
        return Tensor{reinterpret_cast<std::byte*>(const_cast<float*>(v.data())), s, DType::kF32, {}};
      };
      r.a = at(a, g.a.shape), r.b = at(b, g.b.shape), r.out = at(expected, g.out.shape);
      reference::gemm(r, {});
      double error = 0, norm = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        error += std::pow(got[i] - expected[i], 2);
        norm += std::pow(expected[i], 2);
      }
      INFO("version " << version << (trans_b ? ", b transposed" : ""));
      CHECK(std::sqrt(error / norm) <= 1e-5);
    }
    for (const Tensor& t : {g.a, g.b, g.out}) backend.device->free(0, t.data, t.bytes());
  }
}

// The skip flag and the reported norm when the gradient norm is NaN.
void expect_nan_skips(const Backend& backend) {
  OpCases cases;
  auto& c = add_case<ClipFactor>(cases, "norm is not a number");
  c.in(&ClipFactor::norm_squares, "norm_squares", {2}, values({1, NAN}), DType::kF64);
  c.inout(&ClipFactor::scalars, "scalars", {kNumScalars}, values({0.1, 0.9, 0.5, 0.6, NAN, 0, 0.7, 0.8}));
  c.out(&ClipFactor::norm, "norm", {1});
  c.prepare(kSeed);
  const OpenStream stream(*backend.device, 0, 1);
  const Images got = c.run(backend, stream);
  const auto number = [](const std::vector<std::byte>& image, int64_t i) {  // 256 guard bytes come first
    return get({const_cast<std::byte*>(image.data()) + 256, {kNumScalars}, DType::kF32, {}}, i);
  };
  CHECK(number(got[1], kSkip) == 1);
  CHECK(number(got[1], kLr) == Approx(0.1));
  CHECK(std::isnan(number(got[2], 0)));
}

}  // namespace

TEST_CASE("parity: a GEMM follows its weight when the version changes") {
  expect_versions_respected(cpu_backend());
  if (const Backend* cuda = cuda_backend(nullptr)) expect_versions_respected(*cuda);
}

TEST_CASE("parity: a NaN norm skips the step") {
  expect_nan_skips(cpu_backend());
  if (const Backend* cuda = cuda_backend(nullptr)) expect_nan_skips(*cuda);
}

}  // namespace gt::test
