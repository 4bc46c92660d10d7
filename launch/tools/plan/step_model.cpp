#include "launch/tools/plan/step_model.h"

#include <algorithm>
#include <cmath>

#include "model/module.h"

namespace gt {
namespace {

// Megatron-LM's fused softmax needs a multiple of 4 score matrices per rank. Otherwise PyTorch's ops take its place,
// with more launches and passes over the scores.
constexpr double kSoftmaxHost = 0.38, kSoftmaxPasses = 0.5;  // additional fractions

// Seconds of one block and one microbatch on one rank.
struct BlockTime {
  double linear, linear_backward, attention, attention_backward, elementwise, recompute, tensor_parallel, accumulation,
      latency, host;
  void scale(double by) {
    for (double* x : {&linear, &linear_backward, &attention, &attention_backward, &elementwise, &recompute,
                      &tensor_parallel, &accumulation, &latency, &host})
      *x *= by;
  }
  double device() const {
    return linear + linear_backward + attention + attention_backward + 2.6 * elementwise + recompute + tensor_parallel +
           accumulation + latency;
  }
  double waiting() const { return std::max(0.0, host - device()); }
  double total() const { return device() + waiting(); }
};

class StepModel {
 public:
  StepModel(const Workload& w, const MachineModel& m)
      : w_(w),
        m_(m),
        tp_(static_cast<double>(w.tp)),
        hidden_(static_cast<double>(w.hidden)),
        tokens_(static_cast<double>(w.micro_batch * w.seq) / static_cast<double>(w.cp)),
        microbatches_(static_cast<double>(w.microbatches())),
        layers_(full_stage(w)) {}

  StepTerms terms() const {
    StepTerms t;
    const BlockTime block = block_time();
    const double head = head_time(), message = p2p_time();
    // The slowest stage is the one with the head, or one with more blocks.
    const double inner = layers_ * block.total(), last = last_stage() * block.total() + head;
    const double blocks = microbatches_ * (last > inner ? last_stage() : layers_);
    const double again = full() ? 1 : 0;
    t.linear = blocks * ((1 + again) * block.linear + block.linear_backward);
    t.attention = blocks * ((1 + again) * block.attention + block.attention_backward);
    t.elementwise = blocks * (2.6 + again) * block.elementwise;
    t.recompute = full() ? 0 : blocks * block.recompute;
    t.tensor_parallel = blocks * block.tensor_parallel;
    t.latency = blocks * (block.latency + block.waiting());
    t.head = last > inner ? microbatches_ * head : 0;
    t.p2p = microbatches_ * message;
    t.bubble = static_cast<double>(w_.pp - 1) * (inner + message) / static_cast<double>(w_.vpp);
    t.optimizer = blocks * block.accumulation;
    t.data_parallel = data_parallel_time(t.pipeline());
    const double parameters = local_parameters();
    t.optimizer +=
        w_.trained * ((w_.zero > 0 ? parameters / replicas() : parameters) * 30 + 4 * parameters) / m_.memory;
    t.optimizer += layers_ * (newton_schulz_time() + gather_time());
    t.fixed = m_.step_latency;
    return t;
  }

 private:
  bool full() const { return w_.recompute == Recompute::kFull; }
  // The embedding and the head count as blocks of the first and the last stage.
  static bool slots(const Workload& w) { return w.embedding_slot && w.layers % (w.pp * w.vpp) != 0; }
  // Blocks of the largest stage, and of the one with the head.
  static double full_stage(const Workload& w) {
    const int64_t stages = w.pp * w.vpp;
    return static_cast<double>((w.layers + (slots(w) ? 2 : 0) + stages - 1) / stages * w.vpp);
  }
  double last_stage() const {
    return slots(w_) ? layers_ - 1 : static_cast<double>(w_.layers / (w_.pp * w_.vpp) * w_.vpp);
  }
  double replicas() const { return static_cast<double>(w_.dp * w_.cp); }

  double gemm(double rows, double columns, double depth) const {
    return 2 * rows * columns * depth / (m_.peak * m_.gemm_efficiency) *
           (1 + m_.gemm_half / std::min(columns, depth) + m_.gemm_half / (2 * rows));
  }

  BlockTime block_time() const {
    const double q = w_.q_width(), ffn = static_cast<double>(w_.ffn), glu = w_.gated ? 1 : 0;
    BlockTime b{};
    // Every expert that a rank holds has its own GEMMs, of the rows that an even router gives it.
    const double mlps = w_.held_mlps(), rows = tokens_ * w_.active_mlps() / mlps;
    b.linear = gemm(tokens_, (q + 2 * w_.kv_width()) / tp_, hidden_) + gemm(tokens_, hidden_, q / tp_) +
               mlps * (gemm(rows, ffn * (1 + glu) / tp_, hidden_) + gemm(rows, hidden_, ffn / tp_));
    b.linear_backward = (1 + w_.trained) * b.linear;  // gradients of inputs, and of weights
    attention_time(b);
    b.elementwise =
        m_.elementwise * tokens_ * hidden_ / (2 * m_.memory) *
        (0.45 / (w_.sequence_parallel ? tp_ : 1) + 0.1375 * w_.active_mlps() * ffn * (1 + glu) / (hidden_ * tp_));
    if (full()) b.recompute = b.linear + b.attention + b.elementwise;
    if (w_.recompute == Recompute::kSelective) b.recompute = w_.fused_attention ? 0.3 * b.elementwise : b.attention;
    // Two all-reduces in the forward and two in the backward; the forward ones repeat under full recomputation.
    if (w_.tp > 1)
      b.tensor_parallel = (4 + 2 * full()) * (m_.tp_latency + m_.tp_exposed * 2 * (tp_ - 1) / tp_ * tokens_ * hidden_ *
                                                                  2 / tensor_parallel_bus());
    // Tokens to their experts and results of slots back, in the backward the same with gradients; forward again under
    // full recomputation.
    if (w_.ep > 1) {
      const auto ep = static_cast<double>(w_.ep);
      b.tensor_parallel += (4 + 2 * full()) * (m_.tp_latency + m_.tp_exposed * (ep - 1) / ep * tokens_ *
                                                                   w_.active_mlps() * hidden_ * 2 / expert_bus());
    }
    b.accumulation = w_.trained * m_.accumulation * w_.block_weights() / tp_ / m_.memory;
    b.latency = m_.block_latency * (2 + full());
    b.host = m_.host * (3 + full()) * (1 + m_.host_tp * std::log2(tp_) + (plain_softmax() ? kSoftmaxHost : 0));
    if (const auto it = m_.measured_blocks.find(w_.block_shape()); it != m_.measured_blocks.end()) b.scale(it->second);
    return b;
  }

  bool plain_softmax() const { return !w_.fused_attention && w_.micro_batch * w_.heads % (4 * w_.tp) != 0; }

  // Causal attention computes half of the scores. Small heads use the matrix units worse; unfused attention reads and
  // writes its scores.
  void attention_time(BlockTime& b) const {
    const double shape =
        (1 + 16 / std::min(static_cast<double>(w_.head_dim), 128.0)) * (w_.head_dim % 8 != 0 ? m_.misaligned : 1);
    const auto seq = static_cast<double>(w_.seq);
    const double core = (w_.fused_attention && !w_.bidirectional ? 2 : 4) * tokens_ * seq * w_.q_width() / tp_ /
                        (m_.peak * m_.attention_efficiency) * shape;
    if (w_.fused_attention) {
      b.attention = core, b.attention_backward = 2.5 * core;
      return;
    }
    const double scores = 11 * (1 + (plain_softmax() ? kSoftmaxPasses : 0)) * static_cast<double>(w_.micro_batch) *
                          static_cast<double>(w_.heads) / tp_ * seq * seq / m_.memory;
    b.attention = core + scores, b.attention_backward = 2 * core + 1.4 * scores;
  }

  // Logits and their loss, forward and backward, of one microbatch.
  double head_time() const {
    const double vocab = static_cast<double>(w_.vocab) / tp_;
    return (2 + w_.trained) * gemm(tokens_, vocab, hidden_) +
           (m_.logits * tokens_ * vocab + 4 * tokens_ * hidden_) / m_.memory;
  }

  // Exposed messages between stages, per microbatch, both ways; ranks of a node share its ports. TP ranks are
  // neighbours, DP ranks come next, so that only a whole model in one node sends inside it.
  double p2p_time() const {
    if (w_.pp == 1) return 0;
    const auto pp = static_cast<double>(w_.pp), vpp = static_cast<double>(w_.vpp);
    const double bytes = tokens_ * hidden_ * 2 / (w_.scatter_gather ? tp_ : 1);
    const double rate = w_.devices() <= m_.per_node
                            ? m_.link
                            : m_.nic / std::min(static_cast<double>(m_.per_node), tp_) / m_.p2p_exposed;
    return std::min(2.0, std::max(pp * vpp - 1, 1.0)) * vpp * bytes / rate;
  }

  // Parameters of a pipeline rank with the embedding, which is the largest.
  double local_parameters() const {
    return layers_ * w_.block_weights() / tp_ + static_cast<double>(w_.vocab) * hidden_ / tp_;
  }

  // Bytes per second of the collectives of a data-parallel group.
  double data_parallel_bus() const {
    const double n = replicas(), node = static_cast<double>(m_.per_node);
    const double rings = node / std::min(n, std::max(1.0, static_cast<double>(m_.per_node / w_.tp)));
    return n * tp_ <= node ? m_.link : std::min(m_.link, m_.nic * m_.nic_dp / rings);
  }
  // TP ranks of a node share its ports.
  double expert_bus() const {
    const double ranks = std::min(static_cast<double>(m_.per_node), tp_);
    return w_.tp * w_.ep <= m_.per_node ? m_.link : std::min(m_.link, m_.nic * m_.nic_tp / ranks);
  }
  double tensor_parallel_bus() const { return w_.tp <= m_.per_node ? m_.link : m_.nic * m_.nic_tp; }

  // Newton-Schulz of a block's matrices on the rank with most of them: an owner among dp x tp updates each.
  double newton_schulz_time() const {
    double sum = 0, largest = 0;
    for (const Workload::Matrix& m : w_.orthogonalized) {
      const double side = std::min(m.rows, m.cols), other = std::max(m.rows, m.cols);
      const double one = static_cast<double>(w_.newton_schulz) *
                         (gemm(side, side, other) + gemm(side, side, side) + gemm(side, other, side));
      sum += one, largest = std::max(largest, one);
    }
    return std::max(largest, sum / (replicas() * tp_));
  }

  // Gathers of a block's updates in f32 and the way back: shards over dp, then slices over tp among the owners.
  double gather_time() const {
    double elements = 0;
    for (const Workload::Matrix& m : w_.orthogonalized) elements += m.elements();
    const double n = replicas(), passes = w_.zero > 0 ? 2 : 1;
    return 4 * elements *
           (passes * (n - 1) / n / tp_ / data_parallel_bus() + 2 * (tp_ - 1) / tp_ / n / tensor_parallel_bus());
  }

  double data_parallel_time(double pipeline) const {
    const double n = replicas();
    const double pass = (n - 1) / n * local_parameters() * w_.gradient_bytes / data_parallel_bus();
    if (w_.zero < 2) {
      const double all = 2 * pass;
      return w_.overlap ? std::max(all - 0.6 * pipeline / microbatches_, (1 - m_.hidden) * all) : all;
    }
    const double passes = w_.zero == 3 ? 3 : 1 + 1 / microbatches_;
    const double each = passes * (pass + layers_ * (n - 1) * m_.hop);
    return microbatches_ * std::max(each - pipeline / microbatches_, (1 - m_.hidden) * each);
  }

  const Workload& w_;
  const MachineModel& m_;
  double tp_, hidden_, tokens_, microbatches_, layers_;
};

}  // namespace

const std::vector<MachineConstant>& machine_constants() {
  using M = MachineModel;
  static const std::vector<MachineConstant> kAll = {{"gemm_efficiency", &M::gemm_efficiency, 0.15},
                                                    {"gemm_half", &M::gemm_half, 0.8},
                                                    {"attention_efficiency", &M::attention_efficiency, 0.35},
                                                    {"elementwise", &M::elementwise, 0.5},
                                                    {"logits", &M::logits, 0.5},
                                                    {"memory", &M::memory, 0.12},
                                                    {"link", &M::link, 0.4},
                                                    {"nic", &M::nic, 0.4},
                                                    {"nic_tp", &M::nic_tp, 0.4},
                                                    {"nic_dp", &M::nic_dp, 0.3},
                                                    {"tp_latency", &M::tp_latency, 0.8},
                                                    {"tp_exposed", &M::tp_exposed, 0.3},
                                                    {"p2p_exposed", &M::p2p_exposed, 0.5},
                                                    {"hidden", &M::hidden, 0.3},
                                                    {"block_latency", &M::block_latency, 0.4},
                                                    {"host", &M::host, 0.25},
                                                    {"host_tp", &M::host_tp, 0.3},
                                                    {"step_latency", &M::step_latency, 1},
                                                    {"misaligned", &M::misaligned, 0.5},
                                                    {"hop", &M::hop, 0.6}};
  return kAll;
}

std::vector<std::pair<const char*, double>> StepTerms::list() const {
  return {{"linear", linear},
          {"attention", attention},
          {"elementwise", elementwise},
          {"recompute", recompute},
          {"tensor_parallel", tensor_parallel},
          {"latency", latency},
          {"p2p", p2p},
          {"head", head},
          {"bubble", bubble},
          {"data_parallel", data_parallel},
          {"optimizer", optimizer},
          {"fixed", fixed}};
}

void set_eager(MachineModel& m, bool fused) {
  m.host = 1.04e-3;
  m.block_latency = fused ? 2e-4 : 6e-4;
  m.tp_latency = fused ? 2e-5 : 1e-4;
  m.logits = fused ? 40 : 105;  // an FP32 copy and several passes
  m.accumulation = fused ? 0 : 6;
}

StepTerms step_terms(const Workload& w, const MachineModel& m) { return StepModel(w, m).terms(); }

}  // namespace gt
