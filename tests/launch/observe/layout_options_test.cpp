// One description of a layout: what the config holds is what the engine, its dry run and the planner's closed forms
// read.
#include "kernels/core/check.h"
#include "launch/engine/engine_options.h"
#include "launch/tools/plan/memory_model.h"
#include "launch/tools/plan/search.h"
#include "parallel/pipeline/simulate.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

Config config_of(std::vector<std::string> more) {
  std::vector<std::string> flags{"--model.layers",      "12", "--model.hidden", "64",  "--model.heads",        "4",
                                 "--model.seq",         "32", "--model.vocab",  "128", "--train.global_batch", "16",
                                 "--train.micro_batch", "1",  "--pp",           "4"};
  flags.insert(flags.end(), more.begin(), more.end());
  return load_config({.flags = flags}).config;
}

}  // namespace

TEST_CASE("engine and closed forms hold the layout options of the config, whichever are set") {
  const std::vector<std::vector<std::string>> settings = {
      {},
      {"--parallel.extra_in_flight", "3"},
      {"--parallel.schedule", "interleaved", "--parallel.vpp", "2", "--parallel.recompute", "full"},
      {"--parallel.recompute", "full", "--parallel.recompute_layers", "2", "--parallel.dynamic_shapes"},
      {"--parallel.partition", "uniform", "--parallel.schedule", "zb-h1"}};
  for (const std::vector<std::string>& s : settings) {
    const Config c = config_of(s);
    const LayoutOptions& expected = c.parallel;
    CHECK((expected == LayoutOptions{}) == s.empty());
    CHECK(static_cast<const LayoutOptions&>(engine_options(c, 1)) == expected);
    CHECK(static_cast<const LayoutOptions&>(workload_of(c)) == expected);
  }
}

TEST_CASE("the closed form counts the microbatches in flight that the engine's dry run holds") {
  for (const char* extra : {"0", "1", "3", "9"}) {
    const Config c = config_of({"--parallel.extra_in_flight", extra});
    const MemoryTerms plain = stage_memory(workload_of(config_of({"--train.global_batch", "1"})), 0);
    const PipelineSchedule s = train_schedule(engine_options(c, 1), 4);
    for (int stage = 0; stage < 4; ++stage) {
      const double held = stage_memory(workload_of(c), stage).activations / plain.activations;
      CHECK(held == Approx(simulate(s).peak_in_flight[static_cast<size_t>(stage)]));
    }
  }
}

TEST_CASE("a layout drops the options that its schedule does not have") {
  LayoutOptions o;
  o.extra_in_flight = 2;
  LayoutOptions alone = o, other = o;
  o.settle(2), alone.settle(1);
  other.schedule = "gpipe", other.settle(2);
  CHECK(o.extra_in_flight == 2);
  CHECK(alone.extra_in_flight == 0);
  CHECK(other.extra_in_flight == 0);
}
