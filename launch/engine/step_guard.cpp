#include "launch/engine/step_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"
#include "kernels/core/step_limits.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::array<double, SpikeWindow::kSize>;

double median_of(Values v) {
  constexpr auto kHalf = static_cast<ptrdiff_t>(SpikeWindow::kSize / 2);
  std::nth_element(v.begin(), v.begin() + kHalf, v.end());
  const double upper = v[kHalf];
  return 0.5 * (*std::max_element(v.begin(), v.begin() + kHalf) + upper);
}

Json to_json(const SpikeWindow& w) {
  Json out = Json::array();
  for (int64_t k = 0; k < w.held(); ++k) out.push_back(fmt::format("{:a}", w.at(k)));
  return out;
}

void refill(SpikeWindow& w, const Json& j, const std::string& key) {
  w.clear();
  for (size_t k = 0; k < member(j, key).size(); ++k)
    w.add(std::strtod(field<std::string>(j, cat(key, ".", k)).c_str(), nullptr));
}

// Returns max(1.4826 x median distance from `middle`, floor): a robust estimate of the standard deviation.
double deviation(const Values& values, double middle, double floor) {
  Values far;
  for (size_t k = 0; k < far.size(); ++k) far[k] = std::abs(values[k] - middle);
  return std::max(1.4826 * median_of(far), floor);
}

Values logarithms(const Values& values) {
  Values out;
  std::transform(values.begin(), values.end(), out.begin(), [](double v) { return std::log(std::max(v, 1e-300)); });
  return out;
}

}  // namespace

double SpikeWindow::at(int64_t k) const { return values_[static_cast<size_t>((count_ - held() + k) % kSize)]; }

double SpikeWindow::median() const {
  if (!full()) return 0;
  return scale_ == Scale::kLinear ? median_of(values_) : std::exp(median_of(logarithms(values_)));
}

double SpikeWindow::spread(double most) const {
  if (!full()) return std::numeric_limits<double>::infinity();
  if (scale_ == Scale::kLinear) {
    const double m = median_of(values_);
    return deviation(values_, m, std::max(1e-3 * std::abs(m), 1e-12));
  }
  const Values logs = logarithms(values_);
  const double m = median_of(logs), s = deviation(logs, m, 1e-3);
  return std::exp(m) * std::expm1(most * s) / most;
}

double SpikeWindow::z(double value, double most) const {
  return full() ? spreads_above(value, median(), spread(most)) : 0;
}

StepLimits StepGuard::limits() const {
  const double most = options_.spike_z;
  StepLimits limits{losses_.median(), losses_.spread(most), norms_.median(), norms_.spread(most), most};
  if (may_relearn()) limits.norm_spread = StepLimits::kInfinity;
  if (options_.action == SpikeAction::kWarn || options_.action == SpikeAction::kOff)
    limits.most = StepLimits::kInfinity;
  return limits;
}

bool StepGuard::may_relearn() const {
  return consecutive_ + 1 >= options_.bad_steps && norms_only_ && options_.clipped &&
         options_.action == SpikeAction::kSkip;
}

bool StepGuard::check(double loss, double grad_norm, bool overflow_is_normal) {
  loss_ = loss;
  norm_ = grad_norm;
  loss_z_ = norm_z_ = 0;
  loss_median_ = losses_.median(), norm_median_ = norms_.median();
  finite_ = std::isfinite(loss) && std::isfinite(grad_norm);
  bad_ = skipped_ = needs_rollback_ = relearns_ = false;
  if (!finite_ && std::isfinite(loss) && overflow_is_normal) return true;  // neither anomalous nor normal
  if (finite_ && options_.action != SpikeAction::kOff) {
    loss_z_ = losses_.z(loss, options_.spike_z);
    norm_z_ = norms_.z(grad_norm, options_.spike_z);
  }
  bad_ = !finite_ || std::max(loss_z_, norm_z_) > options_.spike_z;
  return bad_ ? handle_anomaly() : (accept(), false);
}

void StepGuard::accept() {
  losses_.add(loss_);
  norms_.add(norm_);
  consecutive_ = 0;
  norms_only_ = true;
  if (++good_ >= kGoodSteps) rollbacks_ = 0;
}

bool StepGuard::handle_anomaly() {
  good_ = 0;
  if (finite_ && options_.action == SpikeAction::kWarn) {
    ++spikes_taken_;
    accept();  // the update was applied: medians tolerate it, and a persistent level becomes normal
    return false;
  }
  norms_only_ = norms_only_ && finite_ && loss_z_ <= options_.spike_z;
  relearns_ = may_relearn();
  const bool too_many = ++consecutive_ >= options_.bad_steps;
  if (relearns_) {
    ++spikes_taken_;
    norms_.clear();
    accept();
    return false;
  }
  needs_rollback_ = too_many || (finite_ && options_.action == SpikeAction::kRollback);
  return skipped_ = true;
}

std::string StepGuard::reason() const {
  if (!finite_) return fmt::format("loss {}, gradient norm {}: not finite", loss_, norm_);
  if (relearns_)
    return fmt::format(
        "gradient norm {:.6g} is far above the median, as in the {} steps before, but the loss is not: the update is "
        "applied; norms are checked again after {} steps",
        norm_, options_.bad_steps - 1, SpikeWindow::kSize);
  const bool loss = loss_z_ >= norm_z_;
  const double value = loss ? loss_ : norm_, median = loss ? loss_median_ : norm_median_;
  if (loss)
    return fmt::format("loss {:.6g} is {:.1f} deviations above {:.6g}, the median of the last {} normal steps", value,
                       loss_z_, median, SpikeWindow::kSize);
  return fmt::format("gradient norm {:.6g} is {:.3g} times {:.6g}, the median of the last {} normal steps", value,
                     value / median, median, SpikeWindow::kSize);
}

bool StepGuard::count_rollback() {
  if (rollbacks_ >= options_.max_rollbacks) return false;
  ++rollbacks_;
  return true;
}

std::string StepGuard::json() const {
  const Json j{{"loss", to_json(losses_)},
               {"grad_norm", to_json(norms_)},
               {"consecutive", consecutive_},
               {"rollbacks", rollbacks_},
               {"good", good_},
               {"norms_only", norms_only_},
               {"spikes_taken", spikes_taken_}};
  return j.dump();
}

void StepGuard::restore(const std::string& text, bool keep_rollbacks) {
  const int64_t rollbacks = rollbacks_;
  losses_.clear(), norms_.clear();
  consecutive_ = rollbacks_ = good_ = spikes_taken_ = 0;
  norms_only_ = true;
  if (!text.empty()) {
    const Json j = parse_json<Json>(text, "anomaly state of the checkpoint", {.code = Exit::kDamaged});
    refill(losses_, j, "loss");
    refill(norms_, j, "grad_norm");
    consecutive_ = field<int64_t>(j, "consecutive");
    rollbacks_ = field<int64_t>(j, "rollbacks");
    good_ = field<int64_t>(j, "good");
    norms_only_ =
        field_or(j, "norms_only", consecutive_ == 0);  // absent in checkpoints of older versions, like the next field
    spikes_taken_ = field_or(j, "spikes_taken", int64_t{0});
  }
  if (keep_rollbacks) rollbacks_ = rollbacks, consecutive_ = good_ = 0, norms_only_ = true;
}

std::pair<int64_t, int64_t> skip_window(int64_t bad_sample, int64_t global_batch, int64_t batches) {
  const int64_t half = batches / 2 * global_batch;
  return {std::max<int64_t>(0, bad_sample - half), bad_sample + std::max(half, batches > 0 ? global_batch : 0)};
}

}  // namespace gt
