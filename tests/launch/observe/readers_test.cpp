// Our files are readable by independent software: TensorBoard, h5py, SentencePiece's own tools (tests/readers/).
#include <filesystem>
#include <utility>

#include "launch/observe/sinks/tensorboard.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("TensorBoard, h5py, SentencePiece and numpy read a run") {
  const std::string python = source_dir() + "/build/readers/bin/python";
  if (!std::filesystem::exists(python)) {
    GT_SKIP("no " + python + "; tests/readers/setup.sh makes it and needs PyPI");
  }
  TempDir dir;
  const std::string text = read_file("/usr/share/common-licenses/GPL-3");
  write_file(dir / "text.txt", text);
  write_file(dir / "line.txt",
             "The GNU General Public License is a free, copyleft license for software and other kinds of works.\n");
  const auto must = [&](const std::string& args) {
    const Outcome r = gpttrain(args, dir.path());
    INFO(args << "\n" << r.out);
    REQUIRE(r.code == 0);
    return r.out;
  };
  must("tokenizer train --input text.txt --vocab 400 --output tok.model");
  must("data prepare --input text.txt --split-docs blank-line --tokenizer tok.model --output tokens");
  must(
      "--model.layers 3 --model.hidden 32 --model.heads 4 --model.vocab 400 --model.seq 16 --train.micro_batch 2 "
      "--train.global_batch 8 "
      "--train.steps 6 --data.train tokens --data.tokenizer tok.model --log.name run --device.kind cpu --tp 2 --pp 2 "
      "--dp 2 --launch.ranks threads --log.norms_every 2 --log.histograms_every 3");
  const Outcome ids =
      shell(binary_dir() + "/gpttrain tokenizer encode --tokenizer tok.model <line.txt >ids.txt", dir.path());
  INFO(ids.out);
  REQUIRE(ids.code == 0);
  const Outcome r =
      shell(python + " " + source_dir() + "/tests/readers/read_run.py runs/run tokens tok.model line.txt ids.txt",
            dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(r.prints("tensorboard:"));
  CHECK(r.prints("hparams:"));
  CHECK(r.prints("histograms:"));
  CHECK(r.prints("h5py: 8 shards"));
  CHECK(r.prints("sentencepiece:"));
  CHECK(r.prints("numpy:"));
}

TEST_CASE("TensorBoard shows the steps of a run that goes on where the clock is behind") {
  const std::string python = source_dir() + "/build/readers/bin/python";
  if (!std::filesystem::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  TempDir dir;
  std::vector<std::string> names;
  for (const auto& [clock, first] : {std::pair(2e9, 1), {1.9e9, 4}}) {
    TensorBoardFile file(dir.path(), first, clock);
    for (int step = first; step < first + 3; ++step) file.scalar("train/loss", 1, step, clock + step);
    names.push_back(std::filesystem::path(file.path()).filename().string());
  }
  const Outcome r = shell(python + " " + source_dir() + "/tests/readers/read_events_again.py " + dir.path() + " " +
                              names[0] + " " + names[1],
                          dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(r.prints("before [1, 2, 3]"));
  CHECK(r.prints("after [1, 2, 3, 4, 5, 6]"));
}

TEST_CASE("a model trained on English ends below the unigram entropy and writes text") {
  TempDir dir;
  write_file(dir / "text.txt", read_file("/usr/share/common-licenses/GPL-3"));
  const auto must = [&](const std::string& args) {
    const Outcome r = gpttrain(args, dir.path());
    INFO(args << "\n" << r.out);
    REQUIRE(r.code == 0);
    return r.out;
  };
  must("tokenizer train --input text.txt --vocab 400 --output tok.model");
  must("data prepare --input text.txt --split-docs blank-line --tokenizer tok.model --output tokens");
  const std::string inspected = must("data inspect tokens");
  const size_t at = inspected.find("unigram entropy ");
  REQUIRE(at != std::string::npos);
  const double entropy = std::stod(inspected.substr(at + 16));
  CHECK(entropy > 4);
  CHECK(entropy < 6);
  must(
      "--model.layers 2 --model.hidden 64 --model.heads 4 --model.vocab 400 --model.seq 32 --train.micro_batch 8 "
      "--train.global_batch 32 "
      "--train.steps 200 --train.eval_every 200 --train.eval_steps 2 --optim.lr 5e-3 --schedule.warmup_steps 10 "
      "--data.split 90,10 --data.train tokens "
      "--data.tokenizer tok.model --log.name run --device.kind cpu --tp 2 --dp 2 --launch.ranks threads --log.every 50 "
      "--parallel.recompute selective");
  CHECK(logged(dir / "runs/run", "loss").back() < entropy - 0.6);
  CHECK(logged(dir / "runs/run", "loss", "eval").back() < entropy - 0.4);
  const std::string written = must("generate --load runs/run --prompt \"The GNU\" --max-tokens 12 --seed 3");
  CHECK(written.find("The GNU") == 0);
  CHECK(written.size() > 12);
  CHECK(written == must("generate --load runs/run --prompt \"The GNU\" --max-tokens 12 --seed 3"));
  CHECK(must("eval --load runs/run --split valid --data.train tokens --data.split 90,10").find("perplexity") !=
        std::string::npos);
  CHECK(must("ckpt ls runs/run").find("step-000000200") != std::string::npos);
  CHECK(must("ckpt inspect runs/run").find("embed.weight") != std::string::npos);
}
