#include "launch/tools/eval/choice_scores.h"

#include <algorithm>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/core/host_array.h"
#include "kernels/core/memory.h"
#include "launch/observe/work_progress.h"

namespace gt {
namespace {

// FP8 GEMMs need multiples of 16 tokens on each TP rank.
int64_t granule(const Config& c) { return 16 * c.parallel.tp; }

// Microbatches of one step of this rank, filled from the host.
class Step {
 public:
  Step(LoadedModel& m, int64_t microbatches)
      : m_(m),
        seq_(m.config.model.seq),
        staged_(static_cast<size_t>(2 * microbatches * seq_), *m.backend->device),
        device_(2 * microbatches * seq_ * size_of(DType::kI32), m.stream.device(), *m.backend->device),
        batches_(static_cast<size_t>(microbatches)) {}

  // sequences[k]: of microbatch k; nullptr: none.
  std::span<const MicroBatch> fill(std::span<const ChoiceTokens* const> sequences, int64_t length) {
    const auto n = static_cast<int64_t>(batches_.size()), all = n * length;
    std::fill_n(staged_.data(), all, 0);
    std::fill_n(staged_.data() + all, all, -1);
    for (size_t k = 0; k < sequences.size(); ++k) {
      if (sequences[k] == nullptr) continue;
      const std::vector<int32_t>& ids = sequences[k]->ids;
      const auto rows = static_cast<int64_t>(ids.size()) - 1, scored = sequences[k]->scored;
      int32_t* to = staged_.data() + static_cast<int64_t>(k) * length;
      std::copy_n(ids.begin(), rows, to);
      std::copy_n(ids.end() - scored, scored, to + all + rows - scored);
    }
    m_.backend->device->copy(device_.data(), staged_.data(), 2 * all * size_of(DType::kI32), m_.stream);
    for (int64_t k = 0; k < n; ++k) {
      MicroBatch& mb = batches_[static_cast<size_t>(k)];
      mb = {};
      mb.batch = 1, mb.seq = length;
      const auto part = [&](int64_t at) { return device_.tensor({1, length}, DType::kI32, at * size_of(DType::kI32)); };
      if (m_.mesh->first_stage()) mb.tokens = part(k * length);
      if (m_.mesh->last_stage()) mb.targets = part(all + k * length);
    }
    return batches_;
  }

 private:
  LoadedModel& m_;
  const int64_t seq_;
  HostArray<int32_t> staged_;
  Buffer device_;
  std::vector<MicroBatch> batches_;
};

}  // namespace

void use_single_sequences(ModelSource& source) {
  Config& c = source.loaded.config;
  c.train.micro_batch = 1;
  c.train.grad_accum = 4 * c.parallel.pp;  // fills the pipeline
  c.train.global_batch = c.train.grad_accum * std::max<int64_t>(c.parallel.dp, 1);
  for (int64_t n = granule(c); n < c.model.seq; n += granule(c)) source.lengths.push_back(n);
}

std::vector<ChoiceScore> score_choices(LoadedModel& m, std::span<const ChoiceTokens> sequences) {
  // By falling length: a step computes sequences of about the same length, and the first needs most memory.
  std::vector<size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sequences[a].ids.size() > sequences[b].ids.size(); });
  const int64_t microbatches = m.config.train.grad_accum;
  const auto dp = static_cast<size_t>(m.mesh->size(Axis::kDp)), replica = static_cast<size_t>(m.mesh->coord(Axis::kDp));
  Step step(m, microbatches);
  std::vector<ChoiceScore> out(sequences.size());
  std::vector<const ChoiceTokens*> mine(static_cast<size_t>(microbatches));
  WorkProgress progress(static_cast<int64_t>(order.size()), "choices");
  for (size_t at = 0; at < order.size(); at += mine.size() * dp) {
    for (size_t k = 0; k < mine.size(); ++k) {
      const size_t i = at + k * dp + replica;
      mine[k] = i < order.size() ? &sequences[order[i]] : nullptr;
    }
    const auto longest = static_cast<int64_t>(sequences[order[at]].ids.size()) - 1;
    GT_CHECK(longest >= 1 && longest <= m.config.model.seq, "sequence of ", longest, " tokens");
    const int64_t length =
        std::min(m.config.model.seq, (longest + granule(m.config) - 1) / granule(m.config) * granule(m.config));
    m.engine->evaluate(step.fill(mine, length));
    const std::span<const LossSums> sums = m.engine->evaluated();
    for (size_t k = 0; k < sums.size() && at + k < order.size(); ++k) {
      const size_t i = order[at + k];
      out[i] = {-sums[k].sums.front(), sums[k].hits.front() == static_cast<double>(sequences[i].scored)};
    }
    if (m.mesh->rank() == 0) progress.add(static_cast<int64_t>(std::min(mine.size() * dp, order.size() - at)));
  }
  return out;
}

}  // namespace gt
