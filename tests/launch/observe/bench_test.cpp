// gpttrain bench and its modes: printed and written output. Measured times are not asserted.
#include <cstdlib>
#include <fstream>
#include <map>

#include "launch/observe/peak_rates.h"
#include "launch/options/json_text.h"
#include "launch/tools/bench/bench_stats.h"
#include "launch/tools/bench/peer_output.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace gt {
namespace {

std::string tiny() { return " --config " + source_dir() + "/configs/tiny.json --device.kind cpu --device.threads 1"; }

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

double number(const JsonValue& v, const std::string& key) {
  INFO(key);
  REQUIRE(v.find(key) != nullptr);
  return std::stod(v.find(key)->text);
}

// Writes measured peaks of a device to the user cache of programs that run in `dir`.
void put_ceilings(const TempDir& dir, const std::string& device, int64_t head_dim, int64_t seq, double gemm = 1e12) {
  ::setenv("XDG_CACHE_HOME", dir.path().c_str(), 1);
  save_ceilings(
      {.device = device, .dtype = "f32", .gemm = gemm, .copy = 1e11, .attention = {{head_dim, seq, 5e11, 4e11}}},
      ceilings_file(device, DType::kF32));
  ::unsetenv("XDG_CACHE_HOME");
}

TEST_CASE("spreads are median, deciles and median absolute deviation") {
  const Spread s = spread_of({5, 1, 2, 3, 4, 6, 7, 8, 9, 10, 30});
  CHECK((s.median == 6 && s.p10 == 2 && s.p90 == 10 && s.mad == 3));
  CHECK(std::isnan(spread_of({}).median));
}

TEST_CASE("bench writes its measurements as one JSON object, with sol where peaks are known") {
  TempDir dir;
  const std::string run = "bench" + tiny() + " --warmup 1 --steps 3 --out ";
  const Outcome blind = must(run + "a.json", dir);
  CHECK(blind.prints("(3 steps after 1)"));
  CHECK_FALSE(blind.prints("sol"));
  const JsonValue a = parse_json(lines_of(dir / "a.json").at(0), "a.json");
  CHECK(number(a, "steps") == 3);
  CHECK(number(a, "tokens_per_second") > 0);
  CHECK(number(*a.find("step_seconds"), "p10") <= number(*a.find("step_seconds"), "p90"));
  for (const char* unknown : {"sol", "sol0", "mfu", "ceilings", "roofline_seconds", "graphs"}) {
    INFO(unknown);
    REQUIRE(a.find(unknown) != nullptr);
    CHECK(a.find(unknown)->kind == JsonValue::Kind::kNull);
  }
  CHECK(a.find("config")->find("model")->find("hidden") != nullptr);
  CHECK_THAT(a.find("command")->text, Catch::StartsWith("gpttrain bench --config"));

  const double hidden = number(*a.find("config")->find("model"), "hidden"),
               heads = number(*a.find("config")->find("model"), "heads");
  put_ceilings(dir, a.find("device")->text, static_cast<int64_t>(hidden / heads),
               static_cast<int64_t>(number(a, "seq")));
  must(run + "b.jsonl", dir);
  const Outcome printed = must("bench" + tiny() + " --warmup 0 --steps 2 --out b.jsonl", dir);
  CHECK((printed.prints("sol ") && printed.prints("sol0 ")));
  REQUIRE(lines_of(dir / "b.jsonl").size() == 2);
  const JsonValue b = parse_json(lines_of(dir / "b.jsonl")[1], "b.jsonl");
  CHECK(number(b, "steps") == 2);
  const JsonValue& roof = *b.find("roofline_seconds");
  CHECK(number(b, "sol") == Approx(number(roof, "r") / number(*b.find("step_seconds"), "median")));
  CHECK(number(b, "sol0") == Approx(number(roof, "r0") / number(*b.find("step_seconds"), "median")));
  CHECK(number(roof, "r") >= number(roof, "r0"));
  CHECK(number(roof, "called") >= number(roof, "r"));
}

TEST_CASE("bench records hold the tool versions and conditions of the measurement") {
  TempDir dir;
  must("bench" + tiny() + " --warmup 0 --steps 1 --out a.json", dir);
  const JsonValue a = parse_json(lines_of(dir / "a.json").at(0), "a.json");
  for (const char* library : {"compiler", "oneDNN", "CPU", "MPI"}) {
    INFO(library);
    REQUIRE(a.find("libraries")->find(library) != nullptr);
    CHECK(a.find("libraries")->find(library)->text.size() > 2);
  }
  const JsonValue* c = a.find("conditions");
  REQUIRE(c != nullptr);
  CHECK(c->find("watts")->kind == JsonValue::Kind::kNull);  // unknown for a CPU
  CHECK_THAT(c->find("why_unknown")->text, Catch::StartsWith("processor power is not available"));
  const bool clocked = c->find("clock_mhz")->kind != JsonValue::Kind::kNull;
  CHECK(clocked == (c->find("why_unknown")->text.find("no core clock") == std::string::npos));
  if (clocked) CHECK(number(*c->find("clock_mhz"), "min") <= number(*c->find("clock_mhz"), "max"));
}

TEST_CASE("a history finds the last record of its device, ranks and config") {
  TempDir dir;
  const std::string run = "bench" + tiny() + " --warmup 0 --steps 1 --history h.jsonl";
  CHECK(must(run, dir).prints("history   the first of its kind in h.jsonl"));
  CHECK(must(run + " --dp 2 --launch.ranks threads", dir).prints("the first of its kind"));
  CHECK(must(run + " --optim.lr 1e-5", dir).prints("the first of its kind"));
  std::vector<std::string> lines = lines_of(dir / "h.jsonl");
  REQUIRE(lines.size() == 3);
  // Simulates a record of an older version at a thousandth of the speed: one removed key, one missing key.
  const auto replace = [](std::string& in, const std::string& a, const std::string& b) {
    REQUIRE(in.find(a) != std::string::npos);
    in.replace(in.find(a), a.size(), b);
  };
  const JsonValue first = parse_json(lines[0], "h.jsonl");
  const double rate = number(first, "tokens_per_second");
  std::string old = lines[0];
  replace(old, "\"tokens_per_second\":", "\"tokens_per_second\":" + std::to_string(1e-3 * rate) + ",\"was\":");
  replace(old, "\"time\":\"" + first.find("time")->text, "\"time\":\"in the old days");
  replace(old, "\"hidden\":", "\"was_hidden\":7,\"hidden\":");
  replace(old, "\"graphs\":\"auto\",", "");
  std::ofstream(dir / "h.jsonl", std::ios::app) << old << "\n";
  const Outcome later = must(run + " --log.name another --checkpoint.every 7", dir);
  CHECK(later.prints("of in the old days (git "));
  lines = lines_of(dir / "h.jsonl");
  REQUIRE(lines.size() == 5);
  const double now = number(parse_json(lines[4], "h.jsonl"), "tokens_per_second");
  char ratio[40];
  std::snprintf(ratio, sizeof ratio, "history   %.3f times", now / std::stod(std::to_string(1e-3 * rate)));
  CHECK(later.prints(ratio));
  std::ofstream(dir / "h.jsonl", std::ios::app) << lines[0].substr(0, 99) << "\n";
  const Outcome torn = gpttrain(run, dir.path());
  CHECK(torn.code == static_cast<int>(Exit::kDamaged));
  CHECK(torn.prints("h.jsonl, line 6: not a record of gpttrain bench"));
  CHECK(lines_of(dir / "h.jsonl").size() == 6);
}

TEST_CASE("a bench of several ranks ends after the same step on all") {
  TempDir dir;
  const Outcome two =
      must("bench" + tiny() + " --warmup 1 --steps 2 --dp 2 --pp 2 --launch.ranks threads --out r.json", dir);
  CHECK(two.prints("(2 steps after 1)"));
  const JsonValue r = parse_json(lines_of(dir / "r.json").at(0), "r.json");
  CHECK(number(r, "ranks") == 4);
  CHECK(number(r, "ranks_per_device") == 4);
}

TEST_CASE("bench ops times every op of a step, or its GEMMs") {
  TempDir dir;
  const Outcome ops = must("bench ops" + tiny(), dir);
  for (const char* op : {"gemm ", "attention_grad", "layer_norm_grad", "cross_entropy", "adamw", "embedding_grad",
                         "attn.qkv weight gradient", "all ops", "gpttrain bench ceilings"}) {
    INFO(op);
    CHECK(ops.prints(op));
  }
  CHECK_FALSE(ops.prints("inf "));
  const Outcome split =
      must("bench ops" + tiny() + " --tp 2 --pp 2 --amp O2 --precision.dtype bf16 --precision.fp8 current", dir);
  CHECK((split.prints("rank 0 of tp 2 pp 2 dp 1") && split.prints("gemm_fp8") && split.prints("add_bias")));
  // Positions and lengths are legal ones.
  const std::string small = " --model.layers 2 --model.hidden 64 --model.heads 4 --model.vocab 1024 --model.seq 32";
  for (const char* more : {" --model.arch llama --data.pack documents", " --model.arch bert"})
    CHECK(must(cat("bench ops", small, more, " --train.micro_batch 4 --train.global_batch 4"), dir).prints("all ops"));
  const std::string stale = "measure it again with gpttrain bench ceilings";
  CHECK_FALSE(ops.prints(stale));
  const Outcome gemm = must("bench ops --gemms" + tiny(), dir);
  CHECK((gemm.prints("mlp.up forward") && gemm.prints("products")));
  CHECK_FALSE(gemm.prints("attention_grad"));
  const std::string device = gemm.out.substr(0, gemm.out.find(", 1 thread(s)"));
  put_ceilings(dir, device, 16, 32);
  CHECK_FALSE(must("bench ops --gemms" + tiny(), dir).prints(stale));
  put_ceilings(dir, device, 16, 32, 1e3);
  CHECK(must("bench ops --gemms" + tiny(), dir).prints(stale));
}

TEST_CASE("steps of other trainers are parsed from their output") {
  std::string found;
  const auto rates = [&](const std::string& out) { return peer_rates(out, peer_formats(), 1000, &found); };
  CHECK(
      rates(
          "noise\n"
          "step    1/20 | loss 11.009 (+nanz)| norm 15.3 (+nanz)| lr 6.00e-04 | 200.00 ms | -100.0% bf16 MFU | 1 "
          "tok/s\n"
          "step    2/20 | loss 10.009 (+nanz)| norm 15.3 (+nanz)| lr 6.00e-04 | 100.00 ms | 38.0% bf16 MFU | 2 tok/s\n"
          "total average iteration time: 120.0 ms\n") == std::vector<double>{5000, 10000});
  CHECK(found == "llm.c");
  CHECK(rates("step 0: train loss 5.356 (took 500.0 ms)\n") == std::vector<double>{2000});
  CHECK(found == "llm.c-cpu");
  CHECK(rates("[T] step    10 [  0.1%] | time:   250 ms | norm   1.0 | loss   4.2 | tps     4k | sol 60.0%\n"
              "[V] step    10 [  0.1%] | time:   999 ms | eval 4.0 | train 4.1 | tps 5k\n") ==
        std::vector<double>{4000});
  CHECK(found == "llmq");
  CHECK(rates("torch 2.9, GPT-2 124m: median 0.5 s a step\n4321 tokens/s\n") == std::vector<double>{4321});
  CHECK(rates("nothing\n").empty());
  using Unit = PeerFormat::Unit;
  CHECK(peer_rates("it 3 0.25s\n", {{"x", "it \\d+ ([0-9.]+)s", Unit::kSeconds}}, 1000, &found) ==
        std::vector<double>{4000});
  CHECK_THROWS_WITH(peer_rates("a", {{"x", "(", Unit::kSeconds}}, 1, &found),
                    Catch::Contains("not a valid regular expression"));
  CHECK_THROWS_WITH(peer_rates("a", {{"x", "a", Unit::kSeconds}}, 1, &found), Catch::Contains("needs a group"));
  CHECK_THROWS_WITH(peer_rates("a", {{"x", "(a)", Unit::kSeconds}}, 1, &found), Catch::Contains("not a number"));
}

TEST_CASE("bench peer runs both in pairs and reports the ratio's median and quartiles") {
  TempDir dir;
  const std::string ours = tiny() + " --steps 2 --warmup 0 --pairs 3 --out duel.json";
  const Outcome r = must("bench peer --run 'echo x >>runs; echo \"100 tokens/s\"' --note 'commit abc'" + ours, dir);
  CHECK((r.prints("pair 3") && r.prints("ratio     median") && r.prints("quartiles")));
  CHECK(lines_of(dir / "runs").size() == 3);
  const JsonValue j = parse_json(lines_of(dir / "duel.json").at(0), "duel.json");
  CHECK(j.find("note")->text == "commit abc");
  CHECK(number(j, "median") > 0);
  CHECK(number(*j.find("last"), "steps") == 2);
  const Outcome silent = gpttrain("bench peer --run true" + ours, dir.path());
  CHECK((silent.code == 2 && silent.prints("its output has no step lines")));
  const Outcome broken = gpttrain("bench peer --run 'echo oh; exit 3'" + ours, dir.path());
  CHECK((broken.code == 2 && broken.prints("ended with 3") && broken.prints("oh")));
}

TEST_CASE("unknown modes of bench are refused with those that there are") {
  TempDir dir;
  const Outcome r = gpttrain("bench cpu", dir.path());
  CHECK((r.code == 2 && r.prints("gpttrain bench cpu: unknown subcommand; expected one of: ceilings ops")));
  CHECK(gpttrain("bench --out no/such/folder/r.json --warmup 0 --steps 1" + tiny(), dir.path()).code != 0);
}

TEST_CASE("bench comm times every call of every group of the layout, on threads and on processes") {
  TempDir dir;
  for (const auto& [ranks, dp] : {std::pair("threads", 1), {"processes", 2}}) {
    INFO(ranks);
    const Outcome run = must("bench comm" + tiny() + " --tp 2 --pp 2 --most 1 --out c.json --launch.ranks " + ranks +
                                 " --dp " + std::to_string(dp),
                             dir);
    const JsonValue c = parse_json(lines_of(dir / "c.json").at(0), "c.json");
    const JsonValue* calls = c.find("calls");
    REQUIRE(calls != nullptr);
    CHECK(calls->items.size() == static_cast<size_t>(4 * dp + 1) * 5);  // tp, dp and pp groups at 4 KiB to 1 MiB
    std::map<std::string, int> groups;
    int all_to_alls = 0;
    for (const JsonValue& call : calls->items) {
      ++groups[call.find("group")->text];
      CHECK(number(call, "wire_bytes_per_second") > 0);
      if (call.find("call")->text != "all_to_all") continue;  // (n - 1) / n of the tensor over the time, n = 2
      CHECK(number(call, "wire_bytes_per_second") * number(*call.find("seconds"), "median") ==
            Approx(number(call, "bytes") / 2));
      ++all_to_alls;
    }
    CHECK((groups["tp"] == 20 && groups["dp"] == 20 * (dp - 1) && groups["pp"] == 5));
    CHECK(all_to_alls == dp * 5);
    CHECK(run.prints("all_gather"));
    CHECK(run.prints("send+recv"));
  }
  const Outcome alone = gpttrain("bench comm" + tiny(), dir.path());
  CHECK(alone.code == 2);
  CHECK(alone.prints("--tp 2 --dp 4"));
  const Outcome direct = gpttrain("bench comm --config " + source_dir() + "/configs/tiny.json --tp 2 --most 1 " +
                                      "--comm.backend direct --device.kind cpu",
                                  dir.path());
  CHECK(direct.code == 2);
  CHECK(direct.prints("transfers GPU memory"));
}

TEST_CASE("bench data times the loaders of the layout") {
  TempDir dir;
  const Outcome run =
      must("bench data" + tiny() + " --data.train mock --dp 2 --launch.ranks threads --steps 3 --out d.json", dir);
  CHECK(run.prints("(3 steps, the slowest rank of each)"));
  const JsonValue d = parse_json(lines_of(dir / "d.json").at(0), "d.json");
  CHECK(number(d, "steps") == 3);
  CHECK(number(d, "tokens_per_second") > 0);
  const Outcome none = gpttrain("bench data --model.layers 2 --model.hidden 32 --model.heads 4", dir.path());
  CHECK(none.code == 2);
  CHECK(none.prints("data.train"));
}

}  // namespace
}  // namespace gt
