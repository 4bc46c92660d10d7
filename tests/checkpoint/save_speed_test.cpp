// Speed of a save against a program that only writes the same bytes, and the stall of an asynchronous save against a
// plain copy: ratios of back-to-back measurements, median over the rounds. Figures are for tests/nightly.sh; other runs
// only check that it works.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "checkpoint/background_save.h"
#include "checkpoint/store/steps.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/host.h"
#include "tests/checkpoint/support.h"
#include "tests/support/goal.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

constexpr int64_t kBlock = 4 << 20;

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Seconds to write and sync these bytes, 4 MiB at a time, with O_DIRECT where supported.
double raw_write(const std::string& path, int64_t bytes, const std::byte* data) {
  const double begin = now();
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0600);
  if (fd < 0) fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  GT_CHECK(fd >= 0, path);
  for (int64_t at = 0; at < bytes; at += kBlock) GT_CHECK(::pwrite(fd, data + at, kBlock, at) == kBlock, path);
  GT_CHECK(::fsync(fd) == 0, path);
  ::close(fd);
  const double seconds = now() - begin;
  ::unlink(path.c_str());
  return seconds;
}

// Seconds to read a whole file with O_DIRECT, 4 MiB at a time.
double raw_read(const std::string& path, int64_t bytes, std::byte* to) {
  const double begin = now();
  int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT);
  if (fd < 0) fd = ::open(path.c_str(), O_RDONLY);
  GT_CHECK(fd >= 0, path);
  for (int64_t at = 0; at < bytes; at += kBlock) GT_CHECK(::pread(fd, to + at, kBlock, at) == kBlock, path);
  ::close(fd);
  return now() - begin;
}

void drop_caches(const std::string& dir) {
  Vfs vfs;
  for (const auto& e : std::filesystem::directory_iterator(dir)) File::open(vfs, e.path().string()).drop_cache();
}

// Seconds for the checksums of so many bytes, in chunks as in a save.
double checksum_seconds(const std::byte* data, int64_t bytes) {
  constexpr size_t kChunk = 256 << 10;
  const double begin = now();
  uint32_t all = 0;
  for (int64_t at = 0; at < bytes; at += kChunk) all = crc32c_join(all, crc32c(data, kChunk), kChunk);
  volatile uint32_t used = all;
  (void)used;
  return now() - begin;
}

}  // namespace

TEST_CASE("a save writes nearly as fast as the disk, and an asynchronous one blocks training for about one copy",
          "[R16][R17][R18]") {
  const int64_t bytes = int64_t{goal_size(8, 256)} << 20;
  const int rounds = goal_size(1, 15);
  const TempDir dir(full_size());
  const Layout one{1, 1, 1, 1};
  const std::vector<Param> model = {{"w", {bytes / 8 / 1024, 1024}, ShardSpec::split(0)}};
  std::vector<double> saved, stalled, speeds, stalls, sums, loaded, loads;
  const auto errors = run_ranks(one, [&](int r, const Mesh& mesh) {
    Rank rank(model, one, r);  // weights and one state: 4 bytes each
    for (auto& m : rank.memory) std::fill(m.begin(), m.end(), 0.5f);
    void* same = std::aligned_alloc(4096, static_cast<size_t>(bytes));
    std::fill_n(static_cast<float*>(same), bytes / 4, 0.5f);
    std::vector<std::byte> copy(static_cast<size_t>(bytes));
    Vfs vfs;
    BackgroundSave background(vfs, mesh, host_device(), {});
    // Nothing is deleted: that would re-read the newer checkpoint, which is not part of a save.
    const SaveOptions options{
        .zero_stage = 1, .retention = {.keep = 1000}, .how = {.threads = 2, .direct_io = DirectIo::kAuto}};
    int64_t step = 0;
    for (int k = -1; k < rounds; ++k) {  // the first round is a warm-up
      const double raw_s = raw_write(dir.path + "/raw", bytes, static_cast<std::byte*>(same));
      double begin = now();
      save_checkpoint(dir.path, some_state(++step), rank.views, {}, options, mesh, host_device(), {});
      const double save_s = now() - begin;
      begin = now();
      size_t at = 0;
      for (const auto& m : rank.memory) {
        std::memcpy(copy.data() + at, m.data(), m.size() * sizeof(float));
        at += m.size() * sizeof(float);
      }
      const double copy_s = now() - begin;
      begin = now();
      GT_CHECK(!background.start(dir.path, some_state(++step), rank.views, {}, options));
      const double stall_s = now() - begin;
      const auto outcome = background.finish();
      GT_CHECK(outcome && !outcome->error);
      const std::string path = dir.path + "/" + step_name(step);
      const double read_s = raw_read(path + "/rank-00000.h5", bytes, static_cast<std::byte*>(same));
      drop_caches(path);
      begin = now();
      GT_CHECK(load_checkpoint(dir.path, "auto", rank.views, mesh, host_device(), {})->state.step == step);
      const double load_s = now() - begin;
      if (k < 0) continue;
      loaded.push_back(load_s);
      loads.push_back(read_s / load_s);
      sums.push_back(checksum_seconds(static_cast<std::byte*>(same), bytes) / save_s);
      saved.push_back(save_s);
      stalled.push_back(stall_s);
      speeds.push_back(raw_s / save_s);
      stalls.push_back(stall_s / copy_s);
    }
    std::free(same);
  });
  REQUIRE(errors[0] == "");
  CHECK(list_checkpoints(dir.path).size() >= 1);
  const double speed = median(speeds), stall = median(stalls);
  const double mb = static_cast<double>(bytes) / 1e6, load = median(loads), sum = median(sums);
  char text[200];
  std::snprintf(text, sizeof text, "save of %d MiB at %.0f MB/s, %.0f %% of a raw writer (goal 60 %%): %s",
                static_cast<int>(bytes >> 20), mb / median(saved), 100 * speed, speed >= 0.6 ? "met" : "MISSED");
  print_figure("R17", text);
  std::snprintf(text, sizeof text, "stall of an asynchronous save %.1f ms, %.2f x a plain copy (goal 1.15 x): %s",
                1e3 * median(stalled), stall, stall <= 1.15 ? "met" : "MISSED");
  print_figure("R16", text);
  std::snprintf(text, sizeof text, "load and verification at %.0f MB/s, %.0f %% of a raw reader (goal 80 %%): %s",
                mb / median(loaded), 100 * load, load >= 0.8 ? "met" : "MISSED");
  print_figure("R17", text);
  std::snprintf(text, sizeof text, "checksums take %.1f %% of a save's time (goal 5 %%): %s", 100 * sum,
                sum <= 0.05 ? "met" : "MISSED");
  print_figure("R18", text);
}

}  // namespace gt::ckpt
