// Save policy: timing, host memory, file layout, agreement between ranks; and messages for paths that do not exist.
#include <atomic>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "launch/config/config.h"
#include "launch/observe/banner.h"
#include "launch/ranks/start/host_blame.h"
#include "launch/ranks/start/supervisor.h"
#include "launch/train/save/run_saver.h"
#include "launch/train/save/save_timer.h"
#include "tests/launch/engine_ranks.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;

const std::string kTiny =
    "--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 90 --model.seq 8 --data.train mock "
    "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --launch.ranks threads "
    "--log.every 1000 ";

int64_t steps_in(const std::string& run) {
  int64_t n = 0;
  for (const auto& e : fs::directory_iterator(run + "/checkpoints"))
    n += e.path().filename().string().rfind("step-", 0) == 0;
  return n;
}

std::string problems_of(const std::vector<std::string>& flags) {
  try {
    load_config({.flags = flags});
  } catch (const Error& e) { return e.what(); }
  return "accepted";
}

}  // namespace

TEST_CASE("time-based saves: Young's interval, five minutes before the first, at most one per minute") {
  CHECK(young_interval(0.5, 3.1 * 3600) == Approx(105.64).epsilon(1e-4));
  CHECK(default_mtbf_hours(1) == 24);
  CHECK(default_mtbf_hours(10000) == 5);
  CHECK(default_mtbf_hours(1000000) == 0.5);
  SaveTimer timer(3.1 * 3600, 1000);
  CHECK_FALSE(timer.due(1299));
  CHECK(timer.due(1300));
  timer.saved(1300, 0.5);
  CHECK(timer.interval() == Approx(105.64).epsilon(1e-4));
  CHECK_FALSE(timer.due(1405));
  CHECK(timer.due(1406));
  timer.saved(1406, 100);  // one slow save of three does not lengthen the interval
  timer.saved(1506, 0.5);
  CHECK(timer.interval() == Approx(105.64).epsilon(1e-4));
  for (int k = 0; k < 4; ++k) timer.saved(2000, 1e-3);
  CHECK(timer.interval() == 60);
  CHECK(SaveTimer(20, 0).due(20));  // a job that fails three times a minute saves before it does
}

TEST_CASE("checkpoint.every is steps, 0 or auto, numbers and words, in files and on the command line") {
  TempDir dir;
  CHECK(load_config({}).config.checkpoint.saves_by_time());
  CHECK(load_config({.flags = {"--checkpoint.every", "70"}}).config.checkpoint.save_steps() == 70);
  CHECK(load_config({.flags = {"--save-interval", "0"}}).config.checkpoint.save_steps() == 0);
  write_file(dir / "c.json", R"({"checkpoint": {"every": 30, "keep_best": true, "staging_bytes": 5000000}})");
  const Config c = load_config({.file = dir / "c.json"}).config;
  CHECK(c.checkpoint.save_steps() == 30);
  CHECK(c.checkpoint.keep_best == 1);
  for (const auto& [word, count] : {std::pair{"true", 1}, {"false", 0}, {"7", 7}})
    CHECK(load_config({.flags = {"--checkpoint.keep_best", word}}).config.checkpoint.keep_best == count);
  for (const char* wrong : {"-1", "often", "1.5"})
    CHECK_THAT(problems_of({"--checkpoint.every", wrong}), Contains("expected auto or a number of steps 0.."));
  CHECK_THAT(problems_of({"--checkpoint.staging_bytes", "4GB"}), Contains("expected auto or a number of bytes"));
  CHECK_THAT(problems_of({"--checkpoint.every", "5", "--checkpoint.mtbf_hours", "3"}),
             Contains("is for checkpoint.every auto"));
  CHECK_THAT(problems_of({"--checkpoint.keep_best", "many"}), Contains("or true or false"));
  CHECK_THAT(problems_of({"--checkpoint.part_bytes", "1000"}), Contains("1000 is outside 1048576.."));
}

TEST_CASE("a time-based save due on one rank is announced to all at the next step") {
  EngineOptions o;
  o.model = {.layers = 2, .hidden = 16, .heads = 2, .ffn = 64, .vocab = 90, .seq = 8};
  o.microbatches = 2;
  on_engines(o, {.pp = 2, .dp = 2}, [&](EngineRank& r) {
    for (const bool due : {false, true, false}) {
      EngineBatches batches(o, 0, r.mesh.coord(Axis::kDp), 2, 2);
      const bool mine = due && r.mesh.rank() == 0;
      GT_CHECK(r.engine.step(batches.list, r.targets(2), {.save_due = mine}).save_due == due);
    }
  });
}

TEST_CASE("a run with time-based saves saves while it trains, bitwise identical, and reports it") {
  TempDir dir;
  const std::string run = kTiny + "--train.steps 400 --checkpoint.keep 1000 --tp 2 ";
  const Outcome often = must(run + "--log.name often --checkpoint.mtbf_hours 1e-7", dir);  // one failure per 0.4 ms
  CHECK(often.prints("by Young's rule (checkpoint.every auto)"));
  CHECK(steps_in(dir / "runs/often") > 2);
  const Outcome rarely = must(run + "--log.name rarely", dir);
  CHECK(rarely.prints("first after 5m"));
  CHECK(steps_in(dir / "runs/rarely") == 1);  // at the end
  CHECK(logged(dir / "runs/often", "loss") == logged(dir / "runs/rarely", "loss"));
  CHECK(must("ckpt diff runs/often runs/rarely", dir.path()).prints("equal"));
}

TEST_CASE("a staging copy above its budget is not made: the save blocks, reports it, and writes the same") {
  TempDir dir;
  const std::string run = kTiny + "--train.steps 4 --checkpoint.every 2 --dp 2 ";
  CHECK(must(run + "--log.name a", dir).prints("every 2 steps; asynchronously, from a snapshot of "));
  const Outcome tight = must(run + "--log.name b --checkpoint.staging_bytes 1000", dir);
  CHECK(tight.prints("training waits for them and they are written in chunks of 8 MiB"));
  CHECK(tight.prints("does not fit checkpoint.staging_bytes 1000"));
  CHECK(must(run + "--log.name c --checkpoint.staging_bytes 100000000", dir).prints("; asynchronously, "));
  CHECK(must("ckpt diff runs/a runs/b", dir.path()).prints("of them bitwise equal"));
}

TEST_CASE("without a budget the staging copy is made where the machine has free memory for it") {
  EngineOptions o;
  o.model = {.layers = 2, .hidden = 16, .heads = 2, .ffn = 64, .vocab = 90, .seq = 8};
  const StagePlans plans = plan_stages(o, {}, cpu_backend());
  CHECK(snapshot_fits({}, plans, cpu_backend(), 1));
  CHECK_FALSE(snapshot_fits({}, plans, cpu_backend(), 1 << 30));  // ranks of a few hundred kB each
  on_engines(o, {.dp = 2}, [&](EngineRank& r) {
    Config config;
    config.checkpoint.every = "7";
    config.parallel.dp = 2;
    RunSaver saver(config, r.mesh, cpu_backend(), {});
    GT_CHECK(!saver.due());
    // one machine lacks memory: no rank takes a snapshot
    saver.prepare(r.engine.checkpoint_views(), r.mesh.rank() != 1, true);
    GT_CHECK(saver.describe().find("every 7 steps; training waits for them") == 0 &&
                 saver.describe().find("does not fit the free memory") != std::string::npos,
             saver.describe());
  });
}

TEST_CASE("parts, writer threads, index.h5 and a commit without rename are set by flags, and any layout resumes") {
  TempDir dir;
  const std::string run = kTiny + "--model.hidden 96 --model.vocab 3000 --checkpoint.every 2 --log.name a ";
  must(run +
           "--train.steps 4 --dp 2 --checkpoint.part_bytes 1048576 --checkpoint.threads 3 --checkpoint.index_h5 "
           "--checkpoint.commit marker --checkpoint.hash sha256 --checkpoint.readback --checkpoint.direct_io off",
       dir);
  const std::string step = dir / "runs/a/checkpoints/step-000000004";
  CHECK(fs::exists(step + "/rank-00001.001.h5"));
  CHECK(fs::exists(step + "/index.h5"));
  CHECK_FALSE(fs::exists(dir / "runs/a/checkpoints/.attempt-step-000000004"));
  CHECK(must("ckpt verify runs/a --all --deep", dir.path()).prints("good"));
  must("export --load runs/a --output out", dir.path());
  CHECK(must(run + "--train.steps 6 --tp 2", dir).prints("from step 4"));
  CHECK(must("ckpt diff runs/a/checkpoints/step-000000004 runs/a/checkpoints/step-000000004", dir.path())
            .prints("equal"));
  // Leftovers of a dead attempt are not a checkpoint and are removed.
  fs::create_directories(dir / "runs/a/checkpoints/step-000000099");
  write_file(dir / "runs/a/checkpoints/.attempt-step-000000099", "x\n");
  CHECK(must("ckpt ls runs/a", dir.path()).prints("attempt"));
  CHECK(must(run + "--train.steps 8", dir).prints("from step 6"));
  CHECK_FALSE(fs::exists(dir / "runs/a/checkpoints/step-000000099"));
}

TEST_CASE("ls prints why each checkpoint is kept, by the run's own settings") {
  TempDir dir;
  must(kTiny +
           "--train.steps 10 --checkpoint.every 1 --checkpoint.keep 2 --checkpoint.keep_every 4 --checkpoint.keep_best "
           "2 "
           "--train.eval_every 3 --train.eval_steps 1 --log.name a",
       dir);
  const auto list = nlohmann::json::parse(must("ckpt ls runs/a --json", dir.path()).out).at("checkpoints");
  std::map<int64_t, std::string> why;
  for (const auto& c : list) why[c.at("step")] = c.at("kept");
  CHECK(why.at(10) == "newest 1 of 2");
  CHECK(why.at(9) == "newest 2 of 2");
  CHECK(why.at(8) == "every 4 steps");
  CHECK(why.at(4) == "every 4 steps");
  int best = 0;
  for (const auto& [step, text] : why) best += text == "one of the 2 best validation losses";
  CHECK(best + 4 == static_cast<int>(why.size()));
  CHECK(must("ckpt ls runs/a", dir.path()).prints("ok, newest 1 of 2"));
}

TEST_CASE("an unknown name in --load is refused, also by a run that has its own checkpoint") {
  TempDir dir;
  must(kTiny + "--train.steps 2 --log.name first", dir);
  must(kTiny + "--train.steps 3 --log.name second --load runs/first", dir);
  for (const char* run : {"second", "third"}) {
    const Outcome r = gpttrain(kTiny + "--train.steps 4 --load runs/frist --log.name " + run, dir.path());
    INFO(r.out);
    CHECK(r.code == 2);
    CHECK(r.prints("--load: runs/frist: does not exist; did you mean runs/first?"));
  }
  fs::create_directories(dir / "runs/empty");
  const Outcome empty = gpttrain(kTiny + "--train.steps 4 --load runs/empty --log.name second", dir.path());
  CHECK(empty.code == 2);
  CHECK(empty.prints("holds no checkpoint"));
  const Outcome own = must(kTiny + "--train.steps 4 --load runs/first --log.name second", dir);
  CHECK(own.prints("checkpoint.load_from has no effect"));
  CHECK(own.prints("runs/second/checkpoints/step-000000003"));
}

TEST_CASE("a fault at an unknown tensor is refused with the nearest name") {
  TempDir dir;
  const std::string run = kTiny + "--train.steps 1 --pp 2 --fault.inject ";
  const Outcome r = gpttrain(run + "nan@grad:param=layers.1.mlp.upp.weight,step=1", dir.path());
  CHECK(r.code == 2);
  CHECK(r.prints(
      "fault.inject: param=layers.1.mlp.upp.weight: no tensor of that name; did you mean layers.1.mlp.up.weight?"));
  const Outcome step = gpttrain(run + "kill@step:param=embed.weight", dir.path());
  CHECK(step.code == 2);
  CHECK(step.prints("at step there is no param="));
}

TEST_CASE("ranks that would write different checkpoints write none: reported, ignored, or fatal") {
  for (const TagValidation how : {TagValidation::kWarn, TagValidation::kIgnore, TagValidation::kFail}) {
    TempDir dir;
    EngineOptions o;
    o.model = {.layers = 2, .hidden = 16, .heads = 2, .ffn = 64, .vocab = 90, .seq = 8};
    Config config;
    config.checkpoint.dir = dir / "ckpt";
    config.checkpoint.tag_validation = how;
    config.parallel.dp = 2;
    std::atomic<int> refused{0};
    on_engines(o, {.dp = 2}, [&](EngineRank& r) {
      RunSaver saver(config, r.mesh, cpu_backend(), {});
      saver.prepare(r.engine.checkpoint_views(), true, true);
      TrainState state;
      state.step = 3;
      state.run_uuid = r.mesh.rank() == 0 ? "a" : "b";
      try {
        saver.save(state, r.engine.checkpoint_views(), {}, true);
      } catch (const Error& e) {
        refused +=
            e.code() == Exit::kInternal && std::string(e.what()).find("tag_validation fail") != std::string::npos;
      }
      saver.finish();
      GT_CHECK(saver.saved_step() == -1);
    });
    CHECK(refused == (how == TagValidation::kFail ? 2 : 0));
    CHECK_FALSE(fs::exists(dir / "ckpt/step-000000003"));
  }
}

TEST_CASE("a verdict names ranks, ranks name a host, and a host named twice is excluded where others have slots") {
  CHECK(blamed_ranks("rank 3 (node07 pid 4711, pp1 dp0 tp1) died: step, step 120") == std::vector<int>{3});
  CHECK(blamed_ranks("stalled: not arrived: rank 2, 5; it is in step 4 of rank 0") == std::vector<int>{2, 5});
  CHECK(blamed_ranks("step 5: w is not the same on the 3 ranks that hold it: rank 1 (n1, pp0 dp1 tp0) differs") ==
        std::vector<int>{1});
  CHECK(blamed_ranks("step 5: ranks 1 (n1, pp0), 4 (n2, pp0) differ") == std::vector<int>{1, 4});
  CHECK(blamed_ranks("lost: no sign of life from ranks 2 (n2 pid 7, pp1), 3 (n2 pid 8, pp1) for 15 s: machine down") ==
        std::vector<int>{2, 3});
  for (const char* nobody :
       {"", "stalled: deadlock, ranks 1, 2 wait for each other",
        "stalled: the ranks disagree: dp0 #5: rank 0 (world rank 2) called", "the rank of a matrix"})
    CHECK(blamed_ranks(nobody).empty());
  const std::vector<HostSlots> hosts{{"a", {0, 1}}, {"b", {0, 1}}, {"c", {0, 1}}};
  CHECK(host_of_rank(hosts, 3) == "b");
  CHECK(host_of_rank(hosts, 6).empty());
  HostBlame blame;
  CHECK(blame.after(137, "rank 2 (b) died", hosts, 4).empty());  // once may be chance
  CHECK(blame.after(137, "rank 1 (a) died", hosts, 4).empty());
  CHECK(blame.after(124, "stalled: not arrived: rank 2, 3; …", hosts, 4) == "b");
  // the other hosts lack slots for four ranks
  CHECK(blame.after(137, "rank 0 (a) died", {hosts[0], hosts[2]}, 4).empty());
  CHECK(HostBlame().after(16, "step 5: rank 0 (a, pp0) differs", hosts, 4) == "a");  // excluded at once
  HostBlame both;
  for (int k = 0; k < 3; ++k) CHECK(both.after(16, "step 5: ranks 1 (a), 2 (b) differ", hosts, 4).empty());
  CHECK_FALSE(RestartPolicy(5).after({.code = 16}).restart);
  CHECK(RestartPolicy(5).after({.code = 16, .elsewhere = true}).restart);
}
