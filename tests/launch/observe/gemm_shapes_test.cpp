// Number of distinct GEMM shapes of a model: cuBLASLt needs a plan, and with device.gemm_tune a timing, for each
// (kernels/cuda/gemm/gemm_lt.cpp). Recorded on the null table, so a change that makes a GEMM's shape depend on the
// microbatch or layer is detected without a GPU.
#include "launch/engine/gemm_shapes.h"

#include <algorithm>
#include <filesystem>

#include "launch/engine/engine_options.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("a model has at most 40 GEMM shapes, for any depth and number of microbatches") {
  size_t most = 0;
  for (const auto& file : std::filesystem::directory_iterator(source_dir() + "/configs")) {
    if (file.path().extension() != ".json") continue;
    if (kSanitized && std::filesystem::path(file).stem() != "demo") continue;  // the others need more address space
    for (const char* precision : {"O0", "O1", "O2"})
      for (MeshShape shape : {MeshShape{}, MeshShape{.pp = 2}, MeshShape{.tp = 2}}) {
        LoadedConfig loaded = load_config({.file = file.path().string(), .flags = {"--precision.amp", precision}});
        if (loaded.config.model.heads % shape.tp != 0) continue;
        shape.kv_ranks = loaded.config.model.kv_ranks(shape.tp);
        EngineOptions o = engine_options(loaded.config, 1);
        o.microbatches = 3;
        // At least 4: the last block of a stage is not its only one.
        o.model.layers = std::clamp<int64_t>(o.model.layers, 4, goal_size(12, 1000));
        for (int rank = 0; rank < shape.world(); ++rank) {
          INFO(file.path() << ", " << precision << ", tp " << shape.tp << " pp " << shape.pp << ", rank " << rank);
          const size_t kinds = gemm_shapes(o, shape, rank).size();
          CHECK(kinds >= 12);
          CHECK(kinds <= 40);
          most = std::max(most, kinds);
          o.model.layers += 2;
          CHECK(gemm_shapes(o, shape, rank).size() == kinds);
          o.model.layers -= 2;
        }
      }
  }
  print_figure("gemms", cat("at most ", most, " kinds of products"));
}

TEST_CASE("every GEMM shape has both operands, also with FP8 weights") {
  for (const char* fp8 : {"current", "delayed"})
    for (const char* zero : {"1", "3"}) {
      const std::vector<std::string> flags{"--precision.amp", "O2", "--precision.fp8", fp8,
                                           "--parallel.dp",   "2",  "--zero.stage",    zero};
      const LoadedConfig loaded = load_config({.file = source_dir() + "/configs/tiny.json", .flags = flags});
      size_t of_8_bits = 0;
      for (const GemmShape& k : gemm_shapes(engine_options(loaded.config, 1), {.dp = 2}, 0)) {
        CHECK((k.a.there == 1 && k.b.there == 1 && k.out.there == 1));
        of_8_bits += k.fp8;
      }
      CHECK(of_8_bits > 0);
    }
}
