#include "launch/tools/verify/shrink.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "launch/config/values/schedule_file.h"

namespace gt {
namespace {

constexpr int64_t kHeadDim = 8, kHeadDim16Bit = 32, kWidth = 256, kRows = 16, kMicroBatch = 2, kMicrobatches = 8;
// A prime. The padded embedding has 384 rows on one rank and 512 over 2 or 4 TP ranks, the last of which then holds
// only padding. With more rows, every tp up to 4 would pad alike and a padding error would cancel out.
constexpr int64_t kVocab = 379;
constexpr double kMostLr = 0.01;  // larger values let rounding errors dominate in a small model

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Shrinks "8,0,4" to "2,0,1": empty stages stay empty, larger ones stay larger.
std::vector<int64_t> small_partition(const std::string& list, int64_t least) {
  std::vector<int64_t> blocks;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    blocks.push_back(std::stoll(list.substr(at, comma - at)));
    at = comma + 1;
  }
  int64_t fewest = INT64_MAX;
  for (int64_t n : blocks)
    if (n > 0) fewest = std::min(fewest, n);
  for (int64_t& n : blocks)
    if (n > 0) n = std::min(n, n > fewest ? least + 1 : least);
  return blocks;
}

void shrink_depth(Config& c, const ShrinkGoal& goal) {
  // A recomputed block followed by one that keeps its activations.
  const bool pairs = c.parallel.recompute != Recompute::kNone;
  const int64_t each = pairs ? 2 : 1, old_each = (c.model.layers + goal.stages - 1) / goal.stages;
  if (c.parallel.recompute_layers > 0) c.parallel.recompute_layers = c.parallel.recompute_layers < old_each ? 1 : each;
  if (c.parallel.partition.find_first_of("0123456789") == 0) {
    const std::vector<int64_t> blocks = small_partition(c.parallel.partition, each);
    c.parallel.partition = fmt::format("{}", fmt::join(blocks, ","));
    c.model.layers = 0;
    for (int64_t n : blocks) c.model.layers += n;
  } else {
    c.model.layers = std::min(c.model.layers, std::max<int64_t>(2, each * goal.stages));
  }
  c.parallel.recompute_layers = std::min(c.parallel.recompute_layers, c.model.layers);
  c.model.global_first = std::min(c.model.global_first, std::max<int64_t>(1, c.model.layers / 2));
  c.model.global_every = std::min(c.model.global_every, c.model.layers);
  std::vector<int64_t>& dense = c.model.moe.dense_blocks;
  dense.erase(std::lower_bound(dense.begin(), dense.end(), c.model.layers), dense.end());
  if (static_cast<int64_t>(dense.size()) == c.model.layers) dense.pop_back();  // the last one stays routed
}

void shrink_width(Config& c, const ShrinkGoal& goal) {
  ModelConfig& m = c.model;
  const int64_t head = m.head_width();
  // More heads: narrower heads. The fewer elements a sum has, the more do 16-bit roundings move it.
  const int64_t widest = c.precision.amp == AmpLevel::kO0 ? kHeadDim : kHeadDim16Bit;
  int64_t target = std::clamp<int64_t>(kWidth / m.heads / 2 * 2, 2, widest);
  const bool sixteens = c.precision.fp8 != Fp8Recipe::kOff;  // FP8 GEMMs need multiples of 16
  if (sixteens) target = head % 16 == 0 ? 16 : head;
  int64_t hidden = m.heads * std::min(head, target);
  if (m.q_width() != m.hidden)  // heads that are wider or narrower than hidden / heads stay so
    hidden = round_up(std::max<int64_t>(1, hidden * m.hidden / m.q_width()), sixteens ? 16 : kHeadDim);
  const double scale = static_cast<double>(hidden) / static_cast<double>(m.hidden);
  for (int64_t* width : {&m.ffn, &m.moe.dense_ffn}) {
    const auto less = static_cast<int64_t>(static_cast<double>(*width) * scale + 0.5);
    *width = std::min(*width, round_up(std::max<int64_t>(less, 1), goal.tp * (sixteens ? 16 : 1)));
  }
  m.hidden = hidden;
  if (m.head_dim > 0) m.head_dim = std::min(head, target);
  m.vocab = std::min(m.vocab, kVocab);
  if (m.window > 0)  // as much of the sequence as before
    m.window = std::max<int64_t>(1, m.window * std::min(m.seq, goal.seq) / m.seq);
  m.seq = std::min(m.seq, goal.seq);
  m.loss_chunk = std::max<int64_t>(
      // two logit chunks, so that gradients are accumulated
      1, std::min(c.train.micro_batch, kMicroBatch) * m.seq / 2);
  if (m.dropout > 0) m.dropout = 0.1;
  if (m.attn_dropout > 0) m.attn_dropout = 0.1;
}

void shrink_batch(Config& c, const ShrinkGoal& goal) {
  TrainSection& t = c.train;
  t.micro_batch = std::min(t.micro_batch, kMicroBatch);
  if (goal.microbatches > 0)
    t.grad_accum = goal.microbatches;
  else if (!is_schedule_file(c.parallel.schedule))  // a schedule file fixes the number of microbatches
    t.grad_accum = std::min(std::max(t.grad_accum, c.parallel.pp + 1), kMicrobatches);
}

// Two lengths that every tested layout can shard: half of the samples, then all.
void shrink_curriculum(Config& c, const ShrinkGoal& goal) {
  Curriculum& d = c.data.curriculum;
  if (!d) return;
  d.min = d.step = c.model.seq / goal.tp % 2 == 0 ? c.model.seq / 2 : c.model.seq;
  d.max = c.model.seq;
  d.steps = 2;
  d.lengths = {d.min, c.model.seq};
  d.until = {1};
}

}  // namespace

ShrinkGoal goal_of(const Config& c) {
  return {c.parallel.pp * c.parallel.vpp, c.parallel.tp, kRows * c.parallel.tp * 2 * c.parallel.cp};
}

ShrinkGoal goal_of(const Config& c, int64_t max_ranks) {
  ShrinkGoal goal{max_ranks, 1};
  for (int64_t t = 2; t <= max_ranks; ++t)
    if (c.model.heads % t == 0) goal.tp = std::lcm(goal.tp, t);
  goal.seq = round_up(kRows, goal.tp);
  goal.microbatches = 5;  // fewer or more than the stages, and never a multiple of them
  return goal;
}

Config shrink(const Config& given, const ShrinkGoal& goal, std::vector<std::string>& notes) {
  Config c = given;
  shrink_depth(c, goal);
  shrink_width(c, goal);
  shrink_batch(c, goal);
  // Constant learning rate: a schedule would begin near 0, where updates are lost in rounding.
  c.schedule = ScheduleConfig();
  c.schedule.type = "constant";
  c.optim.lr = std::min(c.optim.lr, kMostLr);
  if (LayerDrop& drop = c.train.layer_drop; drop.enabled) {  // layers are dropped from the second step on
    drop.theta = std::min(drop.theta, 0.3);
    drop.gamma = std::max(drop.gamma, 10.);
  }
  shrink_curriculum(c, goal);
  c.zero.grad_op = GradOp::kMean;  // a sum depends on the number of replicas, which varies between layouts
  c.train.steps = 2 * goal.steps;
  c.train.eval_every = 0;
  Config before = given;
  const std::vector<Option> old = list_options(before), now = list_options(c);
  for (size_t i = 0; i < now.size(); ++i)
    if (value_text(old[i]) != value_text(now[i]))
      notes.push_back(fmt::format("{} {} -> {}", now[i].key(), value_text(old[i]), value_text(now[i])));
  return c;
}

}  // namespace gt
