#include "launch/train/step_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"

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

double SpikeWindow::median() const { return median_of(values_); }

double SpikeWindow::z(double value) const {
  if (!full()) return 0;
  const double m = median();
  Values far;
  for (size_t k = 0; k < far.size(); ++k) far[k] = std::abs(values_[k] - m);
  return (value - m) / std::max({1.4826 * median_of(far), 1e-3 * std::abs(m), 1e-12});
}

bool StepGuard::judge(double loss, double grad_norm, bool overflow_is_normal) {
  loss_ = loss;
  norm_ = grad_norm;
  loss_z_ = norm_z_ = 0;
  finite_ = std::isfinite(loss) && std::isfinite(grad_norm);
  bad_ = skipped_ = wants_rollback_ = false;
  if (!finite_ && std::isfinite(loss) && overflow_is_normal) return true;  // neither bad nor good
  if (finite_ && options_.action != SpikeAction::kOff) {
    loss_z_ = losses_.z(loss);
    norm_z_ = norms_.z(grad_norm);
  }
  bad_ = !finite_ || std::max(loss_z_, norm_z_) > options_.spike_z;
  if (!bad_) {
    losses_.add(loss);
    norms_.add(grad_norm);
    consecutive_ = 0;
    if (++good_ >= kGoodSteps) rollbacks_ = 0;
    return false;
  }
  good_ = 0;
  skipped_ = !finite_ || options_.action != SpikeAction::kWarn;
  if (!skipped_) return false;
  ++consecutive_;
  wants_rollback_ = consecutive_ >= options_.bad_steps || (finite_ && options_.action == SpikeAction::kRollback);
  return true;
}

std::string StepGuard::reason() const {
  if (!finite_)
    return fmt::format("loss {}, gradient norm {}: not finite", loss_, norm_);
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
               {"good", good_}};
  return j.dump();
}

void StepGuard::restore(const std::string& text, bool keep_rollbacks) {
  const int64_t rollbacks = rollbacks_;
  losses_ = norms_ = SpikeWindow();
  consecutive_ = rollbacks_ = good_ = 0;
  if (!text.empty()) {
    const Json j = Json::parse(text);
    losses_ = window_from(j.at("loss"));
    norms_ = window_from(j.at("grad_norm"));
    consecutive_ = j.at("consecutive").get<int64_t>();
    rollbacks_ = j.at("rollbacks").get<int64_t>();
    good_ = j.at("good").get<int64_t>();
  }
  if (keep_rollbacks) rollbacks_ = rollbacks, consecutive_ = good_ = 0;
}

std::pair<int64_t, int64_t> skip_window(int64_t bad_sample, int64_t global_batch, int64_t batches) {
  const int64_t half = batches / 2 * global_batch;
  return {std::max<int64_t>(0, bad_sample - half), bad_sample + std::max(half, batches > 0 ? global_batch : 0)};
}

}  // namespace gt
