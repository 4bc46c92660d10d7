#include "data/samples/dataset.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "data/samples/pair_source.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_meta.h"
#include "data/tokens/token_source.h"
#include "kernels/core/check.h"
#include "kernels/core/rng.h"

namespace gt {
namespace {

// Random tokens for benchmarks: word k of Philox stream data/mock for sample n, modulo the vocabulary.
class MockDataset final : public Dataset {
 public:
  MockDataset(const DatasetOptions& o)
      : seq_(o.seq), vocab_(o.vocab), seed_(o.seed), key_(stream_key(o.seed, "data/mock")) {
    GT_REQUIRE(vocab_ >= 1 && vocab_ < (int64_t{1} << 31), Exit::kUsage,
               "data.train mock: expected a vocabulary of 1 to 2^31 - 1, found ", vocab_);
    GT_REQUIRE(seq_ >= 1, Exit::kUsage, "data.seq: expected at least 1, found ", seq_);
  }
  int64_t size() const override { return int64_t{1} << 40; }
  int64_t seq() const override { return seq_; }
  // A sample is one document.
  void read(int64_t sample, const SampleBuffers& to) const override {
    check_sizes(to, seq_);
    std::fill(to.loss.begin(), to.loss.end(), uint8_t{1});
    std::iota(to.positions.begin(), to.positions.end(), 0);
    const std::span<int32_t> out = to.tokens;
    for (size_t k = 0; k < out.size(); k += 4) {
      const auto words = philox(key_, k / 4, static_cast<uint64_t>(sample));
      for (size_t i = k; i < std::min(k + 4, out.size()); ++i)
        out[i] = static_cast<int32_t>(words[i - k] % static_cast<uint64_t>(vocab_));
    }
  }
  DataCursor cursor(int64_t consumed) const override {
    return {.consumed_samples = consumed,
            .seed = seed_,
            .order = "mock",
            .seq = seq_,
            .sources = {{"mock", vocab_, "", 1, 0, consumed}}};
  }

 private:
  int64_t seq_, vocab_;
  uint64_t seed_, key_;
};

// Sentence pairs of random tokens.
class MockPairs final : public Dataset {
 public:
  MockPairs(const DatasetOptions& o)
      : seq_(o.seq), vocab_(o.vocab), seed_(o.seed), key_(stream_key(o.seed, "data/mock")), masking_(*o.masking) {
    GT_REQUIRE(vocab_ >= 8 && vocab_ < (int64_t{1} << 31), Exit::kUsage,
               "data.train mock: expected a vocabulary of 8 to 2^31 - 1 for sentence pairs, found ", vocab_);
    GT_REQUIRE(seq_ >= 5, Exit::kUsage, "model.seq: expected at least 5 for sentence pairs, found ", seq_);
  }
  int64_t size() const override { return int64_t{1} << 40; }
  int64_t seq() const override { return seq_; }
  bool pairs() const override { return true; }
  void read(int64_t sample, const SampleBuffers& to) const override {
    const std::span<int32_t> out = to.tokens;
    GT_CHECK(static_cast<int64_t>(out.size()) == row(), "a buffer of ", out.size(), " values, a sample has ", row());
    SampleDraws draws(key_, sample);
    std::vector<int32_t> text(static_cast<size_t>(draw_length(masking_, seq_, draws)));
    for (int32_t& t : text) t = static_cast<int32_t>(draws.below(vocab_));
    const auto first = static_cast<size_t>(1 + draws.below(static_cast<int64_t>(text.size()) - 1));
    const std::span<const int32_t> all(text);
    make_pair(masking_, all.first(first), all.subspan(first), draws.with_probability(0.5), draws, {out, seq_});
  }
  DataCursor cursor(int64_t consumed) const override {
    return {.consumed_samples = consumed,
            .seed = seed_,
            .order = cat("mock, ", masking_.text()),
            .seq = seq_,
            .sources = {{"mock", vocab_, "", 1, 0, consumed}}};
  }

 private:
  int64_t seq_, vocab_;
  uint64_t seed_, key_;
  MaskingOptions masking_;
};

// Order name in cursors; includes the layout where the order depends on it.
std::string order_of(const DatasetOptions& o) {
  if (o.masking) return cat(name_of(o.order), ", ", o.masking->text());
  return o.by_windows() ? cat(name_of(o.order), " of dp ", o.dp, ", micro_batch ", o.micro_batch) : name_of(o.order);
}

class BlendedDataset final : public Dataset {
 public:
  BlendedDataset(const DatasetOptions& o, std::vector<std::unique_ptr<TokenSource>> sources,
                 std::vector<double> weights)
      : options_(o), sources_(std::move(sources)), blend_(weights) {
    if (o.order != SampleOrder::kMegatron) return;
    GT_REQUIRE(o.num_samples >= 1, Exit::kUsage,
               "data.order megatron: expected the number of samples of the run (steps x global batch), found ",
               o.num_samples);
    const auto n = static_cast<double>(o.num_samples);
    for (size_t i = 0; i < sources_.size(); ++i) {
      const int64_t need = sources_.size() == 1
                               ? o.num_samples
                               : static_cast<int64_t>(std::ceil(std::ceil(n * blend_.shares()[i]) * 1.005));
      sources_[i]->set_num_samples(need);
      GT_REQUIRE(sources_[i]->available() >= need, Exit::kUsage, sources_[i]->file().prefix(),
                 ": data.order megatron needs ", need, " samples, found ", sources_[i]->available());
    }
  }
  int64_t size() const override {
    int64_t sum = 0;
    for (const auto& s : sources_) sum += s->size();
    return sum;
  }
  int64_t seq() const override { return options_.seq; }
  bool pairs() const override { return options_.masking.has_value(); }
  void read(int64_t sample, const SampleBuffers& to) const override {
    const auto d = draw(sample);
    sources_[static_cast<size_t>(d.dataset)]->read(d.sample, to);
  }
  bool masked() const override {
    return std::any_of(sources_.begin(), sources_.end(), [](const auto& s) { return s->file().masked(); });
  }
  void read_ahead(int64_t first, int64_t count) const override {
    const int64_t end =
        options_.order == SampleOrder::kMegatron ? std::min(first + count, options_.num_samples) : first + count;
    for (int64_t k = first; k < end; ++k) {
      const auto d = draw(k);
      sources_[static_cast<size_t>(d.dataset)]->read_ahead(d.sample);
    }
  }
  Position position_of(int64_t sample) const override {
    const auto d = draw(sample);
    Position p = sources_[static_cast<size_t>(d.dataset)]->position_of(d.sample);
    p.source = d.dataset;
    return p;
  }
  uint64_t order_hash() const override {
    uint64_t h = 0;
    for (const auto& s : sources_) h = splitmix64(h ^ s->order_hash());
    return h;
  }
  std::vector<Content> contents() const override {
    std::vector<Content> out;
    for (const auto& s : sources_) out.push_back({s->file().prefix(), s->identity()});
    return out;
  }
  DataCursor cursor(int64_t consumed) const override {
    DataCursor c{.consumed_samples = consumed,
                 .seed = options_.seed,
                 .order = order_of(options_),
                 .seq = options_.seq,
                 .split = options_.whole ? "" : options_.split + (sources_.front()->cut() ? " of tokens" : ""),
                 .num_samples = options_.order == SampleOrder::kMegatron ? options_.num_samples : 0};
    const std::lock_guard lock(mutex_);
    const auto counts = sources_.size() == 1 ? std::span<const int64_t>(&consumed, 1) : blend_.counts_before(consumed);
    for (size_t i = 0; i < sources_.size(); ++i) {
      const TokenSource& s = *sources_[i];
      const int64_t given = counts[i];
      c.sources.push_back({s.file().prefix(), s.file().fingerprint().bin_bytes, s.file().fingerprint().idx_sha256,
                           blend_.shares()[i], given / s.size(), given % s.size()});
    }
    return c;
  }

 private:
  Blend::Draw draw(int64_t sample) const {
    if (sources_.size() == 1) return {0, sample};
    const std::lock_guard lock(mutex_);
    return blend_.at(sample);
  }
  DatasetOptions options_;
  std::vector<std::unique_ptr<TokenSource>> sources_;
  mutable std::mutex mutex_;
  mutable Blend blend_;
};

void require_one_tokenizer(const DatasetOptions& o) {
  std::vector<DeclaredTokenizer> claims{{"data.tokenizer", o.tokenizer_sha256}};
  for (const auto* list : {&o.sources, &o.beside})
    for (const DataSource& s : *list)
      if (auto claim = declared_tokenizer(token_prefix(s.path))) claims.push_back(*claim);
  require_one_tokenizer(claims);
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const DatasetOptions& o) {
  std::vector<std::string> warnings;
  check_sources(o.sources, &warnings);
  for (const std::string& w : warnings)
    if (o.warn) o.warn(w);
  if (o.sources.size() == 1 && o.sources[0].path == "mock") {
    if (o.masking) return std::make_unique<MockPairs>(o);
    return std::make_unique<MockDataset>(o);
  }
  GT_REQUIRE(!o.by_windows() || o.sources.size() == 1, Exit::kUsage, "data.order ", name_of(o.order), ": ",
             o.sources.size(),
             " datasets cannot be blended in llm.c's order; name its files by a pattern in quotes, or "
             "use data.order epoch");
  std::vector<std::unique_ptr<TokenSource>> sources;
  std::vector<double> weights;
  std::string problems;
  try {
    require_one_tokenizer(o);
  } catch (const Error& e) { problems = e.what(); }
  for (const DataSource& s : o.sources) {
    try {
      GT_REQUIRE(s.path != "mock", Exit::kUsage, "data.train: mock cannot be blended with files");
      if (o.masking)
        sources.push_back(std::make_unique<PairSource>(s.path, o));
      else
        sources.push_back(std::make_unique<TokenSource>(s.path, o));
      weights.push_back(s.weight > 0 ? s.weight : static_cast<double>(sources.back()->size()));
    } catch (const Error& e) {
      if (e.code() != Exit::kUsage) throw;
      problems += (problems.empty() ? "" : "\n") + std::string(e.what());
    }
  }
  GT_REQUIRE(problems.empty(), Exit::kUsage, problems);
  return std::make_unique<BlendedDataset>(o, std::move(sources), std::move(weights));
}

}  // namespace gt
