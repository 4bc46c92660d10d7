// gpttrain verify as a user runs it, and the rules by which it shrinks a model.
#include <fmt/format.h>

#include <limits>

#include "launch/config/config_check.h"
#include "launch/tools/verify/compare.h"
#include "launch/tools/verify/layouts.h"
#include "launch/tools/verify/report.h"
#include "launch/tools/verify/shrink.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kTiny =
    "verify --model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 60 --model.seq 8 --train.micro_batch 1 "
    "--train.grad_accum 2 --device.kind cpu ";

Config config_of(std::vector<std::string> flags, const std::string& file = "") {
  return load_config({.file = file.empty() ? "" : source_dir() + "/configs/" + file, .flags = flags}).config;
}

Config small(const Config& given, std::vector<std::string>* all_notes = nullptr) {
  std::vector<std::string> notes;
  const CheckedLayout c = check_layout(shrink(given, goal_of(given), notes), {});
  for (const Problem& p : c.problems) FAIL_CHECK(p.key << ": " << p.reason);
  if (all_notes != nullptr) *all_notes = notes;
  return c.config;
}

}  // namespace

TEST_CASE("a difference names the criterion that it misses") {
  const auto result = [](std::vector<float> gradient) {
    MeshResult out;
    out.losses = {1}, out.norms = {1}, out.order = {"w"};
    out.steps.resize(1);
    out.steps[0].grads["w"] = std::move(gradient);
    return out;
  };
  const auto outcome = [&](const std::vector<float>& is, DType compute) {
    std::vector<float> ones(100, 1.f);
    const std::vector<Difference> all = compare(result(is), result(ones), limits_for(compute));
    const Difference* d = first_bad(all);
    return d == nullptr ? "equal" : describe(*d, {});
  };
  std::vector<float> turned(100, 1.f), longer(100, 1.02f), lost(100, 1.f);
  for (size_t i = 0; i < 100; i += 2) turned[i] = 1.1f;
  lost[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THAT(outcome(longer, DType::kF32),
             Catch::Contains("of w in step 1: relative error 0.02 where 1e-05 is allowed"));
  CHECK_THAT(outcome(longer, DType::kBF16),
             Catch::Contains("of w in step 1: 1.02 times as long where 1.5 % more or less"));
  CHECK_THAT(outcome(turned, DType::kBF16), Catch::Contains("of w in step 1: cosine 0.99887 where 0.999 is needed"));
  CHECK_THAT(outcome(lost, DType::kBF16), Catch::Contains("relative error inf"));
}

TEST_CASE("what one rank's own rounding explains is no difference, and nothing more is explained") {
  const auto bad = [](Quantity quantity, double error) {
    Difference d;
    d.quantity = quantity, d.name = "w", d.error = error, d.bad = true;
    return d;
  };
  const auto forgives = [&](const Difference& d, double rounding) {
    std::vector<Difference> found{d};
    const int64_t n = forgive_rounding(found, {bad(d.quantity, rounding)});
    CHECK(n == (found[0].bad ? 0 : 1));
    return n == 1;
  };
  CHECK(forgives(bad(Quantity::kGradient, 0.1), 0.03));
  CHECK_FALSE(forgives(bad(Quantity::kGradient, 0.1), 0.01));
  CHECK_FALSE(forgives(bad(Quantity::kActivation, 0.3), 0.3));
  CHECK_FALSE(forgives(bad(Quantity::kCopy, 0.1), 0.1));
  CHECK_FALSE(forgives(bad(Quantity::kState, std::numeric_limits<double>::infinity()), 1));
  // Adapters of low rank pass few numbers a token.
  TempDir dir;
  for (const std::string rank : {"1", "2"})
    for (const std::string arch : {"gpt2", "llama"})
      must(kTiny + "--tp 2 --precision.amp O2 --model.lora_rank " + rank + " --model.arch " + arch, dir);
}

TEST_CASE("a config of a large model is reduced to a small one that keeps every feature that a layout affects") {
  const Config big = config_of({"--tp",
                                "4",
                                "--pp",
                                "4",
                                "--dp",
                                "2",
                                "--model.heads",
                                "20",
                                "--model.hidden",
                                "1280",
                                "--model.layers",
                                "36",
                                "--train.global_batch",
                                "512",
                                "--train.micro_batch",
                                "4",
                                "--schedule.warmup_steps",
                                "2000",
                                "--train.steps",
                                "100000"});
  std::vector<std::string> notes;
  const Config c = small(big, &notes);
  CHECK(c.model.layers == 4);
  CHECK(c.model.heads == 20);
  CHECK(c.model.hidden == 160);
  CHECK(c.model.ffn == 640);
  CHECK(c.model.vocab == 379);
  CHECK(c.model.seq == 128);
  CHECK(c.train.micro_batch == 2);
  CHECK(c.train.grad_accum == 8);
  CHECK(c.train.global_batch == 32);
  CHECK(c.schedule.type == "constant");
  CHECK(c.optim.weight_decay == big.optim.weight_decay);
  CHECK(c.zero.stage == big.zero.stage);
  CHECK(std::find(notes.begin(), notes.end(), "model.layers 36 -> 4") != notes.end());
}

TEST_CASE("a small model is unchanged, but a pipeline gets enough microbatches") {
  const Config given =
      config_of({"--pp", "2", "--model.layers", "2", "--model.hidden", "16", "--model.heads", "2", "--model.vocab",
                 "60", "--model.seq", "8", "--train.micro_batch", "1", "--train.grad_accum", "1"});
  const Config c = small(given);
  CHECK(c.model.layers == 2);
  CHECK(c.model.hidden == 16);
  CHECK(c.model.vocab == 60);
  CHECK(c.model.seq == 8);
  CHECK(c.train.grad_accum == 3);
}

TEST_CASE("partitions, recomputed blocks, narrow heads and chunks survive the reduction") {
  const std::vector<std::string> deep{"--model.layers", "24", "--model.heads", "16", "--model.hidden", "1024"};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), deep.begin(), deep.end());
    return small(config_of(flags));
  };
  const Config cut = with({"--pp", "4", "--parallel.partition", "4,12,8,0"});
  CHECK(cut.parallel.partition == "1,2,2,0");
  CHECK(cut.model.layers == 5);
  const Config some = with({"--pp", "2", "--parallel.recompute", "full", "--parallel.recompute_layers", "3"});
  CHECK(some.parallel.recompute_layers == 1);
  CHECK(some.model.layers == 4);
  const Config all = with({"--pp", "2", "--parallel.recompute", "full", "--parallel.recompute_layers", "12"});
  CHECK(all.parallel.recompute_layers == 2);
  const Config chunks = with({"--pp", "2", "--vpp", "3", "--parallel.schedule", "interleaved"});
  CHECK(chunks.model.layers == 6);
  const Config narrow = small(config_of({"--model.heads", "96", "--model.hidden", "12288", "--tp", "8"}));
  CHECK(narrow.model.hidden == 192);
}

TEST_CASE("every shipped config can be reduced on several layouts") {
  for (const char* file :
       {"demo.json", "tiny.json", "gpt2-124m.json", "gpt2-355m.json", "gpt2-774m.json", "gpt2-1558m.json"})
    for (const std::vector<std::string>& flags : {std::vector<std::string>{},
                                                  {"--dp", "2"},
                                                  {"--pp", "3"},
                                                  {"--parallel.recompute", "selective", "--pp", "2"}}) {
      INFO(file);
      std::vector<std::string> all{"--data.train", "mock"};
      all.insert(all.end(), flags.begin(), flags.end());
      const Config given = config_of(all, file), c = small(given);
      CHECK(c.model.layers <= std::max<int64_t>(2, 2 * given.parallel.pp));
      CHECK(c.model.heads == given.model.heads);
      CHECK(c.model.hidden <= 256);
    }
}

TEST_CASE("ranks of a tensor are named by the block of the mesh that they fill") {
  const MeshShape shape{.pp = 2, .dp = 2, .tp = 2};
  CHECK(rank_coordinates_text(shape, {0, 1, 2, 3}) == "pp0 dp0-1 tp0-1");
  CHECK(rank_coordinates_text(shape, {5, 7}) == "pp1 dp0-1 tp1");
  CHECK(rank_coordinates_text(shape, {6}) == "pp1 dp1 tp0");
  CHECK(rank_coordinates_text(shape, {0, 7}) == "ranks 0,7");
}

TEST_CASE("verify tests a layout, prints what it compared, and ends with 0") {
  const TempDir dir;
  const Outcome o = gpttrain(kTiny + "--tp 2 --pp 2 --dp 2 --zero 1 --parallel.schedule zb-h1", dir.path());
  INFO(o.out);
  CHECK(o.code == 0);
  for (const char* text : {"tp 2 pp 2 dp 2 zb-h1 m 3 sequence_parallel zero 1, 8 ranks", "r0 0F0 0F>0", "embed.weight",
                           "layers.*.attn.qkv.weight", "final_norm.bias", "bitwise identical to tp 2 pp 1 dp 2",
                           "equal: the layout computes"})
    CHECK(o.prints(text));
  CHECK(std::filesystem::is_empty(dir.path()));  // leaves no files
}

// Four heads of eight elements were too few: rounding alone exceeded the limits.
TEST_CASE("a right layout of a model of four heads is equal in bf16") {
  const TempDir dir;
  for (const int seed : {1, 2, 3}) {
    const Outcome o =
        gpttrain(cat("verify --config ", source_dir(), "/configs/gemma3-1b.json --amp O2 --tp 2 --pp 2 --dp 2 ",
                     "--precision.dtype bf16 --device.kind cpu --train.seed ", seed),
                 dir.path());
    INFO(o.out);
    CHECK(o.code == 0);
  }
}

TEST_CASE("verify --on here tests the ranks that it starts, or those of a launcher, as threads and as processes") {
  const TempDir dir;
  for (const char* how : {"--launch.ranks threads", "--launch.ranks processes"}) {
    const Outcome o = gpttrain(kTiny + "--tp 2 --pp 2 --on here " + how, dir.path());
    INFO(o.out);
    CHECK(o.code == 0);
    CHECK(o.prints("4 ranks (launched)"));
    CHECK(o.prints("equal: the layout computes"));
    CHECK(o.out.find("equal: the layout") == o.out.rfind("equal: the layout"));  // printed by one rank only
  }
}

TEST_CASE("verify --matrix runs and counts the legal layouts") {
  const TempDir dir;
  const Config model = config_of({"--model.layers", "2", "--model.hidden", "16", "--model.heads", "2"});
  const Outcome o = gpttrain(kTiny + "--matrix --ranks 2 --amp O0" + (kSanitized ? " --sample 40" : ""), dir.path());
  INFO(o.out);
  CHECK(o.code == 0);
  CHECK(o.prints(fmt::format("{} legal layouts of up to 2 ranks", legal_layouts(model, 2, false).size())));
  CHECK(o.prints(" equal, 0 different"));
  const Outcome sample = gpttrain(kTiny + "--matrix --ranks 2 --sample 12", dir.path());
  INFO(sample.out);
  CHECK(sample.code == 0);
  CHECK(sample.prints(fmt::format("{} legal layouts of up to 2 ranks, 12 of them", legal_layouts(model, 2).size())));
  const Outcome few = gpttrain(kTiny + "--matrix --ranks 8 --sample 5", dir.path());
  INFO(few.out);
  CHECK(few.code == 0);
  CHECK(few.prints("5 layouts in"));
}

TEST_CASE("verify refuses unsupported requests") {
  const TempDir dir;
  const auto refused = [&](const std::string& flags, const std::string& why) {
    const Outcome o = gpttrain(kTiny + flags, dir.path());
    INFO(o.out);
    CHECK(o.code == 2);
    CHECK(o.prints(why));
  };
  refused("--matrix --on here", "--on here has the ranks of one");
  refused("--sample 4", "belongs to --matrix");
  refused("--tp 3", "tp may be 1, 2");
  refused("--on gpu", "expected threads or here");
  refused("--steps 0", "--steps");
  refused("--matrx", "did you mean --matrix?");
  const Outcome o =
      shell(fmt::format("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 {}/gpttrain {} --dp 2", binary_dir(), kTiny),
            dir.path());
  INFO(o.out);
  CHECK(o.code == 2);
  CHECK(o.prints("use --on here"));
}
