#include "model/gpt.h"

#include <algorithm>
#include <cmath>

#include "model/activation_tap.h"

namespace gt {

int64_t GptConfig::block_parameters() const {
  return 4 * hidden                                                            // two norms
         + qkv_width() * (hidden + 1) + hidden * hidden + hidden               // qkv and out
         + 2 * hidden * ffn + ffn + hidden;                                    // up and down
}

int64_t GptConfig::parameters() const {
  return vocab * hidden * (tied ? 1 : 2) + seq * hidden + layers * block_parameters() + 2 * hidden;
}

int64_t GptConfig::matmul_parameters() const {
  return layers * (qkv_width() * hidden + hidden * hidden + 2 * hidden * ffn) + padded_vocab(vocab, 1) * hidden;
}

double GptConfig::train_flops(int64_t tokens, int64_t length, int64_t blocks) const {
  GptConfig c = *this;
  if (length > 0) c.seq = length;
  if (blocks >= 0) c.layers = blocks;
  const double n = static_cast<double>(tokens);
  return n * (6.0 * static_cast<double>(c.matmul_parameters()) + 6.0 * static_cast<double>(c.layers * hidden * c.seq));
}

std::vector<LayerCost> GptConfig::layer_costs() const {
  const int64_t h = hidden;
  const int64_t block = 2 * h * qkv_width() + 2 * h * h + 4 * h * ffn + 2 * h * seq;
  std::vector<LayerCost> out{{"embedding", 0, vocab * h + seq * h}};
  out.insert(out.end(), static_cast<size_t>(layers), {"block", block, block_parameters()});
  out.push_back({"norm", 0, 2 * h});
  out.push_back({"head", 2 * h * vocab, vocab * h});
  return out;
}

namespace {
// Projections back into the residual stream start smaller by 1/sqrt(2 L).
float residual_std(const GptConfig& c) { return c.init_std / std::sqrt(2.f * static_cast<float>(c.layers)); }
}  // namespace

Block::Block(const std::string& name, const GptConfig& c, const Build& b)
    : Module(name),
      keeps_codes_(b.precision.fp8 && !b.tensor().cut_rows()),
      norm1_(name + ".norm1", c.hidden, b),
      attn_(name + ".attn", c.hidden, c.heads, c.groups(), residual_std(c), c.attn_dropout, b),
      attn_drop_(name + ".attn.out", c.dropout, b),
      norm2_(name + ".norm2", c.hidden, b),
      mlp_(name + ".mlp", c.hidden, c.ffn, residual_std(c), b),
      mlp_drop_(name + ".mlp.down", c.dropout, b) {
  child(norm1_);
  child(attn_);
  child(norm2_);
  child(mlp_);
}

Block::Stream Block::operator()(Tape& t, Stream in, const MicroBatch& mb, ops::Keep keep, float scale) {
  if (keeps_codes_ && keep == ops::Keep::kOutputs) keep = ops::Keep::kCodes;
  const ops::Normed n1 = norm1_(t, in.x, in.branch ? &*in.branch : nullptr, keep, in.drop, attn_.codes());
  const Var qkv = attn_.project(t, n1, keep);
  norm1_.discard(t, n1, keep);
  const Var a = attn_.attend(t, qkv, mb, keep);
  const ops::Normed n2 = norm2_(t, n1.sum, &a, keep, attn_drop_(a, mb, scale), mlp_.codes());
  const Var m = mlp_(t, n2, keep);
  norm2_.discard(t, n2, keep);
  return {n2.sum, m, mlp_drop_(m, mb, scale)};
}

Var Block::join(Tape& t, const Stream& s) {
  if (!s.branch) return s.x;
  if (!s.drop || s.branch->value.dtype == DType::kF32) return ops::add(t, s.x, ops::dropout(t, *s.branch, s.drop));
  // Halves are rounded once, when the sum is stored, as the norm does that would have made it.
  const Var dropped = ops::dropout(t, ops::cast(t, *s.branch, DType::kF32), s.drop);
  return ops::cast(t, ops::add(t, dropped, s.x), s.x.value.dtype);
}

GptStage::GptStage(const GptConfig& c, int begin, int end, int stage, const Build& b)
    : config_(c), axis_(b.tensor()), precision_(b.precision), stage_(stage), embed_drop_("embed", c.dropout, b) {
  const int last = static_cast<int>(c.layers) + 2;  // the head's place in the layer list
  for (int i = begin; i < end; ++i) {
    if (i == 0) {
      embed_ = std::make_unique<VocabTable>("embed", c.vocab, c.hidden, b, b.precision.table(), false);
      embed_->weight.tied_owner = c.tied;
      position_ = std::make_unique<PositionTable>("pos_embed", c.seq, c.hidden, b);
      named_.push_back({"embed", 0, embed_.get()});
      named_.push_back({"pos_embed", 1, position_.get()});
    } else if (i <= c.layers) {
      if (blocks_.empty()) first_block_ = i - 1;
      Build build = b;
      if (b.precision.fp8_skip_ends && (i == 1 || i == c.layers)) build.precision.fp8 = false;
      blocks_.push_back(std::make_unique<Block>("layers." + std::to_string(i - 1), c, build));
      named_.push_back({blocks_.back()->name(), i + 1, blocks_.back().get()});
    } else if (i < last) {
      norm_ = std::make_unique<Norm>("final_norm", c.hidden, b);
      named_.push_back({"final_norm", i + 1, norm_.get()});
    } else {
      head_ = std::make_unique<VocabTable>("head", c.vocab, c.hidden, b, b.precision.linear(), true);
      if (c.tied) head_->weight.tied_to = "embed.weight";
      named_.push_back({"head", i + 1, head_.get()});
    }
  }
}

std::vector<ScopeSpec> GptStage::scopes() {
  std::vector<ScopeSpec> out;
  for (Named& n : named_) out.push_back({n.name, n.module->parameters(), stage_, n.index});
  return out;
}

std::vector<QuantRange*> GptStage::ranges() {
  std::vector<QuantRange*> out;
  for (Named& n : named_)
    for (QuantRange* r : n.module->ranges()) out.push_back(r);
  return out;
}

std::vector<Fp8Range*> GptStage::fp8_ranges() {
  std::vector<Fp8Range*> out;
  for (Named& n : named_)
    for (Fp8Range* r : n.module->fp8_ranges()) out.push_back(r);
  return out;
}

void GptStage::keep_blocks(std::span<const double> keep) {
  const auto mine = keep.subspan(static_cast<size_t>(first_block_), blocks_.size());
  keep_.assign(mine.begin(), mine.end());
}

void GptStage::bind(ParamStore& store) {
  for (Named& n : named_) n.scope = &store.scope(n.name);
}

GptStage::Named& GptStage::named(const Module& m) {
  return *std::find_if(named_.begin(), named_.end(), [&](const Named& n) { return n.module == &m; });
}

Shape GptStage::boundary(const MicroBatch& mb) const { return {axis_.rows(mb).rows, config_.hidden}; }

int64_t GptStage::loss_chunk(const MicroBatch& mb) const {
  if (config_.loss_chunk > 0) return config_.loss_chunk;
  // Fewer chunks mean fewer passes over the head's gradient; more rows than this leave the last-level cache anyway.
  constexpr int64_t kLogitBytes = 64 << 20;
  int64_t rows = 64;
  const int64_t row = head_->weight.local_shape[0] * size_of(head_->weight.dtype);
  while (rows < mb.batch * mb.seq && 2 * rows * row <= kLogitBytes) rows *= 2;
  return rows;
}

template <class Body>
void GptStage::in_scope(Tape& t, const Module& m, Body body) {
  ParamScope& scope = *named(m).scope;
  ops::enter(t, scope);
  body();
  ops::leave(t, scope);
}

void GptStage::show(const Module& m, const char* part, const Var& x, const MicroBatch& mb) {
  if (tap_ != nullptr) tap_->activation(m.name() + part, x.value, mb);
}

Block::Stream GptStage::run_block(Tape& t, size_t i, Block::Stream s, const MicroBatch& mb) {
  Block* block = blocks_[i].get();
  const double kept = mb.train && !keep_.empty() ? keep_[i] : 1;
  if (kept == 0) return s;
  const auto scale = static_cast<float>(1 / kept);
  const bool chosen = config_.recompute_layers == 0 || static_cast<int64_t>(i) < config_.recompute_layers;
  if (chosen && config_.recompute == Recompute::kFull) {
    // One tensor is kept a block, so the residual add is done here and not by the norm after it: the same sum, the same
    // bits.
    GT_CHECK(!s.branch, "blocks that run again come first in a stage");
    return {ops::recompute(t, s.x, [this, block, mb, scale](Tape& tape, Var x) {
      Block::Stream out;
      in_scope(tape, *block, [&] { out = (*block)(tape, {x, {}, {}}, mb, ops::Keep::kOutputs, scale); });
      show(*block, ".attn.out", out.x, mb);
      show(*block, ".mlp.down", *out.branch, mb);
      return Block::join(tape, out);
    }), {}, {}};
  }
  const ops::Keep keep =
      chosen && config_.recompute == Recompute::kSelective ? ops::Keep::kInputs : ops::Keep::kOutputs;
  MicroBatch of_block = mb;
  if (mb.cache != nullptr) of_block.cache += i;
  in_scope(t, *block, [&] { s = (*block)(t, s, of_block, keep, scale); });
  show(*block, ".attn.out", s.x, mb);
  show(*block, ".mlp.down", *s.branch, mb);
  return s;
}

// Without a backward only a block's result is needed: it moves to `room`, and all that the block computed is given back,
// so that a forward pass takes the activations of one block instead of all.
Block::Stream GptStage::run_and_forget(Tape& t, size_t i, const Block::Stream& s, const MicroBatch& mb,
                                       const Block::Stream& room) {
  const Arena::Mark mark = t.activations().mark();
  const Block::Stream out = run_block(t, i, s, mb);
  const auto keep = [&](const Var& from, const Var& place) {
    const Tensor to{place.value.data, from.value.shape, from.value.dtype, from.value.device};
    GT_CHECK(to.bytes() <= place.value.bytes(), "a block's branch is wider than its input");
    if (from.value.data != to.data) t.ops().copy({.src = from.value, .dst = to}, t.stream());
    return Var{to};
  };
  Block::Stream kept{keep(out.x, room.x), {}, out.drop};
  if (out.branch) kept.branch = keep(*out.branch, *room.branch);
  t.activations().rollback(mark);
  return kept;
}

Var GptStage::body(Tape& t, Var input, const MicroBatch& mb) {
  Block::Stream s{input, {}, {}};
  if (embed_) {
    in_scope(t, *embed_, [&] { s.x = embed_->lookup(t, mb.tokens); });
    in_scope(t, *position_, [&] { s.x = (*position_)(t, s.x, mb); });
    s.x = ops::dropout(t, s.x, embed_drop_(s.x, mb));
    show(*embed_, "", s.x, mb);
  }
  Block::Stream room;
  if (!t.recording())
    room = {Var{t.scratch(s.x.value.shape, s.x.value.dtype)}, Var{t.scratch(s.x.value.shape, s.x.value.dtype)}, {}};
  for (size_t i = 0; i < blocks_.size(); ++i)
    s = t.recording() ? run_block(t, i, s, mb) : run_and_forget(t, i, s, mb, room);
  if (norm_) {
    const Var* branch = s.branch ? &*s.branch : nullptr;
    in_scope(t, *norm_, [&] { s.x = (*norm_)(t, s.x, branch, ops::Keep::kOutputs, s.drop).out; });
    show(*norm_, "", s.x, mb);
    return s.x;
  }
  return Block::join(t, s);
}

Var GptStage::forward(Tape& t, Var input, const MicroBatch& mb) {
  Var x = body(t, input, mb);
  if (head_) {
    in_scope(t, *head_, [&] { x = head_->loss(t, x, mb, loss_chunk(mb)); });
    show(*head_, "", x, mb);
  }
  return x;
}

Tensor GptStage::logits(Tape& t, Tensor rows) {
  GT_CHECK(head_ && !t.recording() && !axis_.cut_rows(), "logits need the head, all rows, and no recording");
  const Tensor logits = ops::linear(t, head_->prepare(t, Var{rows}), head_->weight).value;
  if (logits.dtype == DType::kF32) return logits;
  const Tensor wide = t.scratch(logits.shape, DType::kF32);
  t.ops().cast({.src = logits, .dst = wide}, t.stream());
  return wide;
}

Tensor GptStage::next_logits(Tape& t, const MicroBatch& mb, int64_t row) {
  GT_CHECK(embed_ && head_, "logits of tokens need the whole model in one stage");
  return logits(t, body(t, {}, mb).value.slice(row, 1));
}

Shape GptStage::cache_shape(int64_t sequences, int64_t positions) const {
  const int64_t heads = std::max<int64_t>(1, config_.groups() / axis_.group.size());
  return {sequences, heads, positions, config_.hidden / config_.heads};
}

}  // namespace gt
