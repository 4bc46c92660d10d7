#include "launch/train/run_folder.h"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoint/store/steps.h"
#include "data/tokens/index_store.h"
#include "kernels/core/text.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/shared_folder.h"
#include "launch/train/resume_check.h"
#include "launch/train/save/disk_space.h"

namespace gt {
namespace fs = std::filesystem;
namespace {

void make_run_folder(const std::string& dir) {
  std::error_code ec;
  fs::create_directories(dir, ec);
  GT_REQUIRE(!ec, Exit::kUsage, dir, ": cannot make the run folder: ", ec.message(), ". Choose another with --log.dir");
  for (const char* name : {"log.jsonl", "config.json"})
    GT_REQUIRE(!fs::is_symlink(dir + "/" + name, ec), Exit::kUsage, dir, "/", name,
               ": is a symbolic link, and nothing is written through one. Remove it, or give another --log.name");
}

// Only rank 0 checks its disk: checkpoints need one shared folder.
void require_disk_space(const Config& config, int64_t step, int64_t checkpoint_bytes) {
  const std::string dir = config.checkpoint_dir();
  const int64_t left = std::max<int64_t>(0, config.train.steps - step), every = config.checkpoint.save_steps();
  const CheckpointConfig& c = config.checkpoint;
  DiskSpace disk{.dir = dir, .free = free_bytes(dir), .checkpoint = checkpoint_bytes, .saves = left};
  disk.most = c.keep + 1 + (config.train.eval_every > 0 ? c.keep_best : 0);
  if (every > 0) disk.saves = (left + every - 1) / every;
  if (every == 0) disk.saves = c.saves_by_time() && left > 0 ? -1 : std::min<int64_t>(left, 1);
  try {
    disk.there = static_cast<int64_t>(list_steps(dir).size());
    for (const std::string& name : disk.free < 0 ? std::vector<std::string>() : list_attempts(dir))
      disk.free += bytes_in(dir + "/" + name);  // removed by the first save
  } catch (const IoError&) { return; }          // saves will report the error
  if (const std::string text = check_disk(disk); !text.empty())
    fmt::print(stderr, "warning: {}\n", printable_lines(text));
}

}  // namespace

RunFolder::RunFolder(const RankContext& rank, bool force, bool saves) {
  const Config& config = rank.config;
  agree(rank.mesh.world(), [&] {
    if (!rank.is_rank0()) return;
    require_unused_folder(config, force);
    make_run_folder(config.run_dir());
    run_lock_ = std::make_unique<RunLock>(config.run_dir());
    if (!saves) return;
    try {
      lock_ = std::make_unique<DirLock>(config.checkpoint_dir());
    } catch (const IoError& e) {  // a folder without lock support takes no checkpoints either; each save reports it
      fmt::print(stderr, "warning: {}\n", printable_lines(e.what()));
    }
  });
  if (saves) require_shared_folder(rank.mesh.world(), config.checkpoint_dir());
}

void RunFolder::begin(const RankContext& rank, int64_t step, int64_t checkpoint_bytes) const {
  agree(rank.mesh.world(), [&] {
    if (!rank.is_rank0()) return;
    if (checkpoint_bytes >= 0) require_disk_space(rank.config, step, checkpoint_bytes);
    try {
      write_run_file(rank.config.run_dir() + "/config.json", config_json(rank.config));
    } catch (const Error& e) {
      fail(e.code(), e.what(), ". The run folder must be writable: choose another with --log.dir");
    }
  });
}

}  // namespace gt
