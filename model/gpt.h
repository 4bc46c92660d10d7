// GPT-2 (Radford et al. 2019), forward only: the tape supplies the backward, ShardSpec and Mesh supply the parallelism.
// The layer list is embedding, block x L, final norm, head; a stage is any run of it.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/layers/attention.h"
#include "model/layers/dropout.h"
#include "model/layers/embedding.h"
#include "model/layers/mlp.h"
#include "model/layers/norm.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/partition.h"
#include "parallel/zero/param_store.h"

namespace gt {

// What the backward computes again instead of finding it kept: nothing; outputs of activations and norms; whole blocks.
// Changes no bit of the result.
enum class Recompute : uint8_t { kNone, kSelective, kFull };

struct GptConfig {
  int64_t layers = 12, hidden = 768, heads = 12;
  int64_t kv_heads = 0;  // of keys and values, a divisor of heads; 0: as many
  int64_t ffn = 3072, vocab = 50257, seq = 1024;
  bool tied = true;
  float init_std = 0.02f;
  double dropout = 0;       // of embeddings and of what attention and MLP add to the residual stream
  double attn_dropout = 0;  // of attention probabilities
  int64_t loss_chunk = 0;  // rows of logits that exist at once; 0: automatic
  Recompute recompute = Recompute::kNone;
  int64_t recompute_layers = 0;  // of the first so many blocks of each stage; 0: of all

  int64_t groups() const { return kv_heads > 0 ? kv_heads : heads; }                  // heads of keys and values
  int64_t qkv_width() const { return hidden + 2 * groups() * (hidden / heads); }  // rows of the fused projection
  // Consecutive tp ranks that hold the same key and value head: MeshShape::kv_ranks.
  int kv_ranks(int tp) const { return ShardSpec::qkv(heads, groups()).copies(tp); }
  int64_t block_parameters() const;
  int64_t parameters() const;         // logical, a tied table once
  int64_t matmul_parameters() const;  // weights of linears and the head: N_mm of the FLOP formulas
  // FLOPs of one training step of `tokens` tokens, exact: 6 n N_mm + 6 L q s n (causal attention counted half). Of
  // sequences of `length` tokens instead of seq, and of `blocks` blocks instead of all, where they are given.
  double train_flops(int64_t tokens, int64_t length = 0, int64_t blocks = -1) const;
  std::vector<LayerCost> layer_costs() const;  // what the pipeline partition balances
  int total_scopes() const { return static_cast<int>(layers) + 4; }
};

class ActivationTap;

class Block : public Module {
 public:
  Block(const std::string& name, const GptConfig&, const Build&);
  // The residual stream travels as (x, branch): the add, with dropout of the branch, is fused into the next norm.
  struct Stream { Var x; std::optional<Var> branch; RowDrop drop; };
  // scale: of what attention and MLP add.
  Stream operator()(Tape&, Stream, const MicroBatch&, ops::Keep, float scale);
  static Var join(Tape&, const Stream&);  // where no norm follows

 private:
  bool keeps_codes_;  // of what linear layers read, instead of what norms made of whole rows
  Norm norm1_;
  SelfAttention attn_;
  ResidualDropout attn_drop_;
  Norm norm2_;
  Mlp mlp_;
  ResidualDropout mlp_drop_;
};

// Layers [begin, end) of the layer list on this rank.
class GptStage : public Stage {
 public:
  GptStage(const GptConfig&, int begin, int end, int stage, const Build&);

  Shape boundary(const MicroBatch&) const override;
  DType boundary_dtype() const override { return precision_.stream(); }
  bool boundary_replicated() const override { return !axis_.cut_rows(); }
  Var forward(Tape&, Var input, const MicroBatch&) override;

  std::vector<ScopeSpec> scopes();
  std::vector<QuantRange*> ranges();  // of the inputs of linear layers, where they are quantized; without memory
  std::vector<Fp8Range*> fp8_ranges();  // of what linear layers of 8 bits encode anew at every use
  void bind(ParamStore&);  // before the first forward
  // From the next step on: [layers] entries, 0 for a block that is left out, else what the branches of a block that is
  // not are divided by (model/layer_drop.h). Acts in training alone.
  void keep_blocks(std::span<const double> keep);
  size_t blocks() const { return blocks_.size(); }
  int first_block() const { return first_block_; }
  static int scope_of_block(int block) { return block + 2; }  // its place in the whole model's scope list
  void show_to(ActivationTap* tap) { tap_ = tap; }  // of every forward from now on; nullptr: nobody
  // Generation, without recording. hidden: everything but the head; `input` as in forward. logits: what the head of the
  // last stage makes of rows of it, f32 [rows, local padded vocab].
  Var hidden(Tape& t, Var input, const MicroBatch& mb) { return body(t, input, mb); }
  Tensor logits(Tape&, Tensor rows);
  // Logits [1, local padded vocab], f32, that follow position `row` of mb; a stage that holds the whole model.
  Tensor next_logits(Tape&, const MicroBatch&, int64_t row);
  // Of a block of this stage, for sequences of up to `positions` tokens: KvLayer::keys and values.
  Shape cache_shape(int64_t sequences, int64_t positions) const;
  DType cache_dtype() const { return precision_.linear(); }

 private:
  struct Named { std::string name; int index; Module* module; ParamScope* scope = nullptr; };
  Named& named(const Module&);
  template <class Body>
  void in_scope(Tape&, const Module&, Body);
  Var body(Tape&, Var input, const MicroBatch&);  // everything but the head
  Block::Stream run_block(Tape&, size_t i, Block::Stream, const MicroBatch&);
  Block::Stream run_and_forget(Tape&, size_t i, const Block::Stream&, const MicroBatch&, const Block::Stream& room);
  int64_t loss_chunk(const MicroBatch&) const;
  void show(const Module&, const char* part, const Var&, const MicroBatch&);
  GptConfig config_;
  TensorAxis axis_;
  Precision precision_;
  int stage_;
  std::unique_ptr<VocabTable> embed_, head_;
  std::unique_ptr<PositionTable> position_;
  ResidualDropout embed_drop_;
  std::vector<std::unique_ptr<Block>> blocks_;
  int first_block_ = 0;       // number of blocks_.front() in the model
  std::vector<double> keep_;  // of the running step, by local block; empty: all of them, as they are
  std::unique_ptr<Norm> norm_;
  std::vector<Named> named_;
  ActivationTap* tap_ = nullptr;
};

}  // namespace gt
