#include "data/samples/pair_source.h"

#include <algorithm>

#include "data/samples/permutation.h"
#include "data/tokens/token_meta.h"
#include "kernels/core/check.h"

namespace gt {

PairSource::PairSource(const std::string& path, const DatasetOptions& o)
    : TokenSource(path, o),
      masking_(*o.masking),
      window_tokens_(max_pair_tokens(o.seq)),
      key_(stream_key(o.seed, "data/pairs")) {
  GT_REQUIRE(o.order == SampleOrder::kEpoch || o.order == SampleOrder::kSequential, Exit::kUsage, "data.order ",
             name_of(o.order), ": sentence pairs come in data.order epoch");
  GT_REQUIRE(o.seq >= 5, Exit::kUsage, "model.seq ", o.seq,
             ": sentence pairs need at least 5 tokens, [CLS] a [SEP] b [SEP]");
  const auto meta = read_token_meta(file().prefix());
  ended_ = meta && meta->eod >= 0;
  per_epoch_ = 0;
  int64_t documents = 0;  // with a token
  for (int64_t s = range_.begin; s < range_.end; ++s) {
    if ((s - range_.begin) % kStep == 0) sums_.push_back(per_epoch_);
    per_epoch_ += windows(s);
    documents += usable(s) >= 1;
  }
  GT_REQUIRE(per_epoch_ >= 1 && documents >= 2, Exit::kUsage, file().prefix(),
             ": sentence pairs need two documents or more, ", documents,
             " found; prepare the text with `gpttrain data prepare --split-docs blank-line` (or line)",
             o.whole ? "" : ", or give the part of data.split a larger share");
}

int64_t PairSource::usable(int64_t sequence) const { return std::max<int64_t>(0, range_[sequence] - (ended_ ? 1 : 0)); }

// The last one may be shorter, down to two tokens.
int64_t PairSource::windows(int64_t sequence) const {
  const int64_t n = usable(sequence);
  return n / window_tokens_ + (n % window_tokens_ >= 2 ? 1 : 0);
}

PairSource::Window PairSource::window(int64_t sample) const {
  GT_CHECK(sample >= 0, "sample ", sample);
  const int64_t epoch = sample / per_epoch_, k = sample % per_epoch_;
  int64_t at = order_ == SampleOrder::kSequential
                   ? k
                   : Permutation(splitmix64(key_ + static_cast<uint64_t>(epoch)), per_epoch_)(k);
  const auto entry = std::upper_bound(sums_.begin(), sums_.end(), at) - sums_.begin() - 1;
  at -= sums_[static_cast<size_t>(entry)];
  int64_t sequence = range_.begin + entry * kStep;
  for (; at >= windows(sequence); ++sequence) at -= windows(sequence);
  return {sequence, at * window_tokens_, std::min(window_tokens_, usable(sequence) - at * window_tokens_)};
}

std::span<const int32_t> PairSource::read(int64_t sequence, int64_t begin, int64_t count,
                                          std::vector<int32_t>& to) const {
  to.resize(static_cast<size_t>(count));
  read_checked(sequence, begin, to);
  return to;
}

// Ten attempts, as in create_pretraining_data.py: where none hits another document with a token, the pair stays as it
// is.
PairSource::Window PairSource::elsewhere(int64_t sequence, int64_t count, SampleDraws& draws) const {
  for (int attempt = 0; attempt < 10; ++attempt) {
    const int64_t other = range_.begin + draws.below(range_.count()), n = usable(other);
    if (other == sequence || n < 1) continue;
    const int64_t begin = draws.below(n);
    return {other, begin, std::min(count, n - begin)};
  }
  return {sequence, 0, 0};
}

void PairSource::read(int64_t sample, const SampleBuffers& to) const {
  const std::span<int32_t> row = to.tokens;
  GT_CHECK(static_cast<int64_t>(row.size()) == PairRow::width(seq_), "a buffer of ", row.size(),
           " values, a sample has ", PairRow::width(seq_));
  if (sample % per_epoch_ == 0) require_unchanged();
  SampleDraws draws(key_, sample);
  const Window w = window(sample);
  const int64_t length = draw_length(masking_, seq_, draws), taken = std::min(w.count, length);
  const int64_t first = 1 + draws.below(taken - 1);
  Window second{w.sequence, w.offset + first, taken - first};
  bool unrelated = draws.with_probability(0.5);
  if (unrelated) {
    const Window other = elsewhere(w.sequence, length - first, draws);
    unrelated = other.count > 0;
    if (unrelated) second = other;
  }
  thread_local std::vector<int32_t> a, b;
  make_pair(masking_, read(w.sequence, w.offset, first, a), read(second.sequence, second.offset, second.count, b),
            unrelated, draws, {row, seq_});
}

void PairSource::read_ahead(int64_t sample) const {
  const Window w = window(sample);
  file().will_need(w.sequence, w.offset, w.count);
}

Dataset::Position PairSource::position_of(int64_t sample) const {
  const Window w = window(sample);
  return {0, w.sequence, w.offset};
}

uint64_t PairSource::order_hash() const { return splitmix64(key_ ^ static_cast<uint64_t>(per_epoch_)); }

}  // namespace gt
