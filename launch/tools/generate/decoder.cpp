#include "launch/tools/generate/decoder.h"

#include <algorithm>
#include <numeric>

namespace gt {
namespace {

constexpr int kBoundaryTag = 1;

// The backend's op table with GEMMs whose rows do not depend on the number of rows. Decoding a token alone is then
// bitwise identical to decoding it in a batch.
const OpTable& row_invariant_ops(const OpTable& inner) {
  static const OpTable* to = nullptr;
  static OpTable table;
  static const bool once = [&] {
    to = &inner;
    table = inner;
    table.gemm = [](const Gemm& g, Stream s) {
      Gemm row_independent = g;
      row_independent.row_independent = true;
      to->gemm(row_independent, s);
    };
    return true;
  }();
  GT_CHECK(once && to == &inner, "a process generates on one backend");
  return table;
}

// Maximum rows of a forward pass: a full context, or one token per sequence.
int64_t most_rows(const LoadedModel& m, int64_t sequences) { return std::max(m.config.model.seq, sequences); }

int64_t local_columns(const LoadedModel& m) {
  const int64_t tp = m.config.parallel.tp;
  return padded_vocab(m.config.model.vocab, tp) / tp;
}

// Activation memory of evaluating as many tokens, including the loss, plus the logits of one token per sequence.
int64_t arena_bytes(const LoadedModel& m, int64_t sequences) {
  EngineOptions o = m.engine->options();
  o.micro_batch = (most_rows(m, sequences) + o.model.seq - 1) / o.model.seq;
  o.microbatches = 1;
  o.evaluates = true;
  const int64_t row = 2 * local_columns(m) + 4 * o.model.hidden + 64;
  return plan_memory(o, m.mesh->shape(), m.mesh->rank()).eval.activation_bytes +
         align_up(sequences * row * size_of(DType::kF32)) + 16 * kAlign;
}

}  // namespace

KvCache::KvCache(const ModelStage& stage, int64_t sequences, int64_t positions, Device device, const DeviceApi& api) {
  const Shape shape = stage.cache_shape(sequences, positions);
  const DType type = stage.cache_dtype();
  for (size_t i = 0; i < stage.blocks(); ++i) {
    KvLayer layer;
    for (Tensor* t : {&layer.keys, &layer.values})
      *t = buffers_.emplace_back(shape.numel() * size_of(type), device, api).tensor(shape, type);
    layers_.push_back(layer);
  }
}

Decoder::Decoder(LoadedModel& m, int64_t sequences, bool cached, int64_t shift)
    : m_(m),
      stage_(*m.engine->stages().front()),
      cached_(cached),
      context_(m.config.model.seq),
      vocab_(m.config.model.vocab),
      shift_(shift > 0 ? shift : std::max<int64_t>(1, context_ / 8)),
      cache_(stage_, cached ? sequences : 0, context_, m.stream.device(), *m.backend->device),
      inputs_(3 * most_rows(m, sequences) * size_of(DType::kI32), m.stream.device(), *m.backend->device),
      staged_(static_cast<size_t>(3 * most_rows(m, sequences)), *m.backend->device),
      arena_(Buffer(arena_bytes(m, sequences), m.stream.device(), *m.backend->device)),
      pool_(Buffer(kAlign, m.stream.device(), *m.backend->device)),
      tape_(arena_, pool_, row_invariant_ops(*m.backend->ops), m.stream) {
  GT_REQUIRE(shift_ <= context_, Exit::kUsage, "--shift ", shift_, ": expected at most the model's context, ",
             context_);
  tape_.set_recording(false);
  const Device device = m.stream.device();
  const DeviceApi& api = *m.backend->device;
  if (!m.mesh->first_stage())
    boundary_ = Buffer(most_rows(m, sequences) * m.config.model.hidden * size_of(stage_.boundary_dtype()), device, api);
  if (!m.mesh->last_stage()) return;
  const int64_t parts = m.config.parallel.tp * sequences * local_columns(m);
  gathered_ = Buffer(parts * size_of(DType::kF32), device, api);
  parts_ = HostArray<float>(static_cast<size_t>(parts), api);
}

std::span<const float> Decoder::logits(size_t i) const {
  if (logits_.empty()) return {};
  return std::span(logits_).subspan(i * static_cast<size_t>(vocab_), static_cast<size_t>(vocab_));
}

int64_t Decoder::window_begin(int64_t length) const {
  return length <= context_ ? 0 : (length - context_ + shift_ - 1) / shift_ * shift_;
}

void Decoder::run(std::span<Sequence* const> sequences) {
  if (m_.mesh->last_stage()) logits_.resize(sequences.size() * static_cast<size_t>(vocab_));
  std::vector<Sequence*> last;
  std::vector<size_t> results;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    const auto length = static_cast<int64_t>(s.ids.size()), begin = window_begin(length);
    GT_CHECK(length > 0, "a sequence without tokens has no next one");
    const bool grew = s.cached == length - 1 && s.begin == begin && length > 1;
    s.begin = begin;
    if (cached_ && grew) {
      last.push_back(&s), results.push_back(i);
    } else {
      run_whole(s, i);
    }
    s.cached = cached_ ? length : 0;
  }
  if (!last.empty()) run_last(last, results);
}

// Copies token ids, positions and sequence slots of the next forward pass from staged_ to the device.
MicroBatch Decoder::tokens(int64_t batch, int64_t seq) {
  const int64_t n = batch * seq, bytes = n * size_of(DType::kI32);
  m_.backend->device->copy(inputs_.data(), staged_.data(), 3 * bytes, m_.stream);
  MicroBatch mb;
  mb.batch = batch;
  mb.seq = seq;
  mb.tokens = inputs_.tensor({batch, seq}, DType::kI32);
  mb.positions = inputs_.tensor({batch, seq}, DType::kI32, bytes);
  mb.sequences = inputs_.tensor({batch, seq}, DType::kI32, 2 * bytes);
  return mb;
}

// Processes the whole window of a sequence.
void Decoder::run_whole(const Sequence& s, size_t result) {
  const auto n = static_cast<int64_t>(s.ids.size()) - s.begin;
  std::copy(s.ids.end() - n, s.ids.end(), staged_.data());
  std::iota(staged_.data() + n, staged_.data() + 2 * n, 0);
  std::fill_n(staged_.data() + 2 * n, n, static_cast<int32_t>(s.slot));
  MicroBatch mb = tokens(1, n);
  if (cached_)
    mb.cache = cache_.layers();
  else
    mb.positions = {};  // those of its rows
  forward(mb, {&result, 1});
}

void Decoder::run_last(std::span<Sequence* const> sequences, std::span<const size_t> results) {
  const auto n = static_cast<int64_t>(sequences.size());
  for (int64_t i = 0; i < n; ++i) {
    const Sequence& s = *sequences[static_cast<size_t>(i)];
    staged_[static_cast<size_t>(i)] = s.ids.back();
    staged_[static_cast<size_t>(n + i)] = static_cast<int32_t>(static_cast<int64_t>(s.ids.size()) - s.begin) - 1;
    staged_[static_cast<size_t>(2 * n + i)] = static_cast<int32_t>(s.slot);
  }
  MicroBatch mb = tokens(n, 1);
  mb.cache = cache_.layers();
  forward(mb, results);
}

// Runs all pipeline stages; the last row of each sequence is projected to logits.
void Decoder::forward(const MicroBatch& mb, std::span<const size_t> results) {
  ProcessGroup& pp = m_.mesh->group(Axis::kPp);
  tape_.reset();
  Var x;
  if (!m_.mesh->first_stage()) {
    x.value = boundary_.tensor(stage_.boundary(mb), stage_.boundary_dtype());
    pp.recv(x.value, pp.rank() - 1, kBoundaryTag, m_.stream).wait(m_.stream);
  }
  x = stage_.hidden(tape_, x, mb);
  if (!m_.mesh->last_stage()) {
    pp.send(x.value, pp.rank() + 1, kBoundaryTag, m_.stream).wait(m_.stream);
    return m_.backend->device->synchronize(m_.stream);
  }
  const int64_t rows = x.value.shape.rows(), n = static_cast<int64_t>(results.size());
  collect(stage_.logits(tape_, n == rows ? x.value : x.value.slice(rows - n, n)), results);
}

// Gathers the logit columns of all TP ranks on the host.
void Decoder::collect(Tensor logits, std::span<const size_t> results) {
  const int64_t tp = m_.mesh->size(Axis::kTp), n = logits.shape.rows(), columns = logits.shape.cols();
  const Tensor all = tp == 1 ? logits : gathered_.tensor({tp, n, columns}, DType::kF32);
  if (tp > 1) m_.mesh->group(Axis::kTp).all_gather(logits, all, m_.stream).wait(m_.stream);
  m_.backend->device->copy(parts_.data(), all.data, all.bytes(), m_.stream);
  m_.backend->device->synchronize(m_.stream);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t r = 0; r < tp; ++r) {
      const int64_t count = std::clamp<int64_t>(vocab_ - r * columns, 0, columns);
      std::copy_n(parts_.data() + (r * n + i) * columns, count,
                  logits_.data() + results[static_cast<size_t>(i)] * static_cast<size_t>(vocab_) + r * columns);
    }
}

}  // namespace gt
