// Microbatches of a run's steps and evaluations, starting at the position of its state.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/samples/loader.h"
#include "launch/train/rank_context.h"
#include "launch/train/training_data.h"

namespace gt {

class RunLoader {
 public:
  // Both must outlive this object.
  RunLoader(const RankContext&, const RunDatasets&);

  // Starts with the step after `state`, keeping its skip windows; `skip`: an additional one, ordinals [first, last).
  using Window = std::pair<int64_t, int64_t>;
  void open(const TrainState& state, std::optional<Window> skip = {});

  struct Step {
    std::span<const MicroBatch> microbatches;
    int64_t targets = 0;           // targets of the global batch that carry loss
    double ready = 0, waited = 0;  // now() when the microbatches were available; seconds waited for them
    int64_t length() const { return microbatches.front().seq; }  // tokens per sequence
  };
  // Collective where data.eod_mask_loss, and with sentence pairs. The next step's.
  void next();
  const Step& step() const { return step_; }                                             // of the last next()
  int64_t global_tokens() const { return config_.train.global_batch * step_.length(); }  // of the last next()

  // Collective: mean losses of train.eval_steps global batches of the validation data, always the same.
  MeanLoss evaluate(Engine&);

  const RunDatasets& data() const { return data_; }
  const Curriculum& curriculum() const { return curriculum_; }
  int64_t consumed() const { return loader_->consumed(); }
  std::string cursor_json(int64_t consumed) const;  // for checkpoints: TrainState::data_json

 private:
  int64_t targets(const Loader&, int64_t length) const;
  const RankContext& rank_;
  const Config& config_;
  const RunDatasets& data_;
  const Curriculum curriculum_;
  std::unique_ptr<Loader> loader_, eval_loader_;
  std::vector<Window> skip_windows_;  // samples skipped by rollbacks
  Step step_;
};

}  // namespace gt
