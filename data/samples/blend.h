// Blends datasets into one stream: maps sample k to a dataset and one of its samples. A pure function of the weights
// and k (largest deficit first), so a blend has no state and never runs out. Independent of files and tokens.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gt {

struct DataSource {
  std::string path;   // PREFIX of a token file, or "mock"
  double weight = 0;  // 0: not given
};

// Parses `data.train`: paths, or weight path weight path ... . kUsage naming the position: a weight that is not a
// positive finite number, an odd list, more than 32767 datasets. Appends warnings (a dataset named twice).
std::vector<DataSource> parse_sources(const std::vector<std::string>& words, std::vector<std::string>* warnings);
// Applies the same rules to a parsed list: weights must be given for all sources or none.
void check_sources(std::span<const DataSource> sources, std::vector<std::string>* warnings);

// error_i = w_i max(k, 1) - count_i in f64 with w scaled to sum 1; the largest gives sample k, ties go to the first.
class Blend {
 public:
  struct Draw {
    int32_t dataset;
    int64_t sample;
  };

  explicit Blend(std::span<const double> weights);
  std::span<const double> shares() const { return share_; }  // normalized to sum 1

  // Returns sample k of the stream. Counts are saved every 65,536 draws of the visited prefix: seeking inside it costs
  // fewer than 65,536 draws, the next sample costs one. Not thread-safe.
  Draw at(int64_t k);
  // Samples that each dataset contributed to the first k.
  std::span<const int64_t> counts_before(int64_t k);

 private:
  static constexpr int64_t kStep = 65536;
  void seek(int64_t k);
  int32_t pick() const;
  std::vector<double> share_;
  std::vector<int64_t> saved_;  // counts at 0, kStep, 2 kStep, ...: one row each
  std::vector<int64_t> count_;  // at k_
  int64_t k_ = 0;
};

}  // namespace gt
