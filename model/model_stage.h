// The engine's interface to a model: a range of its layer list on one rank, for any family.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "autograd/ops.h"
#include "model/activation_tap.h"
#include "model/layers/feed_forward.h"
#include "model/layers/rotary.h"
#include "model/module.h"
#include "parallel/pipeline/executor.h"
#include "parallel/zero/param_store.h"

namespace gt {

class ModelStage : public PipelineStage {
 public:
  virtual std::vector<UnitSpec> units() = 0;
  virtual std::vector<QuantizerState*>
  ranges() = 0;                                     // quantizer state of linear-layer inputs; memory not yet allocated
  virtual std::vector<Fp8State*> fp8_states() = 0;  // of tensors that FP8 linear layers quantize at every use
  virtual std::vector<RouterLoad*> loads() = 0;     // of routers with a bias that moves; memory not yet allocated
  virtual std::vector<Constant*> constants() = 0;   // allocated by the engine before the first forward
  virtual void bind(ParamStore&) = 0;               // call before the first forward

  // Sets the layer-drop state from the next step on, one entry per block of the model: 0 for a dropped block, else its
  // keep probability, which divides its branches (model/layer_drop.h). Applies in training only.
  virtual void keep_blocks(std::span<const double> keep) = 0;
  virtual size_t blocks() const = 0;                   // number of blocks of this stage
  virtual int first_block() const = 0;                 // index of the stage's first block in the model
  virtual void set_observer(ActivationObserver*) = 0;  // for every later forward; nullptr: none

  // Without recording. hidden: everything but the head; `input` as in forward. logits: what the head of the
  // last stage makes of rows of it, f32 [rows, local padded vocab].
  virtual Var hidden(Tape&, Var input, const MicroBatch&) = 0;
  virtual Tensor logits(Tape&, Tensor rows) = 0;
  // Logits of the pair head of the last stage from hidden()'s result, f32 [batch, 2]. Requires: the model has one.
  virtual Tensor pair_logits(Tape&, Tensor rows, const MicroBatch&) = 0;
  // Logits [1, local padded vocab], f32, that follow position `row`; a stage that holds the whole model.
  virtual Tensor next_logits(Tape&, const MicroBatch&, int64_t row) = 0;
  // Shape of KvLayer::keys and values of one block, for sequences of up to `positions` tokens.
  virtual Shape cache_shape(int64_t sequences, int64_t positions) const = 0;
  virtual DType cache_dtype() const = 0;
};

struct LayerRange {  // [begin, end) of ModelSpec::layers
  int begin = 0, end = 0;
};

// Builds layers `range` of build.model on this rank as virtual pipeline stage `stage`. Copies what it needs of build.
std::unique_ptr<ModelStage> make_stage(LayerRange range, int stage, const Build& build);

}  // namespace gt
