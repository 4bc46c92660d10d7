// Asynchronous saves: training continues while the disk is slow, and the snapshot's state is written. A failure
// anywhere drops the attempt on every rank and affects nothing else.
#include "checkpoint/background_save.h"

#include <condition_variable>
#include <filesystem>
#include <limits>
#include <mutex>

#include "checkpoint/store/steps.h"
#include "tests/checkpoint/faulty_vfs.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;

// A disk that blocks until it is released.
class SlowVfs : public Vfs {
 public:
  int64_t pwrite(int fd, const void* d, int64_t n, int64_t at) override {
    std::unique_lock lock(mutex_);
    go_.wait(lock, [&] { return open_; });
    return Vfs::pwrite(fd, d, n, at);
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    go_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable go_;
  bool open_ = false;
};

int sum_of(const Mesh& mesh, bool mine) {
  int64_t n = mine;
  mesh.world().all_reduce({reinterpret_cast<std::byte*>(&n), {1}, DType::kI64, {}}, ReduceOp::kSum, {}).wait({});
  return static_cast<int>(n);
}

// One trainer step: its exchange carries the flag; calls advance() when all ranks are ready.
std::optional<SaveOutcome> step_of(BackgroundSave& save, const Mesh& mesh) {
  if (sum_of(mesh, save.ready()) < mesh.shape().world()) return std::nullopt;
  return save.advance();
}

std::optional<SaveOutcome> train_until_saved(BackgroundSave& save, const Mesh& mesh) {
  while (save.busy()) {
    if (auto outcome = step_of(save, mesh)) return outcome;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return std::nullopt;
}

const SaveOptions kOptions{.zero_stage = 1, .retention = {.keep = 2}};
const std::vector<AuxFile> kAux{{.name = "config.json", .path = "", .text = "{}"}};

TEST_CASE("training continues while the disk stalls, and the checkpoint holds the state at the request") {
  const TempDir dir;
  const Layout l{2, 1, 2, 1};
  SlowVfs vfs;
  const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
    Rank rank(odd_model(), l, r);
    rank.fill(3);
    BackgroundSave save(vfs, mesh, host_device(), {});
    GT_CHECK(!save.start(dir.path, some_state(3), rank.views, kAux, kOptions));
    for (int k = 0; k < 50; ++k) {  // steps that change everything
      rank.fill(static_cast<uint32_t>(100 + k));
      GT_CHECK(!step_of(save, mesh), "a save was over that cannot have begun");
    }
    GT_CHECK(save.busy() && list_steps(dir.path).empty());
    mesh.world().barrier();
    vfs.let_go();
    const auto outcome = train_until_saved(save, mesh);
    GT_CHECK(outcome && !outcome->error && outcome->step == 3);
    GT_CHECK(r != 0 || outcome->report.bytes > 0);
    GT_CHECK(!save.finish());
  });
  for (const auto& e : errors) REQUIRE(e == "");
  CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, 3) == "");
}

TEST_CASE("finish() waits for a save and returns its outcome, consecutive saves share one staging buffer") {
  const TempDir dir;
  const Layout l{1, 2, 2, 1};
  const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
    Rank rank(odd_model(), l, r);
    Vfs vfs;
    BackgroundSave save(vfs, mesh, host_device(), {});
    int64_t staged = 0;
    for (int64_t n = 1; n <= 4; ++n) {
      rank.fill(static_cast<uint32_t>(n));
      GT_CHECK(!save.start(dir.path, some_state(n), rank.views, kAux, kOptions));
      rank.poison();
      const auto outcome = save.finish();
      GT_CHECK(outcome && !outcome->error && outcome->step == n);
      GT_CHECK(n == 1 || save.staging_bytes() == staged);
      staged = save.staging_bytes();
    }
  });
  for (const auto& e : errors) REQUIRE(e == "");
  CHECK(list_steps(dir.path).size() == 2);  // retention ran during training
  CHECK(load_and_compare(dir.path, {2, 1, 1, 1}, 4) == "");
}

TEST_CASE("a full disk at any call of a background save drops the attempt on every rank, and training saves again") {
  const Layout l{2, 1, 1, 1};
  const std::vector<Param> model{{"a.weight", {8, 3}, ShardSpec::split(0)}, {"b.weight", {5}, ShardSpec::replicate()}};
  int dropped = 0;
  for (int n = 1;; ++n) {
    const TempDir dir;
    save(dir.path, l, 1, model);
    FaultyVfs vfs(n, FaultyVfs::Fault::kError, ENOSPC);
    std::vector<std::string> messages(2);
    const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
      Rank rank(model, l, r);
      rank.fill(2);
      BackgroundSave save(vfs, mesh, host_device(), {});
      auto outcome = save.start(dir.path, some_state(2), rank.views, kAux, kOptions);
      if (!outcome) outcome = train_until_saved(save, mesh);
      GT_CHECK(outcome.has_value() && !save.busy());
      if (outcome->error) messages[static_cast<size_t>(r)] = outcome->error->what();
      rank.fill(3);
      Vfs working_vfs;
      BackgroundSave next(working_vfs, mesh, host_device(), {});
      GT_CHECK(!next.start(dir.path, some_state(3), rank.views, kAux, kOptions));
      outcome = next.finish();
      GT_CHECK(outcome && !outcome->error);
    });
    INFO("failure at call " << n << ", " << vfs.hit());
    for (const auto& e : errors) CHECK(e == "");
    CHECK(messages[0] == messages[1]);
    if (!messages[0].empty()) {
      ++dropped;
      CHECK_THAT(messages[0], Catch::Contains("checkpoint of step 2: rank ") && Catch::Contains("No space left"));
    }
    CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, 3, "auto", model) == "");
    if (n > vfs.calls()) break;
  }
  CHECK(dropped > 15);
}

TEST_CASE("a non-finite value is never saved, and its tensor is named") {
  const TempDir dir;
  const Layout l{2, 1, 1, 1};
  save(dir.path, l, 1);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
      Rank rank(odd_model(), l, r);
      rank.fill(2);
      for (const ShardView& v : rank.views)
        if (r == 1 && v.name == "optim/exp_avg/layers.0.attn.out.weight") v.data.as<float>()[v.data.numel() - 1] = bad;
      Vfs vfs;
      BackgroundSave save(vfs, mesh, host_device(), {});
      GT_CHECK(!save.start(dir.path, some_state(2), rank.views, kAux, kOptions));
      const auto outcome = save.finish();
      GT_CHECK(outcome && outcome->error && outcome->error->code() == Exit::kNumerical);
      throw *outcome->error;
    });
    CHECK_THAT(errors[0], Catch::Contains("optim/exp_avg/layers.0.attn.out.weight") && Catch::Contains("rank 1"));
  }
  CHECK(load_and_compare(dir.path, l, 1) == "");
  CHECK(list_steps(dir.path).size() == 1);
  CHECK(list_attempts(dir.path).empty());
}

}  // namespace
}  // namespace gt::ckpt
