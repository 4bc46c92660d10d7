// Every schedule, generated or from a file, trains bitwise identical to one pipeline rank for every tp, dp and pp. Each
// rank executes the simulated actions with as many live activations.
#include <filesystem>

#include "launch/config/values/schedule_file.h"
#include "parallel/pipeline/simulate.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct Named {
  const char* name;
  int vpp;
};
constexpr Named kSchedules[] = {{"1f1b", 1}, {"gpipe", 1}, {"interleaved", 2}, {"interleaved", 3}, {"zb-h1", 1}};

// 12 layers with embedding, norm and head: at pp 4 and vpp 3 every stage has one layer.
MeshRun tiny_run(MeshShape mesh, int microbatches, bool tied) {
  static const auto kSamples = synthetic_samples(48, 4, 30, 11);
  MeshRun run;
  run.engine.model = {.layers = 9, .hidden = 8, .heads = 2, .ffn = 16, .vocab = 30, .seq = 4};
  run.engine.model.tied = tied;
  // two chunks a microbatch, so that the head's gradient is accumulated within a microbatch too
  run.engine.loss_chunk = 3;
  run.engine.optim.weight_decay = 0.1f;
  run.engine.lr = {.type = "cosine", .peak = 1e-2, .min_lr = 1e-4, .warmup_steps = 1, .total_steps = 20};
  run.mesh = mesh;
  run.global_batch = int64_t{microbatches} * mesh.dp;
  run.steps = 3;
  run.evaluate = true;
  run.samples = kSamples;
  return run;
}

Program compute_of(const Program& p) {
  Program out;
  for (const Action& a : p)
    if (a.act <= Act::kBackwardWeight) out.push_back(a);
  return out;
}

// Executed actions, buffer slots and live activations equal those of the requested schedule.
void require_as_simulated(const MeshResult& r, const MeshRun& run, const PipelineSchedule& s) {
  const Report report = simulate(s);
  for (int rank = 0; rank < run.mesh.world(); ++rank) {
    const auto pp_rank = static_cast<size_t>(run.mesh.coord(Axis::kPp, rank));
    const RankRun& done = r.ranks[static_cast<size_t>(rank)];
    REQUIRE(to_string(done.computed) == to_string(compute_of(s.program[pp_rank])));
    REQUIRE(done.slots == report.peak_in_flight[pp_rank]);
    REQUIRE(done.peak_live == report.peak_in_flight[pp_rank]);
  }
}

// Returns the value of parallel.schedule for this text.
std::string file_of(const TempDir& dir, const std::string& text) {
  write_file(dir / "x.schedule", text);
  return "file:" + (dir / "x.schedule");
}

constexpr MeshShape kBases[] = {{.dp = 1, .tp = 1}, {.dp = 1, .tp = 2}, {.dp = 2, .tp = 1}};

}  // namespace

TEST_CASE("every schedule, pp, tp, dp, ZeRO stage and number of microbatches is bitwise equal to one pipeline rank",
          "[R10]") {
  for (const MeshShape base : kBases)
    for (int m : {1, 3, 4, 6})
      for (bool tied : {true, false}) {
        const MeshResult flat = run_mesh(tiny_run(base, m, tied));
        CHECK(flat.eval_loss > 0);
        for (int pp : {2, 3, 4})
          for (const Named& s : kSchedules)
            for (int zero : {0, 1}) {
              if (base.dp == 1 && zero != (m + pp) % 2) continue;  // without dp the stage only selects code paths
              MeshRun run = tiny_run({.pp = pp, .dp = base.dp, .tp = base.tp}, m, tied);
              run.engine.schedule = s.name;
              run.engine.vpp = s.vpp;
              run.engine.zero.stage = zero;
              INFO("tp " << base.tp << " dp " << base.dp << " pp " << pp << " " << s.name << " vpp " << s.vpp << " m "
                         << m << (tied ? " tied" : " untied") << " zero " << zero);
              const MeshResult r = run_mesh(run);
              check_bitwise(r, flat);
              require_as_simulated(r, run, make_schedule(s.name, pp, s.vpp, m, tied));
            }
      }
}

TEST_CASE("1f1b with extra microbatches in flight is bitwise equal to one pipeline rank") {
  for (const MeshShape base : kBases)
    for (bool tied : {true, false}) {
      const MeshResult flat = run_mesh(tiny_run(base, 6, tied));
      for (int pp : {2, 3})
        for (int extra : {1, 5})
          for (int zero : {0, 1, 2, 3}) {
            if (base.dp == 1 && zero > 1) continue;
            MeshRun run = tiny_run({.pp = pp, .dp = base.dp, .tp = base.tp}, 6, tied);
            run.engine.extra_in_flight = extra;
            run.engine.zero.stage = zero;
            run.engine.zero.grad_reduce = GradReduce::kEnd;
            INFO("tp " << base.tp << " dp " << base.dp << " pp " << pp << " extra " << extra << " zero " << zero
                       << (tied ? " tied" : " untied"));
            const MeshResult r = run_mesh(run);
            check_bitwise(r, flat);
            require_as_simulated(r, run, make_schedule("1f1b", pp, 1, 6, tied, extra));
          }
    }
}

TEST_CASE("one pipeline rank is bitwise identical under every schedule") {
  for (bool tied : {true, false}) {
    const MeshResult flat = run_mesh(tiny_run({}, 4, tied));
    for (const char* name : {"gpipe", "interleaved", "zb-h1"}) {
      INFO(name);
      MeshRun run = tiny_run({}, 4, tied);
      run.engine.schedule = name;
      const MeshResult r = run_mesh(run);
      check_bitwise(r, flat);
      require_as_simulated(r, run, make_schedule(name, 1, 1, 4, tied));
    }
  }
}

TEST_CASE("gradients do not depend on the partition of a chunked model") {
  const MeshResult flat = run_mesh(tiny_run({}, 4, true));
  for (const char* partition : {"flops", "uniform", "5,2,0,2", "1,1,1,6"}) {
    INFO(partition);
    MeshRun run = tiny_run({.pp = 2}, 4, true);
    run.engine.schedule = "interleaved";
    run.engine.vpp = 2;
    run.engine.partition = partition;
    if (std::string(partition) == "5,2,0,2") {  // a stage without layers
      CHECK_THROWS_WITH(run_mesh(run), Catch::Contains("5,2,0,2"));
      continue;
    }
    check_bitwise(run_mesh(run), flat);
  }
}

TEST_CASE("a schedule read from a file is bitwise equal to its generator, complete or of compute actions only") {
  const TempDir dir;
  for (const Named& n : kSchedules)
    for (bool tied : {true, false}) {
      MeshRun run = tiny_run({.pp = 2, .dp = 2, .tp = 1}, 3, tied);
      run.engine.schedule = n.name;
      run.engine.vpp = n.vpp;
      const MeshResult made = run_mesh(run);
      const PipelineSchedule s = make_schedule(n.name, 2, n.vpp, 3, tied);
      PipelineSchedule bare = s;
      for (Program& p : bare.program) p = compute_of(p);
      for (const std::string& text : {to_string(s), to_string(bare)}) {
        INFO(text);
        run.engine.schedule = file_of(dir, text);
        CHECK(read_schedule_file(run.engine.schedule, tied).program == s.program);
        const MeshResult r = run_mesh(run);
        check_bitwise(r, made);
        require_as_simulated(r, run, s);
      }
    }
}

TEST_CASE("a custom schedule trains the same weights") {
  const TempDir dir;
  // All forwards chunk by chunk; then the last chunk's backwards split and the first chunk's whole, with late weight
  // gradients.
  const std::string text =
      "# looping gpipe, two chunks a rank, three microbatches\n"
      "0F0 0F1 0F2 2F0 2F1 2F2  2I0 2I1 2I2 2W0 2W1 0B0 0B1 0B2 2W2\n"
      "1F0 1F1 1F2 3F0 3F1 3F2  3I0 3W0 3I1 3I2 3W1 1B0 1B1 1B2 3W2\n";
  for (bool tied : {true, false}) {
    const MeshResult flat = run_mesh(tiny_run({.dp = 2}, 3, tied));
    MeshRun run = tiny_run({.pp = 2, .dp = 2}, 3, tied);
    run.engine.vpp = 2;
    run.engine.schedule = file_of(dir, text);
    const MeshResult r = run_mesh(run);
    check_bitwise(r, flat);
    require_as_simulated(r, run, read_schedule_file(run.engine.schedule, tied));
  }
}

TEST_CASE("a schedule of another layout, or refused by the simulator, is a usage error with the reason") {
  const TempDir dir;
  const auto refused = [&](const std::string& text, const std::string& why, bool tied = true) {
    EngineOptions o = tiny_run({}, 3, tied).engine;
    o.microbatches = 3;
    o.schedule = file_of(dir, text);
    INFO(text);
    try {
      train_schedule(o, 2);
      FAIL("accepted");
    } catch (const Error& e) {
      CHECK(e.code() == Exit::kUsage);
      CHECK_THAT(e.what(), Catch::Contains("x.schedule") && Catch::Contains(why));
    }
  };
  refused(to_string(make_schedule("1f1b", 4, 1, 3)),
          "has 4 pipeline ranks (lines) where parallel.pp is 2; it fits parallel.pp 4");
  refused(to_string(make_schedule("interleaved", 2, 2, 3)),
          "2 chunks per rank where parallel.vpp is 1; it fits parallel.vpp 2");
  refused(to_string(make_schedule("1f1b", 2, 1, 8)),
          "8 microbatches where train.grad_accum is 3; it fits train.grad_accum 8");
  refused(to_string(make_schedule("forward", 2, 1, 3)), "no backward actions");
  refused(to_string(make_schedule("1f1b", 2, 1, 3, true)), "leave T out", false);
  refused("0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1B0 1F2 1F1 1B1 1B2\n", "1F2");     // not in ascending order
  refused("0F0 0B0 0F1 0F2 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2\n", "stalls");  // deadlock
  refused("0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1\n1F0 1B0 1F1 1B1 1F2 1B2\n", "before the last weight gradient");
  refused("0F0 0F1 0F2 0B0 0B1 0B2 0T\n1F0 1B0 1F1 1B1 1F2 1B2 1T\n", "T without G");
}

TEST_CASE("a run resumes with other schedules and chunks bitwise, and its model loads without the schedule's file") {
  TempDir dir;
  const std::string tiny =
      "--model.layers 5 --model.hidden 16 --model.heads 2 --model.vocab 60 --model.seq 8 --data.train mock "
      "--train.micro_batch 1 --train.global_batch 3 --schedule.type constant --device.kind cpu --log.tensorboard false "
      "--launch.ranks threads --train.eval_every 3 --train.eval_steps 1 ";
  write_file(dir / "x.schedule", "0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1 0W2\n1F0 1I0 1F1 1I1 1W0 1W1 1F2 1I2 1W2\n");
  const auto train = [&](const std::string& flags) {
    const Outcome o = gpttrain("train " + tiny + flags, dir.path());
    INFO(o.out);
    REQUIRE(o.code == 0);
  };
  train("--log.name one --train.steps 9");
  train("--log.name x --train.steps 3 --pp 2 --vpp 3 --parallel.schedule interleaved");
  train("--log.name x --train.steps 6 --pp 3 --parallel.schedule zb-h1");
  train("--log.name x --train.steps 9 --pp 2 --parallel.schedule file:x.schedule");
  for (const char* key : {"loss", "grad_norm"}) CHECK(logged(dir / "runs/x", key) == logged(dir / "runs/one", key));
  CHECK(logged(dir / "runs/x", "loss").size() == 9);

  std::filesystem::remove(dir / "x.schedule");
  const Outcome eval = gpttrain("eval --load runs/x --steps 2", dir.path());
  INFO(eval.out);
  CHECK(eval.code == 0);
  const Outcome again = gpttrain(
      "train " + tiny + "--log.name x --train.steps 10 --pp 2 --parallel.schedule file:x.schedule", dir.path());
  INFO(again.out);
  CHECK(again.code == 2);
  CHECK(again.prints("x.schedule: cannot be read"));
}

TEST_CASE("microbatches of different lengths train as on one pipeline rank, under every schedule") {
  for (const MeshShape base : {MeshShape{}, MeshShape{.dp = 2}, MeshShape{.tp = 2}}) {
    MeshRun run = tiny_run(base, 5, true);
    run.engine.model.seq = 6;
    run.samples = synthetic_samples(48, 6, 30, 11);
    run.engine.dynamic_shapes = run.vary_length = true;
    const MeshResult flat = run_mesh(run);
    for (const Named s : kSchedules) {
      INFO(s.name << " vpp " << s.vpp << " tp " << base.tp << " dp " << base.dp);
      run.mesh.pp = 2;
      run.engine.schedule = s.name;
      run.engine.vpp = s.vpp;
      check_bitwise(run_mesh(run), flat);
    }
    run.vary_length = false;  // varying the length changes results
    run.engine.schedule = "1f1b";
    run.engine.vpp = 1;
    CHECK(run_mesh(run).losses != flat.losses);
  }
}
