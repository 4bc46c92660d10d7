#include "data/samples/blend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "kernels/core/check.h"

namespace gt {
namespace {
constexpr size_t kMaxDatasets = 32767;

bool parse_number(const std::string& text, double* v) {
  char* end = nullptr;
  *v = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0';
}
}  // namespace

std::vector<DataSource> parse_sources(const std::vector<std::string>& words, std::vector<std::string>* warnings) {
  GT_REQUIRE(!words.empty(), Exit::kUsage,
             "data.train: expected a path, or weight path weight path ..., found nothing");
  std::vector<DataSource> out;
  double w = 0;
  if (parse_number(words[0], &w)) {
    GT_REQUIRE(words.size() % 2 == 0, Exit::kUsage, "data.train: expected pairs of weight and path, found ",
               words.size(), " words; the last, \"", words.back(), "\" at position ", words.size(), ", has no partner");
    for (size_t i = 0; i < words.size(); i += 2) {
      GT_REQUIRE(parse_number(words[i], &w) && std::isfinite(w) && w > 0, Exit::kUsage, "data.train: position ", i + 1,
                 ": expected a weight above 0, found \"", words[i], "\"");
      out.push_back({words[i + 1], w});
    }
  } else {
    for (const std::string& p : words) out.push_back({p, 0});
  }
  check_sources(out, warnings);
  return out;
}

void check_sources(std::span<const DataSource> sources, std::vector<std::string>* warnings) {
  GT_REQUIRE(!sources.empty(), Exit::kUsage, "data.train: expected at least one dataset, found none");
  GT_REQUIRE(sources.size() <= kMaxDatasets, Exit::kUsage, "data.train: expected at most ", kMaxDatasets,
             " datasets, found ", sources.size());
  const bool weighted = std::any_of(sources.begin(), sources.end(), [](const DataSource& s) { return s.weight != 0; });
  for (size_t i = 0; i < sources.size(); ++i) {
    const double w = sources[i].weight;
    GT_REQUIRE(!weighted || (std::isfinite(w) && w > 0), Exit::kUsage, "data.train: dataset ", i + 1, " (",
               sources[i].path, "): expected a weight above 0, found ", w);
    for (size_t j = 0; j < i && warnings != nullptr && sources.size() <= 1000; ++j)
      if (sources[j].path == sources[i].path)
        warnings->push_back(cat("data.train: ", sources[i].path, " is named at positions ", j + 1, " and ", i + 1,
                                ": their counts add up"));
  }
}

Blend::Blend(std::span<const double> weights) : share_(weights.begin(), weights.end()), count_(weights.size(), 0) {
  double sum = std::accumulate(share_.begin(), share_.end(), 0.0);
  if (std::isinf(sum)) {  // each is finite
    const double most = *std::max_element(share_.begin(), share_.end());
    for (double& w : share_) w /= most;
    sum = std::accumulate(share_.begin(), share_.end(), 0.0);
  }
  GT_CHECK(sum > 0 && std::isfinite(sum), "weights sum up to ", sum);
  for (double& w : share_) w /= sum;
  saved_ = count_;
}

int32_t Blend::pick() const {
  const auto k = static_cast<double>(std::max<int64_t>(k_, 1));
  size_t best = 0;
  double most = share_[0] * k - static_cast<double>(count_[0]);
  for (size_t i = 1; i < share_.size(); ++i) {
    const double error = share_[i] * k - static_cast<double>(count_[i]);
    if (error > most) most = error, best = i;
  }
  return static_cast<int32_t>(best);
}

void Blend::seek(int64_t k) {
  const auto n = static_cast<int64_t>(share_.size());
  const int64_t row = std::min(k / kStep, static_cast<int64_t>(saved_.size()) / n - 1);
  if (k < k_ || row * kStep > k_) {  // before the current state, or a saved row is nearer
    k_ = row * kStep;
    std::copy_n(saved_.begin() + row * n, n, count_.begin());
  }
  while (k_ < k) {
    ++count_[static_cast<size_t>(pick())];
    ++k_;
    if (k_ % kStep == 0 && k_ / kStep == static_cast<int64_t>(saved_.size()) / n)
      saved_.insert(saved_.end(), count_.begin(), count_.end());
  }
}

Blend::Draw Blend::at(int64_t k) {
  seek(k);
  const int32_t d = pick();
  return {d, count_[static_cast<size_t>(d)]};
}

std::span<const int64_t> Blend::counts_before(int64_t k) {
  seek(k);
  return count_;
}

}  // namespace gt
