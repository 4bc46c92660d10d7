// Runs with a DeepSpeed file from outside: effective config, curves over samples, report.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
namespace fs = std::filesystem;

namespace {

const std::string kTiny =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--device.kind cpu --checkpoint.every 0 ";

// Returns the points of an event file, tag → steps, parsed from the protobuf fields of scalars.
std::map<std::string, std::vector<int64_t>> points_of(const std::string& folder) {
  std::map<std::string, std::vector<int64_t>> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = read_file(entry.path().string());
    for (size_t at = 0; at + 16 <= file.size();) {
      uint64_t length;
      std::memcpy(&length, &file[at], 8);
      const std::string event = file.substr(at + 12, length);
      at += 16 + length;
      int64_t step = 0;
      size_t i = 9;  // after wall_time
      if (i < event.size() && event[i] == 0x10)
        for (int shift = 0; ++i < event.size(); shift += 7) {
          step |= int64_t{event[i] & 127} << shift;
          if ((event[i] & 128) == 0) break;
        }
      const size_t tag = event.find("Train/");
      if (tag != std::string::npos) out[event.substr(tag, static_cast<uint8_t>(event[tag - 1]))].push_back(step);
    }
  }
  return out;
}

std::string value_in(const std::string& json, const std::string& key) {
  const size_t at = json.find("\"" + key + "\": ") + key.size() + 4;
  return json.substr(at, json.find_first_of(",\n", at) - at);
}

}  // namespace

TEST_CASE("a run with a DeepSpeed file: translated config, curves at 16, 32, 48, and the report") {
  TempDir dir;
  write_file(dir / "f.json", R"({
    "train_batch_size": 16,  // 全局批量
    "optimizer": { "type": "Adam", "params": { "lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7 } },
    "scheduler": { "type": "WarmupLR", "params": { "warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000,
                   "warmup_type": "linear" } },
    "gradient_clipping": 1.0, "prescale_gradients": false,
    "zero_optimization": { "stage": 0, "allgather_bucket_size": 5e7, "reduce_bucket_size": 5e7,
                           "offload_optimizer": { "device": "cpu" } },
    "wall_clock_breakdown": true, "memory_breakdown": true, "dump_state": true,
    "tensorboard": { "enabled": true, "output_path": "curves", "job_name": "2023年08月15日16:28:06" },
    "csv_monitor": { "enabled": true, "job_name": "csv job" },
  })");
  write_file(dir / "c.json",
             R"({"train": {"micro_batch": 2, "grad_accum": 4, "steps": 3, "eval_every": 3, "eval_steps": 1}})");
  const Outcome r =
      gpttrain(kTiny + "--config c.json --pp 2 --dp 2 --launch.ranks threads --deepspeed_config f.json --log.name x",
               dir.path());
  INFO(r.out);
  REQUIRE(r.code == 0);
  for (const char* line :
       {"global 16 = micro 8 × microbatches 1 × dp 2", "deepspeed: train_batch_size 16 -> train.global_batch 16",
        "optimizer.type Adam -> optim.type adamw (adam_w_mode defaults to true)",
        "offload_optimizer.device cpu: no effect at ZeRO stage 0", "time of step 2  forward ",
        "memory of rank 0: weights", "\"lamb_variant\""})
    CHECK(r.prints(line));
  const std::string config = read_file(dir / "runs/x/config.json");
  CHECK(value_in(config, "global_batch") == "16");
  CHECK(value_in(config, "betas") == "[0.8");
  CHECK(value_in(config, "warmup_steps") == "1000");
  CHECK(value_in(config, "ds_exact") == "true");
  CHECK(value_in(config, "bucket_bytes") == "200000000");
  CHECK(value_in(config, "stage") == "0");
  const auto lr = logged(dir / "runs/x", "lr");
  REQUIRE(lr.size() == 3);
  CHECK(lr[0] == 0);  // as in DeepSpeed: two steps at warmup_min_lr
  CHECK(lr[1] == 0);
  CHECK(lr[2] == Approx(1e-6));

  const std::string curves = dir / "curves/2023年08月15日16:28:06";
  const std::vector<int64_t> all{16, 32, 48};
  std::set<std::string> tags;
  for (const auto& [tag, steps] : points_of(curves)) {
    INFO(tag);
    tags.insert(tag);
    CHECK(steps == (tag == "Train/Samples/eval_loss" ? std::vector<int64_t>{48} : all));
  }
  const std::string s = "Train/Samples/", t = s + "elapsed_time_ms_";
  CHECK(tags == std::set<std::string>{s + "train_loss", s + "lr", s + "grad_norm", s + "tokens_per_sec",
                                      s + "skipped_steps", s + "eval_loss", t + "forward", t + "backward",
                                      t + "backward_inner", t + "backward_allreduce", t + "step"});
  const auto loss = logged(dir / "runs/x", "loss");
  std::string expected = "step,train_loss\n";
  for (size_t k = 0; k < 3; ++k) expected += std::to_string(16 * (k + 1)) + ",";
  const std::string csv = read_file(dir / "csv job/Train_Samples_train_loss.csv");
  CHECK_THAT(csv, Catch::StartsWith("step,train_loss\n16,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 4);
  CHECK(std::stod(csv.substr(csv.rfind(",") + 1)) == Approx(loss[2]));

  // A second start appends without a second header.
  const Outcome more = gpttrain(kTiny +
                                    "--config c.json --pp 2 --dp 2 --launch.ranks threads --deepspeed_config f.json "
                                    "--log.name x --train.steps 4",
                                dir.path());
  INFO(more.out);
  REQUIRE(more.code == 0);
  const std::string longer = read_file(dir / "csv job/Train_Samples_train_loss.csv");
  CHECK_THAT(longer, Catch::StartsWith(csv));
  CHECK(longer.find("64,") != std::string::npos);
  CHECK(longer.find("step", 4) == std::string::npos);
}

TEST_CASE("a curve over samples has one value per step, whichever steps were repeated") {
  TempDir dir;
  const std::string file = dir / "csv/Train_Samples_train_loss.csv", evals = dir / "csv/Train_Samples_eval_loss.csv";
  const std::string run = kTiny +
                          "--log.samples_csv csv --log.samples_tensorboard tb --log.tensorboard false --log.name x "
                          "--train.global_batch 4 --checkpoint.every 2 ";
  const auto samples = [](const std::string& path) {
    std::vector<int64_t> out;
    const std::string text = read_file(path);
    for (size_t at = text.find('\n'); at + 1 < text.size(); at = text.find('\n', at + 1))
      out.push_back(std::stoll(text.substr(at + 1)));
    return out;
  };
  REQUIRE(gpttrain(run + "--train.steps 6 --train.eval_every 3 --train.eval_steps 1", dir.path()).code == 0);
  CHECK(samples(file) == std::vector<int64_t>{4, 8, 12, 16, 20, 24});
  CHECK(samples(evals) == std::vector<int64_t>{12, 24});
  const std::string calm = read_file(file);
  // Resumes from an older checkpoint, with an incomplete last line in one file, as left by a killed run.
  write_file(evals, read_file(evals) + "28,5.6");
  REQUIRE(gpttrain(run + "--train.steps 6 --train.eval_every 5 --train.eval_steps 1 --checkpoint.resume 2 "
                         "--checkpoint.allow_change train",
                   dir.path())
              .code == 0);
  CHECK(read_file(file) == calm);
  CHECK(samples(evals) == std::vector<int64_t>{20, 24});
  // A changed batch continues from the last sample count; a new run starts over and renames the old curve.
  REQUIRE(gpttrain(run + "--train.steps 7 --train.global_batch 8 --checkpoint.allow_change train", dir.path()).code ==
          0);
  CHECK(samples(file) == std::vector<int64_t>{4, 8, 12, 16, 20, 24, 32});
  REQUIRE(gpttrain(run + "--train.steps 1 --checkpoint.resume never --force", dir.path()).code == 0);
  CHECK(samples(file) == std::vector<int64_t>{4});
  CHECK(samples(file + ".old").size() == 7);
}

TEST_CASE("a rollback removes its steps from the curves over samples") {
  TempDir dir;
  const Outcome r =
      gpttrain(kTiny +
                   "--log.samples_csv csv --log.samples_tensorboard tb --log.tensorboard false --log.name x "
                   "--train.global_batch 4 --checkpoint.every 2 --train.steps 8 --fault.bad_steps 1 "
                   "--fault.skip_batches 1 --fault.inject nan@grad:param=embed.weight,step=5",
               dir.path());
  INFO(r.out);
  REQUIRE(r.code == 0);
  REQUIRE(r.prints("rolled back from step 5"));
  const std::string text = read_file(dir / "csv/Train_Samples_train_loss.csv");
  int64_t before = 0;
  int lines = 0;
  for (size_t at = text.find('\n'); at + 1 < text.size(); at = text.find('\n', at + 1), ++lines) {
    CHECK(std::stoll(text.substr(at + 1)) == before + 4);
    before += 4;
  }
  CHECK(lines == 8);
}

TEST_CASE("summed gradients are dp times their mean, and clipping applies to the sum") {
  TempDir dir;
  write_file(dir / "ds.json", R"({"train_batch_size": 8, "gradient_allreduce_op": "sum", "gradient_clipping": 0})");
  const std::string run = kTiny + "--dp 2 --launch.ranks threads --log.tensorboard false --train.steps 1 ";
  REQUIRE(gpttrain(run + "--deepspeed_config ds.json --log.name sum", dir.path()).code == 0);
  REQUIRE(gpttrain(run + "--deepspeed_config ds.json --zero.grad_op mean --log.name mean", dir.path()).code == 0);
  const auto sum = logged(dir / "runs/sum", "grad_norm"), mean = logged(dir / "runs/mean", "grad_norm");
  REQUIRE(sum.size() == 1);
  CHECK(sum[0] == Approx(2 * mean[0]).epsilon(1e-6));
  CHECK(logged(dir / "runs/sum", "loss") == logged(dir / "runs/mean", "loss"));
}

TEST_CASE("the file may come from standard input, for ranks as processes too, and lr draws its curve") {
  TempDir dir;
  write_file(dir / "ds.json", R"({"train_batch_size": 4, "scheduler": {"type": "WarmupDecayLR",
      "params": {"total_num_steps": 8, "warmup_num_steps": 4, "warmup_type": "linear", "warmup_max_lr": 0.5}}})");
  const Outcome r = shell("cat ds.json | " + binary_dir() + "/gpttrain " + kTiny +
                              "--dp 2 --deepspeed_config - --train.steps 1 --log.name x --log.tensorboard false",
                          dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(value_in(read_file(dir / "runs/x/config.json"), "total_steps") == "8");
  const Outcome lr = gpttrain("lr --deepspeed_config ds.json --train.steps 4 --csv -", dir.path());
  CHECK(lr.out == "step,lr\n1,0\n2,0\n3,0.125\n4,0.25\n");
  const Outcome bad = gpttrain("--deepspeed_config missing.json --data.train mock", dir.path());
  CHECK(bad.code == 2);
  CHECK(bad.prints("--deepspeed_config: missing.json: cannot be read"));
}

TEST_CASE("curves over samples are kept out of folders with curves over steps") {
  TempDir dir;
  write_file(dir / "ds.json",
             R"({"train_batch_size": 4, "tensorboard": {"enabled": true, "output_path": "runs", "job_name": "x"}})");
  const Outcome r = gpttrain(kTiny + "--deepspeed_config ds.json --train.steps 1 --log.name x", dir.path());
  INFO(r.out);
  REQUIRE(r.code == 0);
  CHECK(r.prints("runs/x/samples (over samples"));
  CHECK(points_of(dir / "runs/x/samples").count("Train/Samples/lr") == 1);
}
