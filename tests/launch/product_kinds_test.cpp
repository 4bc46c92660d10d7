// How many kinds of matrix products a model has: cuBLASLt needs a plan, and with device.gemm_tune a timing, for each
// (kernels/cuda/gemm_lt.cpp). Recorded on the null table, so a change that makes a product's shape depend on the
// microbatch or the layer is seen without a GPU.
#include <bit>
#include <filesystem>
#include <set>
#include <tuple>

#include "launch/train/engine_options.h"
#include "parallel/comm/null_group.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// All that a plan depends on: sizes, orientations, types, epilogue, how far the addresses are aligned.
using Kind = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, Epilogue, DType, DType, int, int, int, int, int>;

int alignment(const Tensor& t) { return 1 << std::min(4, std::countr_zero(reinterpret_cast<uintptr_t>(t.data) | 16)); }

struct Kinds {
  static inline std::set<Kind> found;
  template <class A>
  static void before(const char*, const A& a) {
    if constexpr (std::is_same_v<A, Gemm>) {
      const Gemm& g = a;
      const bool ta = g.trans_a;
      found.insert({ta ? g.a.shape.cols() : g.a.shape.rows(), g.out.shape.cols(),
                    ta ? g.a.shape.rows() : g.a.shape.cols(), ta, g.trans_b, g.accumulate, g.epilogue, g.a.dtype,
                    g.out.dtype, g.bias ? static_cast<int>(g.bias.dtype) : -1, alignment(g.a), alignment(g.b),
                    alignment(g.out), g.aux ? alignment(g.aux) : 0});
    }
  }
};

// Of two steps and an evaluation of one rank.
size_t kinds_of(const EngineOptions& o, const MeshShape& shape, int rank) {
  Kinds::found.clear();
  Backend backend = null_backend();
  backend.ops = &decorate<Kinds>(*null_backend().ops);
  NullFactory factory(rank, shape.world());
  const Mesh mesh(shape, factory);
  const Stream stream{{backend.kind, 0}, nullptr};
  Engine engine(o, mesh, backend, stream, plan_memory(o, shape, rank));
  const Buffer tokens(o.micro_batch * o.model.seq * 4, stream.device, *backend.device);
  MicroBatch mb;
  mb.batch = o.micro_batch;
  mb.seq = o.model.seq;
  mb.tokens = mb.targets = tokens.tensor({mb.batch, mb.seq}, DType::kI32);
  const std::vector<MicroBatch> batch(static_cast<size_t>(o.microbatches), mb);
  for (int step = 0; step < 2; ++step) engine.step(batch, 1);
  if (o.evaluates) engine.evaluate(batch);
  return Kinds::found.size();
}

}  // namespace

TEST_CASE("a model has at most 40 kinds of products, whatever its depth and its microbatches", "[PN6]") {
  size_t most = 0;
  for (const auto& file : std::filesystem::directory_iterator(source_dir() + "/configs")) {
    if (file.path().extension() != ".json") continue;
    for (const char* precision : {"O0", "O1", "O2"})
      for (const MeshShape& shape : {MeshShape{}, MeshShape{.pp = 2}, MeshShape{.tp = 2}}) {
        LoadedConfig loaded = load_config({.file = file.path().string(), .flags = {"--precision.amp", precision}});
        if (loaded.config.model.heads % shape.tp != 0) continue;
        EngineOptions o = engine_options(loaded.config, 1);
        o.microbatches = 3;
        for (int rank = 0; rank < shape.world(); ++rank) {
          INFO(file.path() << ", " << precision << ", tp " << shape.tp << " pp " << shape.pp << ", rank " << rank);
          const size_t kinds = kinds_of(o, shape, rank);
          CHECK(kinds >= 12);
          CHECK(kinds <= 40);
          most = std::max(most, kinds);
          o.model.layers += 2;
          CHECK(kinds_of(o, shape, rank) == kinds);
          o.model.layers -= 2;
        }
      }
  }
  print_figure("PN6", cat("at most ", most, " kinds of products"));
}
