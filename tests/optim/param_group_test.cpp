// Parameter groups: a group's parameters are updated as if its options were the optimizer's, all others as without it.
#include "tests/optim/optimizer_fixture.h"

using namespace gt;

namespace {

OptimizerOptions base(const std::string& type) {
  OptimizerOptions o = options(type.c_str());
  o.momentum = 0.9f;
  return o;
}

void run(OptimizerFixture& rig, float multiplier = 1) {
  for (int64_t t = 1; t <= 20; ++t) rig.step(t, kGrads[t % 3], multiplier);
}

Four values(const Parameter& p) {
  Four out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(p.value.as<float>()[i]);
  return out;
}

}  // namespace

TEST_CASE(
    "a group's parameters are bitwise those of an optimizer with its options, the others those of one without it") {
  for (const std::string& type : optimizer_names()) {
    INFO(type);
    OptimizerOptions grouped = base(type), own = base(type);
    grouped.groups = {
        {.match = "^layer\\.weight$", .lr_scale = 0.25, .weight_decay = 0.5f, .betas = {{0.7f, 0.95f}}},
        {.match = "weight", .lr_scale = 100},  // a parameter belongs to the first group that matches
    };
    own.weight_decay = 0.5f;
    if (type == "muon") own.momentum = 0.7f;
    if (type != "sgd") own.beta1 = 0.7f, own.beta2 = 0.95f;
    OptimizerFixture rig(grouped), alone(own), without(base(type));
    alone.point.lr = rig.point.lr * 0.25;
    for (OptimizerFixture* r : {&rig, &alone, &without}) run(*r, 0.5f);
    CHECK(values(rig.matrix) == values(alone.matrix));
    CHECK(values(rig.bias) == values(without.bias));
    CHECK(values(rig.matrix) != values(without.matrix));
    CHECK(rig.optimizer->state_bytes() == without.optimizer->state_bytes());
  }
}

TEST_CASE("a group's own weight decay applies to one-dimensional parameters, which have none by default") {
  OptimizerOptions decayed = base("adamw"), scaled = base("adamw");
  decayed.groups = {{.match = "bias", .weight_decay = 0.01f}};
  scaled.groups = {{.match = "bias", .lr_scale = 1}};
  OptimizerFixture with(decayed), same(scaled), without(base("adamw"));
  for (OptimizerFixture* r : {&with, &same, &without}) run(*r);
  CHECK(values(with.bias) == values(with.matrix));  // which have the same start and gradients
  CHECK(values(same.bias) == values(without.bias));
  CHECK(values(with.bias) != values(without.bias));
}

TEST_CASE("a skipped step leaves a group unchanged too") {
  for (const std::string& type : optimizer_names()) {
    INFO(type);
    OptimizerOptions o = base(type);
    o.groups = {{.match = "weight", .lr_scale = 2}, {.match = "bias", .weight_decay = 1.0f}};
    OptimizerFixture rig(o);
    rig.step(1, kGrads[0], 1, true);
    CHECK(values(rig.matrix) == kStart);
    CHECK(values(rig.bias) == kStart);
  }
}
