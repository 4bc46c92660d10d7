#include "model/transformer.h"

#include <algorithm>

namespace gt {

Block::Block(const std::string& name, const Build& b, const Constant* rotary)
    : Module(name),
      place_(b.config().norm_place),
      attn_(name + ".attn", b, rotary),
      attn_drop_(name + ".attn.out", b.config().dropout, b),
      mlp_(make_feed_forward(name + ".mlp", b)),
      mlp_drop_(name + ".mlp.down", b.config().dropout, b) {
  const bool pre = place_ == NormPlace::kPre || place_ == NormPlace::kBoth;
  const bool post = place_ == NormPlace::kPost || place_ == NormPlace::kBoth, sum = place_ == NormPlace::kSum;
  if (pre) child(norm1_.emplace(name + ".norm1", b, attn_.fp8_scaling()));
  child(attn_);
  if (post) child(post_norm1_.emplace(name + ".post_norm1", b));
  if (sum) child(norm1_.emplace(name + ".norm1", b));
  if (pre) child(norm2_.emplace(name + ".norm2", b, mlp_->fp8_scaling()));
  child(*mlp_);
  if (post) child(post_norm2_.emplace(name + ".post_norm2", b));
  if (sum) child(norm2_.emplace(name + ".norm2", b));
}

ops::Normed Block::before(Tape& t, std::optional<Norm>& norm, const Stream& s, ops::Keep keep) {
  if (norm) return (*norm)(t, s.x, s.branch ? &*s.branch : nullptr, keep, s.drop);
  const Var x = join(t, s);
  return {x, x};
}

Var Block::after(Tape& t, std::optional<Norm>& norm, Var branch) {
  return norm ? (*norm)(t, branch, nullptr).out : branch;
}

// The norms' results are the stream itself, so that MLPs quantize what they read on their own.
Block::Stream Block::norm_sums(Tape& t, const Stream& in, const MicroBatch& mb, ops::Keep keep, float scale) {
  const Var x = join(t, in);
  const Var a = attn_.attend(t, attn_.project(t, {x, x}, mb, keep), mb, keep);
  const ops::Normed n1 = (*norm1_)(t, x, &a, keep, attn_drop_(a, mb, scale));
  const Var m = (*mlp_)(t, {n1.out, n1.out}, mb, keep);
  const Var out = (*norm2_)(t, n1.out, &m, ops::Keep::kOutputs, mlp_drop_(m, mb, scale)).out;
  norm1_->discard(t, n1, keep);
  return {out, {}, {}};
}

Block::Stream Block::operator()(Tape& t, Stream in, const MicroBatch& mb, ops::Keep keep, float scale) {
  if (place_ == NormPlace::kSum) return norm_sums(t, in, mb, keep, scale);
  const ops::Normed n1 = before(t, norm1_, in, keep);
  const Var qkv = attn_.project(t, n1, mb, keep);
  if (norm1_) norm1_->discard(t, n1, keep);
  const Var a = after(t, post_norm1_, attn_.attend(t, qkv, mb, keep));
  const ops::Normed n2 = before(t, norm2_, {n1.sum, a, attn_drop_(a, mb, scale)}, keep);
  const Var up = (*mlp_)(t, n2, mb, keep);
  if (norm2_) norm2_->discard(t, n2, keep);
  const Var m = after(t, post_norm2_, up);
  return {n2.sum, m, mlp_drop_(m, mb, scale)};
}

Var Block::join(Tape& t, const Stream& s) {
  if (!s.branch) return s.x;
  if (!s.drop || s.branch->value.dtype == DType::kF32) return ops::add(t, s.x, ops::dropout(t, *s.branch, s.drop));
  // 16-bit values are rounded once, when the sum is stored, like in the norm that otherwise fuses this add.
  const Var dropped = ops::dropout(t, ops::cast(t, *s.branch, DType::kF32), s.drop);
  return ops::cast(t, ops::add(t, dropped, s.x), s.x.value.dtype);
}

TransformerStage::TransformerStage(LayerRange range, int stage, const Build& b)
    : recompute_(b.recompute),
      recompute_layers_(b.recompute_layers),
      loss_chunk_(b.loss_chunk),
      axis_(b.tensor()),
      precision_(b.precision),
      hidden_(b.config().hidden),
      heads_(SelfAttention::local_heads(b)),
      stage_(stage),
      losses_(b.model.losses_in(range.begin, range.end)),
      token_sum_(b.model.loss_sum("token")),
      pair_sum_(b.config().predicts_pairs() ? b.model.loss_sum("pair") : -1),
      embed_drop_("embed", b.config().dropout, b) {
  const TransformerConfig& c = b.config();
  const auto blocks = static_cast<int>(c.layers);
  if (c.position == PositionKind::kRotary) rotary_ = rotary_table(c, c.rope_theta, c.rope);
  if (c.rope_local_theta > 0) local_rotary_ = rotary_table(c, c.rope_local_theta, {});
  for (int i = range.begin; i < range.end; ++i) {
    const LayerSpec& layer = b.model.layers[static_cast<size_t>(i)];
    if (layer.type == "embedding") {
      for (const std::string& name : layer.modules) {
        if (name == "embed") add(embed_, name, b, false);
        if (name == "pos_embed") add(position_, name, b);
        if (name == "type_embed") add(types_, name, b);
        if (name == "embed_norm") add(embed_norm_, name, b);
      }
    } else if (layer.type == "block") {
      if (blocks_.empty()) first_block_ = i - 1;
      Build build = b;
      if (b.precision.fp8_skip_ends && (i == 1 || i == blocks)) build.precision.fp8 = Fp8Recipe::kOff;
      const bool local = local_rotary_ && c.window_of(i - 1) > 0;
      const Constant* rotary = local ? &*local_rotary_ : rotary_ ? &*rotary_ : nullptr;
      add(blocks_.emplace_back(), layer.modules.front(), build, rotary);
    } else if (layer.type == "norm") {
      add(norm_, layer.modules.front(), b);
    } else {
      Build plain = b;
      plain.precision.fp8 = Fp8Recipe::kOff;
      for (const std::string& name : layer.modules) {
        if (name == "mlm") add(transform_, name, plain);
        if (name == "head") add(head_, name, b, true);
        if (name == "pairs") add(pairs_, name, plain);
      }
    }
  }
}

template <class Layer>
void TransformerStage::add(std::unique_ptr<Layer>& layer, const std::string& name, const Build& b, auto... more) {
  layer = std::make_unique<Layer>(name, b, more...);
  units_.add(*layer, b.model, stage_);
}

std::vector<RouterLoad*> TransformerStage::loads() {
  std::vector<RouterLoad*> out;
  for (const auto& block : blocks_)
    if (RouterLoad* load = block->load()) out.push_back(load);
  return out;
}

std::vector<Constant*> TransformerStage::constants() {
  std::vector<Constant*> out;
  for (std::optional<Constant>* table : {&rotary_, &local_rotary_})
    if (*table && !blocks_.empty()) out.push_back(&**table);
  return out;
}

void TransformerStage::keep_blocks(std::span<const double> keep) {
  const auto mine = keep.subspan(static_cast<size_t>(first_block_), blocks_.size());
  keep_.assign(mine.begin(), mine.end());
}

Shape TransformerStage::boundary(const MicroBatch& mb) const { return {axis_.rows(mb).rows, hidden_}; }

int64_t TransformerStage::loss_chunk(const MicroBatch& mb) const {
  if (loss_chunk_ > 0) return loss_chunk_;
  // Fewer chunks mean fewer passes over the head's gradient: with AMX a step takes 2 to 10 % less than in chunks of 64
  // MiB.
  constexpr int64_t kLogitBytes = 256 << 20;
  int64_t rows = 64;
  const int64_t row = head_->weight.local_shape[0] * size_of(head_->weight.dtype);
  while (rows < mb.batch * mb.seq && 2 * rows * row <= kLogitBytes) rows *= 2;
  return rows;
}

void TransformerStage::show(const Module& m, const char* part, const Var& x, const MicroBatch& mb) {
  if (tap_ != nullptr) tap_->activation(m.name() + part, x.value, mb);
}

void TransformerStage::show_block(const Block& block, const Block::Stream& s, const MicroBatch& mb) {
  if (!s.branch) return show(block, ".norm2", s.x, mb);
  show(block, ".attn.out", s.x, mb);
  show(block, ".mlp.down", *s.branch, mb);
}

Block::Stream TransformerStage::run_block(Tape& t, size_t i, Block::Stream s, const MicroBatch& mb) {
  Block* block = blocks_[i].get();
  const double kept = mb.train && !keep_.empty() ? keep_[i] : 1;
  if (kept == 0) return s;
  const auto scale = static_cast<float>(1 / kept);
  const int64_t index = first_block_ + static_cast<int64_t>(i);
  const bool chosen = recompute_layers_ == 0 || static_cast<int64_t>(i) < recompute_layers_;
  if (chosen && recompute_ == Recompute::kFull) {
    // One tensor is kept per block, so the residual add happens here and not in the next norm. The sum is bitwise
    // identical.
    GT_CHECK(!s.branch, "blocks that run again come first in a stage");
    return {ops::recompute(t, s.x,
                           [this, block, index, mb, scale](Tape& tape, Var x) {
                             Block::Stream out;
                             units_.use(tape, *block, [&] {
                               out = (*block)(tape, {x, {}, {}}, mb, ops::Keep::kOutputs, scale);
                               out = block_losses(tape, index, out, mb);
                             });
                             show_block(*block, out, mb);
                             return Block::join(tape, out);
                           }),
            {},
            {}};
  }
  const ops::Keep keep = chosen && recompute_ == Recompute::kSelective ? ops::Keep::kInputs : ops::Keep::kOutputs;
  MicroBatch of_block = mb;
  if (mb.cache != nullptr) of_block.cache += i;
  units_.use(t, *block, [&] { s = block_losses(t, index, (*block)(t, s, of_block, keep, scale), mb); });
  show_block(*block, s, mb);
  return s;
}

// Without a backward only the result of a block is needed. It is copied to `workspace` and the block's other
// activations are freed, so a forward pass needs the activation memory of one block only.
Block::Stream TransformerStage::run_without_backward(Tape& t, size_t i, const Block::Stream& s, const MicroBatch& mb,
                                                     const Block::Stream& workspace) {
  const Arena::Mark mark = t.activations().mark();
  const Block::Stream out = run_block(t, i, s, mb);
  const auto keep = [&](const Var& from, const Var& into) {
    const Tensor to{into.value.data, from.value.shape, from.value.dtype, from.value.device};
    GT_CHECK(to.bytes() <= into.value.bytes(), "a block's branch is wider than its input");
    if (from.value.data != to.data) t.ops().copy({.src = from.value, .dst = to}, t.stream());
    return Var{to};
  };
  Block::Stream kept{keep(out.x, workspace.x), {}, out.drop};
  if (out.branch) kept.branch = keep(*out.branch, *workspace.branch);
  t.activations().rollback(mark);
  return kept;
}

Var TransformerStage::body(Tape& t, Var input, const MicroBatch& mb) {
  Block::Stream s{input, {}, {}};
  if (embed_) {
    units_.use(t, *embed_, [&] { s.x = embed_->lookup(t, mb.tokens); });
    if (position_) units_.use(t, *position_, [&] { s.x = (*position_)(t, s.x, mb); });
    if (types_) units_.use(t, *types_, [&] { s.x = (*types_)(t, s.x, mb); });
    if (embed_norm_) units_.use(t, *embed_norm_, [&] { s.x = (*embed_norm_)(t, s.x, nullptr).out; });
    s.x = ops::dropout(t, s.x, embed_drop_(s.x, mb));
    show(*embed_, "", s.x, mb);
  }
  Block::Stream workspace;
  if (!t.recording())
    workspace = {
        Var{t.scratch(s.x.value.shape, s.x.value.dtype)}, Var{t.scratch(s.x.value.shape, s.x.value.dtype)}, {}};
  for (size_t i = 0; i < blocks_.size(); ++i)
    s = t.recording() ? run_block(t, i, s, mb) : run_without_backward(t, i, s, mb, workspace);
  if (norm_) {
    const Var* branch = s.branch ? &*s.branch : nullptr;
    units_.use(t, *norm_, [&] { s.x = (*norm_)(t, s.x, branch, ops::Keep::kOutputs, s.drop).out; });
    show(*norm_, "", s.x, mb);
    return s.x;
  }
  return Block::join(t, s);
}

// The first op that reads x is the last one in the backward (ops::first_tokens).
Var TransformerStage::head_losses(Tape& t, Var x, const MicroBatch& mb) {
  Var of_tokens;
  if (pairs_)
    units_.use(t, *pairs_, [&] {
      const Tensor dloss = mb.dloss.slice(pair_sum_, 1);
      ops::keep_loss(t, mb, pair_sum_, ops::class_cross_entropy(t, (*pairs_)(t, x, mb), mb.pairs, dloss));
    });
  Var bias;
  if (transform_)
    units_.use(t, *transform_, [&] {
      x = (*transform_)(t, x);
      bias = ops::parameter(t, transform_->bias());
    });
  units_.use(t, *head_, [&] { of_tokens = head_->loss(t, x, mb, loss_chunk(mb), transform_ ? &bias : nullptr); });
  ops::keep_loss(t, mb, token_sum_, of_tokens);
  return of_tokens;
}

Var TransformerStage::forward(Tape& t, Var input, const MicroBatch& mb) {
  Var x = body(t, input, mb);
  if (head_) {
    x = head_losses(t, x, mb);
    show(*head_, "", x, mb);
  }
  return x;
}

Tensor TransformerStage::logits(Tape& t, Tensor rows) {
  GT_CHECK(head_ && !t.recording() && !axis_.splits_rows(), "logits need the head, all rows, and no recording");
  if (transform_) rows = (*transform_)(t, Var{rows}).value;
  return head_->logits(t, rows, transform_ ? &transform_->bias() : nullptr);
}

Tensor TransformerStage::pair_logits(Tape& t, Tensor rows, const MicroBatch& mb) {
  GT_CHECK(pairs_ && !t.recording() && !axis_.splits_rows(),
           "pair logits need the pair head, all rows, and no recording");
  return ops::cast(t, (*pairs_)(t, Var{rows}, mb), DType::kF32).value;
}

Tensor TransformerStage::next_logits(Tape& t, const MicroBatch& mb, int64_t row) {
  GT_CHECK(embed_ && head_, "logits of tokens need the whole model in one stage");
  return logits(t, body(t, {}, mb).value.slice(row, 1));
}

Shape TransformerStage::cache_shape(int64_t sequences, int64_t positions) const {
  return {sequences, heads_.kv_heads, positions, heads_.head_dim};
}

std::unique_ptr<ModelStage> make_stage(LayerRange range, int stage, const Build& build) {
  return std::make_unique<TransformerStage>(range, stage, build);
}

}  // namespace gt
