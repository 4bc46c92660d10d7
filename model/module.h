// Module: a name, parameters and children; no virtual functions. Each layer has its own typed operator().
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "autograd/precision.h"
#include "autograd/quantizer_state.h"
#include "model/model_spec.h"
#include "model/recompute.h"
#include "parallel/mesh.h"
#include "parallel/tensor/fp8_linear.h"
#include "parallel/tensor/tensor_axis.h"

namespace gt {

// Construction arguments of a layer: the model, and how this run computes it.
struct Build {
  const ModelSpec& model;
  const Mesh& mesh;
  uint64_t seed = 0;               // of dropout
  bool sequence_parallel = false;  // between TP layers each TP rank holds its own rows only
  Precision precision = {};
  Recompute recompute = Recompute::kNone;
  int64_t recompute_layers = 0;       // recompute only the first blocks of each stage; 0: all
  int64_t loss_chunk = 0;             // rows of logits that exist at once; 0: automatic
  const DeviceApi* device = nullptr;  // where experts are on several ranks
  double expert_load = 0;             // ExpertAxis::load
  const TransformerConfig& config() const { return model.config; }
  ProcessGroup& tp() const { return mesh.group(Axis::kTp); }
  TensorAxis tensor() const { return {tp(), sequence_parallel}; }
  int tp_size() const { return mesh.size(Axis::kTp); }
  // Sharding of a parameter that every TP rank holds whole and applies between TP layers.
  ShardSpec whole() const { return tensor().splits_rows() ? ShardSpec::partial() : ShardSpec::replicate(); }
};

class Module {
 public:
  explicit Module(std::string name) : name_(std::move(name)) {}
  Module(const Module&) = delete;  // parameters have stable addresses
  Module& operator=(const Module&) = delete;
  const std::string& name() const { return name_; }
  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> out;
    collect(out);
    return out;
  }
  std::vector<QuantizerState*> ranges() {
    std::vector<QuantizerState*> out;
    collect(out);
    return out;
  }

  std::vector<Fp8State*> fp8_states() {
    std::vector<Fp8State*> out;
    collect(out);
    return out;
  }

 protected:
  // Returns the quantizer state of this layer's input; nullptr without int8 fake quantization.
  QuantizerState* input_range(const Build& build) {
    return build.precision.int8 ? &ranges_.emplace_back(QuantizerState{name_ + ".input", {}, {}}) : nullptr;
  }
  // Returns the FP8 scaling state of this linear layer; nullptr without FP8. input_split, output_split: whether TP
  // ranks hold columns of the input or of the output gradient.
  const Fp8Linear* fp8_linear(const Build& build, bool input_split, bool output_split) {
    if (build.precision.fp8 == Fp8Recipe::kOff) return nullptr;
    ProcessGroup* tp = build.tp_size() > 1 ? &build.tp() : nullptr;
    fp8_.push_back(
        {{name_ + ".input", input_split ? tp : nullptr}, {name_ + ".output_grad", output_split ? tp : nullptr}});
    return &fp8_.back();
  }
  // Adds the parameter `leaf` of this module as ModelSpec describes it. Requires: split dimensions are divisible by the
  // number of shards (checked before any rank starts).
  Parameter& param(const char* leaf, const Build& build) {
    const ParamSpec& spec = build.model.param(name_ + "." + leaf);
    Parameter& p = own_.emplace_back();
    p.name = spec.name;
    p.full_shape = spec.shape;
    p.local_shape = local_shape(spec, build.mesh.all_coordinates());
    p.shard = spec.shard.tp().named() ? spec.shard : spec.shard.then(build.whole());
    if (p.shard == ShardSpec::partial() && build.tp_size() == 1) p.shard = ShardSpec::replicate();
    p.init = spec.init;
    p.dtype = dtype_of(spec.role, build.precision);
    p.fake_quant = build.precision.int8 && spec.role != Role::kNorm && spec.role != Role::kBias;
    p.frozen = spec.frozen;
    p.int8 = build.precision.frozen_int8 && spec.held_in_int8();
    p.decay = spec.shape.rank >= 2;
    p.matrices = spec.matrices_of_linear();
    p.tied_to = spec.tied_to;
    p.tied_owner = spec.role == Role::kEmbedding && build.config().tied;
    if (spec.padded) p.pad_rows = padded_vocab(spec.shape[0], build.tp_size());
    for (int d = 0; d < spec.shape.rank; ++d)
      GT_CHECK(p.local_shape[d] > 0, p.name, " of extent ", spec.shape[d], " cannot be split over ",
               build.mesh.coordinates());
    return p;
  }
  // Like param(), but nullptr if the model has no such parameter, as for a linear layer without bias.
  Parameter* param_if(const char* leaf, const Build& build) {
    return build.model.find(name_ + "." + leaf) == nullptr ? nullptr : &param(leaf, build);
  }
  template <class M>
  void child(M& m) {
    children_.push_back(&m);
  }

 private:
  static DType dtype_of(Role role, const Precision& p) {
    switch (role) {
      case Role::kEmbedding:
      case Role::kPosition: return p.table();
      case Role::kNorm: return p.norm();
      case Role::kRouter: return DType::kF32;
      default: return p.linear();
    }
  }
  void collect(std::vector<Parameter*>& out) {
    for (Parameter& p : own_) out.push_back(&p);
    for (Module* m : children_) m->collect(out);
  }
  void collect(std::vector<QuantizerState*>& out) {
    for (QuantizerState& r : ranges_) out.push_back(&r);
    for (Module* m : children_) m->collect(out);
  }
  void collect(std::vector<Fp8State*>& out) {
    for (Fp8Linear& f : fp8_) out.insert(out.end(), {&f.input, &f.output_grad});
    for (Module* m : children_) m->collect(out);
  }
  std::string name_;
  std::deque<Parameter> own_;
  std::deque<QuantizerState> ranges_;
  std::deque<Fp8Linear> fp8_;
  std::vector<Module*> children_;
};

}  // namespace gt
