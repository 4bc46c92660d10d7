// The inventory of a model: its layer list, its parameters and what its modules compute, made once from a configuration
// by describe(). Layers build themselves from it; costs, FLOPs, initial weights, import, export and rules read it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "autograd/parameter.h"
#include "model/transformer_config.h"
#include "parallel/pipeline/partition.h"

namespace gt {

// What a parameter is to its module: it decides the type it is stored in, and what is quantized.
enum class Role : uint8_t { kEmbedding, kPosition, kNorm, kMatrix, kBias, kHead };

struct ParamSpec {
  std::string name;  // "layers.3.attn.qkv.weight"
  Shape shape;       // logical; of a linear layer [out, in]
  ShardSpec shard;   // over TP ranks; replicate: whole on each
  Init init;
  Role role = Role::kMatrix;
  int layer = 0;          // its place in the layer list
  bool residual = false;  // a projection back into the residual stream, whose initial values are smaller
  bool padded = false;    // rows are padded to a multiple of 128 on each TP rank
  std::string tied_to;    // the parameter whose second copy this is; else empty
};

// A leaf of the module tree: what it holds and computes.
struct ModuleSpec {
  std::string name;  // "layers.3.attn.qkv"; "attn.core" and the activation have no parameters
  int layer = 0;
  int64_t parameters = 0;  // logical; a tied table once, with the embedding
  int64_t weights = 0;     // by which each token is multiplied: 2 FLOPs each in a forward pass
  // Width of causal attention: 2 FLOPs each and key that keys_seen() counts, both products. Bidirectional: twice as
  // much.
  int64_t attention = 0;
  int64_t window = 0;  // of that attention; 0: unlimited
};

// Keys that a token of a sequence of `length` sees on average, times 2: all of the sequence, for the causal half of it
// is seen, or what a window leaves of it.
constexpr double keys_seen(int64_t length, int64_t window) {
  if (window <= 0 || window >= length) return static_cast<double>(length);
  return static_cast<double>(window) * static_cast<double>(2 * length - window) / static_cast<double>(length);
}

struct LayerSpec {
  std::string type;  // "embedding", "block", "norm", "head"
  std::vector<std::string>
      units;               // FSDP units: "embed", "pos_embed"; of a block one, "layers.3"; named after their modules
  int first_unit = 0;      // number of units.front() in the model
  int64_t flops = 0;       // of a forward pass, per token of a sequence of config.seq
  int64_t parameters = 0;  // of a tied head too: the layer needs them
};

struct ModelSpec {
  TransformerConfig config;
  std::vector<LayerSpec> layers;    // embedding, block x L, final norm unless blocks norm their sums, head
  std::vector<ParamSpec> params;    // in the order of the layers
  std::vector<ModuleSpec> modules;  // in execution order

  const ParamSpec* find(const std::string& name) const;  // nullptr: the model has no such parameter
  const ParamSpec& param(const std::string& name) const;
  const ModuleSpec& module(const std::string& name) const;
  // Sums of losses that the last stage returns for a microbatch: of tokens and, with a pair head, of pairs.
  int losses() const { return config.predicts_pairs() ? 2 : 1; }
  int units() const { return layers.back().first_unit + static_cast<int>(layers.back().units.size()); }
  // FSDP unit of a block, and its place in the layer list.
  int unit_of_block(int64_t block) const { return layers[static_cast<size_t>(block) + 1].first_unit; }

  int64_t parameters() const;         // logical, a tied table once
  int64_t matmul_parameters() const;  // weights of linear layers and of the head: N_mm of the FLOP formulas
  // FLOPs of one training step of `tokens` tokens, exact: 6 n N_mm + 6 L q s n (causal attention counted half; s in a
  // block with a window is keys_seen()). Of
  // sequences of `length` tokens instead of config.seq, and of `blocks` blocks instead of all, where they are given.
  double train_flops(int64_t tokens, int64_t length = 0, int64_t blocks = -1) const;
  // Sum over the blocks of attention's width times keys_seen().
  double attention_width(int64_t length) const;
  std::vector<LayerCost> layer_costs() const;  // what the pipeline partition balances

  std::unordered_map<std::string, size_t> index;  // of params, by name
};

// Requires: sizes of at least 1; heads that divide hidden where head_dim is 0.
ModelSpec describe(const TransformerConfig&);

// Rows of a vocabulary padded for `tp` ranks.
constexpr int64_t padded_vocab(int64_t vocab, int64_t tp) { return (vocab + 128 * tp - 1) / (128 * tp) * (128 * tp); }

// What a TP rank holds of a parameter, padding included. An extent of -1: it cannot be cut over so many ranks.
Shape local_shape(const ParamSpec&, int tp);

// "layers.*.norm1.weight" of "layers.3.norm1.weight"; other names as they are. `block`: the 3, or -1.
std::string leaf_class(std::string_view name, int64_t* block = nullptr);

}  // namespace gt
