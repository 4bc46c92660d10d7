// Mixed precision on ranks as threads. Layouts that differ only in pipeline, schedule, ZeRO stage or recomputation are
// bitwise identical at every level; 16-bit weights are their rounded masters; casts and their counts; memory.
#include <cstring>
#include <mutex>
#include <set>

#include "launch/config/config.h"
#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/verify/verifier.h"
#include "parallel/comm/threads/thread_group.h"
#include "tests/launch/process.h"
#include "tests/launch/small_amp_run.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct Level {
  const char* name;
  Precision precision;
  bool scaled;
  bool rounds_stochastically = false;
};
const std::vector<Level> kLevels{
    {"O1 bf16", {.level = 1, .compute_dtype = DType::kBF16}, false},
    {"O1 fp16", {.level = 1, .compute_dtype = DType::kF16}, true},
    {"O2 bf16", {.level = 2, .compute_dtype = DType::kBF16}, false},
    {"O2 fp16", {.level = 2, .compute_dtype = DType::kF16}, true},
    {"O2 bf16, norms too", {.level = 2, .compute_dtype = DType::kBF16, .keep_norm = false}, false}};
constexpr Precision kO3{.level = 3, .compute_dtype = DType::kBF16, .keep_norm = false, .masters = false};
constexpr Precision kO3Fp16{.level = 3, .compute_dtype = DType::kF16, .keep_norm = false, .masters = false};

MeshRun small(MeshShape mesh, const Level& level) {
  MeshRun run = small_amp_run(mesh, level.precision, level.scaled);
  if (level.rounds_stochastically) run.engine.optim.rounding_seed = 11;
  return run;
}

float widened(const Tensor& t, int64_t i) {
  float out = 0;
  Tensor one = t.view({t.numel()}).slice(i, 1);
  cpu_backend().ops->cast({.src = one, .dst = {reinterpret_cast<std::byte*>(&out), {1}, DType::kF32, {}}}, {});
  return out;
}

}  // namespace

TEST_CASE(
    "at every level layouts that differ only in pipeline, schedule, ZeRO or recomputation are bitwise identical") {
  std::vector<Level> levels = kLevels;
  levels.push_back({"O0", {}, false});
  levels.push_back({"O3 bf16", kO3, false});
  levels.push_back({"O3 fp16", kO3Fp16, false});
  levels.push_back({"O2 fp16 without masters", {.level = 2, .compute_dtype = DType::kF16, .masters = false}, true});
  levels.push_back(
      {"O2 bf16 rounded at random", {.level = 2, .compute_dtype = DType::kBF16, .masters = false}, false, true});
  levels.push_back({"O0 int8", {.int8 = true}, false});
  levels.push_back({"O1 int8", {.level = 1, .int8 = true}, false});
  levels.push_back({"O2 int8", {.level = 2, .int8 = true}, false});
  for (const Level& level : levels) {
    const MeshResult reference = run_mesh(small({.dp = 2}, level));
    INFO(level.name);
    CHECK(reference.losses.back() < reference.losses.front());
    for (int stage = 0; stage <= 3; ++stage)
      for (int pp : {1, 2}) {
        MeshRun run = small({.pp = pp, .dp = 2}, level);
        run.engine.zero = {.stage = stage, .grad_reduce = GradReduce::kEnd, .persist_numel = 0};
        if (pp == 2) run.engine.schedule = stage == 1 ? "zb-h1" : stage == 2 ? "gpipe" : "1f1b";
        if (stage >= 2) run.engine.recompute = pp == 2 ? Recompute::kFull : Recompute::kSelective;
        INFO("zero " << stage << " pp " << pp);
        check_same(run_mesh(run), reference);
      }
  }
}

TEST_CASE("pipeline chunks and untied heads are bitwise identical in 16-bit precision as well") {
  const Level& level = kLevels[2];
  for (bool tied : {true, false}) {
    MeshRun plain = small({}, level), split = small({.pp = 2}, level);
    plain.engine.model.tied = split.engine.model.tied = tied;
    split.engine.schedule = "interleaved";
    split.engine.vpp = 2;
    split.engine.partition = "flops";
    check_same(run_mesh(plain), run_mesh(split));
  }
}

TEST_CASE("with master weights every 16-bit parameter is its master rounded to nearest even after each step") {
  for (const Level& level : kLevels)
    for (int stage : {0, 1, 3}) {
      INFO(level.name << " zero " << stage);
      MeshRun run = small({.dp = 2, .tp = 2}, level);
      run.engine.zero = {.stage = stage, .persist_numel = 0};
      std::mutex mutex;
      int64_t wrong = 0, elements = 0, norms = 0;
      MeshHooks hooks;
      hooks.after_step = [&](Engine& engine, int) {
        const std::lock_guard lock(mutex);
        for (const TensorRange& u : engine.store().ranges()) {
          CHECK(u.master.dtype == DType::kF32);
          CHECK(u.grad.dtype == DType::kF32);
          if (u.value.dtype == DType::kF32) continue;
          CHECK(u.value.dtype == level.precision.compute_dtype);
          std::vector<std::byte> rounded(static_cast<size_t>(u.value.bytes()));
          cpu_backend().ops->cast(
              {.src = u.master, .dst = {rounded.data(), u.value.shape, u.value.dtype, u.value.device}}, {});
          wrong += std::memcmp(rounded.data(), u.value.data, rounded.size()) != 0;
          elements += u.value.numel();
        }
        for (const Parameter* p : engine.store().parameters())
          norms += p->name.find("norm") != std::string::npos && p->dtype == DType::kF32;
      };
      run.hooks = &hooks;
      run_mesh(run);
      CHECK(wrong == 0);
      CHECK(elements > 10000);
      CHECK((norms > 0) == level.precision.keep_norm);
    }
}

TEST_CASE("without master weights the 16-bit values are trained, and memory is that of the table") {
  for (const Precision& precision : {kO3, kO3Fp16}) {
    MeshRun run = small({.dp = 2, .tp = 2}, {"O3", precision, false});
    run.engine.zero = {.stage = 1};
    std::mutex mutex;
    int64_t elements = 0;
    MeshHooks hooks;
    hooks.after_step = [&](Engine& engine, int) {
      const std::lock_guard lock(mutex);
      CHECK(engine.store().master_bytes() == 0);
      for (const TensorRange& u : engine.store().ranges()) {
        CHECK(u.value.dtype == precision.compute_dtype);
        CHECK(u.master.data == u.value.data);
        CHECK_FALSE(u.rounded());
        elements += u.value.numel();
      }
    };
    run.hooks = &hooks;
    run_mesh(run);
    CHECK(elements > 10000);
  }
  EngineOptions o = small({.dp = 4}, {"O3", kO3, false}).engine;
  o.model = {.layers = 4, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 512, .seq = 16};
  const EnginePlan plan = plan_memory(o, {.dp = 4}, 0);
  const auto parameters = static_cast<double>(describe(o.model).parameters());
  CHECK(static_cast<double>(plan.memory.weights) == Approx(2 * parameters).epsilon(0.03));
  CHECK(static_cast<double>(plan.memory.optimizer) == Approx(8 * parameters / 4).epsilon(0.03));
}

TEST_CASE("an update below 16-bit resolution changes the master weight and eventually the parameter") {
  // Masters change after a step of 2^-12, whether or not their rounded values do.
  MeshRun run = small({}, kLevels[3]);
  run.engine.lr.peak = 0x1p-14;
  run.steps = 8;
  run.engine.optim.weight_decay = 0;
  std::set<float> masters, values;
  MeshHooks hooks;
  hooks.after_step = [&](Engine& engine, int) {
    for (const TensorRange& u : engine.store().ranges())
      if (u.value.dtype != DType::kF32 && u.unit == 0) {
        masters.insert(u.master.as<float>()[5]);
        values.insert(widened(u.value, 5));
        break;
      }
  };
  run.hooks = &hooks;
  run_mesh(run);
  CHECK(masters.size() > 1);
  CHECK(values.size() <= masters.size());
}

TEST_CASE("stochastically rounded values are bitwise identical under all layouts with the same arithmetic") {
  // One step only: gradients of TP ranks differ in the last bits of 16-bit values, and further steps amplify that.
  const Level level{"", {.level = 2, .compute_dtype = DType::kBF16, .masters = false}, false, true};
  const auto weights = [&](MeshShape mesh, std::optional<uint64_t> seed) {
    MeshRun run = small(mesh, level);
    run.steps = 1;
    run.engine.optim.rounding_seed = seed;
    return run_mesh(run).weights;
  };
  const Logical one = weights({}, 11);
  const auto equal_part = [&](const Logical& other) {
    int64_t same = 0, all = 0;
    for (const auto& [name, values] : one)
      for (size_t i = 0; i < values.size(); ++i, ++all) same += values[i] == other.at(name)[i];
    return static_cast<double>(same) / static_cast<double>(all);
  };
  CHECK(equal_part(weights({}, std::nullopt)) < 0.8);  // round to nearest
  CHECK(equal_part(weights({}, 12)) < 0.8);
  // TP ranks hold other shards but draw the same random numbers for them.
  CHECK(equal_part(weights({.tp = 2}, 11)) > 0.97);
  CHECK(equal_part(weights({.pp = 2, .tp = 2}, 11)) > 0.97);
}

namespace {
std::vector<std::string> traced;
int64_t casts = 0;
const char* kind(const Tensor& t) { return t.dtype == DType::kF32 ? "f32" : "half"; }
struct TypeTrace {
  static void before(const char*, const Gemm& g) {
    traced.push_back(cat("gemm ", kind(g.a), " ", kind(g.b), " -> ", kind(g.out)));
  }
  static void before(const char*, const LayerNorm& n) {
    traced.push_back(cat("norm ", kind(n.x), " -> ", kind(n.out)));
  }
  static void before(const char*, const Attention& a) {
    traced.push_back(cat("attention ", kind(a.q.rows), " -> ", kind(a.out)));
  }
  static void before(const char*, const Embedding& e) { traced.push_back(cat("embedding ", kind(e.out))); }
  static void before(const char*, const CrossEntropy& c) {
    traced.push_back(cat("loss ", kind(c.logits), " -> ", kind(c.loss)));
  }
  static void before(const char*, const Cast& c) {
    ++casts;
    traced.push_back(cat("cast ", kind(c.src), " -> ", kind(c.dst)));
  }
  template <class Args>
  static void before(const char*, const Args&) {}
};

// Returns the ops of one block's evaluation with their dtypes.
std::vector<std::string> trace_of(const Precision& precision) {
  static const Backend tracing = [] {
    Backend b = cpu_backend();
    b.ops = &decorate<TypeTrace>(*cpu_backend().ops);
    return b;
  }();
  MeshRun run = small({}, {"", precision, false});
  run.engine.model.layers = 1;
  run.engine.loss_chunk = 1000;
  run.engine.evaluates = true;
  run.global_batch = 1;
  run.steps = 1;
  MeshHooks hooks;
  hooks.backend = &tracing;
  hooks.after_step = [](Engine&, int) {
    traced.clear();
    casts = 0;
  };
  run.hooks = &hooks;
  run.evaluate = true;
  run_mesh(run);
  return traced;
}
}  // namespace

TEST_CASE("the dtypes of a block's ops are those of the table of levels") {
  using Trace = std::vector<std::string>;
  CHECK(trace_of({}) == Trace{"embedding f32", "norm f32 -> f32", "gemm f32 f32 -> f32", "attention f32 -> f32",
                              "gemm f32 f32 -> f32", "norm f32 -> f32", "gemm f32 f32 -> f32", "gemm f32 f32 -> f32",
                              "norm f32 -> f32", "gemm f32 f32 -> f32", "loss f32 -> f32"});
  CHECK(trace_of({.level = 1}) == Trace{"embedding f32", "norm f32 -> f32", "cast f32 -> half",
                                        "gemm half half -> half", "attention half -> half", "gemm half half -> half",
                                        "norm f32 -> f32", "cast f32 -> half", "gemm half half -> half",
                                        "gemm half half -> half", "norm f32 -> f32", "cast f32 -> half",
                                        "gemm half half -> half", "loss half -> f32"});
  CHECK(casts == 3);  // activation casts; weights are rounded once a step, so none is cast here
  CHECK(trace_of({.level = 2}) == Trace{"embedding half", "norm half -> half", "gemm half half -> half",
                                        "attention half -> half", "gemm half half -> half", "norm half -> half",
                                        "gemm half half -> half", "gemm half half -> half", "norm half -> half",
                                        "gemm half half -> half", "loss half -> f32"});
}

TEST_CASE("16-bit values halve memory and traffic, master weights are sharded with the optimizer") {
  EngineOptions o = small({.dp = 4}, kLevels[2]).engine;
  o.model = {.layers = 4, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 512, .seq = 16};
  o.microbatches = 2;
  const auto plan = [&](int stage, int level) {
    o.zero.stage = stage;
    o.precision.level = level;
    return plan_memory(o, {.dp = 4}, 0);
  };
  for (int stage : {0, 1, 2}) {
    const EnginePlan full = plan(stage, 0), mixed = plan(stage, 2);
    const auto share = static_cast<double>(stage == 0 ? 1 : 4);
    const auto parameters = static_cast<double>(describe(o.model).parameters());
    INFO("zero " << stage);
    CHECK(static_cast<double>(full.memory.weights) == Approx(4 * parameters).epsilon(0.02));
    CHECK(static_cast<double>(mixed.memory.weights) == Approx(2 * parameters).epsilon(0.03));
    CHECK(static_cast<double>(full.memory.optimizer) == Approx(8 * parameters / share).epsilon(0.02));
    CHECK(static_cast<double>(mixed.memory.optimizer) == Approx(12 * parameters / share).epsilon(0.03));
    CHECK(static_cast<double>(mixed.memory.gradients) == Approx(full.memory.gradients).epsilon(0.02));
    if (stage > 0)
      CHECK(static_cast<double>(mixed.sent.data_parallel.bytes(CommOp::kAllGather)) ==
            Approx(static_cast<double>(full.sent.data_parallel.bytes(CommOp::kAllGather)) / 2).epsilon(0.03));
    CHECK(static_cast<double>(mixed.sent.data_parallel.bytes(CommOp::kReduceScatter)) ==
          Approx(static_cast<double>(full.sent.data_parallel.bytes(CommOp::kReduceScatter))).epsilon(0.02));
  }
}

TEST_CASE("tensor-parallel layouts in 16-bit precision are close to one rank") {
  Verifier verifier({.steps = 3});
  for (const char* amp : {"O1", "O2"})
    for (const char* type : {"bf16", "fp16"})
      for (const std::string layout : {"--tp 2 --parallel.sequence_parallel false", "--tp 2 --pp 2 --dp 2 --zero 2"}) {
        ConfigSource source;
        for (const std::string& flag :
             {std::string(
                  "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 "
                  "--train.micro_batch 2 --train.grad_accum 2 --schedule.type constant --optim.lr 1e-3 --amp ") +
              amp + " --precision.dtype " + type + " " + layout}) {
          std::istringstream words(flag);
          for (std::string w; words >> w;) source.flags.push_back(w);
        }
        const Config c = load_config(source).config;
        INFO(amp << " " << type << " " << layout);
        const VerifyResult v = verifier.check(c);
        const Difference* d = v.bad();
        INFO((d ? d->name + " " + std::to_string(d->error) + " step " + std::to_string(d->step) : "equal"));
        CHECK(d == nullptr);
      }
}

namespace {
const std::string kTiny =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --optim.lr 3e-3 --device.kind cpu --log.tensorboard false "
    "--launch.ranks threads ";
}

TEST_CASE("fp16 that overflows at first finds its scale, and a resume amid skipped steps is equivalent") {
  TempDir dir;
  const std::string run = kTiny +
                          "--dp 2 --pp 2 --amp O2 --precision.dtype fp16 --train.steps 12 --checkpoint.every 3 "
                          "--precision.loss_scale_init 16777216 --checkpoint.keep 10 "
                          "--precision.loss_scale_window 3 ";
  const Outcome whole = gpttrain(run + "--log.name whole", dir.path());
  INFO(whole.out);
  REQUIRE(whole.code == 0);
  const auto scales = logged(dir / "runs/whole", "loss_scale"), skipped = logged(dir / "runs/whole", "skipped");
  REQUIRE(scales.size() == 12);
  CHECK(scales[0] == 16777216);
  CHECK(skipped[2] == 3);   // the checkpoint of step 3 is inside the streak of skips
  CHECK(skipped[11] < 12);  // the streak ends
  for (const char* end : {"3", "9"}) {
    const std::string part = "runs/part-" + std::string(end);
    REQUIRE(shell("mkdir -p " + part + " && cp -r runs/whole/checkpoints " + part, dir.path()).code == 0);
    const Outcome rest =
        gpttrain(run + "--log.name part-" + std::string(end) + " --checkpoint.resume " + end, dir.path());
    INFO(rest.out);
    REQUIRE(rest.code == 0);
    for (const char* key : {"loss", "loss_scale", "lr", "skipped"}) {
      const auto all = logged(dir / "runs/whole", key);
      CHECK(logged(dir / part, key) == std::vector<double>(all.begin() + std::stoi(end), all.end()));
    }
  }
}

TEST_CASE("a checkpoint holds master weights: any level, layout or ZeRO stage resumes, the same one bitwise") {
  TempDir dir;
  const std::string o2 = kTiny + "--amp O2 --train.steps 8 --checkpoint.every 4 ";
  const Outcome whole = gpttrain(o2 + "--dp 2 --log.name whole", dir.path());
  INFO(whole.out);
  REQUIRE(whole.code == 0);
  CHECK(whole.prints("O2: bf16 weights and residual stream, norms FP32, FP32 masters"));
  const auto losses = logged(dir / "runs/whole", "loss");
  const auto resumed = [&](const std::string& name, const std::string& flags) {
    REQUIRE(shell("mkdir -p runs/" + name + " && cp -r runs/whole/checkpoints runs/" + name, dir.path()).code == 0);
    const Outcome rest = gpttrain(flags + " --checkpoint.resume 4 --log.name " + name, dir.path());
    INFO(rest.out);
    REQUIRE(rest.code == 0);
    return logged(dir / ("runs/" + name), "loss");
  };
  const std::vector<double> tail(losses.begin() + 4, losses.end());
  CHECK(resumed("same", o2 + "--dp 2 --zero 3 --zero.persist_numel 0 --zero.grad_reduce end --pp 2") == tail);
  const std::string other = kTiny + "--train.steps 8 --dp 2 --checkpoint.allow_change precision ";
  for (const char* amp : {"--amp O0", "--amp O1", "--amp O2 --precision.dtype fp16", "--amp O3"}) {
    const auto got = resumed(std::string("level") + amp[7] + amp[std::strlen(amp) - 1], other + amp);
    REQUIRE(got.size() == 4);
    for (size_t k = 0; k < 4; ++k) CHECK(got[k] == Approx(tail[k]).epsilon(0.01));
  }
}

TEST_CASE("a run without master weights saves 16-bit weights, resumes from them bitwise, and exports FP32") {
  TempDir dir;
  for (const std::string level : {"--amp O3", "--amp O3 --precision.dtype fp16 --precision.loss_scale 256",
                                  "--amp O2 --precision.master_weights false --precision.stochastic_rounding"}) {
    INFO(level);
    const std::string run = kTiny + level + " --train.steps 6 --checkpoint.every 3 ";
    const std::string name = "a" + std::to_string(level.size());
    const Outcome whole = gpttrain(run + "--dp 2 --log.name " + name, dir.path());
    INFO(whole.out);
    REQUIRE(whole.code == 0);
    CHECK(whole.prints("no masters"));
    const auto losses = logged(dir / ("runs/" + name), "loss");
    const std::string part = name + "b";
    const std::string copied = "mkdir -p runs/" + part + " && cp -r runs/" + name + "/checkpoints runs/" + part;
    REQUIRE(shell(copied, dir.path()).code == 0);
    const Outcome rest = gpttrain(run +
                                      "--pp 2 --dp 2 --zero 3 --zero.persist_numel 0 --zero.grad_reduce end "
                                      "--checkpoint.resume 3 --log.name " +
                                      part,
                                  dir.path());
    INFO(rest.out);
    REQUIRE(rest.code == 0);
    CHECK(logged(dir / ("runs/" + part), "loss") == std::vector<double>(losses.begin() + 3, losses.end()));
    const Outcome listed = gpttrain("ckpt inspect runs/" + name +
                                        "/checkpoints/step-000000006 --tensor "
                                        "master/layers.0.attn.qkv.weight",
                                    dir.path());
    INFO(listed.out);
    CHECK(listed.prints(level.find("fp16") == std::string::npos ? "bf16" : "f16"));
    const Outcome exported =
        gpttrain("export --load runs/" + name + " --format hdf5 --output " + name + ".h5", dir.path());
    INFO(exported.out);
    CHECK(exported.code == 0);
  }
}
