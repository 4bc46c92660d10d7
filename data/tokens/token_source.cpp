#include "data/tokens/token_source.h"

#include <algorithm>
#include <numeric>

#include "data/tokens/token_meta.h"
#include "data/tokens/token_slice.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

const char* part_name(int part) { return part == 0 ? "train" : part == 1 ? "valid" : part == 2 ? "test" : "part"; }

Lengths choose_range(const TokenStore& f, const DatasetOptions& o) {
  Lengths all = f.lengths();
  if (o.whole) return all;
  const auto bounds = split_bounds(o.split, f.sequences());
  GT_REQUIRE(o.part >= 0 && o.part + 1 < static_cast<int>(bounds.size()), Exit::kUsage, "data.split \"", o.split,
             "\" has no share for ", part_name(o.part), "; give one more share", o.part == 1 ? " or data.valid" : "");
  all.begin = bounds[static_cast<size_t>(o.part)];
  all.end = bounds[static_cast<size_t>(o.part) + 1];
  GT_REQUIRE(all.count() > 0, Exit::kUsage, f.prefix(), ": data.split \"", o.split, "\": ", part_name(o.part),
             " needs at least 1 of ", f.sequences(), " documents; give ", o.part == 1 ? "data.valid or " : "",
             "a larger share");
  return all;
}

// Splits are made of documents, unless train or valid would get none.
bool must_cut(const TokenStore& f, const DatasetOptions& o) {
  if (!o.split_tokens || o.whole || f.windows()) return false;
  const auto documents = split_bounds(o.split, f.sequences()), tokens = split_bounds(o.split, f.tokens());
  for (size_t part = 0; part < 2 && part + 1 < documents.size(); ++part)
    if (documents[part] == documents[part + 1] && tokens[part] < tokens[part + 1]) return true;
  return false;
}

std::unique_ptr<TokenStore> cut_by_tokens(std::unique_ptr<TokenStore> f, const DatasetOptions& o) {
  const auto bounds = split_bounds(o.split, f->tokens());
  GT_REQUIRE(o.part >= 0 && o.part + 1 < static_cast<int>(bounds.size()), Exit::kUsage, "data.split \"", o.split,
             "\" has no share for ", part_name(o.part), "; give one more share", o.part == 1 ? " or data.valid" : "");
  const int64_t begin = bounds[static_cast<size_t>(o.part)], end = bounds[static_cast<size_t>(o.part) + 1];
  if (o.warn)
    o.warn(cat(f->prefix(), ": ", f->sequences(), f->sequences() == 1 ? " document is" : " documents are",
               " too few for data.split \"", o.split, "\", so it cuts tokens: ", part_name(o.part), " takes ", begin,
               " to ", end, " of ", f->tokens()));
  GT_REQUIRE(begin < end, Exit::kUsage, f->prefix(), ": data.split \"", o.split, "\" leaves no token to ",
             part_name(o.part));
  return std::make_unique<TokenSlice>(std::move(f), begin, end);
}

// Compares meta.json with the run's vocabulary and tokenizer; returns a note for later errors.
std::string check_meta(const TokenStore& f, const DatasetOptions& o) {
  const auto meta = read_token_meta(f.prefix());
  if (!meta) return "";
  const bool other =
      !o.tokenizer_sha256.empty() && !meta->tokenizer_sha256.empty() && meta->tokenizer_sha256 != o.tokenizer_sha256;
  GT_REQUIRE(o.vocab == 0 || meta->vocab <= o.vocab, Exit::kUsage, f.prefix(), ".meta.json: the tokenizer has ",
             meta->vocab, " pieces, the model's vocabulary is ", o.vocab, "; it must be at least ", meta->vocab, " (",
             (meta->vocab + 127) / 128 * 128, " when padded to a multiple of 128)");
  return other ? "; meta.json names another tokenizer" : "; meta.json names the same tokenizer";
}

std::unique_ptr<LlmcOrder> llmc_order(const TokenStore& f, const Lengths& range, const DatasetOptions& o) {
  GT_REQUIRE(f.windows(), Exit::kUsage, f.prefix(), ": data.order ", name_of(o.order),
             " is for llm.c's token files, found ", f.format(), "; use data.order epoch, megatron or sequential");
  std::vector<int64_t> tokens;
  for (int64_t s = range.begin; s < range.end; ++s) tokens.push_back(range[s]);
  try {
    return std::make_unique<LlmcOrder>(
        tokens,
        LlmcOrderOptions{
            .seq = o.seq, .micro_batch = o.micro_batch, .dp = o.dp, .shuffled = o.order == SampleOrder::kLlmcShuffled});
  } catch (const Error& e) { throw Error(cat(f.prefix(), ": ", e.what()), e.code()); }
}

}  // namespace

TokenSource::TokenSource(const std::string& path, const DatasetOptions& o)
    : seq_(o.seq),
      order_(o.order),
      file_(open_tokens(path, {o.cache_dir, o.warn, o.remembers})),
      vocab_(o.vocab),
      num_samples_(o.num_samples),
      seed_(o.seed) {
  GT_REQUIRE(seq_ >= 1, Exit::kUsage, "data.seq: expected at least 1, found ", seq_);
  meta_note_ = check_meta(*file_, o);
  GT_REQUIRE(!o.documents || !file_->windows(), Exit::kUsage, file_->prefix(),
             ": data.pack documents needs files that "
             "record where documents begin (PREFIX.bin + PREFIX.idx), found ",
             file_->format(), "; use data.pack stream");
  cut_ = must_cut(*file_, o);
  if (cut_) file_ = cut_by_tokens(std::move(file_), o);
  range_ = cut_ ? file_->lengths() : choose_range(*file_, o);
  if (order_ == SampleOrder::kSequential) {
    sequential_ = SequentialOrder(range_);
    tokens_ = sequential_.tokens();
  } else {
    tokens_ = range_.count() == file_->sequences() ? file_->tokens() : range_.total();
  }
  if (o.by_windows()) llmc_ = llmc_order(*file_, range_, o);
  per_epoch_ = llmc_ ? llmc_->size() : samples_per_epoch(tokens_, seq_);
  GT_REQUIRE(per_epoch_ >= 1, Exit::kUsage, file_->prefix(), ": ", o.whole ? "the file" : part_name(o.part), " has ",
             tokens_, " tokens, one sample needs ", seq_ + 1, " (data.seq ", seq_, " + 1); ",
             tokens_ >= 2 ? cat("use data.seq ", tokens_ - 1, " or less, more text, ") : std::string("use more text "),
             "or a larger share");
  store_ = {o.cache_dir, o.builder, 600, o.warn};
}

int64_t TokenSource::available() const {
  return order_ == SampleOrder::kMegatron ? plan_megatron(tokens_, seq_, num_samples_).samples : INT64_MAX;
}

void TokenSource::require_unchanged() const {
  GT_REQUIRE(file_->unchanged(), Exit::kIo, file_->prefix(),
             ": .bin or .idx changed on disk while the run reads them; stop writers and resume from a checkpoint");
}

LlmcOrder::Position TokenSource::llmc_position(int64_t sample) const {
  const std::lock_guard lock(mutex_);
  if (const int64_t epoch = sample / per_epoch_; epoch != checked_epoch_) {
    require_unchanged();
    checked_epoch_ = epoch;
  }
  return llmc_->find(sample);
}

TokenSource::Slot* TokenSource::pin(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  Slot* oldest = nullptr;
  for (Slot& s : slots_) {
    if (s.epoch == epoch) {
      ++s.pins;
      s.last_use = ++clock_;
      return &s;
    }
    if (s.pins == 0 && (oldest == nullptr || s.last_use < oldest->last_use)) oldest = &s;
  }
  GT_CHECK(oldest != nullptr, "more than ", slots_.size(), " epochs are read at once");
  require_unchanged();
  const bool megatron = order_ == SampleOrder::kMegatron;
  const uint32_t seed = epoch_seed(seed_, epoch);
  const std::string key = cat("1 ", file_->fingerprint().text(), ' ', range_.begin, ' ', range_.end, ' ', seq_, ' ',
                              seed, ' ', name_of(order_), ' ', megatron ? num_samples_ : 0);
  OrderShape shape{.lengths = range_, .seq = seq_, .samples = per_epoch_};
  if (megatron) {
    const MegatronPlan plan = plan_megatron(tokens_, seq_, num_samples_);
    shape.samples = plan.samples, shape.epochs = plan.epochs, shape.apart = plan.apart, shape.before = plan.before;
  }
  oldest->epoch = -1;
  oldest->order = stored_order(store_, key, shape, [&] {
    return megatron ? build_megatron(range_, seq_, seed, num_samples_) : build_epoch(range_, seq_, seed);
  });
  oldest->epoch = epoch;
  oldest->pins = 1;
  oldest->last_use = ++clock_;
  return oldest;
}

void TokenSource::unpin(Slot* s) const {
  const std::lock_guard lock(mutex_);
  --s->pins;
}

struct TokenSource::Pin {
  const TokenSource& source;
  Slot* slot;
  ~Pin() { source.unpin(slot); }
};

void TokenSource::bad_lengths(int64_t sample) const {
  fail(Exit::kIo, file_->prefix(), ".idx: sample ", sample,
       " ends beyond the last sequence: the file changed while the run reads it; stop writers and resume from a "
       "checkpoint");
}

template <class Visit>
void TokenSource::walk(int64_t sample, Visit visit) const {
  GT_CHECK(sample >= 0, "sample ", sample);
  int64_t left = seq_ + 1;
  if (llmc_) {
    const auto [file, token] = llmc_position(sample);
    visit(range_.begin + file, token, left);
    return;
  }
  if (order_ == SampleOrder::kSequential) {
    auto [sequence, offset] = sequential_.find(sample % per_epoch_ * seq_);
    for (; left > 0; ++sequence, offset = 0) {
      if (sequence >= range_.end) [[unlikely]]
        bad_lengths(sample);
      const int64_t count = std::min(left, range_[sequence] - offset);
      if (count > 0) visit(sequence, offset, count);
      left -= count;
    }
    return;
  }
  const bool megatron = order_ == SampleOrder::kMegatron;
  const Pin held{*this, pin(megatron ? 0 : sample / per_epoch_)};
  const OrderView v = held.slot->order.view();
  const int64_t k = megatron ? sample : sample % per_epoch_;
  GT_REQUIRE(k < v.samples(), Exit::kUsage, file_->prefix(), ": sample ", k, " is beyond the ", v.samples(),
             " samples that data.order megatron was built for; use data.order epoch to extend a run");
  const size_t row = v.shuffle[static_cast<size_t>(k)];
  size_t entry = v.positions[2 * row];
  for (int64_t offset = v.positions[2 * row + 1]; left > 0; ++entry, offset = 0) {
    if (entry >= v.documents.size()) [[unlikely]]
      bad_lengths(sample);
    const int64_t sequence = v.documents[entry], count = std::min(left, range_[sequence] - offset);
    if (count > 0) visit(sequence, offset, count);
    left -= count;
  }
}

void check_sizes(const SampleBuffers& to, int64_t seq) {
  for (const size_t n : {to.tokens.size(), to.loss.size(), to.positions.size()})
    GT_CHECK(n == 0 || static_cast<int64_t>(n) == seq + 1, "a buffer of ", n, " tokens, a sample has ", seq + 1);
}

void TokenSource::read(int64_t sample, const SampleBuffers& to) const {
  check_sizes(to, seq_);
  size_t at = 0;
  walk(sample, [&](int64_t sequence, int64_t begin, int64_t length) {
    const auto count = static_cast<size_t>(length);
    if (!to.tokens.empty()) read_checked(sequence, begin, to.tokens.subspan(at, count));
    if (!to.loss.empty()) file_->read_mask(sequence, begin, to.loss.subspan(at, count));
    if (!to.positions.empty()) {
      const auto positions = to.positions.subspan(at, count);
      std::iota(positions.begin(), positions.end(), 0);
    }
    at += count;
  });
}

void TokenSource::read_checked(int64_t sequence, int64_t begin, std::span<int32_t> out) const {
  const uint64_t top = file_->read(sequence, begin, out);
  if (vocab_ > 0 && top >= static_cast<uint64_t>(vocab_)) [[unlikely]]
    bad_token(sequence, begin, out);
}

void TokenSource::bad_token(int64_t sequence, int64_t begin, std::span<const int32_t> ids) const {
  size_t i = 0;
  while (i + 1 < ids.size() && ids[i] >= 0 && ids[i] < vocab_) ++i;
  fail(Exit::kIo, file_->locate(sequence, begin + static_cast<int64_t>(i)), ": token ", ids[i], ", expected 0 to ",
       vocab_ - 1, " (vocabulary ", vocab_, ")", meta_note_, "; prepare the data with the tokenizer of this model");
}

void TokenSource::read_ahead(int64_t sample) const {
  walk(sample, [&](int64_t sequence, int64_t begin, int64_t count) { file_->will_need(sequence, begin, count); });
}

Dataset::Position TokenSource::position_of(int64_t sample) const {
  Dataset::Position p;
  walk(sample, [&](int64_t sequence, int64_t begin, int64_t) {
    if (p.sequence < 0) p.sequence = sequence, p.offset = begin;
  });
  return p;
}

std::string TokenSource::identity() const {
  const Fingerprint& f = file_->fingerprint();
  std::string out = cat(f.bin_bytes, " bytes, index ", f.idx_sha256.substr(0, 12), ", content ", std::hex, f.ends_xxh3,
                        '-', sample_hash(*file_));
  if (file_->masked()) out += cat(", mask ", std::hex, mask_hash(*file_));
  if (const auto meta = read_token_meta(file_->prefix()))
    out += cat(", meta ", meta->tokenizer_sha256.substr(0, 12), '-', meta->bin_xxh3_128.substr(0, 12));
  return out;
}

uint64_t TokenSource::order_hash() const {
  if (order_ == SampleOrder::kSequential || llmc_) return 0;
  const Pin held{*this, pin(0)};
  return held.slot->order.hash();
}

}  // namespace gt
