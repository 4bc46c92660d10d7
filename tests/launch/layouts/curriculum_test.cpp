// Sequence-length curriculum: whole runs with lengths that change between steps, in every kind of layout.
#include "data/samples/curriculum.h"

#include "parallel/comm/null_group.h"
#include "tests/launch/commands/deepspeed_fixture.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const Curriculum kGrows{.type = CurriculumType::kFixedDiscrete, .lengths = {8, 24, 16, 32}, .until = {1, 2, 3}};

MeshRun run_of(MeshShape mesh) {
  MeshRun run;
  run.engine.model = {.layers = 4, .hidden = 24, .heads = 4, .ffn = 60, .vocab = 300, .seq = 32};
  run.engine.loss_chunk = 16;
  run.engine.model.dropout = 0.1;
  run.engine.lengths = kGrows.all_lengths();
  run.engine.lr = {.type = "constant", .peak = 3e-3};
  run.curriculum = kGrows;
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 5;
  run.every_step = run.evaluate = true;
  run.samples = synthetic_samples(48, 32, 300, 5);
  return run;
}

const std::string kTiny =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 32 --data.train mock "
    "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --launch.ranks threads "
    "--schedule.type constant --data.curriculum fixed_linear --data.curriculum_min 8 ";
const std::string kEight = "--data.curriculum_steps 8 ";

std::string problem(std::vector<std::string> flags) {
  for (const char* word : {"--data.curriculum", "fixed_linear"}) flags.emplace_back(word);
  try {
    load_config({.file = "", .flags = flags});
  } catch (const Error& e) { return e.what(); }
  return "accepted";
}

}  // namespace

TEST_CASE("growing sequences: pipelines, schedules, ZeRO and recomputation are bitwise equal to a flat run") {
  struct Way {
    int pp, vpp, zero;
    const char* schedule;
    Recompute recompute;
  };
  const Way ways[] = {{1, 1, 3, "1f1b", Recompute::kFull},
                      {2, 1, 1, "1f1b", Recompute::kSelective},
                      {2, 2, 2, "interleaved", Recompute::kNone},
                      {2, 1, 3, "zb-h1", Recompute::kFull},
                      {4, 1, 0, "gpipe", Recompute::kNone}};
  for (const MeshShape base : {MeshShape{}, MeshShape{.dp = 2, .tp = 2}})
    for (const bool sequence_parallel : {false, true}) {
      if (sequence_parallel && base.tp == 1) continue;
      MeshRun plain = run_of(base);
      plain.engine.sequence_parallel = sequence_parallel;
      const MeshResult flat = run_mesh(plain);
      for (const Way& w : ways) {
        INFO("tp " << base.tp << " pp " << w.pp << " " << w.schedule << " zero " << w.zero << " sequence parallel "
                   << sequence_parallel);
        MeshRun run = run_of({.pp = w.pp, .dp = base.dp, .tp = base.tp});
        run.engine.sequence_parallel = sequence_parallel;
        run.engine.schedule = w.schedule;
        run.engine.vpp = w.vpp;
        run.engine.zero.stage = w.zero;
        run.engine.zero.grad_reduce = GradReduce::kEnd;
        run.engine.recompute = w.recompute;
        const MeshResult r = run_mesh(run);
        check_bitwise(r, flat);
        for (size_t rank = 0; rank < r.planned.size(); ++rank) {
          CHECK(r.measured[rank].train.activation_bytes == r.planned[rank].train.activation_bytes);
          CHECK(r.measured[rank].train.gradient_bytes <= r.planned[rank].train.gradient_bytes);
        }
      }
    }
}

TEST_CASE("growing sequences: every kind of layout and microbatch stays close to one rank") {
  const MeshResult one = run_mesh(run_of({}));
  for (const MeshShape& mesh : {MeshShape{.dp = 4}, MeshShape{.tp = 4}, MeshShape{.pp = 2, .dp = 2, .tp = 2}}) {
    INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
    MeshRun run = run_of(mesh);
    run.engine.sequence_parallel = true;
    run.engine.micro_batch = 2;
    check_close(run_mesh(run), one);
  }
}

TEST_CASE("a step of another length trains on its truncated tokens only") {
  MeshRun run = run_of({});
  run.engine.model.dropout = 0;
  run.curriculum.lengths = {8, 32};
  run.curriculum.until = {1};
  MeshRun small = run;  // a model with a shorter maximum length and the same weights
  const MeshResult grown = run_mesh(run);
  small.engine.model.seq = 8;
  small.engine.lengths.clear();
  small.curriculum = {};
  small.steps = 1;
  small.evaluate = false;
  Logical weights = grown.initial;
  weights["pos_embed.weight"].resize(8 * 24);
  small.weights = &weights;
  const MeshResult alone = run_mesh(small);
  CHECK(grown.losses[0] == alone.losses[0]);
  CHECK(grown.norms[0] == Approx(alone.norms[0]).epsilon(1e-6));
}

TEST_CASE("a run with growing sequences resumes bitwise in another layout, and counts its tokens") {
  TempDir dir;
  const Outcome whole =
      gpttrain(kTiny + kEight + "--log.name whole --train.steps 10 --log.samples_csv csv", dir.path());
  INFO(whole.out);
  REQUIRE(whole.code == 0);
  CHECK(whole.prints("curriculum"));
  REQUIRE(gpttrain(kTiny + kEight + "--log.name parts --train.steps 5", dir.path()).code == 0);
  const Outcome rest =
      gpttrain(kTiny + kEight + "--log.name parts --train.steps 10 --pp 2 --log.samples_csv csv2", dir.path());
  INFO(rest.out);
  REQUIRE(rest.code == 0);
  const std::string a = dir / "runs/whole", b = dir / "runs/parts";
  for (const char* key : {"loss", "grad_norm", "seq", "tokens"}) CHECK(logged(a, key) == logged(b, key));
  CHECK(logged(a, "seq") == std::vector<double>{8, 8, 16, 16, 16, 24, 24, 32, 32, 32});
  const std::vector<double> tokens = logged(a, "tokens");
  CHECK(tokens[0] == 32);
  CHECK(tokens.back() == 4 * (8 + 8 + 16 + 16 + 16 + 24 + 24 + 32 + 32 + 32));
  // Curves over samples advance per step, whatever the length.
  CHECK_THAT(read_file(dir / "csv/Train_Samples_train_loss.csv"), Contains("\n20,") && Contains("\n40,"));
  CHECK_THAT(read_file(dir / "csv2/Train_Samples_train_loss.csv"),
             Contains("step,train_loss\n24,") && Contains("\n40,"));
  // Changing the curriculum is rejected unless allowed; an allowed change is reported.
  const Outcome other = gpttrain(kTiny + "--log.name parts --train.steps 12 --data.curriculum_steps 30", dir.path());
  CHECK(other.code == 2);
  CHECK(other.prints("data.curriculum_steps"));
  const Outcome allowed = gpttrain(kTiny +
                                       "--log.name parts --train.steps 12 --data.curriculum_steps 30 "
                                       "--checkpoint.allow_change data.curriculum_steps",
                                   dir.path());
  INFO(allowed.out);
  CHECK(allowed.code == 0);
  CHECK(allowed.prints("the curriculum changed: the last step before the checkpoint took 32"));
}

TEST_CASE("lengths that the model or the layout does not support are refused before anything starts") {
  const std::vector<std::string> ok{"--model.seq", "64", "--train.steps", "10"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), ok.begin(), ok.end());
    return problem(more);
  };
  CHECK(with({}) == "accepted");
  CHECK_THAT(with({"--data.curriculum_max", "128"}), Contains("128 tokens are more than model.seq 64"));
  CHECK_THAT(with({"--data.curriculum_min", "4"}), Contains("4 is less than curriculum_step 8"));
  CHECK_THAT(with({"--data.curriculum_min", "32", "--data.curriculum_max", "16"}),
             Contains("more than curriculum_max"));
  CHECK_THAT(with({"--tp", "4", "--data.curriculum_step", "2"}), Contains("not divisible by tp 4"));
  CHECK(with({"--tp", "4", "--data.curriculum_step", "2", "--parallel.sequence_parallel", "false"}) == "accepted");
  const auto list = [&](const char* lengths, const char* until) {
    try {
      load_config({.file = "",
                   .flags = {"--model.seq", "64", "--data.curriculum", "fixed_discrete", "--data.curriculum_lengths",
                             lengths, "--data.curriculum_until", until}});
    } catch (const Error& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  CHECK(list("8,64", "3") == "accepted");
  CHECK_THAT(list("8,64", "3,4"), Contains("2 lengths and 2 last steps"));
  CHECK_THAT(list("8,64,32", "4,4"), Contains("are not ascending"));
  CHECK_THAT(list("8.5,64", "4"), Contains("whole numbers"));
  CHECK_THAT(list("8,65", "4"), Contains("65 tokens are more than model.seq 64"));
}

TEST_CASE("DeepSpeed's curriculum_learning becomes data.curriculum") {
  const std::vector<std::string> batch{"--train.global_batch", "8", "--model.seq", "64", "--train.steps", "10"};
  const auto load = [&](const std::string& inside) {
    return load_deepspeed({.json = R"({"curriculum_learning": {"enabled": true, )" + inside + "}}", .flags = batch});
  };
  const Curriculum linear = load(R"("curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 64,
          "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 20, "difficulty_step": 4})")
                                .config.data.curriculum;
  CHECK(linear.type == CurriculumType::kFixedLinear);
  CHECK((linear.min == 8 && linear.max == 64 && linear.steps == 20 && linear.step == 4));
  const LoadedConfig root = load(R"("min_difficulty": 8, "max_difficulty": 64, "schedule_type": "fixed_root",
      "schedule_config": {"total_curriculum_step": 20, "difficulty_step": 8, "root_degree": 3})");
  CHECK(root.config.data.curriculum.root == 3);
  CHECK_THAT(joined_notes(root),
             Contains("curriculum_learning.schedule_type fixed_root -> data.curriculum fixed_root"));
  const Curriculum list =
      load(R"("schedule_type": "fixed_discrete", "schedule_config": {"difficulty": [8, 16, 64], "max_step": [2, 4]})")
          .config.data.curriculum;
  CHECK(list.lengths == std::vector<int64_t>{8, 16, 64});
  CHECK(list.until == std::vector<int64_t>{2, 4});
  const auto problems = [&](const std::string& inside) {
    const std::string block = R"({"curriculum_learning": {"enabled": true, )";
    return deepspeed_problems({.json = block + inside + "}}", .flags = batch});
  };
  CHECK_THAT(problems(R"("schedule_type": "custom")"), Contains("fixed_discrete") && Contains("custom"));
  CHECK_THAT(problems(R"("schedule_type": "fixed_linear", "min_difficulty": 8)"),
             Contains("has no max_difficulty") && Contains("has no schedule_config.difficulty_step"));
  CHECK_THAT(problems(R"("min_difficulty": 8)"), Contains("without a schedule_type"));
}

TEST_CASE("steps of every length stay within the planned memory") {
  for (const int stage : {1, 3})
    for (const char* schedule : {"1f1b", "zb-h1", "interleaved"})
      for (const Recompute how : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        INFO("zero " << stage << ' ' << schedule << " recompute " << static_cast<int>(how));
        EngineOptions o;
        o.model = {.layers = 6, .hidden = 16, .heads = 4, .ffn = 32, .vocab = 60, .seq = 64};
        o.recompute = how;
        o.lengths = Curriculum{.type = CurriculumType::kFixedLinear, .min = 4, .max = 64, .step = 4}.all_lengths();
        o.sequence_parallel = true;
        o.zero.stage = stage;
        o.zero.persist_numel = 0;
        o.schedule = schedule;
        o.vpp = o.schedule == "interleaved" ? 2 : 1;
        o.micro_batch = 2;
        o.microbatches = 3;
        const MeshShape shape{.pp = 2, .dp = 2, .tp = 2};
        for (int rank = 0; rank < shape.world(); rank += 2) {
          NullFactory nobody(rank, shape.world());
          const Mesh mesh(shape, nobody);
          const Stream stream{{DeviceKind::kNull, 0}, nullptr};
          Engine engine(o, mesh, null_backend(), stream, plan_memory(o, shape, rank));
          const Buffer tokens(2 * 64 * 4, stream.device, *null_backend().device);
          const auto step = [&](int64_t length) {
            MicroBatch mb;
            mb.batch = 2, mb.seq = length;
            mb.tokens = mb.targets = tokens.tensor({2, length}, DType::kI32);
            REQUIRE_NOTHROW(engine.step(std::vector<MicroBatch>(3, mb), 6 * length));
          };
          for (const int64_t length : o.lengths) step(length);
          for (auto it = o.lengths.rbegin(); it != o.lengths.rend(); ++it) step(*it);
        }
      }
}
