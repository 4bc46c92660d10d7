// Predicted steps: measured times kept and estimated, the sums of a step, corrections by runs, and the words of a run's
// end; gpttrain plan --device_type cpu and a run beside it.
#include "launch/observe/step_prediction.h"

#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "launch/engine/engine_options.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// Cache folder of its own for measured times.
struct CacheFixture : TempDir {
  CacheFixture() { setenv("XDG_CACHE_HOME", (*this / "cache").c_str(), 1); }
  ~CacheFixture() { unsetenv("XDG_CACHE_HOME"); }
};

const std::string kTiny =
    "--model.layers 4 --model.hidden 64 --model.heads 4 --model.vocab 256 --model.seq 64 --train.micro_batch 1 "
    "--device.kind cpu --device.threads 1 ";

Config tiny(const std::vector<std::string>& more) {
  std::vector<std::string> flags{"--model.layers", "4",   "--model.hidden", "64", "--model.heads",       "4",
                                 "--model.vocab",  "256", "--model.seq",    "64", "--train.micro_batch", "1",
                                 "--device.kind",  "cpu"};
  flags.insert(flags.end(), more.begin(), more.end());
  return load_config({.flags = flags}).config;
}

// Every op takes its bytes in nanoseconds; collectives 1 ms a call.
MeasuredTimes synthetic(const Config& c) {
  MeasuredTimes t({"test cpu", DType::kF32, 1, 2});
  const EngineOptions o = engine_options(c, 1);
  const MeshShape shape = mesh_shape(c);
  for (int k = 0; k < shape.pp; ++k)
    for (const OpCall& call : step_ops(o, shape, k * shape.dp * shape.tp)) t.set(call, {1e-9 * call.cost.bytes});
  for (const CommOp op : {CommOp::kAllReduce, CommOp::kAllGather, CommOp::kReduceScatter, CommOp::kSend})
    for (const int64_t ranks : {2, 4, 8})
      for (const int64_t bytes : {4096, 1 << 24}) t.set("thread", op, ranks, bytes, 1e-3);
  return t;
}

StepPrediction predict(const Config& c, const MeasuredTimes& t, const CoreShare& share) {
  const EngineOptions o = engine_options(c, 1);
  return predict_step(o, mesh_shape(c), plan_stages(o, mesh_shape(c), cpu_backend()), t, "thread", share);
}

}  // namespace

TEST_CASE("measured times are kept by conditions and estimate shapes that were not measured") {
  const CacheFixture cache;
  const Config c = tiny({"--train.global_batch", "2"});
  const std::vector<OpCall> calls = step_ops(engine_options(c, 1), {}, 0);
  MeasuredTimes t({"a cpu", DType::kF32, 1, 2});
  CHECK_FALSE(MeasuredTimes::load(t.on()));
  const auto gemm = std::find_if(calls.begin(), calls.end(), [](const OpCall& k) { return k.cost.flops > 0; });
  REQUIRE(gemm != calls.end());
  CHECK(std::isnan(t.seconds(*gemm)));
  t.set(*gemm, {0.25, 0.125});
  t.set("mpi", CommOp::kAllReduce, 4, 1000, 1e-3), t.set("mpi", CommOp::kAllReduce, 4, 3000, 2e-3);
  t.add_run({"this", {2, 1, 1, 1, 1}});
  t.add_run({"that", {0.9, 1, 1, 1, 1}});
  t.save();
  const auto back = MeasuredTimes::load(t.on());
  REQUIRE(back);
  CHECK(gemm->calls > 1);
  CHECK((gemm->packs > 0 && gemm->packs <= gemm->calls));
  CHECK(back->seconds(*gemm) == 0.25 * static_cast<double>(gemm->calls) + 0.125 * static_cast<double>(gemm->packs));
  OpCall larger = *gemm;
  larger.calls = 1, larger.packs = 0;
  larger.cost.flops *= 3, larger.cost.bytes *= 2;
  CHECK_FALSE(back->measured(larger));
  CHECK(back->seconds(larger) == Approx(0.75));  // by FLOPs
  CHECK(back->seconds("mpi", CommOp::kAllReduce, 4, 2000) == Approx(1.5e-3));
  CHECK(back->seconds("mpi", CommOp::kAllReduce, 4, 10) == Approx(1e-3));    // latency
  CHECK(back->seconds("mpi", CommOp::kAllReduce, 4, 6000) == Approx(4e-3));  // bandwidth
  CHECK(back->seconds("mpi", CommOp::kAllReduce, 1, 6000) == 0);
  CHECK(std::isnan(back->seconds("thread", CommOp::kAllReduce, 4, 6000)));
  CHECK(back->corrections("this").of[0] == 1.5);  // bounded
  CHECK(back->corrections("that").of[0] == 0.9);  // each model's own
  CHECK(back->corrections("none").of[0] == 1);
  for (size_t k = 0; k < MeasuredTimes::kMostKept; ++k) t.add_run({cat("other ", k / 30), {1, 1, 1, 1, 1}});
  CHECK((t.runs("other 0") == MeasuredTimes::kMostRuns && t.runs("that") == 1));
  for (size_t k = 0; k < MeasuredTimes::kMostKept; ++k) t.add_run({cat("more ", k), {1, 1, 1, 1, 1}});
  CHECK((t.runs("that") == 0 && t.runs("more 0") == 1));
  t.drop_runs();
  CHECK(t.runs("more 0") == 0);
  CHECK_FALSE(MeasuredTimes::load({"a cpu", DType::kF32, 2, 2}));
  write_file(t.file(), read_file(t.file()).replace(read_file(t.file()).find("0.25"), 4, "-1.0"));
  CHECK_FALSE(MeasuredTimes::load(t.on()));
  write_file(t.file(), "{\"version\": [");
  CHECK_FALSE(MeasuredTimes::load(t.on()));
}

TEST_CASE("measured times that others can have written, or that no op can take, are not used") {
  const CacheFixture cache;
  const std::vector<OpCall> calls = step_ops(engine_options(tiny({"--train.global_batch", "2"}), 1), {}, 0);
  MeasuredTimes t({"a cpu", DType::kF32, 1, 2});
  t.set(calls.front(), {0.25, 0.125});
  t.save();
  REQUIRE(MeasuredTimes::load(t.on()));
  const std::string text = read_file(t.file());
  for (const char* bad : {"-1.0", "0.0", "1e9", "1e999"}) {
    std::string changed = text;
    const size_t at = changed.find("\"seconds\":") + 10;
    changed.replace(at, changed.find_first_of(",\n}", at) - at, bad);
    write_file(t.file(), changed);
    INFO(bad);
    CHECK_FALSE(MeasuredTimes::load(t.on()));
  }
  write_file(t.file(), text);
  REQUIRE(MeasuredTimes::load(t.on()));
  std::filesystem::permissions(t.file(), std::filesystem::perms::others_write, std::filesystem::perm_options::add);
  CHECK_FALSE(MeasuredTimes::load(t.on()));
}

TEST_CASE("a step over machines is predicted with the line between them, and deeper pipelines that shorten it") {
  const Config c = tiny({"--parallel.pp", "2", "--train.global_batch", "8"});
  MeasuredTimes t = synthetic(c);
  const StagePlans plans = plan_stages(engine_options(c, 1), mesh_shape(c), cpu_backend());
  const CoreShare alone{1, 1, 2};
  const auto predicted = [&](int extra, int machines) {
    EngineOptions o = engine_options(c, 1);
    o.extra_in_flight = extra;
    return predict_step(o, mesh_shape(c), plans, t, "thread", alone, machines);
  };
  CHECK(std::isnan(predicted(0, 2).seconds()));  // the network was not measured
  const std::string line = transport_between("thread", 2);
  CHECK(line == "thread between 2 machines");
  CHECK(transport_between("thread", 1) == "thread");
  for (const int64_t bytes : {4096, 1 << 24})  // 20 ms, then 100 Mbit/s
    t.set(line, CommOp::kSend, 2, bytes, 20e-3 + static_cast<double>(bytes - 4096) * 8 / 100e6);
  const StepPrediction plain = predicted(0, 2), deep = predicted(6, 2);
  // Microbatches in pairs, a round trip each, and the exchange of norms; with all in flight one round trip.
  CHECK(plain.seconds() > 4 * 40e-3 + 20e-3);
  CHECK(deep.seconds() < plain.seconds() - 2 * 40e-3);
  CHECK(deep.seconds() > 2 * 20e-3 + 20e-3 + deep.compute() / 2);
  CHECK(plain.pipeline() == Approx(plain.compute() + plain.messages + plain.bubble));
  CHECK(predicted(0, 1).seconds() < plain.seconds() / 2);
  const auto predict_deeper = [&](const EngineOptions& o) { return predicted(o.extra_in_flight, 2); };
  CHECK_THAT(deeper_pipeline(engine_options(c, 1), plain.seconds(), predict_deeper),
             Catch::Contains("; with --parallel.extra_in_flight ") && Catch::Contains(" ms"));
  EngineOptions o = engine_options(c, 1);
  o.extra_in_flight = 7;
  CHECK(deeper_pipeline(o, deep.seconds(), predict_deeper).empty());
  CHECK_THAT(start_text(plain), Catch::Contains(" ms a step: compute ") && Catch::Contains(", messages and bubble "));
}

TEST_CASE("a predicted step adds up its ops and collectives and the schedule's bubble") {
  const Config one = tiny({"--train.global_batch", "4"});
  const StepPrediction p = predict(one, synthetic(one), {.ranks = 1, .threads = 1, .cores = 2});
  double bytes = 0;
  for (const OpCall& c : step_ops(engine_options(one, 1), {}, 0)) bytes += static_cast<double>(c.calls) * c.cost.bytes;
  CHECK(p.seconds() == Approx(1e-9 * bytes));
  CHECK((p.bubble == 0 && p.tensor_parallel == 0 && p.estimated == 0));
  CHECK((p.gemms > 0 && p.attention > 0 && p.passes > 0 && p.update > 0));

  const Config piped = tiny({"--train.global_batch", "4", "--pp", "2"});
  const StepPrediction own = predict(piped, synthetic(piped), {.ranks = 2, .threads = 1, .cores = 2});
  CHECK(own.bubble > 0);
  CHECK(own.messages == Approx(1e-3 * 4));  // a message each way for every microbatch, a mean over both ranks
  const StepPrediction shared = predict(piped, synthetic(piped), {.ranks = 2, .threads = 1, .cores = 1});
  CHECK(shared.compute() == Approx(2 * own.compute()));  // the ranks take turns
  CHECK(shared.bubble < own.bubble);

  const Config wide = tiny({"--train.global_batch", "4", "--tp", "2", "--dp", "2"});
  const StepPrediction split = predict(wide, synthetic(wide), {.ranks = 4, .threads = 1, .cores = 4});
  CHECK(split.tensor_parallel >= 1e-3 * 2 * 4 * 4);  // 2 all-reduces each way, 4 blocks, 2 microbatches
  CHECK(split.data_parallel >= 2e-3);
  MeasuredTimes without({"test cpu", DType::kF32, 1, 2});
  CHECK(std::isnan(predict(wide, without, {.ranks = 4, .threads = 1, .cores = 4}).seconds()));
}

TEST_CASE("a predicted step counts Newton-Schulz iterations as update, and the gathers of its matrices") {
  const auto of = [](const std::vector<std::string>& more) {
    const Config c = tiny(more);
    return predict(c, synthetic(c), {.ranks = 1, .threads = 1, .cores = 8});
  };
  const StepPrediction adamw = of({"--train.global_batch", "4"});
  const StepPrediction muon = of({"--train.global_batch", "4", "--optim.type", "muon"});
  CHECK((muon.gemms == Approx(adamw.gemms) && muon.passes == Approx(adamw.passes)));
  // In each of 5 iterations, 3 GEMMs of 6 matrices of 4 blocks, the least of which moves 3 x 64 x 64 elements.
  CHECK(muon.update > adamw.update + 1e-9 * 5 * 3 * 6 * 4 * (3 * 64 * 64 * 4));
  CHECK(muon.estimated == 0);
  const std::vector<std::string> wide{"--train.global_batch", "4", "--tp", "2", "--dp", "2"};
  std::vector<std::string> wide_muon = wide;
  wide_muon.insert(wide_muon.end(), {"--optim.type", "muon"});
  // Updates are gathered over dp once a block and returned by a broadcast a matrix. The owners of up and down are TP
  // ranks of this replica, which gathers and returns these two; those of Q, K, V and out are the other's.
  const StepPrediction split = of(wide_muon), plain = of(wide);
  CHECK(split.data_parallel == Approx(plain.data_parallel + 1e-3 * (4 + 24)));
  CHECK(split.tensor_parallel == Approx(plain.tensor_parallel + 1e-3 * 2 * 4 * 2));
}

TEST_CASE("a run that is far off the plan names the class of time and corrects later plans") {
  StepPrediction p;
  p.gemms = 0.060, p.attention = 0.012, p.passes = 0.008, p.data_parallel = 0.010, p.update = 0.010;
  std::vector<Timers> means(1);
  means[0][kForwardTime] = 0.030, means[0][kBackwardTime] = 0.052, means[0][kReduceTime] = 0.010;
  means[0][kOptimizerTime] = 0.010;
  CHECK(prediction_text(p, means, 0.104) == "100 ms predicted, 104 ms measured (+4.0 %)");
  means[0][kReduceTime] = 0.050;
  CHECK(
      prediction_text(p, means, 0.144) ==
      "100 ms predicted, 144 ms measured (+44.0 %); most of it in data-parallel communication: 10 ms predicted, 50 ms "
      "measured");
  const RunRatios r = run_ratios(p, means, 0.144);
  CHECK(r.of[0] == Approx(0.082 / 0.080));
  CHECK(r.of[1] == 1);  // no tensor parallelism
  CHECK(r.of[3] == Approx(5));
  StepPrediction sharing = p;
  sharing.shared_cores = true;
  for (const double x : run_ratios(sharing, means, 0.144).of) CHECK(x == Approx(1.44));
  means[0][kReduceTime] = 0.010, means[0][kForwardTime] = 0.060;
  CHECK_THAT(prediction_text(p, means, 0.132),
             Catch::Contains("most of it in compute: 80 ms predicted, 112 ms measured (predicted: products 75 %, "
                             "attention 15 %, memory passes 10 %)"));
}

TEST_CASE("plan by measured times of this machine predicts a layout and ranks others and runs print it") {
  const CacheFixture cache;
  const auto plan = [&](const std::string& more) {
    return gpttrain("plan --device_type cpu --train.global_batch 8 --launch.ranks threads " + kTiny + more,
                    cache.path());
  };
  CHECK(plan("--dp 2").prints("is not measured for"));
  const Outcome first = plan("--dp 2 --calibrate --json");
  INFO(first.out);
  REQUIRE(first.code == 0);
  const auto json = nlohmann::json::parse(first.out.substr(first.out.find('{')));
  CHECK(json["op_calls"].get<int64_t>() > 50);
  CHECK(json["op_calls_estimated"] == 0);
  const double predicted = json["step_seconds"];
  CHECK((predicted > 1e-4 && predicted < 10));
  CHECK(json["step_terms"]["data_parallel"].get<double>() > 0);
  const Outcome why = plan("--dp 2 --why");
  CHECK((why.prints("limits") && why.prints("bytes a parameter")));
  const Outcome ranked = plan("--devices 2 --search --json");
  INFO(ranked.out);
  const auto layouts = nlohmann::json::parse(ranked.out);
  REQUIRE(layouts.size() >= 3);
  for (size_t k = 1; k < layouts.size(); ++k)
    CHECK(layouts[k]["step_seconds"].get<double>() >= layouts[k - 1]["step_seconds"].get<double>());

  const std::string run = kTiny + "--train.global_batch 8 --dp 2 --launch.ranks threads --data.train mock ";
  const Outcome trained = must(run + "--train.steps 12 --log.name r", cache);
  CHECK(trained.prints("ms predicted, "));
  CHECK(logged(cache / "runs/r", "step_predicted").back() == Approx(predicted));
  const Outcome again = must(run + "--train.steps 4 --log.name s", cache);
  CHECK(logged(cache / "runs/s", "step_predicted").back() != Approx(predicted));  // corrected by the first run
  CHECK(read_file(cache / "runs/r/report.html").find("step time") != std::string::npos);

  const Outcome tried = plan("--devices 2 --search --calibrate --trials 2 --json");
  INFO(tried.out);
  const auto measured = nlohmann::json::parse(tried.out.substr(tried.out.find('[')));
  REQUIRE(measured.size() == layouts.size());
  for (size_t k = 0; k < measured.size(); ++k) CHECK(measured[k].contains("planned_step_seconds") == (k < 2));
  CHECK(plan(measured[0]["flags"].get<std::string>()).prints("in a trial"));
  CHECK(plan("--devices 2 --search --trials 2").prints("--trials needs --search --calibrate"));
  // Kept steps order later searches, not the plans.
  std::filesystem::path times;
  for (const auto& e : std::filesystem::directory_iterator(cache / "gpttrain"))
    if (e.path().filename().string().rfind("times-", 0) == 0) times = e.path();
  nlohmann::json kept = nlohmann::json::parse(read_file(times));
  REQUIRE(kept["steps"].size() == 2);
  for (const size_t fast : {0, 1}) {
    kept["steps"][fast]["seconds"] = 1e-6, kept["steps"][1 - fast]["seconds"] = 2e-6;
    write_file(times, kept.dump());
    const auto found = nlohmann::json::parse(plan("--devices 2 --search --json").out);
    CHECK(found[0]["step_seconds"] == 1e-6);
    const std::string flags = found[0]["flags"];
    CHECK_THAT(kept["steps"][fast]["layout"].get<std::string>(), Catch::Contains(flags));
    CHECK(plan("--devices 2 --search").prints("first  " + flags));
  }
  kept["steps"][0]["seconds"] = -1;
  write_file(times, kept.dump());
  CHECK(plan("--devices 2 --search").prints("is not measured for"));
}
