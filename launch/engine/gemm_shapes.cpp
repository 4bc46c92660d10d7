#include "launch/engine/gemm_shapes.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "kernels/core/rng.h"
#include "launch/engine/measure/step_ops.h"

namespace gt {

static_assert(std::has_unique_object_representations_v<GemmShape>);

bool operator<(const GemmShape& x, const GemmShape& y) { return std::memcmp(&x, &y, sizeof x) < 0; }

namespace {

GemmShape::Operand operand(const Tensor& t) {
  if (!t) return {};
  return {.rows = t.shape.rows(),
          .cols = t.shape.cols(),
          .dtype = t.dtype,
          .there = 1,
          .offset = static_cast<uint16_t>(reinterpret_cast<uintptr_t>(t.data) % 16)};
}

void add(std::set<GemmShape>& kinds, const Gemm& g) {
  GemmShape::Operand dbias = operand(g.dbias);
  dbias.offset = 0;  // backends whose library computes it allocate it themselves
  kinds.insert({.a = operand(g.a),
                .b = operand(g.b),
                .bias = operand(g.bias),
                .aux = operand(g.aux),
                .out = operand(g.out),
                .dbias = dbias,
                .epilogue = g.epilogue,
                .trans_a = g.trans_a,
                .trans_b = g.trans_b,
                .accumulate = g.accumulate});
}
void add(std::set<GemmShape>& kinds, const GemmFp8& g) {
  kinds.insert({.a = operand(g.a),
                .b = operand(g.b),
                .bias = operand(g.bias),
                .out = operand(g.out),
                .fp8 = 1,
                .accumulate = g.accumulate});
}
template <class Args>
void add(std::set<GemmShape>&, const Args&) {}

// Memory for consecutive operands, filled with a repeating pattern of values.
class Operands {
 public:
  Operands(const Backend& backend, Stream stream) : backend_(backend), stream_(stream) {}

  Tensor make(const GemmShape::Operand& o) {
    if (!o.there) return {};
    Tensor t{nullptr, {o.rows, o.cols}, o.dtype, stream_.device};
    held_.emplace_back(t.bytes() + 16, stream_.device, *backend_.device);
    t.data = held_.back().data() + o.offset;
    fill(t);
    return t;
  }
  Tensor one() {  // f32 [1]
    const Tensor t = make({.rows = 1, .cols = 1, .there = 1});
    constexpr float kOne = 1;
    backend_.device->copy(t.data, &kOne, sizeof kOne, stream_);
    backend_.device->synchronize(stream_);
    return t;
  }
  void drop() { held_.clear(); }

 private:
  // Bit 6 of a value's upper byte selects large exponents. With it cleared there is no NaN, no infinity and nothing
  // above 2.
  void fill(const Tensor& t) {
    constexpr int64_t kChunk = 1 << 20;
    if (chunk_.empty()) {
      chunk_.resize(kChunk);
      for (int64_t i = 0; i < kChunk; i += 16) {
        const auto words = philox(stream_key(1, "products"), static_cast<uint64_t>(i), 0);
        std::memcpy(chunk_.data() + i, words.data(), 16);
      }
      for (uint8_t& byte : chunk_) byte &= 0xBF;
    }
    for (int64_t at = 0; at < t.bytes(); at += kChunk)
      backend_.device->copy(t.data + at, chunk_.data(), std::min(kChunk, t.bytes() - at), stream_);
    backend_.device->synchronize(stream_);
  }

  const Backend& backend_;
  Stream stream_;
  std::vector<uint8_t> chunk_;
  std::vector<Buffer> held_;
};

}  // namespace

std::vector<GemmShape> gemm_shapes(const EngineOptions& options, const MeshShape& shape, int rank) {
  std::set<GemmShape> kinds;
  EngineOptions o = options;
  o.lengths.clear();
  std::vector<int64_t> lengths{options.model.seq};
  for (size_t k = 0; k < std::min(kMostLengths, options.lengths.size()); ++k) lengths.push_back(options.lengths[k]);
  for (const int64_t length : lengths) {
    o.model.seq = length;
    for (const OpCall& call : step_ops(o, shape, rank))
      std::visit([&](const auto& args) { add(kinds, args); }, call.args);
  }
  return {kinds.begin(), kinds.end()};
}

void run_gemms(const std::vector<GemmShape>& kinds, const Backend& backend, Stream stream) {
  Operands operands(backend, stream);
  for (const GemmShape& k : kinds) {
    if (k.fp8 != 0)
      backend.ops->gemm_fp8({.a = operands.make(k.a),
                             .b = operands.make(k.b),
                             .a_scale = operands.one(),
                             .b_scale = operands.one(),
                             .bias = operands.make(k.bias),
                             .out = operands.make(k.out),
                             .accumulate = k.accumulate != 0},
                            stream);
    else
      backend.ops->gemm({.a = operands.make(k.a),
                         .b = operands.make(k.b),
                         .bias = operands.make(k.bias),
                         .aux = operands.make(k.aux),
                         .out = operands.make(k.out),
                         .trans_a = k.trans_a != 0,
                         .trans_b = k.trans_b != 0,
                         .accumulate = k.accumulate != 0,
                         .epilogue = k.epilogue,
                         .dbias = operands.make(k.dbias)},
                        stream);
    backend.device->synchronize(stream);
    operands.drop();
  }
}

}  // namespace gt
