#include "launch/tools/verify/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "optim/optimizer_rules.h"

namespace gt {
namespace {

class Comparer {
 public:
  Comparer(const MeshResult& layout, const MeshResult& reference, const Limits& limits)
      : a_(layout), b_(reference), limits_(limits) {}

  std::vector<Difference> run() {
    for (size_t k = 0; k < b_.losses.size(); ++k) {
      step_ = static_cast<int>(k);
      if (k == 0) activations();
      const double limit = limits_.free && k > 0 ? limits_.later : limits_.loss;
      scalar(Quantity::kLoss, "loss", a_.losses, b_.losses, limit);
      for (size_t i = 0; i < b_.parts.size(); ++i)
        scalar(Quantity::kLoss, b_.parts[i].first + " loss", a_.parts.at(i).second, b_.parts[i].second, limit);
      const Snapshot &a = a_.steps.at(k), &b = b_.steps[k];
      const bool overflow = overflowed(a_.norms) && overflowed(b_.norms);  // both runs skipped the step
      if (!b.grads.empty() && !overflow)
        tensors(Quantity::kGradient, {b_.order.rbegin(), b_.order.rend()}, a.grads, b.grads);
      if (!overflow) mark_significant(b.grads);
      const bool astray = limits_.free && k > 0;
      if (overflow)
        add(Quantity::kNorm, "grad norm", 0, limits_.norm);
      else if (!astray)
        scalar(Quantity::kNorm, "grad norm", a_.norms, b_.norms, limits_.norm);
      if (!astray && !b.weights.empty()) tensors(Quantity::kParameter, b_.order, a.weights, b.weights);
      if (!astray && !b.state.empty()) tensors(Quantity::kState, names(b.state), a.state, b.state);
      copies();
    }
    return std::move(out_);
  }

 private:
  Difference& add(Quantity quantity, const std::string& name, double error, double limit) {
    Difference& d = out_.emplace_back();
    d.quantity = quantity;
    d.name = name;
    d.step = step_ + 1;
    d.error = error;
    d.limit = limit;
    d.bad = !(error <= limit);
    return d;
  }

  void scalar(Quantity quantity, const std::string& name, const std::vector<double>& a, const std::vector<double>& b,
              double limit) {
    const auto k = static_cast<size_t>(step_);
    double e = std::numeric_limits<double>::infinity();
    if (k < a.size() && std::isfinite(a[k])) e = std::abs(a[k] - b[k]) / std::max(std::abs(b[k]), 1e-30);
    add(quantity, name, e, limit);
  }

  bool overflowed(const std::vector<double>& norms) const {
    const auto k = static_cast<size_t>(step_);
    return k < norms.size() && !std::isfinite(norms[k]);
  }

  static std::vector<std::string> names(const Logical& l) {
    std::vector<std::string> out;
    for (const auto& [name, unused] : l) out.push_back(name);
    return out;
  }

  static std::vector<float> roots(std::vector<float> x) {
    for (float& v : x) v = std::sqrt(v);
    return x;
  }

  void tensors(Quantity quantity, const std::vector<std::string>& order, const Logical& a, const Logical& b) {
    static const std::vector<float> kNone;
    for (const std::string& name : order) {
      const auto ia = a.find(name), ib = b.find(name);
      const std::vector<float>&x_a = ia == a.end() ? kNone : ia->second, &x_b = ib == b.end() ? kNone : ib->second;
      // Square roots of sums of squared gradients are at least as close as gradients.
      const bool squares = limits_.cosine > 0 && quantity == Quantity::kState && holds_squares(name);
      const TensorDistance d = quantity == Quantity::kParameter && limits_.tensor > 0 ? parameter(name, x_a, x_b)
                               : squares                                              ? distance(roots(x_a), roots(x_b))
                                                                                      : distance(x_a, x_b);
      Difference& x = add(quantity, name, d.relative, limits_.tensor);
      x.ulp = d.ulp;
      // Rounding errors of elements average out in a long tensor, not in a norm of 16, nor in an amax history that has
      // two entries yet.
      const auto zeros = static_cast<size_t>(std::count(x_b.begin(), x_b.end(), 0.f));
      const double few =
          std::max(1.0, limits_.few / std::sqrt(static_cast<double>(std::max<size_t>(x_b.size() - zeros, 1))));
      if (limits_.cosine > 0) {
        const double angle = (1 - limits_.cosine) * few, off_length = limits_.length * few;
        const bool turned = !(1 - d.cosine <= angle), stretched = !(std::abs(d.length - 1) <= off_length);
        x.bad = turned || stretched;
        if (turned && std::isfinite(d.relative))
          x.missed = fmt::format("cosine {:.5g} where {:.5g} is needed", d.cosine, 1 - angle);
        else if (stretched && std::isfinite(d.relative))
          x.missed =
              fmt::format("{:.4g} times as long where {:.2g} % more or less is allowed", d.length, 100 * off_length);
      }
      if (const auto h = a_.holders.find(quantity == Quantity::kState ? logical_name(name) : name);
          h != a_.holders.end())
        x.ranks = h->second;
    }
  }

  // Marks the elements that have had a significant gradient.
  void mark_significant(const Logical& grads) {
    for (const auto& [name, g] : grads) {
      std::vector<char>& heeded = significant_[name];
      heeded.resize(g.size());
      double squares = 0;
      for (float x : g) squares += double{x} * x;
      const double least = 1e-3 * std::sqrt(squares / static_cast<double>(std::max<size_t>(g.size(), 1)));
      for (size_t i = 0; i < g.size(); ++i)
        if (g[i] != 0 && std::abs(g[i]) >= least) heeded[i] = 1;
    }
  }

  TensorDistance parameter(const std::string& name, const std::vector<float>& a, std::vector<float> b) const {
    const Logical& earlier = step_ == 0 ? b_.initial : b_.steps[static_cast<size_t>(step_) - 1].weights;
    const auto heeded = significant_.find(name);
    const auto before = earlier.find(name);
    if (heeded == significant_.end() || before == earlier.end() || a.size() != b.size()) return distance(a, b);
    float update = 0;
    for (size_t i = 0; i < b.size(); ++i) update = std::max(update, std::abs(b[i] - before->second[i]));
    for (size_t i = 0; i < b.size(); ++i)
      if (heeded->second[i] == 0 && std::abs(a[i] - b[i]) <= 2.5f * update) b[i] = a[i];
    return distance(a, b);
  }

  void activations() {
    for (const std::string& module : b_.modules) {
      Difference worst;
      for (auto it = b_.activations.lower_bound({module, INT64_MIN});
           it != b_.activations.end() && it->first.first == module; ++it) {
        const auto found = a_.activations.find(it->first);
        const double e = found == a_.activations.end() ? std::numeric_limits<double>::infinity()
                                                       : activation_error(found->second, it->second);
        if (worst.sample < 0 || e > worst.error) worst.sample = it->first.second, worst.error = e;
      }
      add(Quantity::kActivation, module, worst.error, limits_.tensor).sample = worst.sample;
    }
  }

  void copies() {
    for (const StaleCopy& s : a_.stale)
      if (s.step == step_) add(Quantity::kCopy, s.name, std::numeric_limits<double>::infinity(), 0).ranks = {s.rank};
  }

  const MeshResult &a_, &b_;
  const Limits& limits_;
  int step_ = 0;
  std::map<std::string, std::vector<char>> significant_;
  std::vector<Difference> out_;
};

}  // namespace

const char* name_of(Quantity s) {
  constexpr const char* kNames[] = {"output",          "loss", "gradient", "gradient norm", "parameter",
                                    "optimizer state", "copy", "calls"};
  return kNames[static_cast<size_t>(s)];
}

Limits exact_limits() { return {0, 0, 0}; }

Limits limits_for(DType compute) {
  if (compute == DType::kF32) return {};
  if (compute == DType::kF8E5M2)
    return {.loss = 0.01, .norm = 0.03, .tensor = 0.15, .later = 0.01, .cosine = 0.99, .length = 0.03, .few = 12};
  return {.loss = 0.01, .norm = 0.01, .tensor = 0.05, .later = 0.01, .cosine = 0.999, .length = 0.015};
}

std::vector<Difference> compare(const MeshResult& layout, const MeshResult& reference, const Limits& limits) {
  return Comparer(layout, reference, limits).run();
}

int64_t forgive_rounding(std::vector<Difference>& found, const std::vector<Difference>& rounding) {
  constexpr double kMost = 0.2;
  std::map<std::tuple<Quantity, std::string, int>, double> own;
  for (const Difference& d : rounding) own[{d.quantity, d.name, d.step}] = d.error;
  int64_t forgiven = 0;
  for (Difference& d : found) {
    const auto it = own.find({d.quantity, d.name, d.step});
    if (!d.bad || d.quantity == Quantity::kCopy || it == own.end()) continue;
    if (!(d.error <= std::min(kRoundings * it->second, kMost))) continue;
    d.bad = false;
    ++forgiven;
  }
  return forgiven;
}

const Difference* first_bad(const std::vector<Difference>& all) {
  const auto it = std::find_if(all.begin(), all.end(), [](const Difference& d) { return d.bad; });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace gt
