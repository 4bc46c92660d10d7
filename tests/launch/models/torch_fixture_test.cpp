// Same weights and tokens in PyTorch and here: loss, every gradient, ten AdamW steps (tests/golden/make_torch_gpt2.py).
#include "tests/launch/models/torch_fixture.h"

#include "tests/support/test.h"

using namespace gt;

TEST_CASE("loss, gradients and ten AdamW steps equal PyTorch's GPT-2") {
  const TorchFixture f = read_torch_fixture("torch_gpt2.safetensors");
  const Logical weights = f.with_prefix("weight/"), grads = f.with_prefix("grad/");
  for (const MeshShape mesh :
       {MeshShape{}, MeshShape{.pp = 2, .dp = 1, .tp = 2}, MeshShape{.pp = 1, .dp = 4, .tp = 1}}) {
    INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
    const MeshResult r = run_mesh(torch_fixture_run(f, weights, mesh));
    CHECK(r.losses[0] == Approx(f.f32.at("loss")[0]).epsilon(1e-5));
    REQUIRE(r.grads.size() == grads.size());
    for (const auto& [name, expected] : grads) {
      INFO(name);
      CHECK(relative_error(r.grads.at(name), expected) <= 1e-4);
    }
    for (size_t k = 0; k < 10; ++k) {
      INFO("step " << k);
      CHECK(r.losses[k] == Approx(f.f32.at("adamw/losses")[k]).epsilon(1e-4));
      CHECK(r.norms[k] == Approx(f.f32.at("adamw/norms")[k]).epsilon(1e-4));
    }
    CHECK(relative_error(r.weights.at("embed.weight"), f.f32.at("adamw/weight/embed.weight")) <= 1e-4);
    CHECK(relative_error(r.weights.at("layers.1.attn.qkv.weight"), f.f32.at("adamw/weight/layers.1.attn.qkv.weight")) <=
          1e-4);
  }
}

TEST_CASE("loss and gradients of grouped queries equal PyTorch's, heads whole, split and shared") {
  const TorchFixture f = read_torch_fixture("torch_gpt2_grouped.safetensors");
  const Logical weights = f.with_prefix("weight/"), grads = f.with_prefix("grad/");
  for (const MeshShape mesh : {MeshShape{}, MeshShape{.tp = 2}, MeshShape{.tp = 4, .kv_ranks = 2}}) {
    INFO("tp " << mesh.tp);
    MeshRun run = torch_fixture_run(f, weights, mesh);
    run.engine.model.layers = 1;
    run.engine.model.kv_heads = 2;
    run.steps = 1;
    const MeshResult r = run_mesh(run);
    CHECK(r.losses[0] == Approx(f.f32.at("loss")[0]).epsilon(1e-6));
    REQUIRE(r.grads.size() == grads.size());
    for (const auto& [name, expected] : grads) {
      INFO(name);
      CHECK(relative_error(r.grads.at(name), expected) <= 1e-5);
    }
  }
}
