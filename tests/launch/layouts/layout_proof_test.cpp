// Static proofs of layouts: legal ones of every family are proved without being run, and every collective of a step
// that is left out, made twice or made over other ranks is found. GPT_TEST_SEED selects others, GPT_TEST_LAYOUTS more.
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>

#include "launch/engine/engine_options.h"
#include "launch/engine/prove_layout.h"
#include "model/families/family.h"
#include "tests/launch/layouts/random_layout.h"
#include "tests/launch/process.h"
#include "tests/support/environment.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::random_layout;

namespace {

constexpr int64_t kRanks = 16;

std::string error_of(const Config& c, std::vector<proof::Site>* sites = nullptr,
                     const std::optional<proof::Fault>& fault = {}) {
  try {
    prove_layout(engine_options(c, 1), mesh_shape(c), sites, fault);
    return "";
  } catch (const std::exception& e) { return e.what(); }
}

// Calls f(config) with random legal layouts of a model.
template <class F>
void each_layout(const Config& base, uint64_t seed, uint64_t goal, F f) {
  const std::vector<LayoutAxis> axes = layout_axes(base, kRanks);
  std::mt19937_64 random(seed);
  std::set<std::string> done;
  for (uint64_t drawn = 0; done.size() < goal && drawn < 500 * goal; ++drawn) {
    const CheckedLayout layout = check_layout(base, draw(axes, base.model, random, kRanks));
    if (layout.problems.empty() && done.insert(config_json(layout.config)).second) f(layout.config);
  }
  CHECK(done.size() == goal);
}

bool has_axis(const Config& c, proof::Along a) { return (a == proof::Along::kDp ? c.parallel.dp : c.parallel.tp) > 1; }

std::vector<std::string> flags_of(const Family& f) {
  std::vector<std::string> out{"--model.arch", f.name};
  if (std::string_view(f.name) != "gpt2") out.insert(out.end(), {"--model.ffn", "48"});
  return out;
}

}  // namespace

TEST_CASE("random layouts of every family are proved without running them") {
  const uint64_t seed = from_environment("GPT_TEST_SEED", 1), goal = from_environment("GPT_TEST_LAYOUTS", 60);
  for (const Family* family : families())
    each_layout(tiny(flags_of(*family)), seed, goal, [&](const Config& c) {
      INFO(family->name << ": " << layout_text(c));
      CHECK(error_of(c) == "");
    });
}

TEST_CASE("random layouts of every optimizer, of adapters and of quantized precisions are proved") {
  const uint64_t seed = from_environment("GPT_TEST_SEED", 1), goal = from_environment("GPT_TEST_LAYOUTS", 12);
  std::vector<std::string> cases{
      "--precision.qat int8",
      "--precision.amp O2 --precision.grad_dtype bf16",
      "--precision.reduce_dtype bf16",
      "--model.lora_rank 2",
      "--model.lora_rank 2 --model.arch qwen3 --model.ffn 48 --model.lora_separate_qkv true",
      "--model.lora_rank 2 --precision.amp O2 --precision.frozen_weights int8",
      "--model.arch mixtral --model.ffn 48 --model.moe_balance 0.1",
      "--model.arch dots1 --model.ffn 48 --model.moe_groups 4 --model.moe_top_groups 2 "
      "--model.moe_bias_rate 0.01 --model.moe_dense_blocks 0,3 --model.moe_experts 8 --model.moe_top_k 3",
      "--model.arch qwen2_moe --model.ffn 48 --model.moe_experts 8 --model.moe_balance 0.1",
      "--model.hidden 64 --model.seq 16 --precision.amp O2 --precision.fp8 current",
      "--model.hidden 64 --model.seq 16 --precision.amp O2 --precision.fp8 delayed"};
  for (const char* optimizer : {"adam", "lamb", "sgd", "lion", "muon"})
    cases.push_back(cat("--optim.type ", optimizer));
  for (const std::string& flags : cases) {
    std::istringstream in(flags);
    const std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
    each_layout(tiny(words), seed, goal, [&](const Config& c) {
      INFO(flags << ": " << layout_text(c));
      CHECK(error_of(c) == "");
    });
  }
}

TEST_CASE(
    "every rank of a layout is proved, also where shards of gradients and their chunks are vectors of the model") {
  for (const char* zero : {"0", "1", "2", "3"})
    for (const char* reduce : {"f32", "bf16"})
      for (const char* prescale : {"false", "true"}) {
        const Config c = tiny({"--tp", "2", "--dp", "2", "--zero.stage", zero, "--precision.reduce_dtype", reduce,
                               "--zero.prescale", prescale, "--model.hidden", "64", "--zero.bucket_bytes", "1"});
        INFO(layout_text(c) << " reduce_dtype " << reduce << " prescale " << prescale);
        for (int rank = 0; rank < c.world(); ++rank)
          CHECK_NOTHROW(prove_rank(engine_options(c, 1), mesh_shape(c), rank));
      }
}

TEST_CASE("a collective that is left out, made twice or made over other ranks is found by the types of a layout") {
  const uint64_t seed = from_environment("GPT_TEST_SEED", 1), goal = from_environment("GPT_TEST_LAYOUTS", 4);
  int64_t faults = 0;
  std::vector<std::string> missed;
  for (const Family* family : families())
    each_layout(tiny(flags_of(*family)), seed, goal, [&](const Config& c) {
      std::vector<proof::Site> sites;
      REQUIRE(error_of(c, &sites) == "");
      for (const proof::Site& site : sites) {
        std::vector<proof::Fault> all{{site, 0, site.over}};
        const bool repeatable =
            site.op == CommOp::kAllGather || site.op == CommOp::kAllToAll || site.op == CommOp::kAllToAllV;
        if (!repeatable) all.push_back({site, 2, site.over});
        for (const proof::Along a : {proof::Along::kDp, proof::Along::kTp})
          if (site.over != std::vector{a}) all.push_back({site, 1, {a}});
        for (const proof::Fault& fault : all) {
          if (fault.times == 1 && !has_axis(c, fault.over.front())) continue;
          ++faults;
          if (error_of(c, nullptr, fault) != "") continue;
          missed.push_back(cat(family->name, ": ", layout_text(c), ": ", proof::to_string(site), ", ", fault.times,
                               " times over ", proof::name_of(fault.over.front())));
        }
      }
    });
  std::cout << "layout proof: " << faults << " injected faults of collectives, "
            << faults - static_cast<int64_t>(missed.size()) << " found\n";
  CHECK(missed == std::vector<std::string>{});
  CHECK(faults > 150 * static_cast<int64_t>(goal) / 4);
}

TEST_CASE("gpttrain verify --static proves the given layout, or all of them, and exits with 0") {
  TempDir dir;
  const std::string model =
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock ";
  const Outcome one = gpttrain("verify " + model + "--static --tp 2 --pp 2 --dp 4 --train.global_batch 16", dir.path());
  INFO(one.out);
  CHECK(one.code == 0);
  CHECK(one.prints("tp 2 pp 2 dp 4"));
  CHECK(one.prints("proved in "));
  const Outcome all = gpttrain("verify " + model + "--static --matrix --ranks 4 --sample 50", dir.path());
  INFO(all.out);
  CHECK(all.code == 0);
  CHECK(all.prints(": 50 proved, 0 wrong"));
  CHECK(all.prints("50 of them to prove"));
  const Outcome muon = gpttrain("verify " + model + "--static --optim.type muon --dp 2", dir.path());
  CHECK(muon.code == 0);
  CHECK(muon.prints("note: Muon has no types; proved as a run with AdamW"));
  CHECK_FALSE(one.prints("note: "));
  const Outcome steps = gpttrain("verify " + model + "--static --steps 5", dir.path());
  CHECK(steps.code == 2);
  CHECK(steps.prints("--steps 5 has no effect with --static"));
  const Outcome launched = gpttrain("verify " + model + "--static --on here", dir.path());
  CHECK(launched.code == 2);
  CHECK(launched.prints("leave out --on here"));
}

TEST_CASE("a run proves its layout before the first step, and is refused by op, axis, types and code if it is wrong") {
  TempDir dir;
  const std::string run =
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--train.steps 1 --train.grad_accum 2 --tp 2 --pp 2 --parallel.sequence_parallel false --log.tensorboard false ";
  for (const char* ranks : {"threads", "processes"}) {
    const std::string flags = run + "--launch.ranks " + ranks + " --log.name " + ranks;
    CHECK(gpttrain(flags, dir.path()).code == 0);
    // The first collective of the first stage sums what the TP ranks look up in their parts of the vocabulary.
    const Outcome wrong = gpttrain(flags + "-0 --fault.inject skip@layout", dir.path());
    INFO(wrong.out);
    CHECK(wrong.code == 70);
    CHECK(wrong.prints("the layout pp0 dp0 tp0 is wrong: "));
    CHECK(wrong.prints("partial sums"));
    CHECK(wrong.prints("along tp"));
    CHECK(wrong.prints("found at call "));
    CHECK(wrong.prints(" in gt::ops::add_position < "));
    CHECK(wrong.prints("x was written at call "));
    CHECK(wrong.prints(" in gt::ops::vocab_embedding < "));
    CHECK_FALSE(wrong.prints("step 1"));
    const Outcome last = gpttrain(flags + "-1 --fault.inject skip@layout:rank=2,index=1", dir.path());
    CHECK(last.code == 70);
    CHECK(last.prints("the layout pp1 dp0 tp0 is wrong: "));
  }
  const Outcome site = gpttrain(run + "--fault.inject nan@layout", dir.path());
  CHECK(site.code == 2);
  CHECK(site.prints("at layout there are skip"));
}
