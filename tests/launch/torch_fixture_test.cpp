// The same weights and tokens in PyTorch and here: loss, every gradient, ten AdamW steps
// (tests/golden/make_torch_gpt2.py).
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "launch/verify/mesh_run.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct Fixture {
  Logical f32;
  std::vector<std::vector<int32_t>> samples;
};

Fixture read_fixture(const std::string& name) {
  std::ifstream in(source_dir() + "/tests/golden/" + name, std::ios::binary);
  REQUIRE(in.good());
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string text(length, ' ');
  in.read(text.data(), static_cast<std::streamsize>(length));
  const std::string data((std::istreambuf_iterator<char>(in)), {});
  Fixture f;
  const auto header = nlohmann::json::parse(text);
  for (const auto& [name, t] : header.items()) {
    const size_t begin = t["data_offsets"][0], end = t["data_offsets"][1];
    if (t["dtype"] == "F32") {
      auto& out = f.f32[name];
      out.resize((end - begin) / 4);
      std::memcpy(out.data(), data.data() + begin, end - begin);
    } else {
      const size_t width = t["shape"][2];
      for (size_t at = begin; at < end; at += 4 * width) {
        f.samples.emplace_back(width);
        std::memcpy(f.samples.back().data(), data.data() + at, 4 * width);
      }
    }
  }
  return f;
}

Logical with_prefix(const Fixture& f, const std::string& prefix) {
  Logical out;
  for (const auto& [name, values] : f.f32)
    if (name.rfind(prefix, 0) == 0) out[name.substr(prefix.size())] = values;
  return out;
}

MeshRun fixture_run(const Fixture& f, const Logical& weights, MeshShape mesh) {
  MeshRun run;
  run.engine.model = {.layers = 3, .hidden = 32, .heads = 4, .ffn = 128, .vocab = 61, .seq = 16};
  run.engine.micro_batch = 1;
  run.engine.optim = {.type = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
  run.engine.lr = {.type = "constant", .peak = 1e-2};
  run.engine.grad_clip = 1;
  run.global_batch = 4;
  run.steps = 10;
  run.mesh = mesh;
  run.samples = f.samples;
  run.weights = &weights;
  return run;
}

}  // namespace

TEST_CASE("loss, gradients and ten AdamW steps equal PyTorch's GPT-2") {
  const Fixture f = read_fixture("torch_gpt2.safetensors");
  const Logical weights = with_prefix(f, "weight/"), grads = with_prefix(f, "grad/");
  for (const MeshShape mesh :
       {MeshShape{}, MeshShape{.pp = 2, .dp = 1, .tp = 2}, MeshShape{.pp = 1, .dp = 4, .tp = 1}}) {
    INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
    const MeshResult r = run_mesh(fixture_run(f, weights, mesh));
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
  const Fixture f = read_fixture("torch_gpt2_grouped.safetensors");
  const Logical weights = with_prefix(f, "weight/"), grads = with_prefix(f, "grad/");
  for (const MeshShape mesh : {MeshShape{}, MeshShape{.tp = 2}, MeshShape{.tp = 4, .kv_ranks = 2}}) {
    INFO("tp " << mesh.tp);
    MeshRun run = fixture_run(f, weights, mesh);
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
