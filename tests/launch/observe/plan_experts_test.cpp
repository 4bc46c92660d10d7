// The planner's closed forms for routed layers, against those of dense ones and the memory of the engine's own plan.
#include <set>

#include "launch/engine/engine_options.h"
#include "launch/tools/plan/memory_model.h"
#include "launch/tools/plan/search.h"
#include "launch/tools/plan/step_model.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("plan: routed layers hold all experts of a rank, compute those of each token, and exchange tokens over ep") {
  const auto config = [](std::vector<std::string> more) {
    std::vector<std::string> flags{
        "--model.arch",         "mixtral", "--model.layers", "4",   "--model.hidden", "256", "--model.heads",       "8",
        "--model.kv_heads",     "8",       "--model.vocab",  "512", "--model.seq",    "128", "--train.micro_batch", "2",
        "--train.global_batch", "16",      "--device.kind",  "cpu"};
    flags.insert(flags.end(), more.begin(), more.end());
    return load_config({.flags = flags}).config;
  };
  MachineModel m;
  m.host = m.gemm_half = 0;
  const auto terms = [&](const Config& c) { return step_terms(workload_of(c), m); };
  const Config routed = config({"--model.ffn", "512", "--model.moe_experts", "8", "--dp", "4"});
  Config dense = config({"--model.ffn", "1024", "--dp", "4"});
  dense.model.moe.experts = 0;
  CHECK(terms(routed).linear == Approx(terms(dense).linear));
  CHECK(terms(routed).tensor_parallel == 0);
  Config split = routed;
  split.parallel.ep = 4;
  CHECK(terms(split).linear == Approx(terms(routed).linear));
  const double tokens = 2 * 128, slots = 2;  // of a microbatch and rank
  CHECK(terms(split).tensor_parallel ==
        Approx(4 * 2 * 4 * (m.tp_latency + 3. / 4 * tokens * slots * 256 * 2 / m.link)));
  for (const Config& c : {routed, split}) {
    INFO("ep " << c.parallel.ep);
    const MemoryReport r = plan_memory(engine_options(c, 1), mesh_shape(c), 0).memory;
    const double state = static_cast<double>(r.weights + r.gradients + r.optimizer);
    CHECK(stage_memory(workload_of(c), 0).state == Approx(state).epsilon(0.03));
  }
  SearchSpace space{.devices = 4, .keep = {{"parallel.dp", "4"}}};
  std::set<int64_t> found;
  for (const Candidate& c : search_layouts(routed, space, m, 1e30, 1000)) found.insert(c.config.parallel.ep);
  CHECK(found == std::set<int64_t>{1, 2, 4});
}
