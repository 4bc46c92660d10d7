// Function that a Transformer computes: its sizes, and one value for each decision in which families differ. A family
// (model/families/) initializes it. Build (model/module.h) holds how a run computes that function.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "autograd/shard_spec.h"
#include "kernels/core/rope.h"
#include "model/loss_terms.h"

namespace gt {

enum class NormKind : uint8_t;    // kernels/ops.h: kLayer, kRms
enum class Activation : uint8_t;  // kernels/ops.h: kGelu, kSilu, kRelu2, kGeluErf, kTanh
enum class GateKind : uint8_t;    // kernels/expert_ops.h: kSoftmax, kSigmoid

// Position encoding: a learned table added to the embeddings, or rotation of queries and keys (Su et al. 2021, arXiv
// 2104.09864).
enum class PositionKind : uint8_t { kLearned, kRotary };

// Positions of a block's norms: the input of each branch (attention, MLP), its output, both, or the residual sum
// (post-norm, Vaswani et al. 2017), with which there is no final norm.
enum class NormPlace : uint8_t { kPre, kPost, kBoth, kSum };

// Keys that a query attends to: those up to its own position, or all (Devlin et al. 2018, arXiv 1810.04805).
enum class MaskKind : uint8_t { kCausal, kFull };

// Prediction target: the next token; or masked tokens and whether a second sentence follows the first.
enum class HeadKind : uint8_t { kLm, kMaskedLmAndPairs };

// RMSNorm of queries and keys before the rotary embedding: none, per head, or over all query channels and all key
// channels of a row.
enum class QkNormKind : uint8_t { kNone, kHead, kRow };

// Names of the enum values, in order, for options, config.json and messages.
constexpr std::array<const char*, 2> names_of(NormKind) { return {"layer_norm", "rms_norm"}; }
constexpr std::array<const char*, 2> names_of(PositionKind) { return {"learned", "rotary"}; }
constexpr std::array<const char*, 4> names_of(RopeKind) { return {"default", "linear", "llama3", "yarn"}; }
constexpr std::array<const char*, 4> names_of(NormPlace) { return {"pre", "post", "both", "sum"}; }
constexpr std::array<const char*, 2> names_of(MaskKind) { return {"causal", "full"}; }
constexpr std::array<const char*, 2> names_of(HeadKind) { return {"lm", "masked_lm_and_pairs"}; }
constexpr std::array<const char*, 3> names_of(QkNormKind) { return {"none", "head", "row"}; }
constexpr std::array<const char*, 2> names_of(GateKind) { return {"softmax", "sigmoid"}; }
constexpr std::array<const char*, 5> names_of(Activation) { return {"gelu", "silu", "relu2", "gelu_erf", "tanh"}; }

// Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) of linear layers of the blocks: y = W x + (alpha / rank) B A x.
// With them all other parameters are frozen.
struct LoraConfig {
  int64_t rank = 0;                  // 0: no adapters, everything is trained
  double alpha = 0;                  // 0: rank
  double dropout = 0;                // of the input of A
  std::vector<std::string> targets;  // of lora_targets(); empty: all
  // Queries, keys and values have an A of their own each, or one for the fused projection. Gate and up, of a gated MLP,
  // always have their own.
  bool separate_qkv = false;

  float scale() const { return alpha > 0 ? static_cast<float>(alpha / static_cast<double>(rank)) : 1; }
};

// Routed feed-forward layers (Mixture of Experts): a router chooses `top_k` of `experts` MLPs of width
// TransformerConfig::ffn for each token, and adds their outputs by weights (kernels/expert_ops.h, Gate). No token is
// dropped.
struct MoeConfig {
  int64_t experts = 0;  // 0: one dense MLP a block
  int64_t top_k = 2;
  GateKind gate{};  // kSoftmax
  bool normalize = true;
  double scale = 1;
  int64_t groups = 1, top_groups = 1;
  bool bias = false;         // routers have one, which is not trained: experts are chosen with it, weighted without
  double bias_rate = 0;      // by which a step moves it towards equal loads (arXiv 2408.15664); 0: it stays
  double balance = 0;        // coefficient of the balance loss of sequences (BalanceLoss), summed over the blocks
  int64_t shared = 0;        // MLP of as many experts' width that computes every token, beside the chosen ones; 0: none
  bool shared_gate = false;  // its output is multiplied by the sigmoid of a logit of each token
  std::vector<int64_t> dense_blocks = {};  // blocks with one dense MLP instead, counted from 0, ascending
  int64_t dense_ffn = 0;                   // its width; 0: TransformerConfig::ffn
};

struct TransformerConfig {
  int64_t layers = 12, hidden = 768, heads = 12;
  int64_t kv_heads = 0;  // KV heads, a divisor of heads; 0: equal to heads
  int64_t ffn = 3072, vocab = 50257, seq = 1024;
  bool tied = true;          // one table for token embedding and head
  bool scale_embed = false;  // token embeddings are multiplied by sqrt(hidden), rounded to their dtype
  int64_t head_dim = 0;      // channels of a head; 0: hidden / heads

  NormKind norm{};  // kLayer
  double norm_eps = 1e-5;
  bool norm_zero_centered = false;  // RMSNorm weights, QK-norm's too, are stored minus 1
  NormPlace norm_place = NormPlace::kPre;
  PositionKind position = PositionKind::kLearned;
  double rope_theta = 10000;
  RopeScaling rope = {};
  double rope_local_theta = 0;  // in blocks with a window, without the scaling; 0: as in all others
  QkNormKind qk_norm = QkNormKind::kNone;
  MaskKind mask = MaskKind::kCausal;
  HeadKind head = HeadKind::kLm;
  int64_t token_types = 0;  // rows of a table of token types, added to the embeddings; 0: none
  bool embed_norm = false;  // norm of the embeddings
  Activation activation{};  // kGelu
  bool gated = false;       // MLP: down(act(gate(x)) * up(x)) instead of down(act(up(x)))
  bool qkv_bias = true, out_bias = true, mlp_bias = true;

  int64_t window = 0;                          // sliding window: keys that a query attends to, itself included; 0: all
  int64_t global_every = 0;                    // n: every n-th block, starting with the n-th, has no window
  int64_t global_first = 0;                    // number of leading blocks without a window
  double attn_softcap = 0, logit_softcap = 0;  // c: x becomes c tanh(x / c); 0: none
  double attn_scalar = 0;                      // attention scores are divided by its square root; 0: head_dim

  double dropout = 0;       // of embeddings and of attention and MLP outputs
  double attn_dropout = 0;  // of attention probabilities
  double init_std = 0.02;
  double z_loss = 0;  // coefficient of mean(logsumexp(logits)^2) in the loss of training
  LoraConfig lora = {};
  MoeConfig moe = {};
  std::vector<LossTerm> losses = {};  // besides those of the heads; computed by TransformerStage::block_losses

  template <class V>
  void fields(V& v) {
    v("layers", layers, "1..1024 blocks", "transformer blocks");
    v("hidden", hidden, "1..1048576", "width of the residual stream");
    v("heads", heads, "1..65536", "attention heads; must divide hidden where head_dim is 0");
    v("kv_heads", kv_heads, "0..65536",
      "key and value heads, each read by heads / kv_heads query heads; must divide heads; 0: as many as heads");
    v("head_dim", head_dim, "0..65536 channels", "of a head; 0: hidden / heads");
    v("ffn", ffn, "0..8388608", "width of the MLP; 0: 4 x hidden, gated 8/3 x hidden in multiples of 256");
    v("vocab", vocab, "2..4194304 tokens", "vocabulary of the tokenizer; padded inside for tensor parallelism");
    v("seq", seq, "1..1048576 tokens", "context length");
    v("tied", tied, "", "input and output embedding share one table");
    v("scale_embed", scale_embed, "", "multiply token embeddings by the square root of hidden");
    v("norm", norm, "", "layer norm with bias, or RMSNorm");
    v("norm_eps", norm_eps, ">0..1", "added to the variance in a norm");
    v("norm_zero_centered", norm_zero_centered, "", "RMSNorm: weights are stored minus 1 and start at 0");
    v("norm_place", norm_place, "",
      "norm what attention and MLP read, what they add to the residual stream, both, or the sum");
    v("position", position, "", "learned table of positions, or rotation of queries and keys");
    v("rope_theta", rope_theta, ">1..1e12", "base of the rotary frequencies");
    v("rope_local_theta", rope_local_theta, "0..1e12",
      "base of the rotary frequencies in blocks with a window, which rope_scaling then leaves alone; 0: rope_theta");
    v("rope_scaling", rope.kind, "",
      "how rotary frequencies are stretched for a longer context, by Hugging Face's names");
    v("rope_factor", rope.factor, "1..1e6", "linear, llama3, yarn: how many times longer the context gets");
    v("rope_low_freq_factor", rope.low_freq_factor, ">0..1e6",
      "llama3: frequencies of fewer turns within rope_original_seq are divided by rope_factor");
    v("rope_high_freq_factor", rope.high_freq_factor, ">0..1e6", "llama3: frequencies of more turns stay as they are");
    v("rope_beta_fast", rope.beta_fast, ">0..1e6",
      "yarn: frequencies of more turns within rope_original_seq stay as they are");
    v("rope_beta_slow", rope.beta_slow, ">0..1e6", "yarn: frequencies of fewer turns are divided by rope_factor");
    v("rope_attention_factor", rope.attention_factor, "0..1e6",
      "yarn: factor of queries and of keys; 0: 0.1 ln(rope_factor) + 1");
    v("rope_truncate", rope.truncate, "", "yarn: the ramp between both begins and ends at whole channels");
    v("rope_original_seq", rope.original_positions, "1..16777216 tokens",
      "llama3, yarn: context length before stretching");
    v("qk_norm", qk_norm, "",
      "RMSNorm of queries and of keys before rotary positions: of each head, or of all heads together");
    v("mask", mask, "",
      "keys that a query sees: those up to its own position, or all; full needs head masked_lm_and_pairs");
    v("head", head, "", "predict the next token, or masked tokens and whether a second sentence follows the first");
    v("token_types", token_types, "0..1024", "rows of a table of token types, added to the embeddings; 0: none");
    v("embed_norm", embed_norm, "", "norm of the embeddings");
    v("activation", activation, "", "of the MLP; gelu: its tanh form, gelu_erf: the exact one");
    v("gated", gated, "", "MLP of two projections, act(gate(x)) * up(x)");
    v("qkv_bias", qkv_bias, "", "bias of the query, key and value projections");
    v("out_bias", out_bias, "", "bias of attention's output projection");
    v("mlp_bias", mlp_bias, "", "biases of the MLP");
    v("window", window, "0..1048576 tokens", "sliding window: keys that a query sees, itself the last; 0: all");
    v("global_every", global_every, "0..1024 blocks",
      "every n-th block attends to everything, without the window; 0: none");
    v("global_first", global_first, "0..1024 blocks", "the first blocks attend to everything, without the window");
    v("attn_softcap", attn_softcap, "0..1e6", "attention scores x become c tanh(x / c); 0: they stay");
    v("logit_softcap", logit_softcap, "0..1e6", "logits x become c tanh(x / c), in the loss too; 0: they stay");
    v("attn_scalar", attn_scalar, "0..1048576", "attention scores are divided by its square root; 0: head_dim");
    v("dropout", dropout, "0..<1", "dropout of embeddings and residual branches while training");
    v("attn_dropout", attn_dropout, "0..<1", "dropout of attention probabilities while training");
    v("z_loss", z_loss, "0..1",
      "add this times the mean of squared log-sum-exps of the logits to the loss while training");
    v("lora_rank", lora.rank, "0..65536",
      "train low-rank adapters of this rank (LoRA) and freeze everything else; 0: train everything");
    v("lora_alpha", lora.alpha, "0..1e6", "adapters are multiplied by lora_alpha / lora_rank; 0: lora_rank");
    v("lora_dropout", lora.dropout, "0..<1", "dropout of what adapters read while training");
    v("lora_targets", lora.targets, "",
      "linear layers with an adapter: q, k, v, qkv (all three), out, gate, up, down; empty: all");
    v("lora_separate_qkv", lora.separate_qkv, "",
      "adapters of q, k and v each have an A of their own; else the fused projection has one");
    v("moe_experts", moe.experts, "0..4096 experts",
      "Mixture of Experts, on CPUs: number of MLPs of width ffn in each block, of which a router chooses moe_top_k for "
      "every token; 0: one dense MLP");
    v("moe_top_k", moe.top_k, "1..64 experts", "experts that compute each token");
    v("moe_gate", moe.gate, "", "scores of experts: softmax over all, or the sigmoid of each");
    v("moe_normalize", moe.normalize, "", "divide the scores of the chosen experts by their sum");
    v("moe_scale", moe.scale, ">0..1e6", "multiply the scores of the chosen experts, after normalizing");
    v("moe_groups", moe.groups, "1..512 groups", "of experts, of equal size, of which moe_top_groups are chosen first");
    v("moe_top_groups", moe.top_groups, "1..512 groups",
      "choose the experts of a token from its best groups, by the sum of a group's two largest scores");
    v("moe_bias", moe.bias, "", "choose experts by score plus a bias of each, which does not enter their weights");
    v("moe_bias_rate", moe.bias_rate, "0..1",
      "by which every step raises or lowers the biases of experts that got fewer or more tokens than the mean");
    v("moe_shared", moe.shared, "0..64 experts",
      "experts that compute every token, as one MLP of moe_shared x ffn, beside the chosen ones");
    v("moe_shared_gate", moe.shared_gate, "", "multiply their output by a sigmoid of each token");
    v("moe_dense_blocks", moe.dense_blocks, "", "blocks with one dense MLP instead of experts, counted from 0");
    v("moe_dense_ffn", moe.dense_ffn, "0..8388608", "width of the MLP of moe_dense_blocks; 0: ffn");
    v("moe_balance", moe.balance, "0..10",
      "coefficient of the balance loss: experts of every sequence and block are to be chosen alike; 0: none");
    v("init_std", init_std, ">0..10", "standard deviation of the initial weights");
  }

  bool predicts_pairs() const { return head == HeadKind::kMaskedLmAndPairs; }
  int64_t groups() const { return kv_heads > 0 ? kv_heads : heads; }  // key and value heads
  int64_t head_width() const { return head_dim > 0 ? head_dim : hidden / heads; }
  int64_t q_width() const { return heads * head_width(); }                     // columns of all queries
  int64_t qkv_width() const { return (heads + 2 * groups()) * head_width(); }  // of the fused projection
  float gamma_offset() const { return norm_zero_centered ? 1 : 0; }            // kernels/ops.h, NormKind
  // Attention window of a block, counted from 0; 0: unlimited.
  int64_t window_of(int64_t block) const {
    return block < global_first || (global_every > 0 && (block + 1) % global_every == 0) ? 0 : window;
  }
  // Whether a block, counted from 0, has experts.
  bool routed(int64_t block) const {
    return moe.experts > 0 &&
           std::find(moe.dense_blocks.begin(), moe.dense_blocks.end(), block) == moe.dense_blocks.end();
  }
  // Width of the MLP of a block without.
  int64_t dense_ffn() const { return moe.dense_ffn > 0 ? moe.dense_ffn : ffn; }
  bool widths_fit(int64_t tp) const { return ffn % tp == 0 && dense_ffn() % tp == 0; }  // of MLPs
  // Number of consecutive TP ranks that hold the same KV head: MeshShape::kv_ranks.
  int kv_ranks(int tp) const { return ShardSpec::qkv(heads, groups()).tp().copies(tp); }
};

}  // namespace gt
