// log.comm from outside: the table at the end of a run and the rows of its end record.
#include <fstream>
#include <nlohmann/json.hpp>

#include "parallel/pipeline/preamble.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using nlohmann::json;

namespace {

constexpr int kMicrobatches = 2, kSeq = 16, kHidden = 32, kSteps = 3;

const std::string kRun =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.micro_batch 1 --train.grad_accum 2 --device.kind cpu --log.tensorboard false --train.steps 3 "
    "--tp 2 --pp 2 --dp 2 --train.eval_every 2 --train.eval_steps 1 --checkpoint.every 2 ";

json end_record(const std::string& run_dir) {
  std::ifstream in(run_dir + "/log.jsonl");
  json last;
  for (std::string line; std::getline(in, line);)
    if (json j = json::parse(line); j.at("type") == "end") last = j;
  return last;
}

}  // namespace

TEST_CASE("log.comm ends a run with a table of its calls and bytes, equal for threads and processes") {
  const TempDir dir;
  json rows[2];
  int k = 0;
  for (const char* how : {"threads", "processes"}) {
    const Outcome o = gpttrain(kRun + "--log.comm true --launch.ranks " + how + " --log.name " + how, dir.path());
    INFO(o.out);
    REQUIRE(o.code == 0);
    for (const char* text : {"group     op", "calls/step", "bytes/step", "blocked ms", "\n"}) CHECK(o.prints(text));
    const json comm = end_record(dir / (std::string("runs/") + how)).at("comm");
    CHECK(comm.at("steps") == kSteps);
    for (const json& row : comm.at("rows")) {
      const std::string group = row.at("group"), op = row.at("op");
      INFO(group << ' ' << op);
      CHECK(o.prints(group + std::string(10 - group.size(), ' ') + op));  // a line of the table
      CHECK(row.at("calls") > 0);
      CHECK(row.at("seconds") > 0);
      CHECK(row.at("blocked_seconds") > 0);
      rows[k].push_back({group, op, row.at("calls"), row.at("bytes"), row.at("payload")});
      // Evaluations and checkpoints are excluded: both directions of one boundary, per microbatch and replica.
      if (group == "pp" && op == "send") {
        const int messages = 2 * kMicrobatches * 2 * kSteps * 2;  // each TP rank sends its half
        CHECK(row.at("bytes") == messages * (kSeq * kHidden * 4 / 2 + BoundaryOptions().preamble_bytes()));
      }
    }
    ++k;
  }
  CHECK(rows[0].size() >= 6);
  CHECK(rows[0] == rows[1]);
}

TEST_CASE("without log.comm no communication is printed, and one rank has none") {
  const TempDir dir;
  const Outcome off = gpttrain(kRun + "--launch.ranks threads --log.name off", dir.path());
  REQUIRE(off.code == 0);
  CHECK_FALSE(off.prints("calls/step"));
  CHECK_FALSE(end_record(dir / "runs/off").contains("comm"));
  const Outcome one = gpttrain(kRun + "--tp 1 --pp 1 --dp 1 --log.comm true --log.name one", dir.path());
  REQUIRE(one.code == 0);
  CHECK(one.prints("none: every group has one rank"));
}
