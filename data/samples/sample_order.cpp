#include "data/samples/sample_order.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "data/samples/mt19937_numpy.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 32;  // tables are 32-bit

void fill_documents(const Lengths& lengths, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<int32_t>(lengths.begin + static_cast<int64_t>(i) % lengths.count());
}

// Where a sample begins.
struct SampleStart {
  size_t entry = 0;
  int64_t offset = 0;
  // Moves to the next sample. Returns false beyond the last entry.
  bool advance(const Lengths& lengths, std::span<const int32_t> documents, int64_t seq) {
    for (int64_t left = seq + 1; entry < documents.size(); ++entry, offset = 0) {
      const int64_t here = lengths[documents[entry]] - offset;
      if (left <= here) {    // a sample that ends at the end of an entry stays in it
        offset += left - 1;  // back one token, which samples share
        return true;
      }
      left -= here;
    }
    return false;
  }
};

// Start of each of the n samples, and the end of the last one.
void fill_positions(const Lengths& lengths, int64_t seq, int64_t n, Order* o) {
  o->positions.resize(static_cast<size_t>(2 * (n + 1)));
  size_t out = 2;
  SampleStart at;
  for (int64_t j = 0; j < n; ++j) {
    const bool there = at.advance(lengths, o->documents, seq);
    GT_CHECK(there, "sample ", j, " of ", n, " ends beyond the last sequence");
    o->positions[out++] = static_cast<uint32_t>(at.entry);
    o->positions[out++] = static_cast<uint32_t>(at.offset);
  }
}

bool starts_of_samples(const OrderView& v, const OrderShape& s) {
  SampleStart at;
  for (size_t j = 0; j < v.positions.size(); j += 2) {
    if (j > 0 && !at.advance(s.lengths, v.documents, s.seq)) return false;
    if (v.positions[j] != at.entry || v.positions[j + 1] != static_cast<uint64_t>(at.offset)) return false;
  }
  return true;
}

// Whether `row` holds every number of [first, first + row.size()) once.
bool once_each(std::span<const uint32_t> row, uint64_t first) {
  std::vector<bool> there(row.size());
  for (const uint32_t x : row) {
    if (x < first || x - first >= row.size() || there[x - first]) return false;
    there[x - first] = true;
  }
  return true;
}

bool each_sequence(std::span<const int32_t> documents, const Lengths& lengths, int64_t times) {
  std::vector<uint32_t> left(static_cast<size_t>(lengths.count()), static_cast<uint32_t>(times));
  for (const int32_t d : documents)
    if (d < lengths.begin || d >= lengths.end || left[static_cast<size_t>(d - lengths.begin)]-- == 0) return false;
  return true;
}

void check_rows(int64_t entries, int64_t samples) {
  GT_REQUIRE(samples < kMaxRows && entries < (int64_t{1} << 31), Exit::kUsage, "data.order: ", samples, " samples of ",
             entries,
             " sequences in one index; at most 2^32 samples and 2^31 sequences are supported: use a larger data.seq, "
             "fewer samples or data.order epoch");
}

}  // namespace

int64_t Lengths::total() const {
  int64_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += (*this)[i];
  return sum;
}

std::vector<int64_t> split_bounds(const std::string& shares, int64_t sequences) {
  std::vector<double> share;
  for (size_t at = 0; at <= shares.size();) {
    const size_t comma = std::min(shares.find(',', at), shares.size());
    const std::string text = shares.substr(at, comma - at);
    char* end = nullptr;
    const double v = std::strtod(text.c_str(), &end);
    GT_REQUIRE(end != text.c_str() && *end == '\0' && std::isfinite(v) && v >= 0, Exit::kUsage, "data.split: share ",
               share.size() + 1, " of \"", shares, "\": expected a number of 0 or more, found \"", text, "\"");
    share.push_back(v);
    at = comma + 1;
  }
  const double sum = std::accumulate(share.begin(), share.end(), 0.0);
  GT_REQUIRE(sum > 0 && std::isfinite(sum), Exit::kUsage, "data.split: the shares of \"", shares, "\" sum up to ", sum,
             sum > 0 ? "; give smaller numbers" : "");
  std::vector<int64_t> bounds{0};
  double running = 0;
  for (double w : share) {
    running += w / sum;
    // nearbyint rounds half to even, as numpy and Python do
    bounds.push_back(
        std::min<int64_t>(sequences, static_cast<int64_t>(std::nearbyint(running * static_cast<double>(sequences)))));
  }
  return bounds;
}

bool is_order(const OrderView& v, const OrderShape& s) {
  const int64_t count = s.lengths.count(), entries = s.epochs * count, first = s.apart ? entries - count : entries;
  if (static_cast<int64_t>(v.documents.size()) != entries || v.samples() != s.samples ||
      static_cast<int64_t>(v.positions.size()) != 2 * (s.samples + 1) || s.before < 0 || s.before > s.samples)
    return false;
  const auto head = static_cast<size_t>(first), before = static_cast<size_t>(s.before);
  return each_sequence(v.documents.first(head), s.lengths, s.apart ? s.epochs - 1 : s.epochs) &&
         each_sequence(v.documents.subspan(head), s.lengths, 1) && once_each(v.shuffle.first(before), 0) &&
         once_each(v.shuffle.subspan(before), before) && starts_of_samples(v, s);
}

int64_t samples_per_epoch(int64_t tokens, int64_t seq) { return tokens > 0 ? (tokens - 1) / seq : 0; }

uint32_t epoch_seed(uint64_t seed, int64_t epoch) {
  return static_cast<uint32_t>(seed + 2654435769ull * static_cast<uint64_t>(epoch));
}

Order build_epoch(const Lengths& lengths, int64_t seq, uint32_t seed) {
  const int64_t n = samples_per_epoch(lengths.total(), seq);
  check_rows(lengths.end, n);
  NumpyShuffle random(seed);
  Order o;
  o.documents.resize(static_cast<size_t>(lengths.count()));
  fill_documents(lengths, o.documents);
  random.shuffle(std::span(o.documents));
  fill_positions(lengths, seq, n, &o);
  o.shuffle.resize(static_cast<size_t>(n));
  std::iota(o.shuffle.begin(), o.shuffle.end(), 0u);
  random.shuffle(std::span(o.shuffle));
  return o;
}

MegatronPlan plan_megatron(int64_t tokens, int64_t seq, int64_t num_samples) {
  GT_REQUIRE(num_samples >= 1, Exit::kUsage,
             "data.order megatron: expected the number of samples of the run (steps x global batch), found ",
             num_samples);
  GT_REQUIRE(tokens >= 1, Exit::kUsage, "data.order megatron: there are no tokens");
  MegatronPlan p;
  p.epochs = std::max<int64_t>(1, (num_samples * seq + 1 + tokens - 1) / tokens);
  p.samples = (p.epochs * tokens - 1) / seq;
  if (p.epochs == 1) return p;
  const int64_t before = ((p.epochs - 1) * tokens - 1) / seq, per = (tokens - 1) / seq;
  p.apart = num_samples - before < static_cast<int64_t>(0.8 * static_cast<double>(per));
  if (p.apart) p.before = before;
  return p;
}

Order build_megatron(const Lengths& lengths, int64_t seq, uint32_t seed, int64_t num_samples) {
  const MegatronPlan plan = plan_megatron(lengths.total(), seq, num_samples);
  const int64_t entries = plan.epochs * lengths.count();
  check_rows(entries, plan.samples);
  NumpyShuffle random(seed);
  Order o;
  o.documents.resize(static_cast<size_t>(entries));
  fill_documents(lengths, o.documents);
  const size_t last = plan.apart ? static_cast<size_t>(entries - lengths.count()) : o.documents.size();
  random.shuffle(std::span(o.documents).first(last));
  if (plan.apart) random.shuffle(std::span(o.documents).subspan(last));
  fill_positions(lengths, seq, plan.samples, &o);
  o.shuffle.resize(static_cast<size_t>(plan.samples));
  std::iota(o.shuffle.begin(), o.shuffle.end(), 0u);
  const size_t first = plan.apart ? static_cast<size_t>(plan.before) : o.shuffle.size();
  random.shuffle(std::span(o.shuffle).first(first));
  if (plan.apart) random.shuffle(std::span(o.shuffle).subspan(first));
  return o;
}

SequentialOrder::SequentialOrder(const Lengths& lengths) : lengths_(lengths) {
  for (int64_t i = lengths.begin; i < lengths.end; ++i) {
    if ((i - lengths.begin) % kStep == 0) sums_.push_back(tokens_);
    tokens_ += lengths[i];
  }
}

SequentialOrder::Position SequentialOrder::find(int64_t token) const {
  GT_CHECK(token >= 0 && token < tokens_, "token ", token, " of ", tokens_);
  const auto above = std::upper_bound(sums_.begin(), sums_.end(), token);
  const int64_t block = above - sums_.begin() - 1;
  int64_t sequence = lengths_.begin + block * kStep, offset = token - sums_[static_cast<size_t>(block)];
  while (sequence < lengths_.end && offset >= lengths_[sequence]) offset -= lengths_[sequence++];
  return {sequence, offset};
}

}  // namespace gt
