// Runs that start from another run's checkpoint, whole or in part; tensors that one side may lack.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;

const std::string kTiny =
    "--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 90 --model.seq 8 --data.train mock "
    "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --launch.ranks threads "
    "--checkpoint.every 4 --schedule.warmup_steps 10 --schedule.total_steps 100 --train.steps ";

// Returns the groups of tensors ("master", "optim") that differ between two runs' newest checkpoints.
std::set<std::string> different(const std::string& a, const std::string& b, const TempDir& dir) {
  std::set<std::string> out;
  const auto report = nlohmann::json::parse(gpttrain("ckpt diff " + a + " " + b + " --json", dir.path()).out);
  for (const auto& t : report.at("tensors")) {
    const std::string name = t.at("name");
    out.insert(name.substr(0, name.find('/')));
  }
  return out;
}

std::map<std::string, std::string> files_below(const std::string& dir) {
  std::map<std::string, std::string> out;
  for (const auto& e : fs::recursive_directory_iterator(dir))
    if (e.is_regular_file()) out[e.path().string()] = read_file(e.path().string());
  return out;
}

}  // namespace

TEST_CASE("a run started from another run's whole checkpoint continues as that run would, and does not modify it") {
  TempDir dir;
  must(kTiny + "8 --log.name whole --tp 2", dir);
  must(kTiny + "4 --log.name a --tp 2", dir);
  const auto before = files_below(dir / "runs/a");
  const Outcome r = must(kTiny + "8 --log.name b --tp 2 --load runs/a", dir);
  CHECK(r.prints("all of runs/a/checkpoints/step-000000004"));
  CHECK(files_below(dir / "runs/a") == before);
  const auto whole = logged(dir / "runs/whole", "loss"), rest = logged(dir / "runs/b", "loss");
  REQUIRE(rest.size() == 4);
  CHECK(std::vector<double>(whole.end() - 4, whole.end()) == rest);
  CHECK(different("runs/whole", "runs/b", dir).empty());
  // Its own checkpoints take precedence: the same command resumes.
  CHECK(must(kTiny + "10 --log.name b --tp 2 --load runs/a", dir).prints("from step 8"));
}

TEST_CASE("each part of a checkpoint can be excluded, and then starts from scratch") {
  TempDir dir;
  must(kTiny + "4 --log.name a --tp 2", dir);
  const double first_lr = logged(dir / "runs/a", "lr").front();
  int k = 0;
  for (const std::string parts :
       {"weights", "weights optim", "weights schedule", "weights data", "optim schedule data"}) {
    INFO(parts);
    const auto has = [&](const char* part) { return parts.find(part) != std::string::npos; };
    // Learning rate too small to change any weight: what differs was not loaded.
    const std::string run = "p" + std::to_string(k++);
    const int64_t begin = has("schedule") ? 4 : 0;
    must(kTiny + std::to_string(begin + 1) + " --log.name " + run +
             " --dp 2 --checkpoint.load_from runs/a "
             "--checkpoint.load " +
             parts + " --optim.lr 1e-30 --optim.weight_decay 0 --checkpoint.allow_change optim",
         dir);
    CHECK((different("runs/a", "runs/" + run, dir).count("master") == 0) == has("weights"));
    CHECK(logged(dir / ("runs/" + run), "step").back() == begin + 1);
    CHECK(logged(dir / ("runs/" + run), "samples").back() == (has("data") ? 20 : 4));
    CHECK(logged(dir / ("runs/" + run), "lr").back() == Approx(first_lr * 1e-30 / 3e-4 * (has("schedule") ? 5 : 1)));
    CHECK(must("ckpt inspect runs/" + run, dir).prints(has("optim") ? "applied 5 updates" : "applied 1 updates"));
  }
  // The first moment of a fresh start is 0.1 of one gradient; a loaded one contains four others.
  CHECK(different("runs/p0", "runs/p1", dir) == std::set<std::string>{"optim"});
  // Resuming a run whose optimizer and schedule have different step counts keeps both.
  must(kTiny + "7 --log.name p2 --dp 2 --optim.lr 1e-30 --optim.weight_decay 0", dir);
  CHECK(logged(dir / "runs/p2", "lr").back() == Approx(first_lr * 1e-30 / 3e-4 * 7));
  CHECK(must("ckpt inspect runs/p2", dir).prints("applied 3 updates"));
}

TEST_CASE("an unusable starting checkpoint or selection is refused, and named") {
  TempDir dir;
  must(kTiny + "2 --log.name a", dir);
  const auto refused = [&](const std::string& flags, const std::string& why) {
    const Outcome r = gpttrain(kTiny + "4 --log.name b " + flags, dir.path());
    INFO(flags << "\n" << r.out);
    CHECK(r.code == 2);
    CHECK(r.prints(why));
  };
  refused("--checkpoint.load weights", "--checkpoint.load_from");
  refused("--checkpoint.load weight --load runs/a", "some of weights, optim, schedule, data");
  refused("--checkpoint.load all weights --load runs/a", "some of weights, optim, schedule, data");
  refused("--load runs/nowhere", "does not exist");
  refused("--load runs/a --optim.lr 0.5", "optim.lr: 3e-04 in the checkpoint, 0.5 now");
  refused("--load runs/a --finetune --model.heads 4", "model.heads: 2 in the checkpoint, 4 now");
  refused("--load runs/a --checkpoint.load weights data --train.seed 9", "seed");
  must(kTiny + "4 --log.name c --load runs/a --finetune --optim.lr 0.01 --train.seed 9", dir);
}

TEST_CASE("tensors missing on one side are refused unless they are allowed by name") {
  TempDir dir;
  must(kTiny + "2 --log.name tied", dir);
  must(kTiny + "2 --log.name untied --model.tied false", dir);
  const std::string grow = kTiny + "3 --model.tied false --checkpoint.allow_change model.tied --load runs/tied --tp 2 ";
  Outcome r = gpttrain(grow + "--log.name x", dir.path());
  CHECK(r.code == 2);
  CHECK(r.prints("missing in the checkpoint: master/head.weight"));
  CHECK(r.prints("missing in the checkpoint: optim/exp_avg/head.weight"));
  CHECK(gpttrain(grow + "--log.name x --checkpoint.allow_missing master/head.weight", dir.path()).code == 2);
  r = must(grow + "--log.name x --checkpoint.allow_missing master/head.weight optim/exp_avg/* optim/exp_avg_sq/head*",
           dir);
  CHECK(r.prints("lacks 3 tensors, which begin afresh"));
  const std::string shrink = kTiny + "3 --checkpoint.allow_change model.tied --load runs/untied --log.name y ";
  r = gpttrain(shrink, dir.path());
  CHECK(r.code == 2);
  CHECK(r.prints("only in the checkpoint: master/head.weight"));
  must(shrink + "--checkpoint.allow_extra master/head.weight optim/*", dir);
  // A different shape is never allowed.
  r = gpttrain(kTiny +
                   "3 --log.name z --load runs/tied --finetune --model.hidden 32 --checkpoint.allow_change model "
                   "--checkpoint.allow_missing '*' --checkpoint.allow_extra '*'",
               dir.path());
  CHECK(r.code == 2);
  CHECK(r.prints("differs: master/embed.weight"));
}
