#include "launch/train/run_loader.h"

#include <algorithm>

#include "kernels/core/host.h"

namespace gt {

RunLoader::RunLoader(const RankContext& rank, const RunDatasets& data)
    : rank_(rank), config_(rank.config), data_(data), curriculum_(config_.data.curriculum) {}

void RunLoader::open(const TrainState& state, std::optional<Window> skip) {
  const auto make = [this](const Dataset& data, const LoaderConfig& l) {
    return std::make_unique<Loader>(data, l, rank_.stream.device, *rank_.backend.device, rank_.stream);
  };
  if (!state.data_json.empty()) skip_windows_ = data_cursor_from_json(state.data_json).skip_windows;
  if (skip) skip_windows_.push_back(*skip);
  loader_.reset();
  LoaderConfig l = training_loader(config_, rank_.mesh);
  if (data_.valid && !eval_loader_) {
    LoaderConfig e = l;
    e.prefetch = 1;
    eval_loader_ = make(*data_.valid, e);
  }
  l.first_sample = state.consumed_samples;
  l.skip_windows = skip_windows_;
  l.curriculum = curriculum_;
  l.first_step = state.step + 1;
  loader_ = make(*data_.train, l);
}

void RunLoader::next() {
  const double before = loader_->wait_seconds();
  step_.microbatches = loader_->next();
  step_.ready = now();
  step_.waited = loader_->wait_seconds() - before;
  step_.targets = targets(*loader_, step_.length());
}

int64_t RunLoader::targets(const Loader& loader, int64_t length) const {
  return loader.masks() ? target_count(rank_.mesh, loader) : config_.train.global_batch * length;
}

MeanLoss RunLoader::evaluate(Engine& engine) {
  eval_loader_->restore(0);
  LossSums sums;
  LossCounts counts;
  const int64_t sequences = config_.train.global_batch, tokens = sequences * config_.model.seq;
  for (int64_t k = 0; k < config_.train.eval_steps; ++k) {
    sums += engine.evaluate(eval_loader_->next());
    counts += {targets(*eval_loader_, config_.model.seq), tokens, sequences};
  }
  return mean_loss(engine.spec().losses, sums, counts);
}

std::string RunLoader::cursor_json(int64_t consumed) const {
  DataCursor cursor = data_.train->cursor(consumed);
  cursor.skip_windows = skip_windows_;
  return to_json(cursor);
}

}  // namespace gt
