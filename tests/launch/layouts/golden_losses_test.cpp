// Twenty steps of a tiny GPT-2 with every optimizer, against losses from PyTorch and plain equations
// (tests/golden/make_gpt_losses.py), on one rank and on several.
#include <fstream>
#include <sstream>

#include "kernels/core/enum_names.h"
#include "tests/launch/models/torch_fixture.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// Options of the script that made the golden losses.
EngineOptions options_of(std::string name) {
  EngineOptions o;
  const bool grouped = name.ends_with("_groups");
  if (grouped) name.resize(name.size() - 7);
  o.grad_clip = 1;
  OptimizerOptions adam{.type = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
  o.optim = adam;
  o.lr = {.type = "constant", .peak = 3e-3};
  if (name == "adam") o.optim.type = "adam", o.optim.weight_decay = 0.01f;
  if (name == "sgd") {
    o.optim = {.type = "sgd", .weight_decay = 0.01f, .momentum = 0.9f, .nesterov = true};
    o.lr.peak = 0.1;
  }
  if (grouped) {
    o.optim.groups = {{.match = "embed", .lr_scale = 0.1, .weight_decay = 0.0f},
                      {.match = "mlp", .weight_decay = 0.3f, .betas = {{0.8f, 0.99f}}}};
    if (name == "sgd") o.optim.groups[1].betas.reset();
  }
  if (name == "adagrad") {
    o.optim = {.type = "adagrad", .eps = 1e-10f, .weight_decay = 0.01f};
    o.lr.peak = 1e-2;
  }
  if (name == "lion") {
    o.optim = {.type = "lion", .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f};
    o.lr.peak = 3e-4;
  }
  if (name.rfind("muon", 0) == 0) {
    o.optim.type = "muon";
    o.optim.momentum = 0.95f;
    o.optim.nesterov = name == "muon";
    o.optim.muon_scale = name == "muon" ? MuonScale::kAdamW : MuonScale::kOriginal;
  }
  if (name.rfind("lamb_", 0) == 0) {
    o.optim.type = "lamb";
    o.optim.lamb_variant = value_named<LambVariant>(name.substr(5)).value();
    o.optim.eps = 1e-6f;
    o.lr.peak = 1e-2;
    if (name == "lamb_apex") o.clip_slack = 0;
  }
  return o;
}

}  // namespace

TEST_CASE("twenty losses under every optimizer equal the golden ones, in every kind of layout") {
  const TorchFixture f = read_torch_fixture("torch_gpt2.safetensors");
  const Logical weights = f.with_prefix("weight/");
  std::ifstream in(source_dir() + "/tests/golden/gpt_losses.txt");
  int curves = 0;
  for (std::string line; std::getline(in, line); ++curves) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<double> golden;
    for (double x; words >> x;) golden.push_back(x);
    REQUIRE(golden.size() == 20);
    CHECK(golden.back() < golden.front());
    for (const MeshShape mesh : {MeshShape{}, MeshShape{.pp = 2, .dp = 2, .tp = 2}}) {
      INFO(name << " tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
      MeshRun run = torch_fixture_run(f, weights, mesh);
      const EngineOptions o = options_of(name);
      run.engine.optim = o.optim;
      run.engine.lr = o.lr;
      run.engine.clip_slack = o.clip_slack;
      run.engine.zero.stage = mesh.dp > 1 ? 2 : 0;
      run.steps = 20;
      const MeshResult r = run_mesh(run);
      REQUIRE(r.losses.size() == golden.size());
      for (size_t k = 0; k < golden.size(); ++k) {
        INFO("step " << k + 1);
        CHECK(r.losses[k] == Approx(golden[k]).epsilon(2e-5));
      }
    }
  }
  CHECK(curves == 13);
}
