#include "launch/commands/gpt2_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr double kNormEps = 1e-5;  // of our norms and of GPT-2's

}  // namespace

std::vector<int64_t> Gpt2Weight::hf_shape() const {
  return transposed ? std::vector<int64_t>{shape[1], shape[0]} : shape;
}

std::vector<Gpt2Weight> gpt2_weights(const ModelConfig& m) {
  const int64_t h = m.hidden, f = m.ffn, qkv = h + 2 * (m.kv_heads > 0 ? m.kv_heads : m.heads) * (h / m.heads);
  std::vector<Gpt2Weight> out{{"embed.weight", "transformer.wte.weight", {m.vocab, h}},
                              {"pos_embed.weight", "transformer.wpe.weight", {m.seq, h}}};
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string ours = fmt::format("layers.{}.", i), theirs = fmt::format("transformer.h.{}.", i);
    const auto add = [&](const char* native, const char* hf, std::vector<int64_t> shape, int blocks = 1) {
      out.push_back({ours + native, theirs + hf, shape, shape.size() == 2, blocks});
    };
    add("norm1.weight", "ln_1.weight", {h});
    add("norm1.bias", "ln_1.bias", {h});
    add("attn.qkv.weight", "attn.c_attn.weight", {qkv, h}, 3);
    add("attn.qkv.bias", "attn.c_attn.bias", {qkv}, 3);
    add("attn.out.weight", "attn.c_proj.weight", {h, h});
    add("attn.out.bias", "attn.c_proj.bias", {h});
    add("norm2.weight", "ln_2.weight", {h});
    add("norm2.bias", "ln_2.bias", {h});
    add("mlp.up.weight", "mlp.c_fc.weight", {f, h});
    add("mlp.up.bias", "mlp.c_fc.bias", {f});
    add("mlp.down.weight", "mlp.c_proj.weight", {h, f});
    add("mlp.down.bias", "mlp.c_proj.bias", {h});
  }
  out.push_back({"final_norm.weight", "transformer.ln_f.weight", {h}});
  out.push_back({"final_norm.bias", "transformer.ln_f.bias", {h}});
  if (!m.tied) out.push_back({"head.weight", "lm_head.weight", {m.vocab, h}});
  return out;
}

std::vector<float> transpose(const std::vector<float>& in, int64_t rows, int64_t cols) {
  constexpr int64_t kTile = 32;
  std::vector<float> out(in.size());
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          out[static_cast<size_t>(c * rows + r)] = in[static_cast<size_t>(r * cols + c)];
  return out;
}

std::string hf_config_json(const ModelConfig& m, int64_t end_of_text, const std::string& dtype) {
  nlohmann::json j{{"activation_function", "gelu_new"},
                   {"architectures", {"GPT2LMHeadModel"}},
                   {"attn_pdrop", m.attn_dropout},
                   {"embd_pdrop", m.dropout},
                   {"initializer_range", m.init_std},
                   {"layer_norm_epsilon", kNormEps},
                   {"model_type", "gpt2"},
                   {"n_ctx", m.seq},
                   {"n_embd", m.hidden},
                   {"n_head", m.heads},
                   {"n_inner", m.ffn},
                   {"n_layer", m.layers},
                   {"n_positions", m.seq},
                   {"resid_pdrop", m.dropout},
                   {"tie_word_embeddings", m.tied},
                   {"torch_dtype", dtype},
                   {"vocab_size", m.vocab}};  // nlohmann::json keeps keys sorted
  j["bos_token_id"] = j["eos_token_id"] = nullptr;
  if (end_of_text >= 0) j["bos_token_id"] = j["eos_token_id"] = end_of_text;
  return j.dump(2) + "\n";
}

namespace {

// Reads one Hugging Face config; what is wrong is collected.
class HfReader {
 public:
  HfReader(const JsonValue& json, std::vector<std::string>& problems) : json_(json), problems_(problems) {}

  // `standard`: without the key, or with null.
  int64_t integer(const char* key, int64_t low, int64_t high, int64_t standard = -1) {
    const JsonValue* v = json_.find(key);
    if (v == nullptr || v->kind == JsonValue::Kind::kNull) {
      if (standard < 0) bad(fmt::format("{}: missing", key));
      return std::max<int64_t>(standard, low);
    }
    int64_t n = 0;
    if (v->kind != JsonValue::Kind::kNumber || !parse_int(v->text, n) || n < low || n > high) {
      bad(fmt::format("{}: expected a whole number {} to {}, found {}", key, low, high, shown(*v)));
      return low;
    }
    return n;
  }
  double number(const char* key, double low, double high, double standard) {
    const JsonValue* v = json_.find(key);
    double x = 0;
    if (v == nullptr || v->kind == JsonValue::Kind::kNull) return standard;
    if (v->kind != JsonValue::Kind::kNumber || !parse_double(v->text, x) || x < low || x > high) {
      bad(fmt::format("{}: expected a number {} to {}, found {}", key, low, high, shown(*v)));
      return standard;
    }
    return x;
  }
  bool boolean(const char* key, bool standard) {
    const JsonValue* v = json_.find(key);
    if (v == nullptr || v->kind == JsonValue::Kind::kNull) return standard;
    if (v->kind != JsonValue::Kind::kBool) bad(fmt::format("{}: expected true or false, found {}", key, shown(*v)));
    return v->boolean;
  }
  std::string text(const char* key, const std::string& standard) {
    const JsonValue* v = json_.find(key);
    if (v == nullptr || v->kind == JsonValue::Kind::kNull) return standard;
    if (v->kind != JsonValue::Kind::kString) bad(fmt::format("{}: expected a text, found {}", key, shown(*v)));
    return v->text;
  }
  void bad(std::string problem) { problems_.push_back(std::move(problem)); }

 private:
  static std::string shown(const JsonValue& v) { return v.text.empty() ? kind_name(v.kind) : v.text.substr(0, 60); }
  const JsonValue& json_;
  std::vector<std::string>& problems_;
};

void require_our_gpt2(HfReader& in) {
  if (const std::string type = in.text("model_type", "gpt2"); type != "gpt2")
    in.bad(fmt::format("model_type: \"{}\", expected gpt2", type));
  const std::string act = in.text("activation_function", "gelu_new");
  if (act != "gelu_new" && act != "gelu_pytorch_tanh")
    in.bad(fmt::format("activation_function: \"{}\", expected gelu_new (GELU by tanh)", act));
  if (const double eps = in.number("layer_norm_epsilon", 0, 1, kNormEps); std::abs(eps - kNormEps) > 1e-12)
    in.bad(fmt::format("layer_norm_epsilon: {}, expected {}", eps, kNormEps));
  if (!in.boolean("scale_attn_weights", true)) in.bad("scale_attn_weights: false, expected true");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (in.boolean(key, false)) in.bad(fmt::format("{}: true, expected false", key));
}

}  // namespace

HfConfig parse_hf_config(const std::string& text, const std::string& where) {
  JsonValue json;
  try {
    json = parse_json(text, where);
  } catch (const Error& e) { throw Error(e.what(), Exit::kDamaged); }
  std::vector<std::string> problems;
  HfReader in(json, problems);
  require_our_gpt2(in);
  HfConfig out;
  ModelConfig& m = out.model;
  m.layers = in.integer("n_layer", 1, 1024);
  m.hidden = in.integer("n_embd", 1, 1 << 20);
  m.heads = in.integer("n_head", 1, 65536);
  m.ffn = in.integer("n_inner", 1, 1 << 23, 4 * m.hidden);
  m.vocab = in.integer("vocab_size", 2, 1 << 22);
  m.seq = in.integer("n_positions", 1, 1 << 20);
  m.tied = in.boolean("tie_word_embeddings", true);
  m.init_std = in.number("initializer_range", 1e-9, 10, 0.02);
  m.attn_dropout = in.number("attn_pdrop", 0, 0.999, 0.1);
  m.dropout = in.number("resid_pdrop", 0, 0.999, 0.1);
  const double embd = in.number("embd_pdrop", 0, 0.999, 0.1);
  if (embd != m.dropout)
    out.warnings.push_back(fmt::format("embd_pdrop {} is not kept: model.dropout is resid_pdrop, {}", embd, m.dropout));
  const JsonValue* eos = json.find("eos_token_id");
  if (eos != nullptr && eos->kind == JsonValue::Kind::kNumber) out.end_of_text = in.integer("eos_token_id", 0, 1 << 22);
  if (m.hidden % m.heads != 0) in.bad(fmt::format("n_head: {} does not divide n_embd {}", m.heads, m.hidden));
  GT_REQUIRE(problems.empty(), Exit::kDamaged, where,
             ": no GPT-2 that can be imported:", fmt::format("\n  {}", fmt::join(problems, "\n  ")));
  return out;
}

std::vector<std::string> model_flags(const ModelConfig& m) {
  Config c;
  c.model = m;
  std::vector<std::string> out;
  for (const Option& o : list_options(c))
    if (o.section == "model") {
      out.push_back("--" + o.key());
      out.push_back(value_text(o));
    }
  return out;
}

}  // namespace gt
