#include "parallel/pipeline/partition.h"

#include <algorithm>
#include <limits>
#include <regex>
#include <set>

#include "kernels/core/check.h"

namespace gt {
namespace {

__extension__ typedef unsigned __int128 Wide;  // sums of squared FLOPs exceed 64 bits

std::vector<int64_t> prefix_sums(std::span<const int64_t> weights) {
  std::vector<int64_t> sum(weights.size() + 1, 0);
  for (size_t i = 0; i < weights.size(); ++i) sum[i + 1] = sum[i] + weights[i];
  return sum;
}

// Table over (first layer, parts), flattened: entry [begin * (parts + 1) + left].
template <class T>
class Table {
 public:
  Table(size_t rows, size_t columns, T value) : columns_(columns), cells_(rows * columns, value) {}
  T& operator()(size_t row, size_t column) { return cells_[row * columns_ + column]; }

 private:
  size_t columns_;
  std::vector<T> cells_;
};

// Returns the smallest possible maximum over the parts of layers [0, n), each part non-empty.
int64_t smallest_maximum(const std::vector<int64_t>& sum, size_t parts) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const size_t n = sum.size() - 1;
  Table<int64_t> best(n + 1, parts + 1, kNone);
  best(n, 0) = 0;
  for (size_t left = 1; left <= parts; ++left)
    for (size_t begin = 0; begin + left <= n; ++begin)
      for (size_t end = begin + 1; end + left - 1 <= n; ++end) {
        const int64_t rest = best(end, left - 1);
        if (rest != kNone) best(begin, left) = std::min(best(begin, left), std::max(sum[end] - sum[begin], rest));
      }
  return best(0, parts);
}

// Among partitions with the smallest maximum: the smallest sum of squares. Boundaries are chosen front to back, so that
// ties resolve to the lexicographically first list.
std::vector<int> by_flops(std::span<const int64_t> weights, size_t parts) {
  const std::vector<int64_t> sum = prefix_sums(weights);
  const size_t n = weights.size();
  const int64_t limit = smallest_maximum(sum, parts);
  constexpr Wide kNone = ~Wide{0};
  Table<Wide> squares(n + 1, parts + 1, kNone);
  squares(n, 0) = 0;
  const auto with = [&](size_t begin, size_t end, size_t left) {  // first part [begin, end), then left - 1 parts
    const auto part = static_cast<Wide>(sum[end] - sum[begin]);
    const Wide rest = squares(end, left - 1);
    return rest == kNone || sum[end] - sum[begin] > limit ? kNone : part * part + rest;
  };
  for (size_t left = 1; left <= parts; ++left)
    for (size_t begin = 0; begin + left <= n; ++begin)
      for (size_t end = begin + 1; end + left - 1 <= n; ++end)
        squares(begin, left) = std::min(squares(begin, left), with(begin, end, left));
  std::vector<int> out{0};
  for (size_t left = parts, begin = 0; left > 0; --left) {
    size_t end = begin + 1;
    while (with(begin, end, left) != squares(begin, left)) ++end;
    out.push_back(static_cast<int>(end));
    begin = end;
  }
  return out;
}

std::vector<int> uniform(size_t n, size_t parts) {
  std::vector<int> out{0};
  for (size_t k = 0; k < parts; ++k) out.push_back(out.back() + static_cast<int>(n / parts + (k < n % parts ? 1 : 0)));
  return out;
}

// DeepSpeed's rule: for the first i layers in j parts keep the split with the smallest difference between largest and
// smallest part. Only kept splits are extended; ties resolve to the later one. Not always optimal, but the layout
// DeepSpeed users have.
std::vector<int> by_difference(std::span<const int64_t> weights, size_t parts) {
  const size_t n = weights.size();
  if (n <= parts) return uniform(n, parts);
  struct Best {
    bool known = false;
    int64_t most = 0, least = 0;
    size_t from = 0;
  };
  const std::vector<int64_t> sum = prefix_sums(weights);
  Table<Best> table(n + 1, parts + 1, Best{});
  for (size_t i = 1; i <= n; ++i)
    for (size_t j = 1; j <= std::min(i, parts); ++j) {
      Best& best = table(i, j);
      for (size_t k = j - 1; k < i; ++k) {
        if (j == 1 && k > 0) break;
        const int64_t part = sum[i] - sum[k];
        const Best& before = table(k, j - 1);
        const int64_t most = j == 1 ? part : std::max(before.most, part),
                      least = j == 1 ? part : std::min(before.least, part);
        if (!best.known || best.most - best.least >= most - least) best = {true, most, least, k};
      }
    }
  std::vector<int> out(parts + 1, static_cast<int>(n));
  for (size_t j = parts; j > 0; --j) out[j - 1] = static_cast<int>(table(static_cast<size_t>(out[j]), j).from);
  return out;
}

std::vector<int> by_type(const std::string& rule, std::span<const LayerCost> layers, size_t parts) {
  const std::string pattern = rule.substr(5);
  std::regex re;
  try {
    re = std::regex(pattern, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& e) {
    fail(Exit::kUsage, "parallel.partition '", rule, "': '", pattern, "' is not a regular expression: ", e.what());
  }
  std::vector<int64_t> weights;
  std::set<std::string> types;
  for (const LayerCost& l : layers) {
    weights.push_back(std::regex_search(l.type, re) ? 1 : 0);
    types.insert(l.type);
  }
  if (std::count(weights.begin(), weights.end(), 1) == 0) {
    std::string known;
    for (const std::string& t : types) known += (known.empty() ? "" : ", ") + t;
    fail(Exit::kUsage, "parallel.partition '", rule, "': no layer type matches '", pattern, "'; the types are ", known);
  }
  return by_difference(weights, parts);
}

// "4,4,4,0"
std::vector<int> by_counts(const std::string& rule, std::span<const LayerCost> layers, int parts) {
  std::vector<int> counts;
  for (size_t at = 0; at <= rule.size();) {
    const size_t comma = std::min(rule.find(',', at), rule.size());
    const std::string word = rule.substr(at, comma - at);
    GT_REQUIRE(!word.empty() && word.size() <= 6 && word.find_first_not_of("0123456789") == std::string::npos,
               Exit::kUsage, "parallel.partition '", rule, "': '", word, "' is not a number of blocks; expected ",
               parts, " numbers separated by commas");
    counts.push_back(std::stoi(word));
    at = comma + 1;
  }
  GT_REQUIRE(counts.size() == static_cast<size_t>(parts), Exit::kUsage, "parallel.partition '", rule, "' names ",
             counts.size(), " stages, pp * vpp is ", parts);
  std::vector<int> blocks;  // indices in the list
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i].type == "block") blocks.push_back(static_cast<int>(i));
  int sum = 0;
  for (const int c : counts) sum += c;
  GT_REQUIRE(sum == static_cast<int>(blocks.size()), Exit::kUsage, "parallel.partition '", rule, "' adds up to ", sum,
             " blocks, the model has ", blocks.size());
  std::vector<int> out{0};
  int done = 0;
  for (int k = 0; k + 1 < parts; ++k) {
    done += counts[static_cast<size_t>(k)];
    const int before_blocks = blocks.empty() ? static_cast<int>(layers.size()) : blocks.front();
    out.push_back(done == 0 ? before_blocks : blocks[static_cast<size_t>(done) - 1] + 1);
  }
  out.push_back(static_cast<int>(layers.size()));
  for (int k = 0; k < parts; ++k)
    GT_REQUIRE(out[static_cast<size_t>(k)] < out[static_cast<size_t>(k) + 1], Exit::kUsage, "parallel.partition '",
               rule, "': stage ", k,
               " would hold no layer at all; only the first (embedding) and the last (norm, head) may have 0 blocks");
  return out;
}

}  // namespace

std::vector<int> partition(const std::string& rule, std::span<const LayerCost> layers, int parts) {
  GT_REQUIRE(parts >= 1 && static_cast<size_t>(parts) <= layers.size(), Exit::kUsage, "pp * vpp is ", parts,
             ", the model has ", layers.size(),
             " layers to distribute; every stage needs one, so pp * vpp may be 1 to ", layers.size());
  const auto n = static_cast<size_t>(parts);
  std::vector<int64_t> weights;
  for (const LayerCost& l : layers) weights.push_back(rule == "parameters" ? l.parameters : l.flops);
  if (rule == "flops" || rule == "best" || rule == "auto") return by_flops(weights, n);
  if (rule == "uniform") return uniform(layers.size(), n);
  if (rule == "parameters") return by_difference(weights, n);
  if (rule.rfind("type:", 0) == 0) return by_type(rule, layers, n);
  if (!rule.empty() && rule[0] >= '0' && rule[0] <= '9') return by_counts(rule, layers, parts);
  fail(Exit::kUsage, "unknown parallel.partition '", rule,
       "'; legal: flops, uniform, parameters, type:REGEX, or blocks per stage such as 4,4,4,0");
}

}  // namespace gt
