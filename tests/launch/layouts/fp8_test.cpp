// FP8 training: every layout matches one rank, options that only move work or memory are bitwise identical, the loss
// matches bf16, memory is planned.
#include <algorithm>
#include <cmath>

#include "launch/config/config.h"
#include "launch/config/config_precision.h"
#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/verify/verifier.h"
#include "tests/launch/process.h"
#include "tests/launch/small_amp_run.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr Precision kBf16{.level = 2}, kCurrent{.level = 2, .fp8 = Fp8Recipe::kCurrent},
    kDelayed{.level = 2, .fp8 = Fp8Recipe::kDelayed};

MeshRun small(MeshShape mesh, Precision precision = kCurrent) { return small_amp_run(mesh, precision, false); }

// Mean of the last n losses.
double mean_of_last(const std::vector<double>& losses, size_t n) {
  double sum = 0;
  for (size_t i = losses.size() - n; i < losses.size(); ++i) sum += losses[i];
  return sum / static_cast<double>(n);
}

}  // namespace

TEST_CASE("FP8 layouts are close to one rank") {
  Verifier verifier({.steps = 3});
  for (const std::string flags :
       {"current --tp 2 --parallel.sequence_parallel true --parallel.recompute selective",
        "current --tp 2 --pp 2 --dp 2 --zero 3 --zero.persist_numel 0", "current --tp 4 --model.kv_heads 2",
        "current --dp 2 --pp 2 --parallel.schedule zb-h1 --precision.dtype fp16", "delayed --tp 2 --pp 2 --dp 2",
        "delayed --tp 2 --dp 2 --zero 2 --parallel.sequence_parallel true",
        "current --model.arch llama --model.ffn 64 --tp 2 --pp 2 --parallel.sequence_parallel true",
        "delayed --model.arch llama --model.ffn 64 --tp 2 --dp 2 --zero 3 --parallel.recompute selective",
        "current --model.arch qwen3 --model.ffn 64 --model.head_dim 32 --model.kv_heads 2 --tp 4 --parallel.recompute "
        "full",
        "delayed --model.arch qwen3 --model.ffn 64 --model.head_dim 32 --tp 2 --pp 2 --parallel.sequence_parallel true",
        // A norm behind a branch magnifies the branch's rounding errors as much as its values.
        "current --model.arch olmo2 --model.ffn 64 --model.norm_eps 1e-3 --tp 2 --pp 2 --parallel.sequence_parallel "
        "true",
        "delayed --model.arch olmo2 --model.ffn 64 --model.norm_eps 1e-3 --tp 2 --dp 2 --parallel.recompute selective",
        "current --model.arch gemma3 --model.ffn 64 --model.head_dim 32 --model.window 5 --model.norm_eps 1e-1 --tp 2 "
        "--pp 2",
        "delayed --model.arch gemma2 --model.ffn 64 --model.head_dim 32 --model.norm_eps 1e-3 --tp 2 --dp 2 --zero 2 "
        "--parallel.sequence_parallel true"}) {
    ConfigSource source;
    std::istringstream words(
        "--model.layers 2 --model.hidden 64 --model.heads 4 --model.vocab 300 --model.seq 16 --amp O2 "
        "--train.micro_batch 2 --train.grad_accum 2 --schedule.type constant --optim.lr 1e-3 --precision.fp8 " +
        flags);
    for (std::string w; words >> w;) source.flags.push_back(w);
    const VerifyResult v = verifier.check(load_config(source).config);
    const Difference* d = v.bad();
    INFO(flags << ": " << (d ? cat(d->name, ' ', d->error, " step ", d->step) : "equal"));
    CHECK(d == nullptr);
  }
}

// A norm of 32 elements: second moments, being squares of its gradient, differ more than the gradient does.
TEST_CASE("verify reports a small FP8 model as equal to one rank") {
  TempDir dir;
  const Outcome o = must(
      "verify --model.layers 2 --model.hidden 32 --model.heads 2 --model.vocab 64 --model.seq 16 "
      "--train.micro_batch 1 --train.global_batch 4 --launch.ranks threads --device.kind cpu "
      "--precision.amp O2 --precision.fp8 current --tp 2",
      dir);
  CHECK(o.prints("equal: the layout computes what one rank computes"));
}

TEST_CASE("FP8: ZeRO stages, pipelines, schedules and recomputation are bitwise identical") {
  const Precision scaling = GENERATE(kCurrent, kDelayed);
  const std::string family = GENERATE("gpt2", "llama", "qwen3", "olmo2", "gemma3");
  INFO(name_of(scaling.fp8) << " " << family);
  const auto small = [&](MeshShape mesh) { return small_amp_run(mesh, scaling, false, family); };
  const MeshResult one = run_mesh(small({}));
  CHECK(one.losses.back() < one.losses.front());
  CHECK(one.losses != run_mesh(small_amp_run({}, kBf16, false, family)).losses);
  for (const Recompute how : {Recompute::kSelective, Recompute::kFull}) {
    MeshRun run = small({});
    run.engine.recompute = how;
    check_same(run_mesh(run), one);
  }
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    INFO(schedule);
    MeshRun run = small({.pp = 2});
    run.engine.schedule = schedule;
    check_same(run_mesh(run), one);
    run.engine.recompute = Recompute::kSelective;
    check_same(run_mesh(run), one);
  }
  const MeshResult two = run_mesh(small({.dp = 2}));
  for (const int stage : {1, 2, 3}) {
    INFO("zero " << stage);
    MeshRun run = small({.dp = 2});
    run.engine.zero.stage = stage;
    run.engine.zero.persist_numel = 0;
    run.engine.zero.grad_reduce = GradReduce::kEnd;
    check_same(run_mesh(run), two);
  }
}

TEST_CASE("memory of FP8 tensors is planned, and FP8 layer inputs take less than 16-bit ones") {
  for (const bool sequence_parallel : {false, true})
    for (const int stage : {1, 3}) {
      INFO("zero " << stage << (sequence_parallel ? ", sequence parallel" : ""));
      const auto result = [&](Precision p, Recompute how) {
        MeshRun run = small({.dp = 2, .tp = 2}, p);
        run.engine.zero.stage = stage;
        run.engine.zero.persist_numel = 0;
        run.engine.sequence_parallel = sequence_parallel;
        run.engine.recompute = how;
        run.engine.micro_batch = 4;
        run.engine.model.ffn = 256;
        run.evaluate = true;
        const MeshResult r = run_mesh(run);
        for (size_t rank = 0; rank < r.planned.size(); ++rank) {
          const EnginePlan &plan = r.planned[rank], &real = r.measured[rank];
          INFO("rank " << rank);
          CHECK(plan.train.activation_bytes == real.train.activation_bytes);
          CHECK(plan.train.gradient_bytes == real.train.gradient_bytes);
          CHECK(plan.eval.activation_bytes == real.eval.activation_bytes);
          CHECK(plan.zero.gathered == real.zero.gathered);
          CHECK(plan.memory.weights == real.memory.weights);
          CHECK(plan.memory.total() == real.memory.total());
        }
        return r;
      };
      result(kDelayed, Recompute::kNone);
      const MeshResult codes = result(kCurrent, Recompute::kNone), bf16 = result(kBf16, Recompute::kNone);
      const auto activations = [](const MeshResult& r) { return r.measured[0].train.activation_bytes; };
      CHECK(activations(codes) < activations(bf16));
      CHECK(activations(result(kCurrent, Recompute::kSelective)) < activations(codes));
      CHECK(codes.measured[0].memory.weights > bf16.measured[0].memory.weights);
    }
}

TEST_CASE("delayed scaling uses the amax of previous steps, over all microbatches and ranks") {
  const auto after = [](MeshShape mesh, Precision p, int steps) {
    MeshRun run = small(mesh, p);
    run.steps = steps;
    return run_mesh(run);
  };
  // The first step has no history, so it uses current scaling and computes the same amax.
  const MeshResult first = after({}, kDelayed, 1), now = after({}, kCurrent, 1);
  CHECK(first.losses == now.losses);
  CHECK((first.weights == now.weights));
  CHECK(after({}, kDelayed, 2).losses != after({}, kCurrent, 2).losses);
  const MeshResult one = after({}, kDelayed, 3), cut = after({.pp = 2, .dp = 2, .tp = 2}, kDelayed, 3);
  size_t histories = 0;
  for (const auto& [name, history] : one.state) {
    if (name.rfind("amax/", 0) != 0) continue;
    INFO(name);
    ++histories;
    REQUIRE(history.size() == 1024);
    const std::vector<float>& other = cut.state.at(name);
    for (size_t t = 0; t < history.size(); ++t) {
      CHECK((history[t] > 0) == (t < 3));
      // the learning rate is high: runs diverge with every step
      CHECK(other[t] == Approx(history[t]).epsilon(t == 0 ? 0.04 : 0.2));
    }
  }
  CHECK(histories == 2 * 4 * 2);  // inputs and output gradients of four linears a block
}

TEST_CASE("the first and the last block stay 16-bit where so configured") {
  Precision inner = kCurrent;
  inner.fp8_skip_ends = true;
  check_same(run_mesh(small({}, inner)), run_mesh(small({}, kBf16)));  // both blocks stay 16-bit
  const auto of_three = [](Precision p, MeshShape mesh) {
    MeshRun run = small(mesh, p);
    run.engine.model.layers = 3;
    if (mesh.pp == 2) run.engine.partition = "2,1";
    return run_mesh(run);
  };
  const MeshResult some = of_three(inner, {});
  CHECK(some.losses != of_three(kBf16, {}).losses);
  CHECK(some.losses != of_three(kCurrent, {}).losses);
  check_same(of_three(inner, {.pp = 2}), some);
}

TEST_CASE("200 steps of the tiny config end within 1 % of the loss of bf16") {
  const auto losses = [](Precision p) {
    MeshRun run = small({}, p);
    run.engine.model = {.layers = 2, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 512, .seq = 32};
    run.engine.lr = {.type = "constant", .peak = 1e-3, .total_steps = 200};
    run.engine.micro_batch = 2;
    run.steps = 200;
    run.samples = synthetic_samples(1600, 32, 512, 5);  // learnable data
    return run_mesh(run).losses;
  };
  const std::vector<double> bf16 = losses(kBf16);
  CHECK(mean_of_last(bf16, 20) < 0.9 * bf16.front());
  for (const Precision& scaling : {kCurrent, kDelayed}) {
    INFO(name_of(scaling.fp8));
    const std::vector<double> codes = losses(scaling);
    CHECK(codes != bf16);
    CHECK(mean_of_last(codes, 20) == Approx(mean_of_last(bf16, 20)).epsilon(0.01));
    for (size_t i = 0; i < bf16.size(); ++i) CHECK(codes[i] == Approx(bf16[i]).epsilon(0.01));
  }
}

TEST_CASE("an FP8 run resumes from its checkpoint bitwise, in another layout") {
  const std::string scaling = GENERATE("current", "delayed");
  TempDir dir;
  const std::string run =
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock --amp O2 "
      "--train.global_batch 8 --train.micro_batch 1 --optim.lr 1e-2 --device.kind cpu "
      "--log.tensorboard false --launch.ranks threads --train.steps 6 --checkpoint.every 3 --train.eval_every 6 "
      "--train.eval_steps 1 --precision.fp8 " +
      scaling + " ";
  const Outcome begun = must(run + "--dp 2 --log.name whole", dir);
  CHECK(begun.prints("linear layers of blocks in FP8 (E4M3, E5M2) with " + scaling + " scaling"));
  CHECK(begun.prints("with model.hidden 32: below 2048"));
  const auto whole = logged(dir / "runs/whole", "loss");
  REQUIRE(whole.size() == 6);
  REQUIRE(shell("mkdir -p runs/part && cp -r runs/whole/checkpoints runs/part", dir.path()).code == 0);
  must(run +
           "--pp 2 --dp 2 --zero 3 --zero.persist_numel 0 --zero.grad_reduce end --checkpoint.resume 3 --log.name part",
       dir);
  CHECK(logged(dir / "runs/part", "loss") == std::vector<double>(whole.begin() + 3, whole.end()));
  // `eval` computes as the run did, and in 16 bits if requested.
  const auto evaluated = [&](const std::string& flags) {
    const std::string out = must("eval --load runs/whole --split valid --steps 1 " + flags, dir).out;
    return std::stod(out.substr(out.rfind("\nloss ") + 6));
  };
  const std::vector<double> logged_eval = logged(dir / "runs/whole", "loss", "eval");
  REQUIRE(!logged_eval.empty());
  CHECK(evaluated("") == Approx(logged_eval.back()).margin(2e-6));  // six digits are printed
  CHECK(std::abs(evaluated("--precision.fp8 off") - logged_eval.back()) > 4e-6);
  // A checkpoint of a run without FP8 has no amax histories: they can start and end with any run.
  REQUIRE(shell("mkdir -p runs/later && cp -r runs/whole/checkpoints runs/later", dir.path()).code == 0);
  const char* other = scaling == "current" ? "delayed" : "off";
  must(run + "--dp 2 --checkpoint.allow_change precision --checkpoint.resume 3 --log.name later --precision.fp8 " +
           other,
       dir);
  const auto later = logged(dir / "runs/later", "loss");
  REQUIRE(later.size() == 3);
  CHECK(later != std::vector<double>(whole.begin() + 3, whole.end()));
  CHECK(later[2] == Approx(whole[5]).epsilon(0.02));
}

TEST_CASE("fast accumulation belongs to FP8 GEMMs: reported where off, and where the setting has no effect") {
  const auto loaded = [](std::vector<std::string> flags) {
    ConfigSource source;
    source.flags = {"--model.layers", "3", "--model.hidden", "64", "--model.heads", "4", "--model.seq", "16"};
    source.flags.insert(source.flags.end(), {"--amp", "O2"});
    source.flags.insert(source.flags.end(), flags.begin(), flags.end());
    return load_config(source);
  };
  using Catch::Contains;
  CHECK_THAT(precision_text(loaded({"--precision.fp8", "delayed"}).config), !Contains("fast"));
  CHECK_THAT(precision_text(loaded({"--precision.fp8", "delayed", "--precision.fp8_fast_accum", "false"}).config),
             Contains("delayed scaling, no fast accumulation"));
  const LoadedConfig off = loaded({"--precision.fp8_fast_accum", "false"});
  CHECK(std::count(off.notes.begin(), off.notes.end(),
                   "precision.fp8_fast_accum has no effect with precision.fp8 off") == 1);
}

TEST_CASE("unsupported FP8 settings are refused by name") {
  const auto refused = [](const std::string& flags) {
    ConfigSource source;
    std::istringstream words("--model.layers 2 --model.hidden 64 --model.heads 4 --model.seq 16 --precision.fp8 " +
                             flags);
    for (std::string w; words >> w;) source.flags.push_back(w);
    try {
      load_config(source);
    } catch (const Error& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  CHECK(refused("current --amp O2") == "accepted");
  CHECK_THAT(refused("current"), Catch::Contains("current needs precision.amp O2") && Catch::Contains("found O0"));
  CHECK_THAT(refused("delayed --amp O3"),
             Catch::Contains("delayed needs precision.amp O2") && Catch::Contains("found O3"));
  CHECK_THAT(refused("current --amp O2 --precision.dtype fp16 --precision.master_weights false"),
             Catch::Contains("needs FP32 master weights, but precision.master_weights is false"));
  CHECK_THAT(refused("current --amp O2 --precision.qat int8"), Catch::Contains("one quantized format only"));
  CHECK_THAT(refused("current --amp O2 --model.hidden 72"), Catch::Contains("216 rows of layers.*.attn.qkv on a rank"));
  CHECK_THAT(refused("current --amp O2 --model.ffn 40 --tp 2"),
             Catch::Contains("20 rows of layers.*.mlp.up on a rank"));
  CHECK_THAT(refused("current --amp O2 --model.seq 12 --train.micro_batch 2"),
             Catch::Contains("24 tokens a microbatch"));
  CHECK_THAT(refused("true --amp O2"), Catch::Contains("expected off or current or delayed"));
}
