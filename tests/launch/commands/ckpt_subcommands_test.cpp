// Checkpoints from outside: saving during training, the ckpt subcommands, and rejected resumes.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;

const std::string kTiny =
    "--model.layers 3 --model.hidden 16 --model.heads 2 --model.vocab 90 --model.seq 8 --data.train mock "
    "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --launch.ranks threads "
    "--checkpoint.every 2 ";

void flip(const std::string& path, size_t at) {
  std::string bytes = read_file(path);
  bytes.at(at) = static_cast<char>(bytes[at] ^ 4);
  write_file(path, bytes);
}

}  // namespace

TEST_CASE("background and blocking saves write the same checkpoints, under any layout") {
  TempDir dir;
  must(kTiny + "--train.steps 6 --log.name a --tp 2 --pp 2 --dp 1", dir.path());
  must(kTiny + "--train.steps 6 --log.name b --tp 2 --pp 1 --dp 1 --checkpoint.async false", dir.path());
  must(kTiny + "--train.steps 6 --log.name c --tp 1 --pp 1 --dp 1 --train.seed 5", dir.path());
  CHECK(must("ckpt verify runs/a --all", dir.path()).prints("good"));
  // Same tp: bitwise equal whatever pp is, including optimizer state.
  CHECK(must("ckpt diff runs/a runs/b", dir.path()).prints("120 tensors compared, 120 of them bitwise equal"));
  const Outcome r = gpttrain("ckpt diff runs/a runs/c --show 3", dir.path());
  CHECK(r.code == 1);
  CHECK(r.prints("relative"));
  CHECK(r.prints("state seed: "));
  const Outcome json = gpttrain("ckpt diff runs/a runs/c --json", dir.path());
  CHECK(json.code == 1);
  CHECK_FALSE(nlohmann::json::parse(json.out).at("equal").get<bool>());
  CHECK(gpttrain("ckpt diff runs/a", dir.path()).code == 2);
  CHECK(gpttrain("ckpt diff runs/a runs/b runs/c", dir.path()).code == 2);
  CHECK(gpttrain("ckpt diff runs/a runs/nowhere", dir.path()).code == 2);
  // Saves are logged with their stall time and write time.
  CHECK(logged(dir / "runs/a", "stall_seconds", "checkpoint").size() == 3);
}

TEST_CASE("verify reports damage with exit code 65, resume falls back and sets the damaged step aside") {
  TempDir dir;
  must(kTiny + "--train.steps 4 --log.name a", dir.path());
  const std::string steps = dir / "runs/a/checkpoints";
  flip(steps + "/step-000000004/rank-00000.h5", 40000);
  const Outcome r = gpttrain("ckpt verify runs/a", dir.path());
  CHECK(r.code == 65);
  CHECK(r.prints("rank-00000.h5, bytes 0 to "));
  CHECK(r.prints("expected CRC32C"));
  CHECK(gpttrain("ckpt verify runs/a --all --json", dir.path()).code == 65);
  CHECK(gpttrain("ckpt verify runs/a/checkpoints/step-000000002", dir.path()).code == 0);
  CHECK(gpttrain("ckpt verify runs/b", dir.path()).code == 2);
  CHECK(gpttrain("ckpt prune runs/a --keep 1", dir.path()).code == 65);  // would leave no checkpoint
  CHECK(fs::exists(steps + "/step-000000002"));
  const Outcome resumed = must(kTiny + "--train.steps 6 --log.name a", dir.path());
  CHECK(resumed.prints("from step 2"));
  CHECK(resumed.prints("corrupt-"));
  CHECK(must("ckpt ls runs/a", dir.path()).prints("corrupt"));
}

TEST_CASE("prune keeps what its flags select, and a dry run changes nothing") {
  TempDir dir;
  must(kTiny + "--train.steps 8 --checkpoint.keep 4 --log.name a", dir.path());
  const std::string steps = dir / "runs/a/checkpoints";
  fs::create_directories(steps + "/.tmp-step-000000006-dead");
  const Outcome dry = must("ckpt prune runs/a --keep 1 --keep-every 4 --dry-run", dir.path());
  CHECK(dry.prints("would remove"));
  CHECK(fs::exists(steps + "/step-000000002"));
  CHECK(fs::exists(steps + "/.tmp-step-000000006-dead"));
  must("ckpt prune runs/a --keep 1 --keep-every 4", dir.path());
  CHECK_FALSE(fs::exists(steps + "/step-000000002"));
  CHECK_FALSE(fs::exists(steps + "/step-000000006"));
  CHECK_FALSE(fs::exists(steps + "/.tmp-step-000000006-dead"));
  CHECK(fs::exists(steps + "/step-000000004"));
  CHECK(fs::exists(steps + "/step-000000008"));
  CHECK_FALSE(fs::exists(steps + "/.lock"));
  CHECK(must("ckpt verify runs/a --all", dir.path()).prints("good"));
}

TEST_CASE("a resume with other settings is refused with old and new value unless they are allowed by name") {
  TempDir dir;
  must(kTiny + "--train.steps 2 --log.name a", dir.path());
  const std::string resume = kTiny + "--train.steps 4 --log.name a ";
  const Outcome r = gpttrain(resume + "--optim.lr 0.001 --model.heads 4 --optim.betas 0.8 0.9", dir.path());
  CHECK(r.code == 2);
  CHECK(r.prints("optim.lr: 3e-04 in the checkpoint, 0.001 now"));
  CHECK(r.prints("model.heads: 2 in the checkpoint, 4 now"));
  CHECK(r.prints("optim.betas: 0.9,0.95 in the checkpoint, 0.8,0.9 now"));
  CHECK(r.prints("--checkpoint.allow_change"));
  CHECK(gpttrain(resume + "--optim.lr 0.001 --optim.eps 1e-7 --checkpoint.allow_change optim.lr", dir.path()).code ==
        2);
  // Rejected before anything was modified; layouts, steps and logs may change freely.
  CHECK(fs::exists(dir / "runs/a/checkpoints/step-000000002"));
  must(resume + "--optim.lr 0.001 --optim.eps 1e-7 --checkpoint.allow_change optim --tp 2 --log.every 2", dir.path());
  CHECK(gpttrain(resume + "--train.steps 6 --train.seed 9", dir.path())
            .prints("train.seed: 1234 in the checkpoint, 9 now"));
  must(resume +
           "--train.steps 6 --optim.lr 0.001 --optim.eps 1e-7 --train.seed 9 --data.allow_change "
           "--checkpoint.allow_change train.seed",
       dir.path());
}

TEST_CASE("two jobs in one run directory: the second is refused and names the first") {
  TempDir dir;
  int second = -1;
  std::string output;
  const std::string endless = kTiny + "--train.steps 1000000 --checkpoint.every 0 --log.every 1000 --log.name a";
  const Outcome first = gpttrain(endless, dir.path(), 120, [&](int group) {
    wait_until("the first job's lock", [&] { return fs::exists(dir / "runs/a/checkpoints/.lock"); });
    const Outcome r = gpttrain(kTiny + "--train.steps 2 --log.name a", dir.path());
    second = r.code;
    output = r.out;
    ::kill(-group, SIGKILL);
  });
  INFO(first.out);
  CHECK(second == 2);
  CHECK(output.find("another job uses this folder") != std::string::npos);
  CHECK(fs::exists(dir / "runs/a/checkpoints/.lock"));
  must(kTiny + "--train.steps 2 --log.name a", dir.path());  // the lock of a dead owner is ignored
  CHECK_FALSE(fs::exists(dir / "runs/a/checkpoints/.lock"));
}

TEST_CASE("records of the steps before a checkpoint are on disk at its commit, and no step is lost after a kill") {
  TempDir dir;
  const std::string run = kTiny + "--log.every 1000 --checkpoint.keep 1000 --log.name a ";
  int64_t newest = 0;
  gpttrain(run + "--train.steps 100000", dir.path(), 120, [&](int group) {
    wait_until("a checkpoint", [&] { return fs::exists(dir / "runs/a/checkpoints/step-000000008"); });
    ::kill(-group, SIGKILL);
  });
  for (const auto& e : fs::directory_iterator(dir / "runs/a/checkpoints"))
    if (const std::string name = e.path().filename(); name.rfind("step-", 0) == 0)
      newest = std::max<int64_t>(newest, std::stoll(name.substr(5)));
  REQUIRE(newest >= 8);
  std::map<int64_t, int> times;
  const auto steps_logged = logged(dir / "runs/a", "step");
  for (const double step : steps_logged) ++times[static_cast<int64_t>(step)];
  for (int64_t step = 1; step <= newest; ++step) REQUIRE(times[step] == 1);
  must(run + fmt::format("--train.steps {}", newest + 3), dir.path());
  CHECK(logged(dir / "runs/a", "loss").size() == static_cast<size_t>(newest + 3));
}

TEST_CASE("a run without a checkpoint never succeeds: processes, one message, and under the supervisor too") {
  TempDir dir;
  write_file(dir / "file", "in the way");
  const std::string nowhere = "--train.steps 8 --checkpoint.dir file/checkpoints ";
  const Outcome once = gpttrain("launch --max-restarts 1 " + kTiny + nowhere + "--log.name a", dir.path());
  INFO(once.out);
  CHECK(once.code == 74);
  CHECK(once.count("finished at step 8, but no checkpoint of it could be written; there is none: ") ==
        2);  // once for each of the two starts
  const Outcome two = gpttrain(kTiny + nowhere +
                                   "--launch.ranks processes --dp 2 --checkpoint.async false --log.name b "
                                   "--checkpoint.fail_policy abort",
                               dir.path());
  INFO(two.out);
  CHECK(two.code == 74);
  CHECK(two.count("3 checkpoints in a row could not be written") == 1);
  CHECK(logged(dir / "runs/b", "loss").size() == 6);
}

TEST_CASE("failed saves are counted, and with fail_policy abort the third in a row ends the run with 74") {
  TempDir dir;
  // Limits file sizes to 64 KiB: logs fit, shards do not.
  const std::string small = "trap '' XFSZ; ulimit -f 64; " + binary_dir() + "/gpttrain " + kTiny + "--train.steps 10 ";
  const Outcome goes_on = shell(small + "--log.name a", dir.path());
  INFO(goes_on.out);
  // Training continues to its end, but fails because its result is not saved. libhdf5 does not crash at exit because of
  // unwritten data.
  CHECK(goes_on.code == 74);
  CHECK(logged(dir / "runs/a", "loss").size() == 10);
  CHECK(goes_on.prints(
      "finished at step 10, but no checkpoint of it could be written; there is none: checkpoint of step 10"));
  CHECK(goes_on.prints("the same command starts over"));
  // A repeated reason is printed once, with a count at the end.
  CHECK(goes_on.count("not written: checkpoint of step ") == 2);
  CHECK(goes_on.prints(" times)"));
  const Outcome stops = shell(small + "--log.name b --checkpoint.fail_policy abort", dir.path());
  INFO(stops.out);
  CHECK(stops.code == 74);
  CHECK(stops.prints("3 checkpoints in a row could not be written (checkpoint.fail_policy abort)"));
  CHECK(logged(dir / "runs/b", "loss").size() < 10);
  must(kTiny + "--train.steps 2 --log.name c --tp 2 --checkpoint.readback true --checkpoint.hash sha256", dir.path());
  CHECK(read_file(dir / "runs/c/checkpoints/step-000000002/manifest.json").find("\"sha256\"") != std::string::npos);
  CHECK(must("ckpt verify runs/c --deep", dir.path()).prints("good"));
  const auto list = nlohmann::json::parse(must("ckpt ls runs/c --json", dir.path()).out);
  CHECK(list.at("checkpoints").at(0).at("status") == "ok");
  CHECK(list.at("checkpoints").at(0).at("step") == 2);
  const auto step =
      nlohmann::json::parse(must("ckpt inspect runs/c --json --stats --tensor master/embed.weight", dir.path()).out);
  CHECK(step.at("layout").at("tp") == 2);
  CHECK(step.at("state").at("consumed_samples") == 8);
  CHECK(step.at("tensors").size() == 1);
  CHECK(step.at("tensors").at(0).at("stats").at("rms").get<double>() > 0);
}
