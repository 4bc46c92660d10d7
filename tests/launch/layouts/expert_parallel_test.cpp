// Experts split over data-parallel ranks, against those ranks with all of them: what is bitwise equal.
#include <filesystem>
#include <sstream>

#include "launch/engine/engine_options.h"
#include "launch/tools/verify/layouts.h"
#include "launch/tools/verify/report.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kModel =
    "--model.arch mixtral --model.layers 2 --model.hidden 24 --model.heads 4 --model.ffn 20 --model.vocab 90 "
    "--model.seq 8 --model.moe_experts 8 --model.moe_top_k 3 --model.moe_balance 0.05 --train.global_batch 8 "
    "--train.micro_batch 2 ";
const std::string kRun =
    kModel + "--data.train mock --train.steps 4 --device.kind cpu --log.tensorboard false --optim.lr 0.003 ";

struct Curve {
  std::vector<double> losses, norms;
  friend bool operator==(const Curve&, const Curve&) = default;
};

Curve train(const std::string& flags, const TempDir& dir) {
  static int runs = 0;
  const std::string name = "r" + std::to_string(runs++);
  must(kRun + flags + " --log.name " + name, dir);
  return {logged(dir / ("runs/" + name), "loss"), logged(dir / ("runs/" + name), "grad_norm")};
}

}  // namespace

TEST_CASE("ranks that split experts compute the loss and the norm of ranks that have all of them") {
  TempDir dir;
  for (const std::string layout : {"--dp 4", "--dp 4 --tp 2", "--dp 4 --precision.amp O2"}) {
    const Curve all = train(layout + " --launch.ranks threads", dir);
    for (const char* ep : {"2", "4"}) {
      INFO(layout << " --ep " << ep);
      const Curve split = train(layout + " --launch.ranks threads --ep " + ep, dir);
      REQUIRE(split.losses.size() == 4);
      CHECK(split.losses[0] == all.losses[0]);
      CHECK(split.norms[0] == Approx(all.norms[0]).epsilon(layout.back() == '2' ? 1e-4 : 1e-6));
      CHECK(split.losses[3] == Approx(all.losses[3]).epsilon(1e-3));
    }
  }
}

TEST_CASE("split experts train bitwise alike over threads and processes, with every stage of ZeRO") {
  TempDir dir;
  const std::string layout = "--dp 2 --ep 2 --pp 2 ";
  const Curve threads = train(layout + "--launch.ranks threads", dir);
  CHECK(train(layout + "--launch.ranks processes", dir) == threads);
  for (const char* zero : {"1", "2", "3"})
    CHECK(train(layout + "--launch.ranks threads --zero.grad_reduce end --zero.stage " + zero, dir) == threads);
  CHECK(train(layout + "--launch.ranks threads --parallel.recompute full", dir) == threads);
}

TEST_CASE("Muon updates each expert's matrices as on one rank, however experts and their channels are split") {
  Verifier verifier({.steps = 6, .follow = false});
  for (const std::string layout : {"--dp 2 --ep 2", "--dp 4 --ep 2 --zero 3", "--dp 2 --ep 2 --tp 2 --zero 1",
                                   "--dp 4 --ep 4 --tp 2", "--tp 2 --pp 2 --dp 2 --ep 2"}) {
    std::istringstream in(kRun + "--optim.type muon --train.grad_accum 2 --train.global_batch 0 " + layout);
    std::vector<std::string> words;
    for (std::string w; in >> w;) words.push_back(w);
    const Config c = load_config({.flags = words}).config;
    const VerifyResult v = verifier.check(c);
    INFO(layout << ": " << (v.bad() ? describe(*v.bad(), mesh_shape(c)) : "equal"));
    CHECK(v.bad() == nullptr);
  }
}

TEST_CASE("the start block names what a rank of experts takes if the router chooses alike, and at most") {
  TempDir dir;
  const Outcome o = must(kRun + "--dp 4 --ep 4 --dry-run", dir);
  INFO(o.out);
  CHECK(o.prints("2 on each of 4 ranks; a rank takes "));
  CHECK(o.prints(" (planned) with all that there can be"));
  CHECK(o.prints(" where the router chooses all experts alike"));
  CHECK(o.prints("dp 4 · ep 4"));
  CHECK_FALSE(must(kRun + "--dp 4 --dry-run", dir).prints("on each of"));
  const Outcome plan = must("plan " + kModel + "--dp 4 --ep 4", dir);
  INFO(plan.out);
  CHECK(plan.prints("2 on each of 4 ranks; a rank takes "));
  CHECK(plan.prints("dp 4 ep 4"));
}
