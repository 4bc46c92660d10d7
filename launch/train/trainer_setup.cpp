// What the trainer opens before the first step: device and memory plan, run folder, data.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "checkpoint/steps.h"
#include "data/index_store.h"
#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/engine/engine_options.h"
#include "launch/ranks/agree.h"
#include "launch/train/disk_room.h"
#include "launch/train/resume_check.h"
#include "launch/train/trainer.h"
#include "launch/train/training_data.h"

namespace gt {
namespace fs = std::filesystem;

namespace {

// This rank's machine. Ranks of one machine are those with its host name; where names do not tell, they are
// consecutive.
Machine machine_of(const GroupFactory& factory, const std::vector<std::string>& hosts) {
  Machine m{host_name(), {}};
  const auto here = static_cast<size_t>(factory.local_size());
  for (size_t r = 0; r < hosts.size(); ++r)
    if (hosts[r] == m.name) m.ranks.push_back(static_cast<int>(r));
  if (m.ranks.size() == here) return m;
  m.ranks.resize(here);
  std::iota(m.ranks.begin(), m.ranks.end(), factory.world_rank() - factory.local_rank());
  return m;
}

}  // namespace

// `hosts`: of every rank.
void Trainer::open_device(const std::vector<std::string>& hosts) {
  threads_ = threads_per_rank(config_, factory_.local_size());
  set_cpu_may_spin(ranks_may_spin(config_, factory_.local_size(), threads_));
  const EngineOptions options = engine_options(config_, threads_);
  const MeshShape& mesh = mesh_->shape();
  if (factory_.local_rank() == 0) {
    stage_plans_ = plan_stages(options, mesh, *backend_);
    fit_ = fullest_device(mesh, stage_plans_, *backend_, {machine_of(factory_, hosts)});
    require_memory(*fit_, mesh, stage_plans_);
    snapshot_fits_ = snapshot_fits(mesh, stage_plans_, *backend_, factory_.local_size());
  }
  plan_ = speaks() ? stage_plans_.front() : plan_memory(options, mesh, mesh_->rank(), *backend_);
  compute_ = stream_ = OpenStream(*backend_->device, device_.index(), threads_);
}

void Trainer::open_run_folder() {
  require_unused_folder(config_, run_.force);
  const std::string dir = config_.run_dir();
  std::error_code ec;
  fs::create_directories(dir, ec);
  GT_REQUIRE(!ec, Exit::kUsage, dir, ": cannot make the run folder: ", ec.message(), ". Choose another with --log.dir");
  for (const char* name : {"log.jsonl", "config.json"})
    GT_REQUIRE(!fs::is_symlink(dir + "/" + name, ec), Exit::kUsage, dir, "/", name,
               ": is a symbolic link, and nothing is written through one. Remove it, or give another --log.name");
  run_lock_ = std::make_unique<RunLock>(dir);
}

// A folder that takes no lock takes no checkpoints either: each save will say so, and training goes on.
void Trainer::lock_folder() {
  try {
    lock_ = std::make_unique<DirLock>(config_.checkpoint_dir());
  } catch (const IoError& e) { fmt::print(stderr, "warning: {}\n", printable_lines(e.what())); }
}

// Rank 0's disk is everybody's: checkpoints need one shared folder.
void Trainer::require_disk_room() const {
  const std::string dir = config_.checkpoint_dir();
  const int64_t left = std::max<int64_t>(0, config_.train.steps - state_.step), every = config_.checkpoint.save_steps();
  const CheckpointConfig& c = config_.checkpoint;
  DiskRoom room{.dir = dir, .free = free_bytes(dir), .checkpoint = saver_->checkpoint_bytes(), .saves = left};
  room.most = c.keep + 1 + (config_.train.eval_every > 0 ? c.keep_best : 0);
  if (every > 0) room.saves = (left + every - 1) / every;
  if (every == 0) room.saves = c.saves_by_time() && left > 0 ? -1 : std::min<int64_t>(left, 1);
  try {
    room.there = static_cast<int64_t>(list_steps(dir).size());
    for (const std::string& name : room.free < 0 ? std::vector<std::string>() : list_attempts(dir))
      room.free += bytes_in(dir + "/" + name);  // the first save removes them
  } catch (const IoError&) { return; }          // saves will say why
  if (const std::string text = judge_disk(room); !text.empty())
    fmt::print(stderr, "warning: {}\n", printable_lines(text));
}

// After everything that may refuse the run: a refused command leaves the config of the run as it was.
void Trainer::write_config() const {
  try {
    write_run_file(config_.run_dir() + "/config.json", config_json(config_));
  } catch (const Error& e) {
    fail(e.code(), e.what(), ". The run folder must be writable: choose another with --log.dir");
  }
}

void Trainer::open_data() {
  DatasetOptions o = training_data(config_, factory_.local_rank() == 0);
  o.warn = [this](const std::string& text) {
    if (speaks()) fmt::print(stderr, "warning: {}\n", printable_lines(text));
  };
  tokenizer_sha256_ = o.tokenizer_sha256;
  train_data_ = open_training_data(o, run_.loaded);
  if (config_.data.eod_mask_loss) end_of_document(config_);  // refused here, where all ranks hear of it
  if (config_.train.eval_every > 0) valid_data_ = open_validation_data(o, config_);
}

void Trainer::open_loader() {
  loader_.reset();
  LoaderConfig l = training_loader(config_, *mesh_);
  l.first_sample = state_.consumed_samples;
  l.skip_windows = skip_windows_;
  l.curriculum = curriculum_;
  l.first_step = state_.step + 1;
  loader_ = std::make_unique<Loader>(*train_data_, l, compute_.device, *backend_->device, compute_);
}

}  // namespace gt
