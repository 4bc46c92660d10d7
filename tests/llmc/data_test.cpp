// Training on llm.c's token files through the binary: file patterns, resume, truncated files.
#include <filesystem>

#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// `count` tokens below 64 from a seeded generator, in llm.c's format.
std::string shard(int32_t count, uint32_t seed) {
  std::vector<int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = count;
  std::string out(reinterpret_cast<const char*>(header.data()), 1024);
  for (int32_t k = 0; k < count; ++k) {
    seed = seed * 1664525 + 1013904223;
    out += static_cast<char>(seed >> 26);
    out += '\0';
  }
  return out;
}

const std::string kModel =
    "--model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 16 --train.micro_batch 2 "
    "--train.global_batch 8 --device.kind cpu --launch.ranks threads --log.tensorboard false --schedule.type constant ";

}  // namespace

TEST_CASE("llm.c's shards are trained on unmodified, and a resumed run continues at its position") {
  TempDir dir;
  write_file(dir / "s_1.bin", shard(700, 1));
  write_file(dir / "s_2.bin", shard(300, 2));
  const std::string how = kModel + "--data.train 's_*.bin' --data.valid s_2 ";
  must(how + "--train.steps 6 --log.name whole", dir);
  must(how + "--train.steps 3 --log.name parts", dir);
  must(how + "--train.steps 6 --dp 2 --log.name parts", dir);
  const auto whole = logged(dir / "runs/whole", "loss"), parts = logged(dir / "runs/parts", "loss");
  REQUIRE((whole.size() == 6 && parts.size() == 6));
  for (size_t k = 0; k < 6; ++k) CHECK(parts[k] == Approx(whole[k]).epsilon(1e-5));
  write_file(dir / "s_1.bin", shard(700, 3));
  const Outcome other = gpttrain(how + "--train.steps 8 --log.name parts", dir.path());
  CHECK(other.code == 2);
  CHECK(other.prints("of headers and ends"));
  std::filesystem::resize_file(dir / "s_2.bin", 1600);
  const Outcome cut = gpttrain(how + "--train.steps 8 --log.name whole", dir.path());
  CHECK(cut.code == 2);
  CHECK(cut.prints("s_2.bin byte 8: 300 u16 tokens need 1624 bytes, found 1600"));
  CHECK(gpttrain(kModel + "--data.train 't_*.bin'", dir.path()).prints("no file matches this pattern"));
}

TEST_CASE("llm.c's orders train in its layout, resume at any step, and nowhere else") {
  TempDir dir;
  write_file(dir / "s_1.bin", shard(700, 1));
  write_file(dir / "s_2.bin", shard(300, 2));
  const std::string how =
      kModel + "--data.train 's_*.bin' --data.valid s_2 --dp 2 --data.order llmc_shuffled --checkpoint.every 1 ";
  must(how + "--train.steps 9 --log.name whole", dir);  // an epoch is 15 microbatches of 2 ranks; a step takes two
  for (const char* steps : {"1", "4", "8", "9"}) must(how + "--log.name parts --train.steps " + steps, dir);
  CHECK(logged(dir / "runs/parts", "loss") == logged(dir / "runs/whole", "loss"));
  must(how + "--data.order llmc --train.steps 9 --log.name plain", dir);
  CHECK(logged(dir / "runs/plain", "loss") != logged(dir / "runs/whole", "loss"));
  const Outcome narrow = gpttrain(how + "--dp 1 --train.steps 10 --log.name parts", dir.path());
  CHECK(narrow.code == 2);
  CHECK(narrow.prints("the checkpoint has llmc_shuffled of dp 2, micro_batch 2, this run has llmc_shuffled of dp 1"));
  const std::string inspect =
      "data inspect 's_*.bin' --order --samples 5 --seq 16 --dp 2 --micro-batch 2 --data.order ";
  CHECK(must(inspect + "llmc", dir).prints("0,0,0,0\n1,0,0,16\n2,0,0,32\n3,0,0,48\n4,0,0,64\n"));
  const Outcome nearest = gpttrain(how + "--data.order llmc_shuffle --train.steps 1", dir.path());
  CHECK(nearest.code == 2);
  CHECK(nearest.prints("llmc_shuffled"));
}
