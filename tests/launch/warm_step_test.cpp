// From its third step on, a training step allocates no heap memory on any rank of any layout: engine, tape, parameter
// store and executor.
#include "tests/launch/null_rank.h"
#include "tests/support/heap/count_allocations.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// Returns the allocations of one warm step of a rank on null backends; oneDNN would allocate in every call.
int64_t warm_step(const EngineOptions& given, MeshShape shape, int rank) {
  EngineOptions o = small_model(given);
  o.microbatches = 3;
  NullRank r(o, shape, rank);
  for (int k = 0; k < 2; ++k) r.step();
  CountAllocations count;
  for (int k = 0; k < (o.layer_drop ? 8 : 1); ++k) r.step();
  return count.stop();
}

}  // namespace

TEST_CASE("a warm training step allocates nothing on any rank") {
  for (const MeshShape shape : {MeshShape{}, MeshShape{.dp = 2}, MeshShape{.tp = 2},
                                MeshShape{.pp = 2, .dp = 2, .tp = 2}, MeshShape{.pp = 2, .tp = 4}})
    for (const bool sequence_parallel : {false, true})
      for (const char* schedule : {"1f1b", "zb-h1"})
        for (const Recompute how : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          if (shape.tp == 1 && sequence_parallel) continue;
          INFO("tp " << shape.tp << " pp " << shape.pp << " dp " << shape.dp << " sequence parallel "
                     << sequence_parallel << ' ' << schedule << " recompute " << static_cast<int>(how));
          EngineOptions o;
          o.schedule = schedule;
          o.sequence_parallel = sequence_parallel;
          o.recompute = how;
          for (int rank = 0; rank < shape.world(); ++rank) CHECK(warm_step(o, shape, rank) == 0);
        }
}

TEST_CASE("a warm step with dropout, any optimizer, announced shapes, chunks and any ZeRO stage allocates nothing") {
  for (const std::string& optimizer : optimizer_names())
    for (const int stage : {0, 1, 2, 3}) {
      INFO(optimizer << " zero " << stage);
      EngineOptions o;
      o.optim.type = optimizer;
      o.zero.stage = stage;
      o.schedule = "interleaved";
      o.vpp = 2;
      o.dynamic_shapes = true;
      o.sequence_parallel = true;
      o.model.dropout = o.model.attn_dropout = 0.1;
      const MeshShape shape{.pp = 2, .dp = 2, .tp = 2};
      for (int rank = 0; rank < shape.world(); ++rank) CHECK(warm_step(o, shape, rank) == 0);
    }
}

TEST_CASE("a warm step of mixed precision allocates nothing, at any level, stochastically rounded or quantized") {
  for (const int level : {1, 2, 3})
    for (const DType type : {DType::kBF16, DType::kF16})
      for (const int stage : {0, 1, 2, 3})
        for (const char* optimizer : {"adamw", "lamb"}) {
          INFO("O" << level << ' ' << name_of(type) << " zero " << stage << ' ' << optimizer);
          EngineOptions o;
          o.precision = {.level = level, .compute_dtype = type, .keep_norm = level < 3, .masters = level < 3};
          if (level == 3 && type == DType::kBF16) o.optim.rounding_seed = 7;
          if (level == 2) o.zero.reduce = type;
          if (level == 2 && stage % 2 == 0) o.precision.int8 = true;
          if (level == 2 && stage % 2 == 1) o.precision.fp8 = Fp8Recipe::kDelayed;
          if (type == DType::kF16) o.loss_scale = {.dynamic = true};
          if ((level + stage) % 2 == 0) o.zero.grad = DType::kBF16;
          o.optim.type = optimizer;
          o.zero.stage = stage;
          o.zero.persist_numel = 0;
          o.sequence_parallel = true;
          o.model.dropout = 0.1;
          o.recompute = stage == 2 ? Recompute::kFull : Recompute::kSelective;
          const MeshShape shape{.pp = 2, .dp = 2, .tp = 2};
          for (int rank = 0; rank < shape.world(); ++rank) CHECK(warm_step(o, shape, rank) == 0);
        }
}

TEST_CASE("a warm step of progressive layer drop allocates nothing, whichever layers it drops") {
  for (const int stage : {0, 1, 2, 3})
    for (const char* schedule : {"1f1b", "zb-h1", "interleaved"}) {
      INFO(schedule << " zero " << stage);
      EngineOptions o;
      o.layer_drop = {true, 0.1, 5};
      o.zero.stage = stage;
      o.zero.persist_numel = 0;
      o.zero.prefetch = 2;
      o.schedule = schedule;
      if (o.schedule == "interleaved") o.vpp = 2;
      o.sequence_parallel = true;
      const MeshShape shape{.pp = 2, .dp = 2, .tp = 2};
      for (int rank = 0; rank < shape.world(); ++rank) CHECK(warm_step(o, shape, rank) == 0);
    }
}
