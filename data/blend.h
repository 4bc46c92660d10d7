// Several datasets as one stream: which dataset gives sample k, and which of its samples that is. A pure function of
// the weights and k (largest deficit first), so a blend has no state and never runs out. Knows no files and no tokens.
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

// `data.train` as words: paths, or weight path weight path … . kUsage naming the position: a weight that is no number,
// 0, negative or not finite, an odd list, more than 32767 datasets. Appends warnings (a dataset named twice).
std::vector<DataSource> parse_sources(const std::vector<std::string>& words, std::vector<std::string>* warnings);
// The same rules for a list that is already parsed: either all weights are given or none.
void check_sources(std::span<const DataSource> sources, std::vector<std::string>* warnings);

// error_i = w_i max(k, 1) - count_i in float64 with w scaled to sum 1; the largest gives sample k, the first wins a
// tie.
class Blend {
 public:
  struct Draw {
    int32_t dataset;
    int64_t sample;
  };

  explicit Blend(std::span<const double> weights);
  std::span<const double> shares() const { return share_; }  // of sum 1

  // Sample k of the stream. Counts are kept every 65,536 draws, as far as the stream has been reached: any ordinal
  // below costs less than 65,536 draws, the next one costs one. Not thread-safe.
  Draw at(int64_t k);
  // How many of the first k samples each dataset gave.
  std::span<const int64_t> counts_before(int64_t k);

 private:
  static constexpr int64_t kStep = 65536;
  void seek(int64_t k);
  int32_t pick() const;
  std::vector<double> share_;
  std::vector<int64_t> saved_;  // counts at 0, kStep, 2 kStep, …: one row each
  std::vector<int64_t> count_;  // at k_
  int64_t k_ = 0;
};

}  // namespace gt
