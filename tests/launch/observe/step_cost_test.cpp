// Cost of a step, counted through a decorated null op table: FLOPs of every layout, op calls of a block, and planned
// bytes of a layout against a real run.
#include <map>

#include "launch/engine/engine.h"
#include "parallel/comm/null_group.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct Count {
  static inline int64_t gemm = 0, attention = 0;
  static inline int64_t between = 0;  // bytes read and written between the GEMMs of FP8 layers
  static inline std::map<std::string, int> calls;
  static void clear() {
    gemm = attention = between = 0;
    calls.clear();
  }
  static void move(std::initializer_list<Tensor> all) {
    for (const Tensor& t : all) between += t ? t.bytes() : 0;
  }
  template <class A>
  static void before(const char* name, const A& a) {
    ++calls[name];
    if constexpr (std::is_same_v<A, Gemm>)
      gemm += 2 * a.out.numel() * (a.trans_a ? a.a.shape.rows() : a.a.shape.cols());
    // A causal mask halves the GEMMs: QK^T and PV forward; dP, dV, dQ and dK backward, without the recomputed QK^T.
    if constexpr (std::is_same_v<A, Attention>)
      attention += 2 * a.spec.batch * a.spec.heads * a.spec.queries * a.spec.keys * a.spec.head_dim;
    if constexpr (std::is_same_v<A, AttentionGrad>)
      attention += 4 * a.spec.batch * a.spec.heads * a.spec.queries * a.spec.keys * a.spec.head_dim;
    if constexpr (std::is_same_v<A, LayerNorm>) move({a.x, a.delta, a.sum, a.out, a.fp8.rowwise, a.fp8.columnwise});
    if constexpr (std::is_same_v<A, LayerNormGrad>)
      move({a.x, a.dout, a.dsum, a.dx, a.fp8.rowwise, a.fp8.columnwise, a.ddelta});
    if constexpr (std::is_same_v<A, QuantizeFp8>)
      if (a.fp8.step_amax) move({a.x, a.pre, a.fp8.rowwise, a.fp8.columnwise});  // weights have no amax here
    if constexpr (std::is_same_v<A, ColumnSums>) move({a.x});
    if constexpr (std::is_same_v<A, Gelu>) move({a.x, a.out});
    if constexpr (std::is_same_v<A, GeluGrad>) move({a.x, a.dout, a.dx});
  }
};

EngineOptions small() {
  EngineOptions o;
  o.model = {.layers = 5, .hidden = 32, .heads = 4, .ffn = 96, .vocab = 300, .seq = 16};
  o.micro_batch = 2;
  o.microbatches = 3;
  return o;
}

// Ops that run per block and microbatch, not once a step.
bool of_the_model(const std::string& op) {
  return op != "sum_squares" && op != "adamw" && op != "clip_factor" && op != "max_abs";
}

// Runs one training step (or evaluation) of one rank without computation; adds to Count.
void run(const EngineOptions& o, MeshShape shape, int rank, bool train) {
  Backend backend = null_backend();
  backend.ops = &decorate<Count>(*null_backend().ops);
  NullFactory factory(rank, shape.world());
  const Mesh mesh(shape, factory);
  const Stream stream{{backend.kind, 0}, nullptr};
  EnginePlan plan;
  plan.train = plan.eval = {int64_t{1} << 32, int64_t{1} << 32, 0};
  Engine engine(o, mesh, backend, stream, plan);
  if (o.precision.fp8 == Fp8Recipe::kDelayed)  // as from the second step on
    for (ModelStage* s : engine.stages())
      for (Fp8State* r : s->fp8_states()) r->scale.has_history = true;
  const Buffer tokens(o.micro_batch * o.model.seq * 4, stream.device, *backend.device);
  MicroBatch mb;
  mb.batch = o.micro_batch;
  mb.seq = o.model.seq;
  mb.tokens = mb.targets = tokens.tensor({mb.batch, mb.seq}, DType::kI32);
  const std::vector<MicroBatch> batch(static_cast<size_t>(o.microbatches), mb);
  if (train)
    engine.step(batch, 1);
  else
    engine.evaluate(batch);
}

void run_world(const EngineOptions& o, MeshShape shape, bool train) {
  Count::clear();
  for (int rank = 0; rank < shape.world(); ++rank) run(o, shape, rank, train);
}

// Op calls of one block: the difference that a further layer makes for one microbatch. An evaluation also copies the
// block's two results, which do not count as calls of the block.
std::map<std::string, int> block_calls(MeshShape shape, bool train, EngineOptions o = small()) {
  o.microbatches = 1;
  std::map<std::string, int> out;
  for (int sign : {-1, 1}) {
    run_world(o, shape, train);
    for (const auto& [op, n] : Count::calls)
      if (of_the_model(op)) out[op] += sign * n;
    ++o.model.layers;
  }
  if (!train) {
    REQUIRE(out["copy"] == 2 * shape.tp * shape.dp);
    out.erase("copy");
  }
  for (auto it = out.begin(); it != out.end();) it = it->second == 0 ? out.erase(it) : std::next(it);
  return out;
}

int total(const std::map<std::string, int>& calls) {
  int n = 0;
  for (const auto& [op, k] : calls) n += k;
  return n;
}

}  // namespace

TEST_CASE("GEMM and attention FLOPs of every layout equal the formula to the integer") {
  for (int tp : {1, 2, 4})
    for (int pp : {1, 2, 4})
      for (int dp : {1, 2, 4})
        for (int64_t chunk : {int64_t{0}, int64_t{7}}) {
          const MeshShape shape{.pp = pp, .dp = dp, .tp = tp};
          if (chunk != 0 && (pp != 2 || dp != 2)) continue;
          INFO("tp " << tp << " pp " << pp << " dp " << dp << " loss_chunk " << chunk);
          EngineOptions o = small();
          o.sequence_parallel = (pp + dp) % 2 == 1;  // same FLOPs
          o.loss_chunk = chunk;
          const TransformerConfig& c = o.model;
          const int64_t n = o.micro_batch * c.seq * o.microbatches * dp;
          const int64_t matmul =
              c.layers * (4 * c.hidden * c.hidden + 2 * c.hidden * c.ffn) + padded_vocab(c.vocab, tp) * c.hidden;
          run_world(o, shape, true);
          CHECK(Count::gemm == 6 * n * matmul);
          CHECK(Count::attention == 6 * c.layers * c.hidden * c.seq * n);
          if (padded_vocab(c.vocab, tp) == padded_vocab(c.vocab, 1)) {
            CHECK(static_cast<double>(Count::gemm + Count::attention) == describe(c).train_flops(n));
          }
          if (chunk != 0) continue;
          run_world(o, shape, false);
          CHECK(Count::gemm == 2 * n * matmul);
          CHECK(Count::attention == 2 * c.layers * c.hidden * c.seq * n);
        }
}

TEST_CASE("the loss is one op per chunk where the vocabulary is whole, two where ranks share it") {
  EngineOptions o = small();
  o.loss_chunk = 20;
  const int chunks = o.microbatches * 2;
  const auto count = [&](MeshShape shape, bool train) {
    run_world(o, shape, train);
    auto& c = Count::calls;
    return std::vector<int>{c["cross_entropy"], c["cross_entropy_stats"], c["cross_entropy_grad"]};
  };
  for (const bool train : {true, false}) {
    CHECK(count({}, train) == std::vector<int>{chunks, 0, 0});
    CHECK(count({.tp = 2}, train) == std::vector<int>{0, 2 * chunks, 2 * chunks});
  }
}

TEST_CASE("a schedule costs the FLOPs of the model, for any chunks and split of its backward") {
  for (const MeshShape& shape : {MeshShape{.pp = 2}, MeshShape{.pp = 4, .dp = 2, .tp = 2}})
    for (const char* schedule : {"1f1b", "zb-h1", "interleaved"}) {
      INFO(schedule << " pp " << shape.pp);
      EngineOptions o = small();
      o.schedule = schedule;
      if (schedule == std::string("interleaved")) o.vpp = 2;
      run_world(o, shape, true);
      const int64_t n = o.micro_batch * o.model.seq * o.microbatches * shape.dp;
      const int64_t matmul = o.model.layers * (4 * o.model.hidden * o.model.hidden + 2 * o.model.hidden * o.model.ffn) +
                             padded_vocab(o.model.vocab, shape.tp) * o.model.hidden;
      CHECK(Count::gemm == 6 * n * matmul);
      CHECK(Count::attention == 6 * o.model.layers * o.model.hidden * o.model.seq * n);
    }
}

TEST_CASE("a block is 7 op calls forward") {
  const auto forward = block_calls({}, false);
  CHECK(forward == std::map<std::string, int>{{"layer_norm", 2}, {"gemm", 4}, {"attention", 1}});
  CHECK(total(forward) <= 7);
}

TEST_CASE("dropout adds no op call to a block: the norms and attention apply it") {
  const auto forward = block_calls({}, false), step = block_calls({}, true);
  EngineOptions o = small();
  for (double* p : {&o.model.dropout, &o.model.attn_dropout}) {
    *p = 0.1;
    CHECK(block_calls({}, false, o) == forward);
    CHECK(block_calls({}, true, o) == step);
  }
  o.microbatches = 1;
  run_world(o, {}, true);
  CHECK(Count::calls["dropout"] == 2);  // of the embedding, forward and backward
  run_world(o, {}, false);
  CHECK(Count::calls.count("dropout") == 0);
}

// Bias gradients are computed by the following norms, the GELU's GEMM and qkv's.
TEST_CASE("a block is 11 op calls backward") {
  const auto forward = block_calls({}, false);
  auto backward = block_calls({}, true);
  for (const auto& [op, n] : forward) backward[op] -= n;
  for (auto it = backward.begin(); it != backward.end();) it = it->second == 0 ? backward.erase(it) : std::next(it);
  CHECK(backward == std::map<std::string, int>{{"gemm", 8}, {"attention_grad", 1}, {"layer_norm_grad", 2}});
  CHECK(total(backward) <= 11);
}

namespace {
EngineOptions small_fp8(bool delayed) {
  EngineOptions o = small();
  o.precision = {.level = 2, .fp8 = delayed ? Fp8Recipe::kDelayed : Fp8Recipe::kCurrent};
  return o;
}
}  // namespace

// Besides norms and GEMMs, forward quantizes the attention output and the GELU. Backward quantizes the gradients of
// qkv's output and of the GELU's input, each read once for rowwise and columnwise data and for its bias gradient.
// Gradients of the residual stream are quantized by the norms that compute them. No op only transposes FP8 data, only
// sums or only computes an amax.
TEST_CASE("an FP8 block is 9 op calls forward and 13 backward, its weights are quantized once a step") {
  const EngineOptions o = small_fp8(true);
  const auto forward = block_calls({}, false, o);
  CHECK(forward ==
        std::map<std::string, int>{{"layer_norm", 2}, {"quantize_fp8", 2}, {"gemm_fp8", 4}, {"attention", 1}});
  auto backward = block_calls({}, true, o);
  for (const auto& [op, n] : forward) backward[op] -= n;
  for (auto it = backward.begin(); it != backward.end();) it = it->second == 0 ? backward.erase(it) : std::next(it);
  constexpr int kGradients = 2, kWeights = 4;
  CHECK(backward ==
        std::map<std::string, int>{
            {"gemm_fp8", 8}, {"quantize_fp8", kGradients + kWeights}, {"attention_grad", 1}, {"layer_norm_grad", 2}});
}

TEST_CASE("norms quantize inputs of row-parallel layers, fused with their all-reduced sum and bias") {
  const EngineOptions o = small_fp8(true);
  const auto encoded = [&](MeshShape shape, bool sequence_parallel) {
    EngineOptions of = o;
    of.sequence_parallel = sequence_parallel;
    const std::string op = "quantize_fp8";
    return block_calls(shape, true, of).at(op) - block_calls(shape, false, of).at(op);
  };
  constexpr int kGradients = 2, kWeights = 4, kRanks = 2;
  CHECK(encoded({.tp = kRanks}, false) == kRanks * (kGradients + kWeights));
  // Sharded rows are all-gathered first, as are the inputs of column-parallel layers, once more for their weight
  // gradients.
  CHECK(encoded({.tp = kRanks}, true) == kRanks * (kGradients + 2 + 2 + kWeights));
}

TEST_CASE("between its GEMMs an FP8 block moves 52 C + 10 F bytes a token, attention excluded") {
  EngineOptions o = small_fp8(true);
  o.microbatches = 1;
  int64_t bytes = 0;
  for (const int sign : {-1, 1}) {
    run_world(o, {}, true);
    bytes += sign * Count::between;
    ++o.model.layers;
  }
  // 16-bit values take 2 bytes, rowwise plus columnwise FP8 data 2. Forward: two norms (x, branch; sum, FP8), attention
  // output, GELU. Backward: gradients of qkv (3 C) and of the GELU, two norms (x, gradients of result and sum; dx,
  // FP8).
  const int64_t hidden = o.model.hidden, ffn = o.model.ffn, tokens = o.micro_batch * o.model.seq;
  CHECK(bytes == tokens * ((2 * 8 * hidden + 4 * hidden + 4 * ffn) + (4 * 3 * hidden + 6 * ffn + 2 * 10 * hidden)));
}

TEST_CASE("current scaling computes amax where a tensor is produced, and quantizes in a second pass") {
  const auto forward = block_calls({}, false, small_fp8(false));
  constexpr int kNorms = 2, kMeasured = 2;  // attention output and GELU
  CHECK(forward ==
        std::map<std::string, int>{
            {"layer_norm", kNorms}, {"quantize_fp8", kNorms + 2 * kMeasured}, {"gemm_fp8", 4}, {"attention", 1}});
  constexpr int kWeights = 4;
  const auto step = block_calls({}, true, small_fp8(false));
  CHECK(step.at("quantize_fp8") - forward.at("quantize_fp8") == kNorms + 2 * kMeasured + kWeights);
}

TEST_CASE("tensor parallelism adds two row biases forward and no copy, add or cast to a block") {
  const auto forward = block_calls({.tp = 2}, false), step = block_calls({.tp = 2}, true);
  CHECK(forward ==
        std::map<std::string, int>{{"layer_norm", 4}, {"gemm", 8}, {"attention", 2}, {"add_bias", 4}});  // of two ranks
  std::map<std::string, int> expected = forward;
  expected["gemm"] += 16;
  expected["attention_grad"] += 2;
  expected["layer_norm_grad"] += 4;
  CHECK(step == expected);
}

TEST_CASE("sequence parallelism calls the same ops, norms and biases on fewer rows") {
  EngineOptions o = small();
  o.microbatches = 1;
  for (const bool train : {false, true}) {
    o.sequence_parallel = false;
    run_world(o, {.tp = 2}, train);
    std::map<std::string, int> whole = Count::calls;
    if (train) whole["copy"] -= 2;  // the head's input gradient, which is accumulated in a copy unless sharded
    o.sequence_parallel = true;
    run_world(o, {.tp = 2}, train);
    CHECK(Count::calls == whole);
  }
}

TEST_CASE("the update of all parameters is one call, two with LAMB, and so is the gradient norm, on any layout") {
  const std::map<std::string, std::vector<std::string>> ops{{"adamw", {"adamw"}},
                                                            {"sgd", {"sgd"}},
                                                            {"lion", {"lion"}},
                                                            {"adagrad", {"adagrad"}},
                                                            {"lamb", {"lamb_moments", "lamb_apply"}}};
  for (const auto& [optimizer, calls] : ops)
    for (const MeshShape& shape : {MeshShape{}, MeshShape{.pp = 2, .dp = 2, .tp = 2}})
      for (int stage = 0; stage <= 3; ++stage)
        for (const int level : {0, 2}) {
          INFO(optimizer << " at ZeRO " << stage << ", O" << level << ", " << shape.world() << " ranks");
          EngineOptions o = small();
          o.optim.type = optimizer;
          o.zero.stage = stage;
          o.precision = {.level = level};
          run_world(o, shape, true);
          for (const std::string& op : calls) CHECK(Count::calls[op] == shape.world());
          CHECK(Count::calls["sum_squares"] == shape.world());
        }
}

TEST_CASE("recorded nodes, arenas and pools of the plan do not depend on the tp and dp coordinates") {
  const MeshShape shape{.pp = 2, .dp = 2, .tp = 2};
  for (int stage : {0, 1}) {
    EngineOptions o = small();
    o.sequence_parallel = stage == 1;
    const EnginePlan first = plan_memory(o, shape, stage * 4);
    for (int k = 1; k < 4; ++k) {
      const EnginePlan other = plan_memory(o, shape, stage * 4 + k);
      CHECK(other.train.activation_bytes == first.train.activation_bytes);
      CHECK(other.train.gradient_bytes == first.train.gradient_bytes);
      CHECK(other.memory.total() == first.memory.total());
    }
  }
}
