#include "model/model_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "autograd/ops.h"

namespace gt {
namespace {

// Builds a ModelSpec layer by layer; names are relative to the open block.
class Inventory {
 public:
  explicit Inventory(const TransformerConfig& c)
      : std_(static_cast<float>(c.init_std)), residual_std_(std_ / std::sqrt(2.f * static_cast<float>(c.layers))) {
    m_.config = c;
  }

  void layer(const char* type) { m_.layers.push_back({.type = type, .first_unit = static_cast<int>(m_.units.size())}); }
  // Opens a module of the layer, with FSDP units of its own; `prefix` leads the names of modules inside it.
  void unit(const std::string& name, const std::string& prefix = "") {
    open_layer().modules.push_back(name);
    prefix_ = prefix;
  }
  void block(int64_t i) {
    layer("block");
    unit(cat("layers.", i), cat("layers.", i, '.'));
  }
  void norm(const char* name) {
    const int64_t width = m_.config.hidden;
    module(name);
    add("weight", {width}, {}, {norm_init()}, Role::kNorm);
    if (m_.config.norm == NormKind::kLayer) add("bias", {width}, {}, {Init::Kind::kZero}, Role::kNorm);
  }
  // Weights of queries, then of keys. Weights shared by all heads are replicated over TP ranks; each rank computes a
  // partial gradient from its own heads.
  void qk_norm(const char* name) {
    const TransformerConfig& c = m_.config;
    const bool row = c.qk_norm == QkNormKind::kRow;
    module(name);
    add("weight", {(row ? c.heads + c.groups() : 2) * c.head_width()},
        row ? ShardSpec::qk(c.heads, c.groups()) : ShardSpec::partial(), {norm_init()}, Role::kNorm);
  }
  // Linear layer [out, in], split by rows as `cut` states; the bias is split alike. Of its adapter, each TP rank holds
  // A whole, with a partial gradient from its own outputs, and its rows of B.
  void column_linear(const char* name, int64_t out, ShardSpec cut, bool bias) {
    linear(name, out, m_.config.hidden, cut, {Init::Kind::kNormal, std_});
    if (bias) add("bias", {out}, cut, {Init::Kind::kZero}, Role::kBias);
    adapter(name, out, m_.config.hidden, ShardSpec::partial(), cut);
  }
  // Projection of `in` channels, split over TP ranks, back into the residual stream.
  void row_linear(const char* name, int64_t in, bool bias) {
    const int64_t out = m_.config.hidden;
    linear(name, out, in, ShardSpec::split(1), {Init::Kind::kNormal, residual_std_}).residual = true;
    if (bias) add("bias", {out}, {}, {Init::Kind::kZero}, Role::kBias);
    // B is applied to a partial sum before the sum over TP ranks.
    adapter(name, out, in, ShardSpec::split(1), ShardSpec::partial());
  }
  // Linear layers [out, in] of all experts, which are split over EP ranks, and over TP ranks as `cut` states. A token
  // is multiplied by top_k of them.
  void expert_linear(const char* name, int64_t out, int64_t in, ShardSpec cut, bool residual) {
    const MoeConfig& moe = m_.config.moe;
    module(name).weights = moe.top_k * out * in;
    open_layer().flops += 2 * moe.top_k * out * in;
    add("weight", {moe.experts, out, in}, ShardSpec::split(0, 1, Axis::kEp).then(cut),
        {Init::Kind::kNormal, residual ? residual_std_ : std_}, Role::kExpert)
        .residual = residual;
  }
  // Logits of each token, of experts or of a gate, in f32. The gradient of the weight is a partial sum: a TP rank has
  // the part of its experts' channels. The bias changes the choice only, and no optimizer changes it.
  void router(const char* name, int64_t out, bool bias) {
    const Shape shape{out, m_.config.hidden};
    module(name).weights = shape.numel();
    open_layer().flops += 2 * shape.numel();
    add("weight", shape, ShardSpec::partial(), {Init::Kind::kNormal, std_}, Role::kRouter);
    if (bias) add("bias", {out}, {}, {Init::Kind::kZero}, Role::kRouter).frozen = true;
  }
  // A linear layer that every TP rank holds whole.
  void whole_linear(const char* name, int64_t out) {
    linear(name, out, m_.config.hidden, ShardSpec::replicate(), {Init::Kind::kNormal, std_});
    add("bias", {out}, {}, {Init::Kind::kZero}, Role::kBias);
  }
  // Adds the bias of the logits.
  void vocab_bias(const char* name) {
    module(name);
    add("bias", {m_.config.vocab}, ShardSpec::split(0), {Init::Kind::kZero}, Role::kBias).padded = true;
  }
  // Table [rows, hidden] with an FSDP unit of its own.
  ParamSpec& table(const char* name, int64_t rows, Role role, ShardSpec cut) {
    unit(name);
    module(name);
    return add("weight", {rows, m_.config.hidden}, cut, {Init::Kind::kNormal, std_}, role);
  }
  void attention(const char* name, int64_t window) {
    ModuleSpec& core = module(name);
    core.attention = (m_.config.mask == MaskKind::kFull ? 2 : 1) * m_.config.q_width(), core.window = window;
    open_layer().flops +=
        2 * static_cast<int64_t>(static_cast<double>(core.attention) * attended_keys(m_.config.seq, window));
  }
  ModuleSpec& module(const char* name) {
    m_.modules.push_back({.name = prefix_ + name, .layer = static_cast<int>(m_.layers.size()) - 1});
    return m_.modules.back();
  }
  // The open module is the head, of `weights` with their padding. A tied table counts with the embedding.
  void count_head(int64_t weights) {
    open_layer().flops += 2 * m_.config.hidden * m_.config.vocab;
    m_.modules.back().weights = weights;
    if (m_.config.lora.rank > 0) m_.modules.back().frozen_weights = weights;
    if (m_.config.tied) m_.modules.back().parameters = 0;
  }
  // The open module, a linear layer, is not applied to every token.
  void module_costs_nothing() {
    open_layer().flops -= 2 * std::exchange(m_.modules.back().weights, 0);
    m_.modules.back().frozen_weights = 0;
  }
  // Adds a term of the objective. layers: indices in the layer list; empty: the open layer.
  void loss(LossTerm term) {
    const auto layers = static_cast<int>(m_.layers.size());
    if (term.layers.empty()) term.layers = {layers - 1};
    GT_CHECK(m_.losses.size() < kMostLosses, "loss ", term.name, ": a model has at most ", kMostLosses, " losses");
    for (const LossTerm& other : m_.losses) GT_CHECK(other.name != term.name, "two losses are named ", term.name);
    for (const int layer : term.layers) {
      GT_CHECK(layer >= 0 && layer < layers, "loss ", term.name, ": the model has no layer ", layer);
      m_.loss_sums.push_back({static_cast<int>(m_.losses.size()), layer});
    }
    m_.losses.push_back(std::move(term));
  }
  LayerSpec& open_layer() { return m_.layers.back(); }
  ModelSpec take() { return std::move(m_); }

 private:
  Init::Kind norm_init() const { return m_.config.norm_zero_centered ? Init::Kind::kZero : Init::Kind::kOne; }
  ParamSpec& linear(const char* name, int64_t out, int64_t in, ShardSpec cut, Init init) {
    ModuleSpec& m = module(name);
    m.weights = out * in;
    if (m_.config.lora.rank > 0) m.frozen_weights = m.weights;
    open_layer().flops += 2 * out * in;
    return add("weight", {out, in}, cut, init, Role::kMatrix);
  }
  // Adapter of the open module, the linear layer [out, in] `name` of a block.
  void adapter(const char* name, int64_t out, int64_t in, ShardSpec of_a, ShardSpec of_b) {
    const auto blocks = static_cast<int64_t>(lora_blocks(m_.config, name).size());
    if (blocks == 0) return;
    const int64_t rank = m_.config.lora.rank, weights = rank * (blocks * in + out);
    module_weights() += weights;
    open_layer().flops += 2 * weights;
    const float std = 1 / static_cast<float>(rank);
    ParamSpec& a = add("lora_a", {blocks * rank, in}, of_a, {Init::Kind::kNormal, std}, Role::kMatrix);
    a.frozen = false, a.matrices = static_cast<int>(blocks);
    add("lora_b", {out, rank}, of_b, {Init::Kind::kZero}, Role::kMatrix).frozen = false;
  }
  int64_t& module_weights() { return m_.modules.back().weights; }
  // A parameter of the open module.
  ParamSpec& add(const char* leaf, Shape shape, ShardSpec shard, Init init, Role role) {
    ParamSpec p{.name = cat(m_.modules.back().name, '.', leaf), .shape = shape, .shard = shard, .init = init};
    p.role = role, p.matrices = shard.tp().blocks;
    p.layer = m_.modules.back().layer;
    p.frozen = m_.config.lora.rank > 0;
    p.unit = unit_of(open_layer(), p.domain());
    m_.modules.back().parameters += shape.numel();
    open_layer().parameters += shape.numel();
    m_.index[p.name] = m_.params.size();
    return m_.params.emplace_back(std::move(p));
  }

  // FSDP unit of the layer's open module for parameters of this domain.
  int unit_of(LayerSpec& layer, AxisSet domain) {
    const std::string& module = layer.modules.back();
    const auto count = static_cast<int>(m_.units.size());
    for (int u = layer.first_unit; u < count; ++u)
      if (m_.units[static_cast<size_t>(u)].module == module && m_.units[static_cast<size_t>(u)].domain == domain)
        return u;
    m_.units.push_back({domain == kDenseDomain ? module : module + ".experts", module, domain});
    return layer.units++, count;
  }

  ModelSpec m_;
  const float std_, residual_std_;
  std::string prefix_;
};

void describe_mlp(Inventory& m, const TransformerConfig& c, const std::string& name, int64_t width) {
  m.column_linear((name + ".up").c_str(), c.gated ? 2 * width : width, ShardSpec::split(0, c.gated ? 2 : 1),
                  c.mlp_bias);
  m.module((name + ".act").c_str());
  m.row_linear((name + ".down").c_str(), width, c.mlp_bias);
}

void describe_feed_forward(Inventory& m, const TransformerConfig& c, int64_t block) {
  if (!c.routed(block)) return describe_mlp(m, c, "mlp", c.dense_ffn());
  m.router("mlp.router", c.moe.experts, c.moe.bias);
  m.expert_linear("mlp.experts.up", c.gated ? 2 * c.ffn : c.ffn, c.hidden, ShardSpec::split(1, c.gated ? 2 : 1), false);
  m.module("mlp.act");
  m.expert_linear("mlp.experts.down", c.hidden, c.ffn, ShardSpec::split(2), true);
  if (c.moe.shared_gate) m.router("mlp.shared.gate", 1, false);
  if (c.moe.shared > 0) describe_mlp(m, c, "mlp.shared", c.moe.shared * c.ffn);
}

void describe_block(Inventory& m, const TransformerConfig& c, int64_t i) {
  const NormPlace place = c.norm_place;
  const bool pre = place == NormPlace::kPre || place == NormPlace::kBoth;
  const bool post = place == NormPlace::kPost || place == NormPlace::kBoth, sum = place == NormPlace::kSum;
  m.block(i);
  if (pre) m.norm("norm1");
  m.column_linear("attn.qkv", c.qkv_width(), ShardSpec::qkv(c.heads, c.groups()), c.qkv_bias);
  if (c.qk_norm != QkNormKind::kNone) m.qk_norm("attn.qk_norm");
  m.attention("attn.core", c.window_of(i));
  m.row_linear("attn.out", c.q_width(), c.out_bias);
  if (post) m.norm("post_norm1");
  if (sum) m.norm("norm1");
  if (pre) m.norm("norm2");
  describe_feed_forward(m, c, i);
  if (post) m.norm("post_norm2");
  if (sum) m.norm("norm2");
}

void describe_embedding(Inventory& m, const TransformerConfig& c) {
  m.layer("embedding");
  m.table("embed", c.vocab, Role::kEmbedding, ShardSpec::split(0)).padded = true;
  if (c.position == PositionKind::kLearned) m.table("pos_embed", c.seq, Role::kPosition, ShardSpec::replicate());
  if (c.token_types > 0) m.table("type_embed", c.token_types, Role::kPosition, ShardSpec::replicate());
  if (!c.embed_norm) return;
  m.unit("embed_norm");
  m.norm("embed_norm");
}

void describe_head(Inventory& m, const TransformerConfig& c) {
  m.layer("head");
  if (c.predicts_pairs()) {
    m.unit("pairs", "pairs.");
    m.whole_linear("pooler", c.hidden);  // of one token a sequence: what it and the classes compute is not counted
    m.module_costs_nothing();
    m.whole_linear("classes", 2);
    m.module_costs_nothing();
    m.unit("mlm", "mlm.");
    m.whole_linear("dense", c.hidden);
    m.norm("norm");
    m.vocab_bias("decoder");
  }
  ParamSpec& head = m.table("head", c.vocab, Role::kHead, ShardSpec::split(0));
  head.padded = true;
  if (c.tied) head.tied_to = "embed.weight";
  m.count_head(padded_vocab(c.vocab, 1) * c.hidden);
  m.loss({.name = "token", .hits = true});
  if (c.predicts_pairs()) m.loss({.name = "pair", .divisor = LossDivisor::kSequences, .hits = true});
  if (c.moe.experts > 0 && c.moe.balance > 0) {
    LossTerm balance{.name = "balance", .weight = c.moe.balance, .divisor = LossDivisor::kSequences};
    for (int64_t i = 0; i < c.layers; ++i)
      if (c.routed(i)) balance.layers.push_back(static_cast<int>(i) + 1);
    m.loss(std::move(balance));
  }
  for (const LossTerm& term : c.losses) m.loss(term);
}

}  // namespace

std::vector<std::string> lora_targets(const TransformerConfig& c) {
  std::vector<std::string> out = {"qkv", "out", "up", "down"};
  if (c.lora.separate_qkv) out.insert(out.begin() + 1, {"q", "k", "v"});
  if (c.gated) out.insert(out.end() - 2, "gate");
  return out;
}

std::vector<int> lora_blocks(const TransformerConfig& c, std::string_view name) {
  const std::vector<std::string>& targets = c.lora.targets;
  const auto adapted = [&](const char* target) {
    return targets.empty() || std::find(targets.begin(), targets.end(), target) != targets.end();
  };
  const auto among = [&](std::initializer_list<bool> each) {
    std::vector<int> out;
    for (int k = 0; const bool has : each) {
      if (has) out.push_back(k);
      ++k;
    }
    return out;
  };
  const auto whole = [&](const char* target) { return adapted(target) ? std::vector<int>{-1} : std::vector<int>{}; };
  if (c.lora.rank == 0) return {};
  if (name == "attn.out") return whole("out");
  if (name == "mlp.down") return whole("down");
  if (name == "mlp.up") return c.gated ? among({adapted("gate"), adapted("up")}) : whole("up");
  if (name != "attn.qkv" || !c.lora.separate_qkv) return name == "attn.qkv" ? whole("qkv") : std::vector<int>{};
  const bool all = adapted("qkv");
  return among({all || adapted("q"), all || adapted("k"), all || adapted("v")});
}

ModelSpec describe(const TransformerConfig& c) {
  Inventory m(c);
  describe_embedding(m, c);
  for (int64_t i = 0; i < c.layers; ++i) describe_block(m, c, i);
  if (c.norm_place != NormPlace::kSum) {
    m.layer("norm");
    m.unit("final_norm");
    m.norm("final_norm");
  }
  describe_head(m, c);
  return m.take();
}

const ParamSpec* ModelSpec::find(const std::string& name) const {
  const auto it = index.find(name);
  return it == index.end() ? nullptr : &params[it->second];
}

const ParamSpec& ModelSpec::param(const std::string& name) const {
  const ParamSpec* p = find(name);
  GT_CHECK(p != nullptr, "the model has no parameter ", name);
  return *p;
}

const ModuleSpec& ModelSpec::module(const std::string& name) const {
  const auto it = std::find_if(modules.begin(), modules.end(), [&](const ModuleSpec& m) { return m.name == name; });
  GT_CHECK(it != modules.end(), "the model has no module ", name);
  return *it;
}

int ModelSpec::loss_sum(std::string_view name, int layer) const {
  const auto it = std::find_if(loss_sums.begin(), loss_sums.end(), [&](const LossSum& s) {
    return losses[static_cast<size_t>(s.term)].name == name && (layer < 0 || s.layer == layer);
  });
  GT_CHECK(it != loss_sums.end(), "the model has no loss ", name, " of layer ", layer);
  return static_cast<int>(it - loss_sums.begin());
}

std::vector<int> ModelSpec::losses_in(int begin, int end) const {
  std::vector<int> out;
  for (size_t i = 0; i < loss_sums.size(); ++i)
    if (loss_sums[i].layer >= begin && loss_sums[i].layer < end) out.push_back(static_cast<int>(i));
  return out;
}

int64_t ModelSpec::parameters() const {
  int64_t n = 0;
  for (const ModuleSpec& m : modules) n += m.parameters;
  return n;
}

int64_t ModelSpec::trained_parameters() const {
  int64_t n = 0;
  for (const ParamSpec& p : params) n += p.frozen || !p.tied_to.empty() ? 0 : p.shape.numel();
  return n;
}

int64_t ModelSpec::matmul_parameters() const {
  int64_t n = 0;
  for (const ModuleSpec& m : modules) n += m.weights;
  return n;
}

double ModelSpec::train_flops(int64_t tokens, int64_t length, int64_t blocks) const {
  const int64_t all = config.layers, s = length > 0 ? length : config.seq;
  int64_t weights = 0, head = 0, frozen = 0, frozen_head = 0;  // of all blocks; outside the blocks
  for (const ModuleSpec& m : modules) {
    const bool block = m.layer >= 1 && m.layer <= all;
    (block ? weights : head) += m.weights;
    (block ? frozen : frozen_head) += m.frozen_weights;
  }
  const int64_t run = blocks >= 0 ? blocks : all;
  const double n = static_cast<double>(tokens), attention = attention_width(s) / static_cast<double>(all);
  return n * (6.0 * static_cast<double>(weights / all * run + head) + 6.0 * (attention * static_cast<double>(run)) -
              2.0 * static_cast<double>(frozen / all * run + frozen_head));
}

double ModelSpec::attention_width(int64_t length) const {
  double sum = 0;
  for (const ModuleSpec& m : modules) sum += static_cast<double>(m.attention) * attended_keys(length, m.window);
  return sum;
}

std::vector<LayerCost> ModelSpec::layer_costs() const {
  std::vector<LayerCost> out;
  for (const LayerSpec& l : layers) out.push_back({l.type, l.flops, l.parameters});
  return out;
}

Shape local_shape(const ParamSpec& p, const RankCoordinates& at) {
  Shape s = p.shape;
  for (int d = 0; d < s.rank; ++d) {
    const int64_t whole = d == 0 && p.padded ? padded_vocab(s[0], at[Axis::kTp].size) : s[d];
    s.dim[static_cast<size_t>(d)] = local_extent(p.shard, d, whole, at);
  }
  return s;
}

void mark_unused_units(const ModelSpec& m, std::span<const double> keep, std::vector<uint8_t>& unused) {
  unused.assign(m.units.size(), 0);
  for (size_t i = 0; i < keep.size(); ++i) {
    const LayerSpec& block = m.block(static_cast<int64_t>(i));
    std::fill_n(unused.begin() + block.first_unit, block.units, keep[i] == 0);
  }
}

std::string leaf_class(std::string_view name, std::vector<int64_t>* numbers) {
  if (numbers != nullptr) numbers->clear();
  if (!name.starts_with("layers.")) return std::string(name);
  std::string out;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    std::string_view word = name.substr(at, end - at);
    int64_t number = -1;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), number);
    if (read.ec == std::errc() && read.ptr == word.data() + word.size() && end < name.size()) {
      if (numbers != nullptr) numbers->push_back(number);
      word = "*";
    }
    out.append(out.empty() ? "" : ".").append(word);
    at = end + 1;
  }
  return out;
}

}  // namespace gt
