#include "launch/observe/step_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <thread>

#include "launch/observe/predict.h"

namespace gt {
namespace {

// Seconds of one pipeline rank alone on its cores.
struct StageSeconds {
  double gemms = 0, attention = 0, passes = 0, update = 0, tensor_parallel = 0, messages = 0, data_parallel = 0;
  double compute() const { return gemms + attention + passes; }
};

class Predictor {
 public:
  Predictor(const EngineOptions& o, const MeshShape& shape, const StagePlans& stages, const MeasuredTimes& times,
            std::string_view backend, int machines)
      : o_(o),
        shape_(shape),
        stages_(stages),
        times_(times),
        transport_(transport_between(backend, machines)),
        overlaps_tied_(machines > 1 && shape.pp > 1) {}

  StageSeconds stage(int k, StepPrediction& p) const {
    StageSeconds s;
    for (const OpCall& c : step_ops(o_, shape_, k * shape_.dp * shape_.tp)) {
      const double all = times_.seconds(c);
      p.calls += c.calls;
      if (!times_.measured(c)) p.estimated += c.calls;
      (c.update                             ? s.update
       : c.cost.kind == OpClass::kGemm      ? s.gemms
       : c.cost.kind == OpClass::kAttention ? s.attention
                                            : s.passes) += all;
    }
    const StepTraffic& sent = stages_[static_cast<size_t>(k)].sent;
    s.tensor_parallel = collectives(sent.tensor_parallel, shape_.tp) + collectives(sent.experts, shape_.ep);
    s.data_parallel = collectives(sent.data_parallel, shape_.dp) +
                      collectives(sent.expert_data_parallel, shape_.size(Axis::kExpertDp)) +
                      collectives(sent.key_value, shape_.kv_ranks) +
                      (overlaps_tied_ ? 0 : collectives(sent.embedding, sent.embedding.calls() > 0 ? 2 : 1)) +
                      exchange();
    s.messages = messages(sent.pipeline);
    return s;
  }

  // Seconds of the pipeline, without its collectives where ranks share cores.
  double makespan(const std::vector<StageSeconds>& stages, const CoreShare& share) const {
    const bool shared = share.ranks_per_slot() > 1;
    // The ranks of a TP group compute at once, or take turns if they outnumber the cores.
    const int cores = std::max(1, share.together() / shape_.tp);
    const double turns = shared ? std::max(1., static_cast<double>(shape_.tp) / share.together()) : 1;
    Cost cost = stage_cost(o_, shape_.pp);
    for (size_t k = 0; k < stages.size(); ++k) {
      double units = 0;
      for (size_t c = k; c < cost.stage_f.size(); c += stages.size()) units += cost.stage_f[c] + cost.stage_b[c];
      const double collectives = shared ? 0 : stages[k].tensor_parallel;
      const double scale = turns * (stages[k].compute() + collectives) / (units * o_.microbatches);
      for (size_t c = k; c < cost.stage_f.size(); c += stages.size())
        cost.stage_f[c] *= scale, cost.stage_b[c] *= scale;
    }
    const CommCounters::Op& sends = stages_[0].sent.pipeline.of(CommOp::kSend);
    if (sends.calls > 0) {
      cost.p2p = message(1);
      cost.wire = on_line(sends);
    }
    if (const CommCounters::Op& tied = stages_[0].sent.embedding.of(CommOp::kAllReduce);
        overlaps_tied_ && tied.calls > 0)
      cost.tied = static_cast<double>(tied.calls) * on_line(tied);
    const PipelineSchedule schedule = train_schedule(o_, shape_.pp);
    if (!shared) return simulate(schedule, cost).makespan;
    return makespan_on_cores(schedule, cost, std::max(1, share.ranks / (shape_.tp * shape_.pp)), cores);
  }

 private:
  // A broadcast of a tensor is timed as its all-gather, which every rank ends with all of, too.
  double collectives(const CommCounters& c, int64_t ranks) const {
    double sum = 0;
    for (const auto& [op, as] : {std::pair{CommOp::kAllReduce, CommOp::kAllReduce},
                                 {CommOp::kAllGather, CommOp::kAllGather},
                                 {CommOp::kReduceScatter, CommOp::kReduceScatter},
                                 {CommOp::kBroadcast, CommOp::kAllGather},
                                 {CommOp::kAllToAll, CommOp::kAllToAll},
                                 {CommOp::kAllToAllV, CommOp::kAllToAll}})
      if (const CommCounters::Op& n = c.of(op); n.calls > 0)
        sum += static_cast<double>(n.calls) *
               times_.seconds(transport_, as, ranks, static_cast<double>(n.payload) / static_cast<double>(n.calls));
    return sum;
  }
  double message(double bytes) const { return times_.seconds(transport_, CommOp::kSend, shape_.pp, bytes); }
  // StepExchange. Where no all-reduce was measured (bench comm of a layout without tp and dp): one phase of messages
  // between two ranks, two between more.
  double exchange() const {
    constexpr double kBytes = 4096;
    const double measured = times_.seconds(transport_, CommOp::kAllReduce, shape_.world(), kBytes);
    return std::isnan(measured) ? (shape_.world() == 2 ? 1 : 2) * message(kBytes) : measured;
  }
  // How long a message of the mean size occupies the line.
  double on_line(const CommCounters::Op& n) const {
    return std::max(0., message(static_cast<double>(n.payload) / static_cast<double>(n.calls)) - message(1));
  }
  double messages(const CommCounters& c) const {
    const CommCounters::Op& n = c.of(CommOp::kSend);
    return n.calls == 0
               ? 0
               : static_cast<double>(n.calls) * message(static_cast<double>(n.payload) / static_cast<double>(n.calls));
  }

  const EngineOptions& o_;
  const MeshShape& shape_;
  const StagePlans& stages_;
  const MeasuredTimes& times_;
  const std::string transport_;
  const bool overlaps_tied_;
};

std::string milliseconds(double s) { return s < 10 ? fmt::format("{:.3g} ms", 1e3 * s) : fmt::format("{:.2f} s", s); }

}  // namespace

CoreShare core_share(int ranks, int threads) {
  return {ranks, threads, std::max(1, static_cast<int>(std::thread::hardware_concurrency()))};
}

std::string correction_key(const TransformerConfig& m, int ranks) {
  return fmt::format("{} x {}, heads {} of {}, ffn {}{}, vocab {}, seq {}; {} ranks", m.layers, m.hidden, m.heads,
                     m.kv_heads, m.ffn, m.gated ? " gated" : "", m.vocab, m.seq, ranks);
}

StepPrediction predict_step(const EngineOptions& o, const MeshShape& shape, const StagePlans& stages,
                            const MeasuredTimes& times, std::string_view backend, const CoreShare& share,
                            int machines) {
  StepPrediction p;
  const Predictor predictor(o, shape, stages, times, backend, machines);
  std::vector<StageSeconds> all;
  for (int k = 0; k < shape.pp; ++k) all.push_back(predictor.stage(k, p));
  const double waits = share.ranks_per_slot();
  for (const StageSeconds& s : all) {
    p.gemms += waits * s.gemms / shape.pp, p.attention += waits * s.attention / shape.pp;
    p.passes += waits * s.passes / shape.pp, p.update += waits * s.update / shape.pp;
    p.tensor_parallel += s.tensor_parallel / shape.pp, p.messages += s.messages / shape.pp;
    p.data_parallel += s.data_parallel / shape.pp;
  }
  // Ranks that share cores run while others wait for their neighbours.
  if (shape.pp > 1) {
    const double makespan = predictor.makespan(all, share);
    if (machines > 1) p.messages = std::clamp(makespan - p.compute() - p.tensor_parallel, 0., p.messages);  // overlap
    p.bubble = std::max(0., makespan - (waits > 1 ? p.compute() : p.pipeline()));
  }
  p.corrected = times.corrections(correction_key(o.model, share.ranks));
  p.shared_cores = share.ranks_per_slot() > 1;
  const auto& by = p.corrected.of;
  for (double* x : {&p.gemms, &p.attention, &p.passes}) *x *= by[0];
  p.tensor_parallel *= by[1], p.messages *= by[2], p.bubble *= by[2], p.data_parallel *= by[3], p.update *= by[4];
  return p;
}

std::string start_text(const StepPrediction& p) {
  std::string out = fmt::format("{} a step: compute {}", milliseconds(p.seconds()), milliseconds(p.compute()));
  const auto add = [&](const char* what, double seconds) {
    if (seconds > 0) out += fmt::format(", {} {}", what, milliseconds(seconds));
  };
  add("tensor-parallel communication", p.tensor_parallel);
  add("messages and bubble", p.messages + p.bubble);
  add("data-parallel communication", p.data_parallel);
  add("norm and update", p.update);
  return out;
}

std::string deeper_pipeline(const EngineOptions& o, double seconds,
                            const std::function<StepPrediction(const EngineOptions&)>& predict) {
  constexpr double kWorth = 0.95, kMore = 0.98;
  EngineOptions deeper = o;
  double least = seconds;
  int best = o.extra_in_flight;
  const auto rounds = [&](int extra) { return (o.microbatches + extra + 1) / (extra + 2); };  // round trips, pp 2
  for (int extra = best + 1; extra < o.microbatches; ++extra) {
    if (rounds(extra) == rounds(extra - 1)) continue;
    deeper.extra_in_flight = extra;
    const double t = predict(deeper).seconds();
    if (t < kMore * least) least = t, best = extra;
  }
  return least > kWorth * seconds ? ""
                                  : fmt::format("; with --parallel.extra_in_flight {}: {}", best, milliseconds(least));
}

std::vector<ClassTime> class_times(const StepPrediction& p, const std::vector<Timers>& means, double seconds) {
  Timers t{};
  for (const Timers& stage : means)
    for (size_t i = 0; i < t.size(); ++i) t[i] += stage[i] / static_cast<double>(means.size());
  const double compute =
      t[kForwardTime] + t[kBackwardTime] + t[kInputGradTime] + t[kWeightGradTime] + t[kMicrobatchTime];
  std::vector<ClassTime> out{{"compute", p.compute(), compute},
                             {"tensor-parallel communication", p.tensor_parallel, t[kTpTime]},
                             {"messages and bubble", p.messages + p.bubble, t[kWaitTime]},
                             {"data-parallel communication", p.data_parallel, t[kReduceTime] + t[kGatherTime]},
                             {"norm and update", p.update, t[kNormsTime] + t[kOptimizerTime]},
                             {"data", 0, t[kDataTime]}};
  double known = 0;
  for (const ClassTime& c : out) known += c.measured;
  out.push_back({"other (host)", 0, std::max(0., seconds - known)});
  return out;
}

RunRatios run_ratios(const StepPrediction& p, const std::vector<Timers>& means, double seconds) {
  constexpr double kSmall = 0.02;
  const std::vector<ClassTime> classes = class_times(p, means, seconds);
  RunRatios out{p.corrected.what};
  double uncorrected = 0;
  for (size_t k = 0; k < RunRatios::kClasses; ++k) uncorrected += classes[k].predicted / p.corrected.of[k];
  for (size_t k = 0; k < RunRatios::kClasses; ++k)
    if (p.shared_cores)
      out.of[k] = seconds / uncorrected;
    else if (classes[k].predicted > kSmall * seconds && classes[k].measured > kSmall * seconds)
      out.of[k] = classes[k].measured / classes[k].predicted * p.corrected.of[k];
  return out;
}

std::string prediction_text(const StepPrediction& p, const std::vector<Timers>& means, double seconds) {
  const double off = seconds / p.seconds() - 1;
  std::string out =
      fmt::format("{} predicted, {} measured ({:+.1f} %)", milliseconds(p.seconds()), milliseconds(seconds), 100 * off);
  if (std::fabs(off) <= kMuchOff) return out;
  const std::vector<ClassTime> classes = class_times(p, means, seconds);
  const ClassTime& worst =
      *std::max_element(classes.begin(), classes.end(), [](const ClassTime& a, const ClassTime& b) {
        return std::fabs(a.measured - a.predicted) < std::fabs(b.measured - b.predicted);
      });
  out += fmt::format("; most of it in {}: {} predicted, {} measured", worst.name, milliseconds(worst.predicted),
                     milliseconds(worst.measured));
  if (std::string_view(worst.name) == "compute")
    out += fmt::format(" (predicted: products {:.0f} %, attention {:.0f} %, memory passes {:.0f} %)",
                       100 * p.gemms / p.compute(), 100 * p.attention / p.compute(), 100 * p.passes / p.compute());
  return out;
}

}  // namespace gt
