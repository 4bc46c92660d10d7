// Grouped-query attention: fewer KV heads than query heads, sharded over TP ranks or, if there are fewer than ranks,
// replicated on several. Every layout matches one rank. One rank matches a model with a KV head per query head whose
// copies are equal.
#include <filesystem>
#include <functional>

#include "launch/engine/engine_options.h"
#include "launch/tools/verify/report.h"
#include "launch/tools/verify/verifier.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/launch/process.h"
#include "tests/launch/ranks/faults.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int64_t kHidden = 32, kHeads = 8, kHead = kHidden / kHeads;

MeshRun grouped_run(MeshShape mesh, int64_t kv_heads, int steps = 2) {
  MeshRun run;
  run.engine.model = {
      .layers = 4, .hidden = kHidden, .heads = kHeads, .kv_heads = kv_heads, .ffn = 96, .vocab = 300, .seq = 16};
  run.engine.loss_chunk = 16;
  run.engine.optim.weight_decay = 0.1f;
  run.engine.lr = {.type = "cosine", .peak = 3e-3, .min_lr = 1e-4, .warmup_steps = 3, .total_steps = 40};
  mesh.kv_ranks = run.engine.model.kv_ranks(mesh.tp);
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = steps;
  run.evaluate = true;
  run.samples = synthetic_samples(8 * 4, 16, 300, 5);
  return run;
}

MeshRun with(MeshRun run, const std::function<void(EngineOptions&)>& edit) {
  edit(run.engine);
  return run;
}

// Repeats every KV head of [Q; K; V] (rows of `columns`) once for each query head that reads it.
std::vector<float> repeat_heads(const std::vector<float>& grouped, int64_t kv_heads, int64_t columns) {
  const auto head = [&](int64_t i) { return grouped.begin() + i * kHead * columns; };
  std::vector<float> out(grouped.begin(), head(kHeads));
  for (int64_t part = 0; part < 2; ++part)
    for (int64_t i = 0; i < kHeads; ++i) {
      const auto from = head(kHeads + part * kv_heads + i * kv_heads / kHeads);
      out.insert(out.end(), from, from + kHead * columns);
    }
  return out;
}

// Its transpose: sums over the copies.
std::vector<float> add_heads(const std::vector<float>& full, int64_t kv_heads, int64_t columns) {
  const auto size = static_cast<size_t>(kHead * columns);
  std::vector<float> out(full.begin(), full.begin() + kHeads * kHead * columns);
  out.resize(static_cast<size_t>(kHeads + 2 * kv_heads) * size);
  for (int64_t part = 0; part < 2; ++part)
    for (int64_t i = 0; i < kHeads; ++i)
      for (size_t k = 0; k < size; ++k)
        out[static_cast<size_t>(kHeads + part * kv_heads + i * kv_heads / kHeads) * size + k] +=
            full[static_cast<size_t>(kHeads + part * kHeads + i) * size + k];
  return out;
}

bool is_qkv(const std::string& name) { return name.find(".attn.qkv.") != std::string::npos; }

}  // namespace

TEST_CASE("a grouped model equals the ungrouped one whose KV heads are equal in each group") {
  for (const int64_t kv : {1, 2, 4}) {
    INFO("kv_heads " << kv);
    const MeshRun grouped = with(grouped_run({}, kv, 1), [](EngineOptions& o) { o.grad_clip = 0; });
    MeshRun start = grouped;
    start.every_step = start.stir = true;
    const MeshResult g = run_mesh(start);
    Logical weights = g.initial;
    for (auto& [name, w] : weights)
      if (is_qkv(name)) w = repeat_heads(w, kv, name.ends_with("bias") ? 1 : kHidden);
    MeshRun full = with(grouped_run({}, kHeads, 1), [](EngineOptions& o) { o.grad_clip = 0; });
    full.weights = &weights;
    const MeshResult f = run_mesh(full);
    CHECK(g.losses[0] == Approx(f.losses[0]).epsilon(1e-6));
    REQUIRE(g.grads.size() == f.grads.size());
    for (const auto& [name, grad] : g.grads) {
      INFO(name);
      const std::vector<float>& other = f.grads.at(name);
      CHECK(relative_error(grad, is_qkv(name) ? add_heads(other, kv, name.ends_with("bias") ? 1 : kHidden) : other) <=
            2e-6);
    }
  }
}

TEST_CASE("grouped queries train on every layout as on one rank, heads split or held by several ranks") {
  const std::pair<int64_t, std::vector<MeshShape>> cases[] = {{1, {{.tp = 2}, {.dp = 2, .tp = 4}, {.pp = 2, .tp = 4}}},
                                                              {2, {{.tp = 4}, {.pp = 2, .dp = 2, .tp = 2}}}};
  for (const auto& [kv, meshes] : cases) {
    const MeshResult one = run_mesh(grouped_run({}, kv));
    for (const MeshShape& mesh : meshes)
      for (const bool rows : {false, true}) {
        INFO("kv_heads " << kv << " tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp << " sequence " << rows);
        const MeshResult r =
            run_mesh(with(grouped_run(mesh, kv), [&](EngineOptions& o) { o.sequence_parallel = rows; }));
        check_close(r, one);
        check_planned(r, 2);
        CHECK(r.stale.empty());
      }
  }
}

TEST_CASE("with shared KV heads ZeRO stages, schedules, buckets and recomputation are bitwise identical") {
  for (const int64_t kv : {1, 2}) {
    const MeshShape mesh{.dp = 2, .tp = kv == 1 ? 2 : 4};
    const MeshResult flat = run_mesh(grouped_run(mesh, kv));
    for (int stage : {1, 2, 3})
      for (int64_t bucket : {int64_t{1}, int64_t{1} << 30}) {
        INFO("kv_heads " << kv << " zero " << stage << " bucket " << bucket);
        check_bitwise(run_mesh(with(grouped_run(mesh, kv),
                                    [&](EngineOptions& o) {
                                      o.zero.stage = stage;
                                      o.zero.bucket_bytes = bucket;
                                      o.zero.persist_numel = 100;
                                      o.zero.grad_reduce = stage < 2 ? GradReduce::kAuto : GradReduce::kEnd;
                                    })),
                      flat);
      }
    const MeshResult whole = run_mesh(grouped_run({.tp = 2 * static_cast<int>(kv)}, kv));
    for (const char* schedule : {"1f1b", "zb-h1"})
      for (const Recompute again : {Recompute::kNone, Recompute::kFull}) {
        INFO("kv_heads " << kv << " " << schedule << " recompute " << static_cast<int>(again));
        check_bitwise(run_mesh(with(grouped_run({.pp = 2, .tp = 2 * static_cast<int>(kv)}, kv),
                                    [&](EngineOptions& o) {
                                      o.schedule = schedule;
                                      o.recompute = again;
                                    })),
                      whole);
      }
  }
}

TEST_CASE("LAMB counts shared KV heads once in its trust ratios") {
  const auto lamb = [](EngineOptions& o) { o.optim.type = "lamb"; };
  const MeshResult one = run_mesh(with(grouped_run({}, 1), lamb));
  for (const MeshShape mesh : {MeshShape{.tp = 4}, MeshShape{.dp = 2, .tp = 2}}) {
    const MeshResult r = run_mesh(with(grouped_run(mesh, 1), lamb));
    check_close(r, one);
    REQUIRE(r.ratios.size() == one.ratios.size());
    for (const auto& [name, ratio] : one.ratios) {
      INFO(name);
      CHECK(r.ratios.at(name) == Approx(ratio).epsilon(1e-4));
    }
  }
}

TEST_CASE("ranks that share KV heads send another 2 (c-1)/c of their gradient once a step") {
  for (const auto& [kv, tp] : {std::pair<int64_t, int>{1, 2}, {1, 4}, {2, 4}, {4, 8}}) {
    const MeshRun run = grouped_run({.tp = tp}, kv, 1);
    const int64_t c = run.mesh.kv_ranks, shared = 2 * kHead * (kHidden + 1) * run.engine.model.layers;
    INFO("kv_heads " << kv << " tp " << tp);
    CHECK(c == tp / kv);
    for (const RankRun& r : run_mesh(run).ranks)
      CHECK(r.comm.at("kv").total() == 2 * (c - 1) * shared * int64_t{sizeof(float)} / c);
  }
}

TEST_CASE("an unreduced gradient of shared KV heads is found and named") {
  const Config c = load_config({.file = "",
                                .flags = {"--model.layers", "3", "--model.hidden", "32", "--model.heads", "4",
                                          "--model.kv_heads", "1", "--model.vocab", "379", "--model.seq", "8", "--tp",
                                          "2", "--train.micro_batch", "2", "--train.grad_accum", "2"}})
                       .config;
  Verifier verifier({});
  const VerifyResult right = verifier.check(c);
  CHECK((right.bad() == nullptr ? "" : describe(*right.bad(), mesh_shape(c))) == "");
  MeshHooks hooks;
  // Weight and bias of each block, from the last to the first.
  hooks.wrap = [](GroupFactory& inner) { return skip_call(inner, {SkippedCall::Op::kAllReduce, "kv", 2}); };
  const VerifyResult wrong = verifier.check(c, &hooks);
  REQUIRE(wrong.bad() != nullptr);
  CHECK_THAT(describe(*wrong.bad(), mesh_shape(c)),
             Catch::Contains("the gradient of layers.1.attn.qkv.weight in step 1"));
}

TEST_CASE("a grouped model is saved, resumed, exported and generates the same whatever the layout") {
  TempDir dir;
  const std::string model =
      "--model.layers 2 --model.hidden 32 --model.heads 8 --model.kv_heads 2 --model.vocab 400 --model.seq 16 "
      "--data.tokenizer tok.model --data.train mock --train.micro_batch 1 --train.global_batch 4 "
      "--schedule.type constant --device.kind cpu "
      "--log.tensorboard false --launch.ranks threads ";
  const auto must = [&](const std::string& args) {
    Outcome o = gpttrain(args, dir.path());
    INFO(args << "\n" << o.out);
    REQUIRE(o.code == 0);
    return o;
  };
  write_file(dir / "text.txt", read_file("/usr/share/common-licenses/GPL-3"));
  must("tokenizer train --input text.txt --vocab 400 --output tok.model");
  must("train " + model + "--log.name one --train.steps 4 --checkpoint.every 1 --checkpoint.keep 9");
  must("export --load runs/one --step 1 --format hdf5 --output one.h5");
  int k = 0;
  for (const char* layout : {"--tp 4", "--tp 2 --dp 2 --zero 3", "--tp 4 --pp 2 --zero 0"}) {
    INFO(layout);
    const std::string run = "r" + std::to_string(k++);
    // Step 1 is continued by another layout, that one by the next, and finally by one rank.
    for (const char* end : {"-start", "-still"}) std::filesystem::create_directories(dir / (run + end));
    std::filesystem::copy(dir / "runs/one/checkpoints/step-000000001", dir / (run + "-start/step-000000001"),
                          std::filesystem::copy_options::recursive);
    const std::string folders = "--log.name " + run + " --checkpoint.dir " + run + "-start ";
    must("train " + model + folders + "--train.steps 2 " + layout);
    must("train " + model + folders + "--train.steps 3 --tp 2 --dp 2");
    must("train " + model + folders + "--train.steps 4");
    const std::vector<double> expected = logged(dir / "runs/one", "loss"), got = logged(dir / ("runs/" + run), "loss");
    REQUIRE(got.size() == 3);
    for (size_t i = 0; i < 3; ++i) CHECK(got[i] == Approx(expected[i + 1]).epsilon(1e-5));
    // After a step that changes nothing, the weights are bitwise identical.
    std::filesystem::copy(dir / "runs/one/checkpoints/step-000000001", dir / (run + "-still/step-000000001"),
                          std::filesystem::copy_options::recursive);
    must("train " + model + "--log.name s" + run + " --checkpoint.dir " + run + "-still --train.steps 2 " +
         "--checkpoint.allow_change optim --optim.lr 1e-60 --optim.weight_decay 0 " + layout);
    must("export --load " + run + "-still --step 2 --format hdf5 --output " + run + ".h5");
    CHECK(read_file(dir / (run + ".h5")) == read_file(dir / "one.h5"));
    const std::string prompt = " --prompt \"The GNU\" --max-tokens 8 --temperature 0";
    const std::string written = must("generate --load " + run + "-still/step-000000002" + prompt).out;
    CHECK(written.find("The GNU") == 0);
    CHECK(written == must("generate --load runs/one/checkpoints/step-000000001" + prompt).out);
  }
  must("import --from one.h5 --output back");
  must("export --load back --format hdf5 --output two.h5");
  CHECK(read_file(dir / "two.h5") == read_file(dir / "one.h5"));
  const Outcome verified = must("verify " + model + "--tp 4 --pp 2");
  CHECK(verified.prints("8 heads (2 KV heads)"));
  CHECK(verified.prints("equal: the layout computes"));
  const Outcome hf = gpttrain("export --load runs/one --output hf", dir.path());
  CHECK(hf.code == 2);
  CHECK(hf.prints("model.kv_heads 2, where Hugging Face's gpt2 has 8"));
  CHECK_FALSE(std::filesystem::exists(dir / "hf"));
}
