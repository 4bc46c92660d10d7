// Bad input from outside: clear message, correct exit code, no data lost.
#include <filesystem>

#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
namespace fs = std::filesystem;

namespace {

// A prepared corpus (a licence text present on every Debian), a tokenizer and one finished run; created once, copied
// for each case.
const std::string& world() {
  static const TempDir kDir;
  static const bool kMade = [] {
    const std::string text = read_file("/usr/share/common-licenses/GPL-3");
    REQUIRE(text.size() > 30000);
    write_file(kDir / "text.txt", text);
    const auto must = [&](const std::string& args) {
      const Outcome r = gpttrain(args, kDir.path());
      INFO(args << "\n" << r.out);
      REQUIRE(r.code == 0);
    };
    must("tokenizer train --input text.txt --vocab 400 --output tok.model");
    must("tokenizer train --input text.txt --vocab 350 --output other.model");
    must("data prepare --input text.txt --split-docs blank-line --tokenizer tok.model --output tokens");
    must("data prepare --input text.txt --split-docs blank-line --tokenizer other.model --output tokens2");
    must(
        "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 400 --model.seq 16 --train.micro_batch 2 "
        "--train.global_batch 4 "
        "--train.steps 2 --data.train tokens --data.tokenizer tok.model --log.name done --device.kind cpu");
    return true;
  }();
  (void)kMade;
  return kDir.path();
}

// A copy of that folder for a case to corrupt.
struct Copy {
  TempDir dir;
  Copy() { fs::copy(world(), dir.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing); }
};

const std::string kTrain =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 400 --model.seq 16 --train.micro_batch 2 "
    "--train.global_batch 4 "
    "--train.steps 2 --device.kind cpu --log.name x ";
const std::string kData = kTrain + "--data.train tokens ";

void expect(const std::string& dir, const std::string& args, int code, const std::vector<std::string>& words) {
  const Outcome r = gpttrain(args, dir);
  INFO("gpttrain " << args << "\n" << r.out);
  CHECK(r.code == code);
  for (const std::string& w : words) {
    INFO("expected in the message: " << w);
    CHECK(r.prints(w));
  }
  CHECK_FALSE(r.prints("terminate called"));
  CHECK_FALSE(r.prints("Segmentation"));
}

std::string newest_shard(const std::string& run) { return run + "/checkpoints/step-000000002/rank-00000.h5"; }

void flip_byte(const std::string& file, size_t at) {
  std::string bytes = read_file(file);
  REQUIRE(at < bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
  write_file(file, bytes);
}

}  // namespace

TEST_CASE("bad command lines name the flag, the reason and the nearest legal value") {
  const std::string dir = world();
  expect(dir, "trian", 2, {"trian", "did you mean train"});
  expect(dir, kData + "--model.layer 3", 2, {"--model.layer", "did you mean --model.layers"});
  expect(dir, kData + "--tp 3", 2, {"heads 4", "tp 3", "1, 2, 4"});
  expect(dir, kData + "--pp 9", 2, {"--pp: 9 stages", "1 to 5"});
  expect(dir, kTrain + "--data.train tokens --train.global_batch 5", 2, {"global_batch"});
  expect(dir, kData + "--train.grad_accum 3", 2, {"global_batch 4", "micro_batch 2", "grad_accum 3"});
  expect(dir, kData + "--model.heads 5", 2, {"hidden 32", "heads 5"});
  expect(dir, kData + "--optim.lr -1", 2, {"optim.lr"});
  expect(dir, kData + "--optim.betas 0.9 1.5", 2, {"optim.betas"});
  expect(dir, kData + "--train.steps many", 2, {"train.steps", "many"});
  expect(dir, kData + "--parallel.schedule 1f2b", 2, {"1f2b", "1f1b"});
  expect(dir, kData + "--device.isa sse9", 2, {"sse9"});
  expect(dir, kData + "--schedule.type cosin", 2, {"cosin", "cosine"});
  expect(dir, kData + "--tp 3 --pp 9 --modle.x 1 --optim.lr -1", 2,
         {"tp 3", "9 stages", "--modle.x", "optim.lr"});  // all reported at once
  expect(dir, kTrain, 2, {"data.train"});
}

TEST_CASE("unsupported options are refused with an explicit sentence") {
  const std::string dir = world();
  for (const char* flag : {"--zero.offload optimizer --device.kind cuda", "--cp 2", "--launch.launcher pdsh"})
    expect(dir, kData + flag, 2, {"not built yet"});
}

TEST_CASE("bad config files name file, line and key") {
  Copy c;
  const std::string dir = c.dir.path();
  const auto with = [&](const std::string& json) {
    write_file(dir + "/bad.json", json);
    return "--config bad.json " + kData;
  };
  expect(dir, "--config nowhere.json " + kData, 2, {"nowhere.json"});
  expect(dir, with("{\"model\": {\"layers\": \"two\"}}"), 2, {"bad.json", "model.layers", "a whole number"});
  expect(dir, with("{\"model\": {\"layerz\": 2}}"), 2, {"bad.json", "layerz", "layers"});
  expect(dir, with("{\"model\": {\"heads\": 4,, }}"), 2, {"bad.json:1"});
  expect(dir, with("{\"train\": {\"seed\": 1, \"seed\": 2}}"), 2, {"seed", "twice"});
  expect(dir, with("{\n \"optim\": {\"lr\": 1e-3"), 2, {"bad.json"});
  expect(dir, with("[1, 2]"), 2, {"bad.json"});
}

TEST_CASE("bad token files name the file, the position, expected and found") {
  Copy c;
  const std::string dir = c.dir.path(), bin = read_file(dir + "/tokens.bin"), idx = read_file(dir + "/tokens.idx");
  const auto restore = [&] {
    write_file(dir + "/tokens.bin", bin);
    write_file(dir + "/tokens.idx", idx);
  };
  expect(dir, kTrain + "--data.train nothing", 2, {"nothing", "data prepare"});
  expect(dir, kTrain + "--data.train text.txt", 2, {"text.txt"});
  write_file(dir + "/tokens.bin", bin.substr(0, bin.size() / 2));
  expect(dir, kData, 2, {"tokens.bin"});
  restore();
  write_file(dir + "/tokens.idx", "MMIDIDY" + idx.substr(7));
  expect(dir, kData, 2, {"tokens.idx", "magic"});
  restore();
  write_file(dir + "/tokens.idx", idx.substr(0, 20));
  expect(dir, kData, 2, {"tokens.idx"});
  restore();
  fs::remove(dir + "/tokens.idx");
  expect(dir, kData, 2, {"tokens.idx"});
  restore();
  expect(dir, kTrain + "--data.train tokens --model.vocab 100", 2, {"vocab"});
  expect(dir, kTrain + "--data.train tokens --model.seq 200000", 2, {"tokens"});
  expect(dir, kData + "--data.tokenizer other.model", 2, {"tokenizer"});
  expect(dir, kData + "--data.tokenizer nowhere.model", 2, {"nowhere.model"});
  expect(dir, kData + "--tp 2 --launch.ranks threads --data.tokenizer nowhere.model", 2, {"nowhere.model"});
  expect(dir, kData + "--data.split 100,0 --train.eval_every 1", 2, {"split"});
}

TEST_CASE("an error that all ranks share is printed once") {
  const Outcome r = gpttrain(kTrain + "--tp 2 --pp 2 --data.train nothing", world());
  INFO(r.out);
  CHECK(r.code == 2);
  const size_t first = r.out.find("nothing.bin");
  REQUIRE(first != std::string::npos);
  const size_t message = r.out.find("gpttrain:");
  CHECK(r.out.find("gpttrain:", message + 1) == std::string::npos);
}

TEST_CASE("checkpoints that are damaged, absent or of another model are never partially loaded") {
  Copy c;
  const std::string dir = c.dir.path(), resume = kData + "--data.tokenizer tok.model --log.name done --train.steps 4 ";
  expect(dir, kData + "--log.name done --checkpoint.resume never", 2, {"already contains a run", "--force"});
  expect(dir, resume + "--checkpoint.resume 99", 2, {"99"});
  expect(dir, resume + "--model.hidden 64", 2, {"embed.weight"});
  expect(dir, resume + "--model.layers 3", 2, {"layers.2"});
  expect(dir, resume + "--train.seed 77", 2, {"seed"});
  expect(dir, kTrain + "--log.name done --train.steps 4 --data.train tokens2", 2, {"data"});
  flip_byte(newest_shard(dir + "/runs/done"), 5000);
  expect(dir, resume, 65, {"rank-00000.h5"});
  CHECK_FALSE(fs::exists(dir + "/runs/done/checkpoints/step-000000003"));
}

TEST_CASE("read-only subcommands refuse missing and malformed inputs") {
  Copy c;
  const std::string dir = c.dir.path();
  expect(dir, "generate --load nowhere --prompt x", 2, {"nowhere"});
  expect(dir, "generate --prompt x", 2, {"--load"});
  expect(dir, "ckpt ls nowhere", 2, {"nowhere"});
  expect(dir, "ckpt inspect text.txt", 2, {"text.txt"});
  expect(dir, "data inspect nothing", 2, {"nothing"});
  write_file(dir + "/empty.txt", "");
  expect(dir, "tokenizer train --input empty.txt --vocab 400 --output e.model", 2, {"empty"});
  expect(dir, "data prepare --input empty.txt --tokenizer tok.model --output e", 2, {"empty"});
  expect(dir, "data prepare --input nowhere.txt --tokenizer tok.model --output e", 2, {"nowhere.txt"});
  expect(dir, "data prepare --input text.txt --tokenizer text.txt --output e", 2, {"text.txt"});
  expect(dir, "schedule --schedule 1f2b --pp 2", 2, {"1f2b"});
  expect(dir, "export --load x", 2, {"--output: missing"});
  expect(dir, "export --load nowhere --output y", 2, {"nowhere"});
  expect(dir, "import --from nowhere --output y", 2, {"nowhere"});
  expect(dir, "import --from text.txt --output y", 65, {"text.txt"});
}

TEST_CASE("missing prerequisites of a machine are named") {
  const std::string dir = world();
  const Outcome cuda = gpttrain(kData + "--device.kind cuda", dir);
  INFO(cuda.out);
  if (cuda.code != 0) {
    CHECK(cuda.code == 2);
    CHECK(cuda.prints("cuda"));
  }
  TempDir other;
  write_file(other / "hosts", "node1 slots=1\nnode2 slots=1\n");
  const Outcome no_srun = shell("PATH=/nowhere exec " + binary_dir() + "/gpttrain " + kData +
                                    "--tp 2 --launch.launcher slurm -H " + (other / "hosts"),
                                dir);
  INFO(no_srun.out);
  CHECK(no_srun.code == 2);
  CHECK(no_srun.prints("srun, which is not in PATH"));
  const Outcome world_size = shell(
      "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=3 exec " + binary_dir() + "/gpttrain " + kData + "--tp 2", dir);
  INFO(world_size.out);
  CHECK(world_size.code == 2);
  CHECK(world_size.prints("3"));
}
