// configs/llmc-124m.json compared with llm.c under the flags that the file names.
#include "launch/config/config.h"

#include <cmath>

#include "launch/config/config_optim.h"
#include "launch/engine/engine_options.h"
#include "optim/lr_schedule.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// llm.c, llmc/schedulers.h: learning rate of step 0, 1, … with -l 0.0006 -u 700 -q 0 -x 20000.
double llmc_rate(int64_t step) {
  const auto x = static_cast<double>(step);
  return step < 700 ? 6e-4 * (x + 1) / 700 : 6e-4 * 0.5 * (1 + std::cos(M_PI * (x - 700) / (20000 - 700)));
}

}  // namespace

TEST_CASE("the config for llm.c has its weights, order and updates") {
  const Config c = load_config({.file = source_dir() + "/configs/llmc-124m.json"}).config;
  const EngineOptions o = engine_options(c, 1);
  CHECK(o.torch_init);
  CHECK(c.data.order == SampleOrder::kLlmcShuffled);
  CHECK((c.train.micro_batch * c.model.seq == 65536 && c.train.grad_accum == 1));
  CHECK((o.optim.type == "adamw" && o.optim.beta1 == 0.9f && o.optim.beta2 == 0.95f && o.optim.eps == 1e-8f));
  CHECK((o.optim.weight_decay == 0.1f && o.grad_clip == 1 && o.no_decay.empty()));
}

TEST_CASE("learning rates are llm.c's in the warm-up, and one step ahead of its cosine after it") {
  const Config c = load_config({.file = source_dir() + "/configs/llmc-124m.json"}).config;
  const auto ours = make_lr_schedule(lr_options(c));
  for (const int64_t step : {0, 1, 350, 699}) CHECK(ours->at(step + 1).lr == Approx(llmc_rate(step)).epsilon(1e-9));
  for (const int64_t step : {700, 701, 10000, 19998}) {
    CHECK(ours->at(step + 1).lr == Approx(llmc_rate(step + 1)).epsilon(1e-9));
    CHECK(std::fabs(ours->at(step + 1).lr - llmc_rate(step)) < 6e-4 * M_PI / 2 / 19300 * 1.0001);
  }
}
