// Packed documents (data.pack documents): each token's loss is that of its document alone, and every layout trains the
// same.
#include <cmath>
#include <numeric>

#include "kernels/core/rng.h"
#include "model/model_spec.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int64_t kVocab = 60;

TransformerConfig learned(int64_t seq) {
  return {.layers = 2, .hidden = 16, .heads = 4, .ffn = 40, .vocab = kVocab, .seq = seq};
}
TransformerConfig rotary(int64_t seq) {
  TransformerConfig c = learned(seq);
  c.position = PositionKind::kRotary;
  c.norm = NormKind::kRms;
  c.kv_heads = 2;
  c.window = 70;
  return c;
}

// Weights 20 times the initial ones. With those attention is nearly uniform and losses are log(vocab), whatever the
// positions.
Logical large_weights(const TransformerConfig& model) {
  Logical out;
  for (const ParamSpec& p : describe(model).params) {
    std::vector<float>& values = out[p.name];
    values.resize(static_cast<size_t>(p.shape.numel()), p.init.kind == Init::Kind::kOne ? 1.0f : 0.0f);
    if (p.init.kind == Init::Kind::kNormal)
      philox_normals(stream_key(3, p.name), 0, p.shape.numel(), 20 * p.init.stddev, values.data());
  }
  return out;
}

// Losses of single tokens: of an evaluation in which all other targets are masked.
class TokenLosses {
 public:
  TokenLosses(const TransformerConfig& model, std::vector<int32_t> sample, bool packed)
      : weights_(large_weights(model)) {
    run_.engine.model = model;
    run_.engine.documents = packed;
    run_.weights = &weights_;
    run_.engine.lr = {.type = "constant", .peak = 0};  // weights stay as they were initialized
    run_.engine.loss_chunk = 24;
    run_.global_batch = 1;
    run_.evaluate = true;
    run_.samples = {std::move(sample)};
    hooks_.batch = [this](const Mesh&, MicroBatch& mb) {
      mb.seq = length_;
      for (Tensor* t : {&mb.tokens, &mb.targets, &mb.positions})
        if (*t) t->shape = {1, length_};
      const std::vector<int32_t>& sample = run_.samples.front();
      for (int64_t i = 0; i < length_; ++i) {
        mb.targets.as<int32_t>()[i] = i == token_ ? sample[static_cast<size_t>(i + 1)] : -1;
        if (mb.positions) mb.positions.as<int32_t>()[i] = positions_[static_cast<size_t>(i)];
      }
    };
    run_.hooks = &hooks_;
  }
  // Loss of target `token` after the first `length` tokens; `positions`: those of packed documents.
  double at(int64_t token, int64_t length, std::vector<int32_t> positions = {}) {
    token_ = token, length_ = length, positions_ = std::move(positions);
    run_.engine.lengths = {length};
    return run_mesh(run_).eval_loss;
  }

 private:
  const Logical weights_;
  MeshRun run_;
  MeshHooks hooks_;
  int64_t token_ = 0, length_ = 0;
  std::vector<int32_t> positions_;
};

// The largest relative difference between losses in a sample of documents and in each document alone.
double packed_error(const TransformerConfig& model, const std::vector<int64_t>& documents) {
  const std::vector<int32_t> sample = synthetic_samples(1, model.seq, kVocab, 5).front();
  TokenLosses packed(model, sample, true);
  std::vector<int32_t> positions;
  for (const int64_t n : documents)
    for (int64_t i = 0; i < n; ++i) positions.push_back(static_cast<int32_t>(i));
  positions.resize(static_cast<size_t>(model.seq), 0);
  double worst = 0;
  int64_t begin = 0;
  for (const int64_t n : documents) {
    std::vector<int32_t> own(sample.begin() + begin, sample.begin() + begin + n);
    own.resize(static_cast<size_t>(model.seq + 1), 0);
    if (n < model.seq) own[static_cast<size_t>(n)] = sample[static_cast<size_t>(begin + n)];
    TokenLosses alone(model, own, false);
    for (int64_t i = 0; i < n; i += i + 11 < n || i == n - 1 ? 11 : n - 1 - i) {
      const double a = packed.at(begin + i, model.seq, positions), b = alone.at(i, n);
      INFO("document of " << n << ", token " << i);
      CHECK(b > 0.5);  // of about log 60
      worst = std::max(worst, std::abs(a - b) / b);
    }
    begin += n;
  }
  return worst;
}

}  // namespace

TEST_CASE("a packed document that begins at a tile of attention has bitwise the losses that it has alone") {
  CHECK(packed_error(learned(192), {64, 128}) == 0);
  CHECK(packed_error(rotary(192), {128, 64}) == 0);
  CHECK(packed_error(rotary(128), {64, 40, 24}) <= 1e-6);  // the third begins within a tile
}

TEST_CASE("packed documents of any length have the losses that they have alone up to the order of sums") {
  CHECK(packed_error(learned(128), {1, 37, 50, 40}) <= 1e-6);
  CHECK(packed_error(rotary(150), {3, 90, 57}) <= 1e-6);
}

TEST_CASE("packed documents train the same on every layout") {
  for (const TransformerConfig& model : {learned(24), rotary(24)}) {
    MeshRun run;
    run.engine.model = model;
    run.engine.documents = true;
    run.engine.loss_chunk = 7;
    run.engine.lr = {.type = "constant", .peak = 3e-3};
    run.global_batch = 8;
    run.steps = 3;
    run.evaluate = true;
    run.samples = synthetic_samples(24, 24, kVocab, 9);
    const MeshResult one = run_mesh(run);
    MeshRun stream = run;
    stream.engine.documents = false;
    CHECK(std::abs(run_mesh(stream).losses[0] - one.losses[0]) > 1e-4);
    struct Layout {
      MeshShape mesh;
      bool sequence_parallel = false;
      Recompute recompute = Recompute::kNone;
      int zero = 0;
      int64_t micro_batch = 1;
    };
    for (const Layout& l :
         {Layout{{}, false, Recompute::kNone, 0, 4}, Layout{{.tp = 2}}, Layout{{.tp = 2}, true, Recompute::kSelective},
          Layout{{.pp = 2}}, Layout{{}, false, Recompute::kFull}, Layout{{.dp = 4}, false, Recompute::kNone, 3, 2},
          Layout{{.pp = 2, .dp = 2, .tp = 2}, true, Recompute::kFull, 2}}) {
      INFO("tp " << l.mesh.tp << " pp " << l.mesh.pp << " dp " << l.mesh.dp);
      MeshRun other = run;
      other.mesh = l.mesh;
      other.engine.sequence_parallel = l.sequence_parallel;
      other.engine.recompute = l.recompute;
      other.engine.zero.stage = l.zero;
      other.engine.micro_batch = l.micro_batch;
      const MeshResult r = run_mesh(other);
      check_close(r, one);
      check_planned(r, run.steps);
      if (l.mesh.tp == 1 && l.mesh.dp == 1 && l.micro_batch == 1) check_bitwise(r, one);
    }
  }
}
