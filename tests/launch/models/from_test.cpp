// train --from: a run that starts from a Hugging Face folder.
#include <filesystem>

#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::string golden(const std::string& name) { return source_dir() + "/tests/golden/hf_" + name; }

constexpr const char* kTrain =
    "--data.train mock --train.steps 2 --train.global_batch 8 --train.micro_batch 2 --schedule.warmup_steps 0 "
    "--optim.lr 1e-2 "
    "--model.seq 16 --device.kind cpu --log.tensorboard false ";

}  // namespace

TEST_CASE("a run from a Hugging Face folder trains as import and train do, on any layout") {
  TempDir dir;
  const std::string folder = golden("gemma2");
  must("import --from " + folder + " --output in", dir);
  must("--config in/step-000000000/config.json --checkpoint.dir in --checkpoint.allow_change model.seq --log.name a " +
           std::string(kTrain),
       dir);
  must("--from " + folder + " --log.name b " + kTrain, dir);
  const std::vector<double> losses = logged(dir / "runs/a", "loss");
  REQUIRE(losses.size() == 2);
  CHECK(logged(dir / "runs/b", "loss") == losses);
  int n = 0;
  for (const char* layout :
       {"--tp 2 --pp 3 --launch.ranks threads", "--dp 2 --zero 3", "--tp 2 --launch.max_restarts 1"}) {
    INFO(layout);
    const std::string name = "c" + std::to_string(n++);
    const Outcome o = must("train --from " + folder + "/ --log.name " + name + " " + kTrain + layout, dir);
    CHECK(o.prints("read 35 of 35 tensors"));
    const std::vector<double> split = logged(dir / ("runs/" + name), "loss");
    REQUIRE(split.size() == 2);
    CHECK(split[0] == Approx(losses[0]).epsilon(1e-6));
    CHECK(split[1] == Approx(losses[1]).epsilon(1e-6));
  }
  must("export --load runs/b --output out", dir);
  must("--from out " + std::string(kTrain), dir);  // the run is called after the folder
  CHECK(std::filesystem::exists(dir / "runs/out/log.jsonl"));
}

TEST_CASE("a rank that another launcher started waits for the first one's import") {
  TempDir dir;
  const Outcome o = shell("mpirun --allow-run-as-root --oversubscribe -n 2 " + binary_dir() + "/gpttrain --from " +
                              golden("gemma2") + " --tp 2 --log.name a " + kTrain,
                          dir.path());
  INFO(o.out);
  CHECK(o.code == 0);
  CHECK(o.count("read 35 of 35 tensors") == 1);
  must("--from " + golden("gemma2") + " --log.name b " + kTrain, dir);
  const std::vector<double> a = logged(dir / "runs/a", "loss"), b = logged(dir / "runs/b", "loss");
  REQUIRE((a.size() == 2 && b.size() == 2));
  CHECK(a[0] == Approx(b[0]).epsilon(1e-6));
}

TEST_CASE("flags that contradict the folder, or an existing run, are refused and nothing is written") {
  TempDir dir;
  const std::string from = "--from " + golden("gemma2") + " ", train = from + kTrain;
  const auto refused = [&](const std::string& words) {
    const Outcome o = gpttrain(words, dir.path());
    INFO(words << "\n" << o.out);
    CHECK(o.code == 2);
    CHECK_FALSE(std::filesystem::exists(dir / "runs"));
    return o;
  };
  const Outcome other =
      refused(train + "--model.hidden 64 --model.arch llama --model.attn_softcap 1.5 --model.dropout 0.1");
  CHECK(other.prints("--model.hidden: 64, but the weights are those of a model with 20"));
  CHECK(other.prints("model.arch: llama, but the weights are those of a model with gemma2"));
  CHECK(other.prints("hf_gemma2/config.json"));
  CHECK_FALSE(other.prints("softcap"));
  CHECK_FALSE(other.prints("dropout"));
  CHECK(refused(train + "--checkpoint.resume never").prints("--from: not with --checkpoint.resume"));
  CHECK(refused(train + "--lr_range_test").prints("--from: not with --lr_range_test"));
  CHECK(refused(train + "--print-sbatch 2").prints("gpttrain import first"));
  CHECK(refused("--from nowhere " + std::string(kTrain)).prints("nowhere is not a folder"));
  CHECK(refused("--from . " + std::string(kTrain)).prints("holds no config.json"));
  CHECK(must(train + "--dry-run", dir).prints("dry run: nothing was started"));
  CHECK_FALSE(std::filesystem::exists(dir / "runs"));

  must(train, dir);
  const Outcome again = gpttrain(train, dir.path());
  INFO(again.out);
  CHECK(again.code == 2);
  CHECK(again.prints("runs/hf_gemma2/checkpoints holds step 2 of a run already"));
  CHECK(again.prints("gpttrain --config runs/hf_gemma2/checkpoints/step-000000002/config.json"));
  must("--config runs/hf_gemma2/checkpoints/step-000000002/config.json --train.steps 3", dir);
  CHECK(logged(dir / "runs/hf_gemma2", "loss").size() == 3);
}

TEST_CASE("the folder's tokenizer is the run's, unless another is given") {
  TempDir dir;
  std::string text;
  for (int k = 0; k < 400; ++k) text += "the cat number " + std::to_string(k * 7 % 100) + " sat on a mat\n";
  write_file(dir / "t.txt", text);
  must("tokenizer train --input t.txt --vocab 300 --output tok.model", dir);
  const std::string data =
      "--data.train t.txt --train.steps 2 --train.global_batch 4 --train.micro_batch 4 --device.kind cpu "
      "--log.tensorboard false ";
  must(
      "--model.layers 1 --model.hidden 16 --model.heads 2 --model.ffn 32 --model.vocab 300 --model.seq 16 --model.arch "
      "llama "
      "--data.tokenizer tok.model --log.name first " +
          data,
      dir);
  must("export --load runs/first --output hf", dir);
  must("--from hf --log.name second " + data, dir);  // text, tokenized as the weights need it
  CHECK(
      must("generate --load runs/second --prompt \"the cat\" --max-tokens 4 --device.kind cpu", dir).prints("the cat"));
  must("--from hf --data.tokenizer tok.model --log.name third " + data, dir);
  CHECK(logged(dir / "runs/third", "loss") == logged(dir / "runs/second", "loss"));
  must("tokenizer train --input t.txt --vocab 290 --output other.model", dir);
  const Outcome other = gpttrain("--from hf --data.tokenizer other.model --log.name fifth " + data, dir.path());
  INFO(other.out);
  CHECK(other.code == 2);
  CHECK(other.prints("other.model and "));
  CHECK(other.prints("which the weights were trained with; leave --data.tokenizer out"));
  CHECK(
      must("import --from hf --tokenizer other.model --output in", dir).prints("which the weights were trained with"));
  for (const char* file : {"tokenizer.model", "tokenizer.json"})
    std::filesystem::remove(dir / (std::string("hf/") + file));
  const Outcome none = gpttrain("--from hf --log.name fourth " + data, dir.path());  // no new one would fit
  INFO(none.out);
  CHECK(none.code == 2);
  CHECK(none.prints("needs the model's tokenizer"));
  CHECK(none.prints("--data.tokenizer FILE"));
  CHECK_FALSE(none.prints("tokenizer train"));
}
