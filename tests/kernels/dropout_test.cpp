// Dropout masks: fixed bits, rate and scale, identical on every backend and for every split of a microbatch into rows.
// (parity_test covers agreement with the reference.)
#include "kernels/core/dropout.h"

#include <cmath>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "kernels/core/open_stream.h"
#include "kernels/core/rng.h"
#include "tests/kernels/cases/op_cases.h"
#include "tests/kernels/packed_attention.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

// Dropout applied to ones.
std::vector<float> factors(Shape s, const RowDrop& drop) {
  std::vector<float> v(static_cast<size_t>(s.numel()), 1.f);
  const Tensor t{reinterpret_cast<std::byte*>(v.data()), s, DType::kF32, {}};
  cpu_backend().ops->dropout({.x = t, .out = t, .drop = drop}, {});
  return v;
}

struct EveryIsa {
  std::vector<CpuIsa> all;
  EveryIsa() {
    for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) try {
        set_cpu_isa(isa);
        all.push_back(isa);
      } catch (const Error&) { break; }
  }
  ~EveryIsa() { set_cpu_isa(CpuIsa::kAuto); }
};

}  // namespace

TEST_CASE("dropout masks match fixed bits on every instruction set") {
  RowDrop drop{drop_mask(stream_key(1234, "dropout/layers.0.attn.out"), 0.25), {.seq = 4}};
  drop.mask.first_sample = 5;
  CHECK(drop.mask.key == 0xd348097beca72b56);
  CHECK(drop.mask.threshold == 0x40000000u);
  const EveryIsa isas;
  for (const CpuIsa isa : isas.all) {
    INFO(name_of(isa));
    set_cpu_isa(isa);
    std::string keeps;
    for (const float f : factors({4, 4}, drop)) {
      keeps += f != 0 ? '1' : '0';
      if (f != 0) CHECK(f == static_cast<float>(1 / 0.75));
    }
    CHECK(keeps == "0111100110101111");
  }
}

TEST_CASE("dropout keeps 1 - P of the elements and preserves the mean") {
  constexpr int64_t kRows = 512, kCols = 768;
  for (const double p : {0.0, 0.01, 0.1, 0.5, 0.9}) {
    const std::vector<float> f = factors({kRows, kCols}, {drop_mask(stream_key(7, "dropout/rate"), p), 64, 0});
    double kept = 0, sum = 0;
    for (const float x : f) kept += x != 0, sum += double{x};
    const auto n = static_cast<double>(f.size());
    INFO("P " << p);
    CHECK(std::abs(kept / n - (1 - p)) <= 4 * std::sqrt(p * (1 - p) / n));
    CHECK(std::abs(sum / n - 1) <= 4 * std::sqrt(p / (1 - p) / n) + 1e-6);
  }
}

TEST_CASE("the threshold and the scale of a rate are exact at both ends") {
  CHECK_FALSE(drop_mask(1, 0));
  CHECK_FALSE(drop_mask(1, 0x1p-33));  // below 2^-32: no dropout
  CHECK(DropMask{.scale = 2});         // nothing dropped, all doubled
  CHECK(drop_mask(1, 0x1p-32).threshold == 1);
  CHECK(drop_mask(1, 0.1).threshold == 429496729u);
  CHECK(drop_mask(1, 0.5).scale == 2);
  CHECK(drop_mask(1, std::nextafter(1.0, 0.0)).threshold == 0xFFFFFFFFu);
}

TEST_CASE("a slice of a microbatch's rows or columns has the mask of those, and masks differ by sample and module") {
  for (const int64_t cols : {30, 64}) {  // 30: rows begin inside a counter
    const RowDrop whole{drop_mask(stream_key(3, "dropout/layers.1.mlp.down"), 0.5), {.seq = 6}};
    const std::vector<float> all = factors({24, cols}, whole);
    for (const int64_t rows : {1, 6, 8}) {
      for (int64_t first = 0; first + rows <= 24; first += rows) {
        RowDrop part = whole;
        part.rows.first_row = first;
        const std::vector<float> slice = factors({rows, cols}, part);
        CHECK(std::equal(slice.begin(), slice.end(), all.begin() + first * cols));
      }
    }
    for (const int64_t first : {int64_t{0}, cols / 2}) {
      RowDrop part = whole;
      part.first_column = first, part.width = cols;
      const std::vector<float> slice = factors({24, cols / 2}, part);
      for (int64_t r = 0; r < 24; ++r)
        CHECK(std::equal(slice.begin() + r * (cols / 2), slice.begin() + (r + 1) * (cols / 2),
                         all.begin() + r * cols + first));
    }
    RowDrop later = whole;  // a microbatch of the last two sequences
    later.mask.first_sample += 2;
    const std::vector<float> half = factors({12, cols}, later);
    CHECK(std::equal(half.begin(), half.end(), all.begin() + 12 * cols));
    CHECK_FALSE(std::equal(half.begin(), half.end(), all.begin()));
    RowDrop other = whole;
    other.mask.key = stream_key(3, "dropout/layers.2.mlp.down");
    CHECK(factors({24, cols}, other) != all);
  }
}

TEST_CASE("attention drops the same probabilities whichever rank computes a head") {
  constexpr int64_t kBatch = 2, kSeq = 20, kHeads = 4, kDim = 8;
  const HeadDrop drop{drop_mask(stream_key(3, "dropout/layers.0.attn"), 0.4), 0};
  const auto run = [&](int64_t first, int64_t heads) {  // columns of these heads
    std::vector<float> qkv(static_cast<size_t>(kBatch * kSeq * 3 * heads * kDim)),
        out(static_cast<size_t>(kBatch * kSeq * heads * kDim)), lse(static_cast<size_t>(kBatch * heads * kSeq));
    for (int64_t r = 0; r < kBatch * kSeq; ++r)
      for (int64_t part = 0; part < 3; ++part)
        for (int64_t c = 0; c < heads * kDim; ++c)
          qkv[static_cast<size_t>((r * 3 + part) * heads * kDim + c)] = static_cast<float>(
              philox_normal(5, static_cast<uint64_t>((r * 3 + part) * kHeads * kDim + first * kDim + c)));
    const auto tensor = [&](std::vector<float>& v) {
      const auto size = static_cast<int64_t>(v.size());
      return Tensor{reinterpret_cast<std::byte*>(v.data()), {kBatch * kSeq, size / (kBatch * kSeq)}, DType::kF32, {}};
    };
    HeadDrop mine = drop;
    mine.first_head = first, mine.seq = kSeq;
    AttentionSpec spec = whole_sequences(kBatch, kSeq, heads, heads, kDim, 0.3f);
    spec.drop = mine;
    cpu_backend().ops->attention(packed_attention(tensor(qkv), tensor(out), tensor(lse), spec), {});
    return out;
  };
  const std::vector<float> all = run(0, kHeads);
  for (int64_t first : {0, 2}) {
    const std::vector<float> part = run(first, 2);
    bool same = true;
    for (int64_t r = 0; r < kBatch * kSeq; ++r)
      for (int64_t c = 0; c < 2 * kDim; ++c)
        same &= part[static_cast<size_t>(r * 2 * kDim + c)] ==
                all[static_cast<size_t>(r * kHeads * kDim + first * kDim + c)];
    CHECK(same);
  }
}

namespace {

// Runs the op of every case_stride()-th case that drops elements with its sample ordinal passed by value, and by device
// address. Counts the cases that drop elements in `dropping`.
template <class Args>
void expect_to_follow_memory(OpCase& c, const Backend& backend, Stream stream, int64_t& dropping) {
  auto* typed = dynamic_cast<CaseOf<Args>*>(&c);
  if (typed == nullptr || c.big) return;
  auto& drop = [&]() -> auto& {
    if constexpr (requires { typed->args.spec; })
      return typed->args.spec.drop;
    else
      return typed->args.drop;
  }
  ();
  if (!drop || dropping++ % case_stride() != 0) return;
  INFO(backend.ops->name << ' ' << c.op << ' ' << c.name);
  c.prepare(99);
  const Images by_number = c.run(backend, stream);
  DropMask& mask = drop.mask;
  const int64_t ordinal = mask.first_sample;
  const Buffer memory(sizeof ordinal, stream.device, *backend.device);
  backend.device->copy(memory.data(), &ordinal, sizeof ordinal, stream);
  backend.device->synchronize(stream);
  mask.first_sample = -1;
  mask.first_sample_at = reinterpret_cast<const int64_t*>(memory.data());
  CHECK(c.run(backend, stream) == by_number);
}

}  // namespace

TEST_CASE("parity: every op that drops elements accepts the sample's ordinal in device memory too") {
  std::vector<const Backend*> backends{&cpu_backend()};
  if (const Backend* cuda = cuda_backend(nullptr)) backends.push_back(cuda);
  for (const Backend* backend : backends) {
    const OpenStream stream(*backend->device, 0, 1);
    int64_t dropping = 0;
    for (const auto& c : op_cases()) {
      expect_to_follow_memory<Dropout>(*c, *backend, stream, dropping);
      expect_to_follow_memory<LayerNorm>(*c, *backend, stream, dropping);
      expect_to_follow_memory<LayerNormGrad>(*c, *backend, stream, dropping);
      expect_to_follow_memory<Attention>(*c, *backend, stream, dropping);
      expect_to_follow_memory<AttentionGrad>(*c, *backend, stream, dropping);
    }
    CHECK(dropping > 60);
  }
}

}  // namespace gt::test
