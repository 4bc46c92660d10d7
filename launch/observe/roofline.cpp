#include "launch/observe/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "launch/engine/engine_options.h"
#include "launch/observe/sinks/progress.h"
#include "launch/observe/utilization.h"

namespace gt {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Returns options with large loss chunks if the config leaves their size automatic.
EngineOptions with_large_loss_chunks(EngineOptions o, int tp) {
  if (o.loss_chunk == 0) o.loss_chunk = large_loss_chunk(o.model, o.precision, tp);
  return o;
}

double& at(SecondsByClass& parts, OpClass c) { return parts[static_cast<size_t>(c)]; }
double sum(const SecondsByClass& parts) { return std::accumulate(parts.begin(), parts.end(), 0.); }

// Rate of a forward or backward call; NaN if that shape was not measured.
double attention_rate(const OpArgs& args, const PeakRates& c) {
  if (const auto* a = std::get_if<Attention>(&args)) {
    const AttentionCeiling* known = c.attention_at(a->spec.head_dim, a->spec.queries);
    return known != nullptr ? known->forward : kNan;
  }
  const AttentionSpec& a = std::get<AttentionGrad>(args).spec;
  const AttentionCeiling* known = c.attention_at(a.head_dim, a.queries);
  return known != nullptr ? known->backward : kNan;
}

double longer(double a, double b) { return std::isnan(a) ? a : std::max(a, b); }

SecondsByClass parts_of(std::span<const OpCall> calls, const PeakRates& ceilings, bool at_attention, bool fused) {
  SecondsByClass out{};
  for (const OpCall& c : calls) {
    const CallBound b = call_bound(c, ceilings, at_attention);
    at(out, c.cost.kind) += static_cast<double>(c.calls) * longer(b.gemms, fused ? b.fused : b.called);
  }
  return out;
}

RankRoofline rank_roofline(const EngineOptions& o, const MeshShape& shape, int rank, const PeakRates& ceilings) {
  RankRoofline out;
  out.calls = step_ops(o, shape, rank);
  const auto fused = step_ops(with_large_loss_chunks(o, shape.tp), shape, rank);
  const SecondsByClass plain = parts_of(fused, ceilings, false, true);
  out.fused_seconds = parts_of(fused, ceilings, true, true);
  out.called_seconds = parts_of(out.calls, ceilings, true, false);
  out.r0 = sum(plain);
  out.r = sum(out.fused_seconds);
  out.called = sum(out.called_seconds);
  if (std::isnan(out.r)) {
    out.fused_seconds = plain;
    out.called_seconds = parts_of(out.calls, ceilings, false, false);
  }
  return out;
}

std::string micros(double seconds) { return std::isnan(seconds) ? "n/a" : fmt::format("{:.1f}", seconds * 1e6); }
std::string millis(double seconds) { return std::isnan(seconds) ? "n/a" : fmt::format("{:.3f}", seconds * 1e3); }

}  // namespace

CallBound call_bound(const OpCall& c, const PeakRates& ceilings, bool at_attention) {
  double rate = c.cost.fp8 ? ceilings.gemm_fp8 : ceilings.gemm;
  if (at_attention && c.cost.kind == OpClass::kAttention) rate = attention_rate(c.args, ceilings);
  return {c.cost.flops > 0 ? c.cost.flops / rate : 0, c.cost.fused_bytes / ceilings.copy, c.cost.bytes / ceilings.copy};
}

StepRoofline step_roofline(const EngineOptions& o, const MeshShape& shape, const PeakRates& ceilings, int sharers) {
  StepRoofline out;
  double all_r = 0, all_r0 = 0, all_called = 0;
  for (int pp = 0; pp < shape.pp; ++pp) {
    out.ranks.push_back(rank_roofline(o, shape, pp * shape.dp * shape.tp, ceilings));
    const RankRoofline& rank = out.ranks.back();
    if (rank.r0 > out.ranks[out.slowest].r0) out.slowest = out.ranks.size() - 1;
    all_r += rank.r, all_r0 += rank.r0, all_called += rank.called;
  }
  // Ranks that share a device run one after the other; no device finishes before the mean one.
  const double mean = static_cast<double>(sharers) / shape.pp;
  const RankRoofline& slowest = out.ranks[out.slowest];
  out.r = longer(slowest.r, all_r * mean);
  out.r0 = longer(slowest.r0, all_r0 * mean);
  out.called = longer(slowest.called, all_called * mean);
  return out;
}

std::string shares_text(const SecondsByClass& parts) {
  const double all = sum(parts), gemms = parts[static_cast<size_t>(OpClass::kGemm)],
               attention = parts[static_cast<size_t>(OpClass::kAttention)];
  return fmt::format("{:.0f} : {:.0f} : {:.0f}", 100 * gemms / all, 100 * attention / all,
                     100 * (all - gemms - attention) / all);
}

std::string roofline_table(const RankRoofline& rank, const PeakRates& ceilings) {
  const bool at_attention = !std::isnan(rank.r);
  std::string out = fmt::format("{:<20} {:<26} {:<40} {:>6} {:>9} {:>9} {:>10} {:>10} {:>10} {:>9}\n", "op", "what",
                                "shape", "calls", "GFLOP", "MB", "us/products", "us/fused", "us/called", "ms");
  for (const OpCall& c : by_class(rank.calls)) {
    const CallBound b = call_bound(c, ceilings, at_attention);
    out += fmt::format("{:<20} {:<26} {:<40} {:>6} {:>9.2f} {:>9.2f} {:>11} {:>10} {:>10} {:>9}\n", c.op, c.what,
                       shape_text(c.args), c.calls, c.cost.flops * 1e-9, c.cost.bytes * 1e-6, micros(b.gemms),
                       micros(b.fused), micros(b.called),
                       millis(static_cast<double>(c.calls) * longer(b.gemms, b.called)));
  }
  out += fmt::format("\n{:<20} {:>14} {:>14} {:>14}\n", "class", "ms, fused", "ms, as called", "difference");
  for (size_t k = 0; k < rank.fused_seconds.size(); ++k)
    if (rank.fused_seconds[k] > 0 || rank.called_seconds[k] > 0)
      out +=
          fmt::format("{:<20} {:>14} {:>14} {:>14}\n", name_of(static_cast<OpClass>(k)), millis(rank.fused_seconds[k]),
                      millis(rank.called_seconds[k]), millis(rank.called_seconds[k] - rank.fused_seconds[k]));
  return out;
}

std::string ceilings_text(const PeakRates& c, int64_t head_dim, int64_t seq) {
  std::string out =
      fmt::format("{}{}: GEMMs {} in {}", c.device, c.planned ? " by planning constants, not measured" : ", measured",
                  flops_text(c.gemm), c.dtype);
  if (!std::isnan(c.gemm_fp8)) out += cat(" (", flops_text(c.gemm_fp8), " in FP8)");
  out += fmt::format(", copies {:.1f} GB/s", c.copy * 1e-9);
  if (const AttentionCeiling* a = c.attention_at(head_dim, seq))
    return cat(out, ", attention ", flops_text(a->forward), " forward, ", flops_text(a->backward), " backward");
  return out + fmt::format(", attention of {} tokens and heads of {} unknown", seq, head_dim);
}

}  // namespace gt
