// Disk space for checkpoints, checked before the first step.
#include "launch/train/save/disk_space.h"

#include <filesystem>

#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/support/skip.h"
#include "tests/support/small_disk.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

TEST_CASE("a disk without space for one checkpoint is refused, without space for the kept ones a warning") {
  DiskSpace disk{.dir = "/data/run", .free = 1000, .checkpoint = 100, .saves = 50, .there = 0, .most = 4};
  CHECK(check_disk(disk).empty());
  disk.free = 399;
  CHECK_THAT(check_disk(disk), Contains("/data/run: 4 more checkpoints of 100 B (100 bytes) each") &&
                                   Contains("the disk has 399 B (399 bytes) free") && Contains("--checkpoint.keep"));
  disk.there = 1;  // the oldest one is removed when the fourth is written
  CHECK(check_disk(disk).empty());
  disk.there = 0, disk.saves = 3;
  CHECK(check_disk(disk).empty());
  disk.saves = -1;
  CHECK_FALSE(check_disk(disk).empty());
  disk.there = 9, disk.free = 100;
  CHECK(check_disk(disk).empty());
  disk.free = 87;  // when resumed
  CHECK_FALSE(check_disk(disk).empty());
  disk.there = 0, disk.free = 88;  // within the margin
  CHECK_FALSE(check_disk(disk).empty());
  disk.free = 87;
  try {
    check_disk(disk);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kIo);
    CHECK_THAT(e.what(), Contains("a checkpoint of this run takes 100 B (100 bytes)") &&
                             Contains("87 B (87 bytes) free") && Contains("--checkpoint.dir"));
  }
  disk.free = 0, disk.saves = 0;  // no saves left
  CHECK(check_disk(disk).empty());
  disk.free = -1, disk.saves = 1;
  CHECK(check_disk(disk).empty());
}

TEST_CASE("free bytes are those of the file system of the future folder") {
  CHECK(free_bytes("/proc") == -1);  // /proc has no size
  const std::string here = std::filesystem::temp_directory_path().string();
  const int64_t free = free_bytes(here + "/not/made/yet");
  CHECK(free > 0);
  CHECK(free <= static_cast<int64_t>(std::filesystem::space(here).capacity));
}

TEST_CASE("a run whose checkpoint does not fit on the disk ends with 74 before it trains") {
  const SmallDisk disk(4 << 20);
  if (!disk.why_not().empty()) GT_SKIP(disk.why_not());
  TempDir dir;
  disk.fill(100000);
  const Outcome r = gpttrain(
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--train.global_batch 8 --train.micro_batch 1 --train.steps 5 --device.kind cpu --log.tensorboard false "
      "--log.name x --checkpoint.dir " +
          disk.path(),
      dir.path());
  INFO(r.out);
  CHECK(r.code == 74);
  CHECK(r.prints("a checkpoint of this run takes"));
  CHECK(logged(dir / "runs/x", "loss").empty());
}
