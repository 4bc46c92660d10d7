#include "data/samples/llmc_order.h"

#include <numeric>
#include <utility>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr uint32_t kSeed = 42;     // as in llm.c
constexpr size_t kKeptPasses = 4;  // readahead is at most a few files in front of reads

void permute(std::vector<uint32_t>& a, std::mt19937& random) {
  for (size_t i = a.size(); i-- > 1;) std::swap(a[i], a[random() % (i + 1)]);
}

std::vector<uint32_t> ascending(int64_t n) {
  std::vector<uint32_t> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), 0u);
  return out;
}

}  // namespace

LlmcOrder::LlmcOrder(const std::vector<int64_t>& tokens, const LlmcOrderOptions& o) : options_(o) {
  const int64_t window = o.dp * o.micro_batch * o.seq;
  for (size_t k = 0; k < tokens.size(); ++k) {
    windows_.push_back((tokens[k] - 1) / window);
    GT_REQUIRE(windows_.back() >= 1, Exit::kUsage, "data.order llmc: file ", k + 1, " of ", tokens.size(), " has ",
               tokens[k], " tokens, a window of dp ", o.dp, " x micro_batch ", o.micro_batch, " x seq ", o.seq,
               " needs ", window + 1, "; use a smaller train.micro_batch or larger files");
    GT_REQUIRE(windows_.back() < int64_t{1} << 32, Exit::kUsage, "data.order llmc: file ", k + 1, " has ",
               windows_.back(), " windows, expected fewer than 2^32");
    samples_ += windows_.back() * o.dp * o.micro_batch;
  }
}

void LlmcOrder::enter_next_file(Rank& r) const {
  if (r.next == r.files.size()) r.next = 0;
  if (r.next == 0 && options_.shuffled) permute(r.files, r.random);
  FilePass v;
  if (!r.passes.empty()) v.first = r.passes.back().first + windows_[r.passes.back().file];
  v.file = r.files[r.next++];
  if (options_.shuffled) {
    v.windows = ascending(windows_[v.file]);
    permute(v.windows, r.random);
  }
  r.passes.push_back(std::move(v));
  if (r.passes.size() > kKeptPasses) r.passes.pop_front();
}

const LlmcOrder::FilePass& LlmcOrder::pass_of(int64_t rank, int64_t microbatch) {
  Rank& r = ranks_[rank];
  if (r.passes.empty() || microbatch < r.passes.front().first) {
    r.random.seed(kSeed + static_cast<uint32_t>(rank));
    r.files = ascending(static_cast<int64_t>(windows_.size()));
    r.next = 0;
    r.passes.clear();
    enter_next_file(r);
  }
  while (microbatch >= r.passes.back().first + windows_[r.passes.back().file]) enter_next_file(r);
  auto v = r.passes.rbegin();
  while (microbatch < v->first) ++v;
  return *v;
}

LlmcOrder::Position LlmcOrder::find(int64_t sample) {
  GT_CHECK(sample >= 0, "sample ", sample);
  const int64_t b = options_.micro_batch, dp = options_.dp;
  const int64_t microbatch = sample / (dp * b), rank = sample / b % dp, row = sample % b;
  const FilePass& v = pass_of(rank, microbatch);
  const auto k = static_cast<size_t>(microbatch - v.first);
  const int64_t window = v.windows.empty() ? static_cast<int64_t>(k) : v.windows[k];
  return {static_cast<int64_t>(v.file), ((window * dp + rank) * b + row) * options_.seq};
}

}  // namespace gt
