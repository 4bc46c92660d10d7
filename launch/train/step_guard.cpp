#include "launch/train/step_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
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

SpikeWindow window_from(const Json& j) {
  SpikeWindow w;
  for (const Json& text : j) w.add(std::strtod(text.get<std::string>().c_str(), nullptr));
  return w;
}

}  // namespace

SpikeAction spike_action_from(const std::string& name) {
  if (name == "skip") return SpikeAction::kSkip;
  if (name == "rollback") return SpikeAction::kRollback;
  if (name == "warn") return SpikeAction::kWarn;
  GT_CHECK(name == "off", "fault.spike_action ", name);
  return SpikeAction::kOff;
}

double SpikeWindow::at(int64_t k) const {
  return values_[static_cast<size_t>((count_ - held() + k) % kSize)];
}

double SpikeWindow::median() const { return full() ? median_of(values_) : 0; }

double SpikeWindow::spread() const {
  if (!full()) return std::numeric_limits<double>::infinity();
  const double m = median();
  Values far;
  for (size_t k = 0; k < far.size(); ++k) far[k] = std::abs(values_[k] - m);
  return std::max({1.4826 * median_of(far), 1e-3 * std::abs(m), 1e-12});
}

double SpikeWindow::z(double value) const { return full() ? spreads_above(value, median(), spread()) : 0; }

StepLimits StepGuard::limits() const {
  StepLimits limits{losses_.median(), losses_.spread(), norms_.median(), norms_.spread(), options_.spike_z};
  if (may_relearn()) limits.norm_spread = StepLimits::kInfinity;
  if (options_.action == SpikeAction::kWarn || options_.action == SpikeAction::kOff) limits.most = StepLimits::kInfinity;
  return limits;
}

bool StepGuard::may_relearn() const {
  return consecutive_ + 1 >= options_.bad_steps && norms_only_ && options_.clipped &&
         options_.action == SpikeAction::kSkip;
}

bool StepGuard::judge(double loss, double grad_norm, bool overflow_is_normal) {
  loss_ = loss;
  norm_ = grad_norm;
  loss_z_ = norm_z_ = 0;
  finite_ = std::isfinite(loss) && std::isfinite(grad_norm);
  bad_ = skipped_ = wants_rollback_ = relearns_ = false;
  if (!finite_ && std::isfinite(loss) && overflow_is_normal) return true;  // neither bad nor good
  if (finite_ && options_.action != SpikeAction::kOff) {
    loss_z_ = losses_.z(loss);
    norm_z_ = norms_.z(grad_norm);
  }
  bad_ = !finite_ || std::max(loss_z_, norm_z_) > options_.spike_z;
  return bad_ ? judge_bad() : (accept(), false);
}

void StepGuard::accept() {
  losses_.add(loss_);
  norms_.add(norm_);
  consecutive_ = 0;
  norms_only_ = true;
  if (++good_ >= kGoodSteps) rollbacks_ = 0;
}

bool StepGuard::judge_bad() {
  good_ = 0;
  if (finite_ && options_.action == SpikeAction::kWarn) return false;
  norms_only_ = norms_only_ && finite_ && loss_z_ <= options_.spike_z;
  relearns_ = may_relearn();
  const bool too_many = ++consecutive_ >= options_.bad_steps;
  if (relearns_) {
    norms_ = SpikeWindow();
    accept();
    return false;
  }
  wants_rollback_ = too_many || (finite_ && options_.action == SpikeAction::kRollback);
  return skipped_ = true;
}

std::string StepGuard::reason() const {
  if (!finite_)
    return fmt::format("loss {}, gradient norm {}: not finite", loss_, norm_);
  if (relearns_)
    return fmt::format("gradient norm {:.6g} is far above those before, as in the {} steps before it, and the loss is not: "
                       "the step is taken; norms are judged again after {} steps",
                       norm_, options_.bad_steps - 1, SpikeWindow::kSize);
  const bool loss = loss_z_ >= norm_z_;
  return fmt::format("{} {:.6g} is {:.1f} deviations above {:.6g}, the median of the last {} good steps",
                     loss ? "loss" : "gradient norm", loss ? loss_ : norm_, loss ? loss_z_ : norm_z_,
                     loss ? losses_.median() : norms_.median(), SpikeWindow::kSize);
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
               {"norms_only", norms_only_}};
  return j.dump();
}

void StepGuard::restore(const std::string& text, bool keep_rollbacks) {
  const int64_t rollbacks = rollbacks_;
  losses_ = norms_ = SpikeWindow();
  consecutive_ = rollbacks_ = good_ = 0;
  norms_only_ = true;
  if (!text.empty()) {
    const Json j = Json::parse(text);
    losses_ = window_from(j.at("loss"));
    norms_ = window_from(j.at("grad_norm"));
    consecutive_ = j.at("consecutive").get<int64_t>();
    rollbacks_ = j.at("rollbacks").get<int64_t>();
    good_ = j.at("good").get<int64_t>();
    norms_only_ = j.value("norms_only", consecutive_ == 0);  // absent in checkpoints of older versions
  }
  if (keep_rollbacks) rollbacks_ = rollbacks, consecutive_ = good_ = 0, norms_only_ = true;
}

std::pair<int64_t, int64_t> skip_window(int64_t bad_sample, int64_t global_batch, int64_t batches) {
  const int64_t half = batches / 2 * global_batch;
  return {std::max<int64_t>(0, bad_sample - half), bad_sample + std::max(half, batches > 0 ? global_batch : 0)};
}

}  // namespace gt
