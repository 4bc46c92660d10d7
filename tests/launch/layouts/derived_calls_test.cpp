// The calls that ranks make in their groups are those that the static proof of the layout derives without running:
// group, operation, bytes, order. GPT_TEST_SEED selects other layouts, GPT_TEST_LAYOUTS more.
#include <set>

#include "launch/engine/engine_options.h"
#include "launch/tools/verify/mesh_run.h"
#include "model/families/family.h"
#include "tests/launch/layouts/random_layout.h"
#include "tests/launch/process.h"
#include "tests/launch/ranks/faults.h"
#include "tests/support/environment.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::random_layout;

namespace {

MeshRun run_of(const Config& c) {
  MeshRun run;
  run.engine = engine_options(c, 1);
  run.mesh = mesh_shape(c);
  run.global_batch = c.train.global_batch;
  run.steps = 2;
  run.derive_calls = true;
  run.samples = synthetic_samples(c.model, static_cast<int>(2 * run.global_batch), 7);
  return run;
}

std::string first_wrong(const MeshResult& r) {
  if (r.wrong_calls.empty()) return "";
  const WrongCall& w = r.wrong_calls.front();
  return cat("rank ", w.rank, ", step ", w.step, ": ", w.text);
}

std::string with_fault(const Config& c, SkippedCall fault) {
  MeshRun run = run_of(c);
  MeshHooks hooks;
  hooks.wrap = [fault](GroupFactory& inner) { return skip_call(inner, fault); };
  run.hooks = &hooks;
  return first_wrong(run_mesh(run));
}

using Op = SkippedCall::Op;

}  // namespace

TEST_CASE("the calls of two steps in random layouts of every family are those that the proof derives") {
  constexpr int64_t kRanks = 8;
  const uint64_t seed = from_environment("GPT_TEST_SEED", 1), goal = from_environment("GPT_TEST_LAYOUTS", 8);
  int64_t calls = 0;
  std::set<std::string> groups;
  for (const Family* family : families()) {
    std::vector<std::string> flags{"--model.arch", family->name};
    if (std::string_view(family->name) != "gpt2") flags.insert(flags.end(), {"--model.ffn", "48"});
    const Config base = tiny(flags);
    const std::vector<LayoutAxis> axes = layout_axes(base, kRanks);
    std::mt19937_64 random(seed);
    std::set<std::string> done;
    for (uint64_t drawn = 0; done.size() < goal && drawn < 500 * goal; ++drawn) {
      const CheckedLayout layout = check_layout(base, draw(axes, base.model, random, kRanks));
      const Config& c = layout.config;
      if (!layout.problems.empty() || c.world() == 1) continue;
      if (!done.insert(config_json(c)).second) continue;
      INFO(family->name << ": " << layout_text(c));
      const MeshResult r = run_mesh(run_of(c));
      CHECK(first_wrong(r) == "");
      CHECK(r.derived_calls > 0);
      calls += r.derived_calls;
      for (const auto& step : r.ranks.front().calls)
        for (const GroupCall& call : step) groups.insert(call.group);
    }
    CHECK(done.size() == goal);
  }
  CHECK(calls > 1000 * static_cast<int64_t>(goal));
  for (const char* group : {"tp", "pp", "dp", "embedding", "world", "kv", "ep"}) CHECK(groups.count(group) == 1);
}

TEST_CASE("a call that a run leaves out is named with the one that the proof derives") {
  const Config tp = tiny({"--tp", "2", "--parallel.sequence_parallel", "false"});
  CHECK(with_fault(tp, {.op = Op::kAllReduce, .group = "none", .every = true}) == "");
  CHECK_THAT(with_fault(tp, {Op::kAllReduce, "tp", 0}),
             Catch::StartsWith("rank 0, step 1: call ") &&  // the first of other bytes: its neighbours are alike
                 Catch::Contains(": expected all_reduce of 512 bytes over tp, found all_gather of "));
  const Config dp = tiny({"--dp", "2", "--zero.stage", "1"});
  CHECK_THAT(with_fault(dp, {Op::kReduceScatter, "dp", 2}),
             Catch::Contains("expected reduce_scatter of ") && Catch::Contains(" bytes over dp, found "));
  CHECK_THAT(with_fault(dp, {.op = Op::kAllGather, .group = "dp", .every = true}),
             Catch::Contains("expected all_gather of "));
  CHECK_THAT(with_fault(tiny({"--pp", "2"}), {.op = Op::kAllReduce, .group = "embedding", .every = true}),
             Catch::Contains("bytes over embedding, found "));
}

TEST_CASE("gpttrain verify compares the calls of all ranks with the derived ones, also of runs without types") {
  TempDir dir;
  const std::string run =
      "verify --model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--dp 2 --tp 2 ";
  const Outcome o = gpttrain(run, dir.path());
  INFO(o.out);
  CHECK(o.code == 0);
  CHECK(o.prints("collectives and messages of all ranks compared with the derived ones: "));
  const Outcome here = gpttrain(run + "--on here", dir.path());
  INFO(here.out);
  CHECK(here.code == 0);
  CHECK(here.prints("compared with the derived ones: "));
  for (const char* other :
       {"--optim.type muon", "--amp O2 --precision.fp8 current", "--amp O2 --precision.fp8 delayed",
        "--data.curriculum fixed_discrete --data.curriculum_lengths 8,16 --data.curriculum_until 2"}) {
    INFO(other);
    const Outcome all = gpttrain(run + other, dir.path());
    INFO(all.out);
    CHECK(all.code == 0);
    CHECK(all.prints("compared with the derived ones: "));
  }
}
