// A Transformer, forward only: the tape supplies the backward, ShardSpec and Mesh supply the parallelism. The layer
// list is embedding, block x L, final norm unless blocks norm their sums, head; a stage is any run of it. What the
// layers are made of is ModelSpec's.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/layers/attention.h"
#include "model/layers/dropout.h"
#include "model/layers/embedding.h"
#include "model/layers/feed_forward.h"
#include "model/layers/masked_heads.h"
#include "model/layers/norm.h"
#include "model/model_stage.h"
#include "model/stage_units.h"

namespace gt {

class Block : public Module {
 public:
  Block(const std::string& name, const Build&, const Constant* rotary);  // as SelfAttention
  // The residual stream travels as (x, branch): the add, with dropout of the branch, is fused into the next norm. Of
  // blocks that norm their sums it is x alone.
  struct Stream {
    Var x;
    std::optional<Var> branch;
    RowDrop drop;
  };
  // scale: factor of the attention and MLP branches.
  Stream operator()(Tape&, Stream, const MicroBatch&, ops::Keep, float scale);
  static Var join(Tape&, const Stream&);  // residual add where no norm follows
  RouterLoad* load() const { return mlp_->load(); }

 private:
  // Returns the input of a branch and, as `sum`, the residual stream to which it is added.
  static ops::Normed before(Tape&, std::optional<Norm>&, const Stream&, ops::Keep);
  static Var after(Tape&, std::optional<Norm>&, Var branch);  // what it adds
  Stream norm_sums(Tape&, const Stream&, const MicroBatch&, ops::Keep, float scale);
  const NormPlace place_;
  SelfAttention attn_;
  ResidualDropout attn_drop_;
  const std::unique_ptr<FeedForward> mlp_;
  ResidualDropout mlp_drop_;
  std::optional<Norm> norm1_, norm2_;            // each writes what the layer behind it reads; or norms its sum
  std::optional<Norm> post_norm1_, post_norm2_;  // of what attention and MLP add
};

class TransformerStage : public ModelStage {
 public:
  TransformerStage(LayerRange, int stage, const Build&);

  Shape boundary(const MicroBatch&) const override;
  DType boundary_dtype() const override { return precision_.stream(); }
  bool boundary_replicated() const override { return !axis_.splits_rows(); }
  Var forward(Tape&, Var input, const MicroBatch&) override;

  std::vector<UnitSpec> units() override { return units_.specs(); }
  std::vector<QuantizerState*> ranges() override { return units_.all(&Module::ranges); }
  std::vector<Fp8State*> fp8_states() override { return units_.all(&Module::fp8_states); }
  std::vector<RouterLoad*> loads() override;
  std::vector<Constant*> constants() override;
  void bind(ParamStore& store) override { units_.bind(store); }
  void keep_blocks(std::span<const double> keep) override;
  size_t blocks() const override { return blocks_.size(); }
  int first_block() const override { return first_block_; }
  std::span<const int> losses() const override { return losses_; }
  void set_observer(ActivationObserver* tap) override { tap_ = tap; }
  Var hidden(Tape& t, Var input, const MicroBatch& mb) override { return body(t, input, mb); }
  Tensor logits(Tape&, Tensor rows) override;
  Tensor pair_logits(Tape&, Tensor rows, const MicroBatch&) override;
  Tensor next_logits(Tape&, const MicroBatch&, int64_t row) override;
  Shape cache_shape(int64_t sequences, int64_t positions) const override;
  DType cache_dtype() const override { return precision_.linear(); }

 protected:
  // Computes the losses of block i of the model (TransformerConfig::losses) from what it returns: writes their sums to
  // MicroBatch::sums and returns the stream through which their gradients reach the block. Models without: unchanged.
  virtual Block::Stream block_losses(Tape&, int64_t, Block::Stream s, const MicroBatch&) { return s; }

 private:
  template <class Layer>
  void add(std::unique_ptr<Layer>& layer, const std::string& name, const Build&, auto... more);
  Var body(Tape&, Var input, const MicroBatch&);  // everything but the head
  Block::Stream run_block(Tape&, size_t i, Block::Stream, const MicroBatch&);
  Block::Stream run_without_backward(Tape&, size_t i, const Block::Stream&, const MicroBatch&,
                                     const Block::Stream& workspace);
  Var head_losses(Tape&, Var x, const MicroBatch&);
  int64_t loss_chunk(const MicroBatch&) const;
  void show_block(const Block&, const Block::Stream&, const MicroBatch&);
  void show(const Module&, const char* part, const Var&, const MicroBatch&);
  const Recompute recompute_;
  const int64_t recompute_layers_, loss_chunk_;
  const TensorAxis axis_;
  const Precision precision_;
  const int64_t hidden_;
  const ops::AttentionShape heads_;  // of this rank
  const int stage_;
  const std::vector<int> losses_;   // indices in ModelSpec::loss_sums of this stage's
  const int token_sum_, pair_sum_;  // of the heads; pair_sum_ -1: none
  std::optional<Constant> rotary_,
      local_rotary_;  // where blocks turn queries and keys; where those with a window differ
  std::unique_ptr<VocabTable> embed_, head_;
  std::unique_ptr<PositionTable> position_;
  std::unique_ptr<TypeTable> types_;
  std::unique_ptr<Norm> embed_norm_;
  ResidualDropout embed_drop_;
  std::vector<std::unique_ptr<Block>> blocks_;
  int first_block_ = 0;       // index of blocks_.front() in the model
  std::vector<double> keep_;  // keep_blocks() of the running step, by local block; empty: no layer drop
  std::unique_ptr<Norm> norm_;
  // In front of the head and beside it, of a masked language model.
  std::unique_ptr<MaskedLmTransform> transform_;
  std::unique_ptr<PairHead> pairs_;
  StageUnits units_;
  ActivationObserver* tap_ = nullptr;
};

}  // namespace gt
