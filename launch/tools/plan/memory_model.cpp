#include "launch/tools/plan/memory_model.h"

#include <algorithm>

#include "model/module.h"
#include "parallel/pipeline/pipeline_schedule.h"

namespace gt {
namespace {

constexpr double kBytes = 2;        // per activation
constexpr double kLogitBytes = 10;  // per logit: 16-bit, f32 and gradient

double tokens(const Workload& w) { return static_cast<double>(w.micro_batch * w.seq) / static_cast<double>(w.cp); }

// Microbatches whose activations a stage holds at its peak, in units of whole stages.
double in_flight(const Workload& w, int64_t stage) {
  const auto pp = static_cast<double>(w.pp), vpp = static_cast<double>(w.vpp);
  const auto own = static_cast<double>(in_flight_1f1b(w.pp, stage, w.microbatches(), w.extra_in_flight));
  return w.vpp == 1 ? own : own * (1 + (pp - 1) / (pp * vpp));
}

double stage_parameters(const Workload& w, int64_t stage) {
  const auto vocab = static_cast<double>(w.vocab), hidden = static_cast<double>(w.hidden);
  const double table = vocab * hidden / static_cast<double>(w.tp);
  double n = static_cast<double>(w.layers) / static_cast<double>(w.pp) * w.block_weights() / static_cast<double>(w.tp);
  if (stage == 0) n += table;
  if (stage == w.pp - 1 && (w.pp > 1 || w.untied)) n += table;
  return n;
}

// Muon's buffers: updates of a block in f32, slices of the largest matrix over tp, two copies of it and two Gram
// matrices.
double orthogonalization(const Workload& w) {
  double elements = 0, largest = 0, side = 0;
  for (const Workload::Matrix& m : w.orthogonalized) {
    elements += m.elements(), largest = std::max(largest, m.elements());
    side = std::max(side, std::min(m.rows, m.cols));
  }
  return 4 * (elements / static_cast<double>(w.tp) + (w.tp > 1 ? largest : 0)) +
         2 * w.newton_schulz_bytes * (largest + side * side);
}

}  // namespace

double block_activations(const Workload& w, Recompute how) {
  const double n = tokens(w), h = static_cast<double>(w.hidden), t = static_cast<double>(w.tp);
  const double rows = w.sequence_parallel ? t : 1;  // activations between GEMMs are split by it
  if (how == Recompute::kFull) return kBytes * n * h / rows;
  double width = 2 * w.q_width() + 2 * w.kv_width() + w.active_mlps() * static_cast<double>(w.ffn) * (2 + w.gated);
  if (w.ep > 1)  // tokens of all ranks: planned for the most that a rank's experts can get
    width += (static_cast<double>(w.ep) * std::min(w.active_mlps(), w.held_mlps()) - w.active_mlps()) *
                 static_cast<double>(w.ffn) * (2 + w.gated) +
             h * t * static_cast<double>(w.ep);
  double bytes = n * (10 * h / rows + kBytes * width / t);
  const double scores = static_cast<double>(w.micro_batch * w.heads) / t;
  if (w.fused_attention) return bytes + 4 * scores * static_cast<double>(w.seq);
  if (how == Recompute::kNone) bytes += 5 * scores * static_cast<double>(w.seq) * static_cast<double>(w.seq);
  return bytes;
}

MemoryTerms stage_memory(const Workload& w, int64_t stage) {
  MemoryTerms m;
  m.state = stage_parameters(w, stage) * (w.kept_bytes + w.sharded_bytes / static_cast<double>(w.dp * w.cp));
  const double layers = static_cast<double>(w.layers) / static_cast<double>(w.pp);
  // Experts are sharded over the ranks that have the same ones.
  m.state += layers * (w.held_mlps() - static_cast<double>(w.shared)) * w.weights_of_mlp() / static_cast<double>(w.tp) *
             w.sharded_bytes * static_cast<double>(w.ep - 1) / static_cast<double>(w.dp * w.cp);
  m.activations = block_activations(w, w.recompute) * layers * in_flight(w, stage);
  if (w.recompute == Recompute::kFull) m.working_set = block_activations(w, Recompute::kNone);
  if (stage == w.pp - 1)
    m.working_set += tokens(w) * static_cast<double>(w.vocab) / static_cast<double>(w.tp) * kLogitBytes;
  m.working_set += orthogonalization(w);
  return m;
}

MemoryTerms largest_stage_memory(const Workload& w) {
  MemoryTerms most;
  for (int64_t k = 0; k < w.pp; ++k) {
    const MemoryTerms m = stage_memory(w, k);
    if (m.total() > most.total()) most = m;
  }
  return most;
}

}  // namespace gt
