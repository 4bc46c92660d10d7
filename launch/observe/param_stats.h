// Norms and histograms of parameters, gradients and updates over all ranks, for logs. Each element counts once,
// whatever the layout. A measured step copies this rank's part of the parameters to host memory twice.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launch/engine/engine.h"
#include "launch/observe/metrics.h"

namespace gt {

// Counts of numbers in bins between +-1.1^k 1e-12, up to 1e20; zero has a bin of its own.
class LogBins {
 public:
  static constexpr int kPerSign = 774;            // of 1e-12 1.1^k, k from 0, and one for all beyond
  static constexpr int kBins = 2 * kPerSign + 1;  // negative ones from the largest, zero, positive ones
  static constexpr int kNumbers = kBins + 3;      // then: sum, sum of squares, numbers that are not finite
  static int bin_of(double x);                    // x finite
  static double upper_limit(int bin);             // bins are half-open: (limit of the one before, limit]
  static void add(double x, double* numbers);     // numbers: [kNumbers]
  // `min` and `max` exact, empty bins at both ends cut.
  static Histogram histogram(const double* numbers, double min, double max);
};

class ParamStats {
 public:
  // All outlive this object.
  ParamStats(Engine&, const Backend&, Stream);

  // Before a step: copies the trained values of this rank.
  void before_step();

  struct Summary {
    double param_norm = 0, update_norm = 0;   // of all parameters
    std::vector<HistogramRecord> histograms;  // rank 0's to log; empty without `histograms`
    double nonfinite = 0;                     // of the numbers in them
  };
  // After the step. Collective over the world; sums are equal on every rank. grad_scale: factor on gradients.
  Summary after_step(int64_t step, bool histograms, double grad_scale);

 private:
  using Values = std::vector<std::vector<float>>;  // by saved view
  std::vector<ShardView> saved(std::vector<ShardView>) const;
  Values fetch(const std::vector<ShardView>&) const;
  size_t param_of(const ShardView&) const;
  void add_histograms(const std::string& kind, const std::vector<ShardView>&, const Values&, double scale, int64_t step,
                      Summary&);
  Engine& engine_;
  const Backend& backend_;
  const Stream stream_;
  std::map<std::string, size_t> params_;  // place in the model's list, by name
  Values before_;
};

}  // namespace gt
