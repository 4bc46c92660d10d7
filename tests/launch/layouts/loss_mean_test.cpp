// Normalization of a step's loss: mean over all unmasked tokens of the global batch, or mean of microbatch means; and
// masked targets.
#include <cmath>

#include "data/tokens/token_file.h"
#include "data/tokens/token_meta.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// The first tokens of a sample determine how many of its targets are masked: microbatches of 3 to 16 tokens, or of
// none.
int64_t masked(const MicroBatch& mb) { return mb.tokens.as<int32_t>()[1] % 17; }

MeshHooks masking() {
  MeshHooks hooks;
  hooks.batch = [](const Mesh&, MicroBatch& mb) {
    auto* t = mb.targets.as<int32_t>();
    const int64_t n = masked(mb);
    for (int64_t i = 0; i < n; ++i) t[i] = -1;
    mb.loss_tokens = mb.seq - n;
  };
  return hooks;
}

MeshRun masked_run(MeshShape mesh, const MeshHooks& hooks, int steps = 3) {
  MeshRun run;
  run.engine.model = {.layers = 2, .hidden = 16, .heads = 4, .ffn = 40, .vocab = 60, .seq = 16};
  run.engine.lr = {.type = "constant", .peak = 3e-3};
  run.engine.mean_of_microbatches = true;
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = steps;
  run.evaluate = true;
  run.samples = synthetic_samples(24, 16, 60, 9);
  for (size_t k = 0; k < run.samples.size(); ++k) run.samples[k][1] = static_cast<int32_t>((5 * k + 3) % 34);
  run.hooks = &hooks;
  return run;
}

}  // namespace

TEST_CASE("the mean of microbatches' means has their mean gradient") {
  const MeshHooks hooks = masking();
  const MeshRun run = masked_run({}, hooks, 1);
  const MeshResult all = run_mesh(run);
  double loss = 0;
  Logical grads;
  int without = 0;
  for (int k = 0; k < 8; ++k) {
    MeshRun one = run;
    one.global_batch = 1;
    one.samples = {run.samples[static_cast<size_t>(k)]};
    const MeshResult r = run_mesh(one);
    CHECK(std::isfinite(r.losses[0]));
    without += r.losses[0] == 0;
    loss += r.losses[0] / 8;
    for (const auto& [name, g] : r.grads) {
      auto& sum = grads.try_emplace(name, g.size()).first->second;
      for (size_t i = 0; i < g.size(); ++i) sum[i] += g[i] / 8;
    }
  }
  CHECK(without == 1);
  CHECK(all.losses[0] == Approx(loss).epsilon(1e-6));
  const auto [name, error] = worst_error(all.grads, grads);
  INFO(name);
  CHECK(error <= 1e-5);
  // The other mean differs if microbatches differ in length.
  MeshRun tokens = run;
  tokens.engine.mean_of_microbatches = false;
  CHECK(std::abs(run_mesh(tokens).losses[0] - loss) > 1e-3);
}

TEST_CASE("the mean of microbatches' means does not depend on the layout, nor on the loss scale") {
  const MeshHooks hooks = masking();
  const MeshResult one = run_mesh(masked_run({}, hooks));
  for (const MeshShape mesh : {MeshShape{.dp = 2}, MeshShape{.dp = 4}, MeshShape{.tp = 2}, MeshShape{.pp = 2},
                               MeshShape{.pp = 2, .dp = 2, .tp = 2}}) {
    INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
    const MeshResult r = run_mesh(masked_run(mesh, hooks));
    check_close(r, one);
    check_planned(r, 3);
  }
  MeshRun scaled = masked_run({.dp = 2}, hooks);
  scaled.engine.loss_scale.dynamic = false;
  scaled.engine.loss_scale.init = 1024;
  const MeshResult plain = run_mesh(masked_run({.dp = 2}, hooks)), large = run_mesh(scaled);
  CHECK(large.losses == plain.losses);
  CHECK(large.norms == plain.norms);
  CHECK(large.weights == plain.weights);
}

TEST_CASE("the ends of documents carry no loss when so configured, under every layout") {
  TempDir dir;
  {
    TokenFileWriter writer(dir / "docs", TokenType::kU16);
    uint32_t random = 1;
    for (int d = 0; d < 300; ++d) {
      std::vector<int32_t> document;
      random = random * 1664525 + 1013904223;
      for (uint32_t i = 0; i < 2 + random % 13; ++i)
        document.push_back(static_cast<int32_t>(((random >> 7) + 3 * i) % 60));
      document.push_back(61);
      writer.add(document);
    }
    writer.finish();
  }
  const std::string model =
      "train --model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 62 --model.seq 16 --data.train docs "
      "--train.micro_batch 1 --train.global_batch 8 --train.steps 3 --schedule.type constant --device.kind cpu "
      "--train.eval_every 3 --train.eval_steps 2 --log.tensorboard false --launch.ranks threads ";
  const auto losses = [&](const std::string& name, const std::string& flags) {
    const Outcome o = gpttrain(model + "--log.name " + name + " " + flags, dir.path());
    INFO(o.out);
    REQUIRE(o.code == 0);
    std::vector<double> out = logged(dir / ("runs/" + name), "loss");
    out.push_back(logged(dir / ("runs/" + name), "loss", "eval").at(0));
    return out;
  };
  const Outcome unknown = gpttrain(model + "--data.eod_mask_loss true", dir.path());
  CHECK(unknown.code == 2);
  CHECK(unknown.prints("the end-of-document token is unknown"));
  TokenMeta meta;
  meta.vocab = 62;
  meta.eod = 61;
  write_token_meta(dir / "docs.meta.json", meta);
  const std::vector<double> all = losses("all", "");
  for (const std::string mean : {"token", "microbatch"}) {
    const std::string flags = "--data.eod_mask_loss true --train.loss_mean " + mean + " ";
    const std::vector<double> expected = losses(mean, flags);
    CHECK(std::abs(expected[0] - all[0]) > 1e-4);
    int k = 0;
    for (const char* layout : {"--dp 2", "--tp 2 --pp 2 --dp 2", "--pp 2 --zero 2"}) {
      INFO(mean << " " << layout);
      const std::vector<double> got = losses(mean + std::to_string(k++), flags + layout);
      REQUIRE(got.size() == expected.size());
      CHECK(got[0] == Approx(expected[0]).epsilon(1e-6));
      for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("a global batch without a target is reported once, and the run continues") {
  TempDir dir;
  {
    TokenFileWriter writer(dir / "ends", TokenType::kU16);
    for (int d = 0; d < 100; ++d) writer.add(std::vector<int32_t>{61});
    writer.finish();
  }
  TokenMeta meta;
  meta.vocab = 62;
  meta.eod = 61;
  write_token_meta(dir / "ends.meta.json", meta);
  const Outcome r = must(
      "--model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 62 --model.seq 16 --data.train ends "
      "--data.eod_mask_loss true --train.micro_batch 1 --train.global_batch 2 --train.steps 3 --schedule.type constant "
      "--device.kind cpu --log.tensorboard false --checkpoint.every 0 --log.name x",
      dir);
  int warnings = 0;
  for (size_t at = 0; (at = r.out.find("a global batch has no unmasked target", at)) != std::string::npos; ++at)
    ++warnings;
  INFO(r.out);
  CHECK(warnings == 2);  // at its first occurrence, and with a count in the end block
  for (const char* key : {"loss", "grad_norm"}) CHECK(logged(dir / "runs/x", key) == std::vector<double>{0, 0, 0});
}
