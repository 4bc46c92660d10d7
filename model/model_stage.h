// The model as the engine sees it: a run of its layer list on one rank, whatever the family.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "autograd/ops.h"
#include "model/activation_tap.h"
#include "model/layers/rotary.h"
#include "model/module.h"
#include "parallel/pipeline/executor.h"
#include "parallel/zero/param_store.h"

namespace gt {

class ModelStage : public PipelineStage {
 public:
  virtual std::vector<UnitSpec> units() = 0;
  virtual std::vector<QuantizerState*>
  ranges() = 0;  // of the inputs of linear layers, where they are quantized; without memory
  virtual std::vector<Fp8State*> fp8_states() = 0;  // of what FP8 linear layers quantize anew at every use
  virtual std::vector<Constant*> constants() = 0;   // to be given memory before the first forward
  virtual void bind(ParamStore&) = 0;               // before the first forward

  // From the next step on: an entry a block of the model, 0 for one that is left out, else what the branches of a block
  // that is not are divided by (model/layer_drop.h). Acts in training alone.
  virtual void keep_blocks(std::span<const double> keep) = 0;
  virtual size_t blocks() const = 0;                   // of this stage
  virtual int first_block() const = 0;                 // number of the first of them in the model
  virtual void set_observer(ActivationObserver*) = 0;  // of every forward from now on; nullptr: nobody

  // Without recording. hidden: everything but the head; `input` as in forward. logits: what the head of the
  // last stage makes of rows of it, f32 [rows, local padded vocab].
  virtual Var hidden(Tape&, Var input, const MicroBatch&) = 0;
  virtual Tensor logits(Tape&, Tensor rows) = 0;
  // What the pair head of the last stage makes of hidden()'s result: f32 [batch, 2]. Of models that have one.
  virtual Tensor pair_logits(Tape&, Tensor rows, const MicroBatch&) = 0;
  // Logits [1, local padded vocab], f32, that follow position `row`; a stage that holds the whole model.
  virtual Tensor next_logits(Tape&, const MicroBatch&, int64_t row) = 0;
  // Of a block of this stage, for sequences of up to `positions` tokens: KvLayer::keys and values.
  virtual Shape cache_shape(int64_t sequences, int64_t positions) const = 0;
  virtual DType cache_dtype() const = 0;
};

struct LayerRange {  // [begin, end) of ModelSpec::layers
  int begin = 0, end = 0;
};

// Layers `range` of build.model on this rank, as virtual pipeline stage `stage`. Copies what it needs of build.
std::unique_ptr<ModelStage> make_stage(LayerRange range, int stage, const Build& build);

}  // namespace gt
