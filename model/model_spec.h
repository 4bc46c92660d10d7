// Static description of a model: layers, parameters and the compute of each module. describe() derives it from a
// configuration. Layers are constructed from it; costs, FLOPs, initial weights, import, export and parameter rules read
// it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "autograd/parameter.h"
#include "model/transformer_config.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/partition.h"

namespace gt {

// Kind of a parameter: determines its storage dtype, whether it is quantized, and which ranks replicate it. kExpert: a
// stack of matrices, each of which only some of the tokens are multiplied by. kRouter: computes in f32 at every
// precision.
enum class Role : uint8_t { kEmbedding, kPosition, kNorm, kMatrix, kExpert, kRouter, kBias, kHead };

struct ParamSpec {
  std::string name;  // "layers.3.attn.qkv.weight"
  Shape shape;       // logical; linear layers [out, in]
  ShardSpec shard;   // replicate: whole on each rank
  Init init;
  Role role = Role::kMatrix;
  int matrices = 1;       // of a linear layer [out, in], along `out`: Q, K and V of a fused weight
  int layer = 0;          // index in the layer list
  int unit = 0;           // index in ModelSpec::units
  bool residual = false;  // projection back into the residual stream, with smaller initial values
  bool frozen = false;    // not trained: the model has adapters
  bool padded = false;    // rows are padded to a multiple of 128 on each TP rank
  std::string tied_to;    // parameter of which this is a tied copy; else empty

  // Of each expert; 0: not the weight of a linear layer.
  int matrices_of_linear() const { return role == Role::kMatrix || role == Role::kExpert ? matrices : 0; }
  // Whether a run that holds frozen weights in int8 (Precision::frozen_int8) holds this one so: of a linear layer.
  bool held_in_int8() const { return frozen && role == Role::kMatrix; }
  // Ranks that replicate it: reduce its gradient and hold its shards.
  AxisSet domain() const { return role == Role::kExpert ? kExpertDomain : kDenseDomain; }
};

// Leaf of the module tree: its parameters and compute.
struct ModuleSpec {
  std::string name;  // "layers.3.attn.qkv"; "attn.core" and the activation have no parameters
  int layer = 0;
  int64_t parameters = 0;      // logical; a tied table once, with the embedding
  int64_t weights = 0;         // by which each token is multiplied: 2 FLOPs each in a forward pass
  int64_t frozen_weights = 0;  // of these: no gradient, 4 FLOPs each in a training step instead of 6
  // Width of causal attention: 2 FLOPs each and key that attended_keys() counts, both products. Bidirectional: twice as
  // much.
  int64_t attention = 0;
  int64_t window = 0;  // of that attention; 0: unlimited
};

// Returns twice the mean number of keys that a token attends to in a sequence of `length`, limited by `window`. Without
// a window that is `length`, because causal attention covers half of the score matrix.
constexpr double attended_keys(int64_t length, int64_t window) {
  if (window <= 0 || window >= length) return static_cast<double>(length);
  return static_cast<double>(window) * static_cast<double>(2 * length - window) / static_cast<double>(length);
}

// FSDP unit: the parameters of one module of a layer that the same ranks replicate.
struct UnitEntry {
  std::string name;    // "layers.3": of dense parameters, as the module; "layers.3.experts": of others
  std::string module;  // "embed", "pos_embed", "layers.3"
  AxisSet domain;
};

struct LayerSpec {
  std::string type;                  // "embedding", "block", "norm", "head"
  std::vector<std::string> modules;  // in the order of the forward: "embed", "pos_embed"; a block is one
  int first_unit = 0, units = 0;     // [first_unit, first_unit + units) of ModelSpec::units
  int64_t flops = 0;                 // of a forward pass, per token of a sequence of config.seq
  int64_t parameters = 0;            // of a tied head too: the layer needs them
};

struct ModelSpec {
  TransformerConfig config;
  std::vector<LayerSpec> layers;    // embedding, block x L, final norm unless blocks norm their sums, head
  std::vector<ParamSpec> params;    // in the order of the layers
  std::vector<ModuleSpec> modules;  // in execution order
  std::vector<UnitEntry> units;     // in execution order
  std::vector<LossTerm> losses;     // that of tokens first
  std::vector<LossSum> loss_sums;   // of each term in order, of each of its layers

  const ParamSpec* find(const std::string& name) const;  // nullptr: no such parameter
  const ParamSpec& param(const std::string& name) const;
  const ModuleSpec& module(const std::string& name) const;
  // Index in loss_sums of the loss `name` of a layer; -1: of its only layer.
  int loss_sum(std::string_view name, int layer = -1) const;
  std::vector<int> losses_in(int begin, int end) const;  // indices in loss_sums of layers [begin, end), ascending
  const LayerSpec& block(int64_t i) const { return layers[static_cast<size_t>(i) + 1]; }

  int64_t parameters() const;          // logical; a tied table counts once
  int64_t trained_parameters() const;  // of these, those that are not frozen
  int64_t matmul_parameters() const;   // weights of linear layers and of the head: N_mm of the FLOP formulas
  // Returns the exact FLOPs of one training step over `tokens` tokens: 6 n N_mm + 6 L q s n, and 2 n less for each
  // frozen weight. Causal attention counts half; in a block with a window, s is attended_keys().
  // length > 0: sequence length instead of config.seq. blocks >= 0: number of blocks instead of all.
  double train_flops(int64_t tokens, int64_t length = 0, int64_t blocks = -1) const;
  // Returns the sum over all blocks of attention width times attended_keys().
  double attention_width(int64_t length) const;
  std::vector<LayerCost> layer_costs() const;  // costs that the pipeline partition balances

  std::unordered_map<std::string, size_t> index;  // of params, by name
};

// Requires: sizes of at least 1; heads divides hidden if head_dim is 0.
ModelSpec describe(const TransformerConfig&);

// Names of linear layers for LoraConfig::targets that the model has.
std::vector<std::string> lora_targets(const TransformerConfig&);
// Output blocks with an adapter of their own of the linear layer `name`, as in "attn.qkv" of a block. Each is a number
// of a block of the weight's ShardSpec, or -1 for all outputs together. Empty: the layer has no adapter.
std::vector<int> lora_blocks(const TransformerConfig&, std::string_view name);

// Returns the rows of a vocabulary padded for `tp` ranks.
constexpr int64_t padded_vocab(int64_t vocab, int64_t tp) { return (vocab + 128 * tp - 1) / (128 * tp) * (128 * tp); }

// Returns the shape that a rank holds of a parameter, padding included. An extent of -1 means that it cannot be split
// over so many ranks.
Shape local_shape(const ParamSpec&, const RankCoordinates&);

// Sets for each FSDP unit of the model whether a step that drops these blocks leaves it unused. keep: one entry per
// block, 0 for a dropped one.
void mark_unused_units(const ModelSpec&, std::span<const double> keep, std::vector<uint8_t>& unused);

// Maps "layers.3.norm1.weight" to "layers.*.norm1.weight", "layers.3.mlp.experts.7.up.weight" to
// "layers.*.mlp.experts.*.up.weight", and returns names outside of blocks unchanged. `numbers`: receives what the stars
// replace, {3, 7}.
std::string leaf_class(std::string_view name, std::vector<int64_t>* numbers = nullptr);

}  // namespace gt
