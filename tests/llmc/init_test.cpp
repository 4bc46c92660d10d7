// model.init torch42: PyTorch's initial values in every layout.
#include "launch/engine/torch_init.h"
#include "launch/tools/verify/mesh_run.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// PyTorch's own kernels use other polynomials for logarithms and cosines.
void expect_close(const std::vector<float>& found, size_t at, const std::vector<double>& expected) {
  for (size_t k = 0; k < expected.size(); ++k) {
    INFO("number " << at + k);
    CHECK(found[at + k] == Approx(expected[k]).epsilon(2e-6).margin(1e-8));
  }
}

}  // namespace

TEST_CASE("normal numbers equal torch.empty(n).normal_() after torch.manual_seed(42)") {
  std::mt19937 random(42);
  const std::vector<float> odd = torch_normals(random, 37, 0.02f);  // the last 16 are redrawn
  expect_close(odd, 0, {0.0385383032, 0.0297456812, 0.0180143435, -0.042110417, 0.0135683687, -0.0246908963});
  expect_close(odd, 8, {-0.0150427055, 0.0329744592, -0.00784957316, -0.0280721411});
  expect_close(odd, 31, {-0.00975827686, -0.0283611976, 0.0179253649, 0.000998107716, 0.0453343578, 0.0235790182});
  expect_close(torch_normals(random, 16, 0.5f), 0, {0.595684528, -0.40700382, -0.367996395, -0.418562323});
}

TEST_CASE("GPT-2 124M starts with llm.c's initial weights") {
  std::mt19937 random(42);
  const std::vector<float> wte = torch_normals(random, 50257 * 768, 0.02f);
  expect_close(wte, 0, {0.0385383032, 0.0297456812, 0.0180143435, -0.042110417});
  expect_close(wte, wte.size() - 2, {-0.00590889435, 0.00170378527});
  expect_close(torch_normals(random, 1024 * 768, 0.02f), 0, {-0.00916234218, -0.0186147708});
  expect_close(torch_normals(random, 2304 * 768, 0.02f), 0, {-0.0045566773, 0.00723999506});
  expect_close(torch_normals(random, 768 * 768, 0.02f / std::sqrt(24.f)), 0, {0.00113274343, 0.00542639615});
}

TEST_CASE("torch42 is one stream through the model, from which every layout takes its shards") {
  MeshRun run;
  run.engine.model = {.layers = 3, .hidden = 24, .heads = 4, .ffn = 40, .vocab = 61, .seq = 10};  // 61 * 24 % 16 = 8
  run.engine.torch_init = true;
  run.engine.lr = {.type = "constant", .peak = 1e-3};
  run.global_batch = 4;
  run.every_step = true;
  run.samples = synthetic_samples(8, 10, 61, 3);
  const MeshResult one = run_mesh(run);
  std::mt19937 random(42);
  const auto expect = [&](const std::string& name, int64_t count, float std) {
    INFO(name);
    CHECK(one.initial.at(name) == torch_normals(random, count, std));
  };
  expect("embed.weight", 61 * 24, 0.02f);
  expect("pos_embed.weight", 10 * 24, 0.02f);
  const float out = 0.02f * (1.f / std::sqrt(6.f));
  for (int k = 0; k < 3; ++k) {
    const std::string layer = "layers." + std::to_string(k) + ".";
    expect(layer + "attn.qkv.weight", 72 * 24, 0.02f);
    expect(layer + "attn.out.weight", 24 * 24, out);
    expect(layer + "mlp.up.weight", 40 * 24, 0.02f);
    expect(layer + "mlp.down.weight", 24 * 40, out);
  }
  CHECK(one.initial.at("layers.0.norm1.weight") == std::vector<float>(24, 1.f));
  CHECK(one.initial.at("layers.2.mlp.up.bias") == std::vector<float>(40, 0.f));
  for (const MeshShape mesh : {MeshShape{.pp = 1, .dp = 1, .tp = 4}, MeshShape{.pp = 3, .dp = 1, .tp = 1},
                               MeshShape{.pp = 2, .dp = 2, .tp = 2}})
    for (const int stage : {0, 3}) {
      if (stage == 3 && mesh.dp == 1) continue;
      INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp << " zero " << stage);
      run.mesh = mesh;
      run.engine.zero.stage = stage;
      const MeshResult r = run_mesh(run);
      CHECK(r.initial == one.initial);
      CHECK(r.stale.empty());
      CHECK(r.losses[0] == Approx(one.losses[0]).epsilon(1e-5));
    }
}

TEST_CASE("torch42 refuses a model that llm.c does not have, with the reason") {
  TempDir dir;
  const Outcome untied = gpttrain("--model.init torch42 --model.tied false --data.train mock --dry-run", dir.path());
  CHECK(untied.code == 2);
  CHECK(untied.prints("model.init: torch42 supports tied weights only"));
  const Outcome other = gpttrain("--model.init torch --data.train mock --dry-run", dir.path());
  CHECK(other.code == 2);
  CHECK(other.prints("torch42"));
}
