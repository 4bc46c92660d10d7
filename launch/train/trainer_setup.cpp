// What the trainer opens before the first step: device and memory plan, run folder, data.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "data/index_store.h"
#include "data/token_meta.h"
#include "data/tokenizer.h"
#include "launch/logs/banner.h"
#include "launch/ranks/agree.h"
#include "launch/train/engine_options.h"
#include "launch/train/trainer.h"
#include "launch/train/training_data.h"

namespace gt {
namespace fs = std::filesystem;

void Trainer::open_device() {
  threads_ = threads_per_rank(config_, factory_.local_size());
  set_cpu_may_spin(ranks_may_spin(config_, factory_.local_size(), threads_));
  const EngineOptions options = engine_options(config_, threads_);
  if (factory_.local_rank() == 0) {
    stage_plans_ = plan_stages(options, mesh_->shape(), *backend_);
    require_memory(options, mesh_->shape(), stage_plans_, *backend_, device_.index(), device_.sharers());
    snapshot_fits_ = snapshot_fits(options, mesh_->shape(), stage_plans_, *backend_, factory_.local_size());
  }
  plan_ = speaks() ? stage_plans_.front() : plan_memory(options, mesh_->shape(), mesh_->rank(), *backend_);
  compute_ = stream_ = OpenStream(*backend_->device, device_.index(), threads_);
}

void Trainer::open_run_folder() {
  const fs::path dir = config_.run_dir();
  std::error_code ec;
  const bool used = fs::exists(dir / "log.jsonl", ec) ||
                    (fs::exists(config_.checkpoint_dir(), ec) && !fs::is_empty(config_.checkpoint_dir(), ec));
  GT_REQUIRE(!(used && config_.checkpoint.resume == "never" && !run_.force), Exit::kUsage, dir.string(),
             ": holds a run already and --checkpoint.resume never would start afresh in it. Give --log.name another "
             "name, resume it ",
             "(--checkpoint.resume auto), or add --force");
  fs::create_directories(dir, ec);
  GT_REQUIRE(!ec, Exit::kUsage, dir.string(), ": cannot make the run folder: ", ec.message(),
             ". Choose another with --log.dir");
}

// A folder that takes no lock takes no checkpoints either: each save will say so, and training goes on.
void Trainer::lock_folder() {
  try {
    lock_ = std::make_unique<DirLock>(config_.checkpoint_dir());
  } catch (const IoError& e) { fmt::print(stderr, "warning: {}\n", e.what()); }
}

// After everything that may refuse the run: a refused command leaves the config of the run as it was.
void Trainer::write_config() const {
  const std::string path = config_.run_dir() + "/config.json";
  std::ofstream out(path);
  out << config_json(config_);
  out.close();
  GT_REQUIRE(out.good(), Exit::kUsage, path,
             ": cannot write: the run folder must be writable. Choose another with --log.dir");
}

void Trainer::open_data() {
  DatasetOptions o = training_data(config_, factory_.local_rank() == 0);
  o.warn = [this](const std::string& text) {
    if (speaks()) fmt::print(stderr, "warning: {}\n", text);
  };
  tokenizer_sha256_ = o.tokenizer_sha256;
  train_data_ = open_training_data(o, run_.loaded);
  if (config_.data.eod_mask_loss) eod_ = end_of_document();
  if (config_.train.eval_every == 0) return;
  if (o.whole)
    o.sources = config_.data.valid;
  else
    o.part = 1;
  o.order = SampleOrder::kSequential;
  valid_data_ = open_dataset(o);
}

LoaderConfig Trainer::loader_config() const {
  LoaderConfig l = training_loader(config_, *mesh_);
  l.eod_mask_loss = config_.data.eod_mask_loss;
  if (l.eod_mask_loss) l.eod = eod_;
  return l;
}

// As the files of tokens say it, or the tokenizer.
int32_t Trainer::end_of_document() const {
  std::vector<DataSource> sources = config_.data.train;
  sources.insert(sources.end(), config_.data.valid.begin(), config_.data.valid.end());
  int64_t eod = -1;
  if (!config_.data.tokenizer.empty()) eod = Tokenizer::load(config_.data.tokenizer).eod();
  for (const DataSource& s : sources) {
    const auto meta = s.path == "mock" ? std::nullopt : read_token_meta(s.path);
    if (!meta || meta->eod < 0) continue;
    GT_REQUIRE(eod < 0 || eod == meta->eod, Exit::kUsage, s.path, ".meta.json: documents end with token ", meta->eod,
               ", elsewhere with ", eod, "; data.eod_mask_loss needs one");
    eod = meta->eod;
  }
  GT_REQUIRE(eod >= 0, Exit::kUsage, "data.eod_mask_loss: nothing says which token ends a document; give ",
             "--data.tokenizer, or token files that `gpttrain data prepare` wrote with one");
  return static_cast<int32_t>(eod);
}

void Trainer::open_loader() {
  loader_.reset();
  LoaderConfig l = loader_config();
  l.first_sample = state_.consumed_samples;
  l.skip_windows = skip_windows_;
  l.curriculum = curriculum_;
  l.first_step = state_.step + 1;
  loader_ = std::make_unique<Loader>(*train_data_, l, compute_.device, *backend_->device, compute_);
}

}  // namespace gt
