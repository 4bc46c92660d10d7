// BERT (Devlin et al. 2018, arXiv 1810.04805): a bidirectional encoder with norms behind each sum, learned positions,
// token types, GELU(erf), and two heads: masked tokens with a tied table, and whether a second sentence follows the
// first.
#include "autograd/ops.h"
#include "model/families/family.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  k.word("hidden_act", {"gelu"}, " (GELU by erf)");
  k.word("position_embedding_type", {"absolute"});
  k.only("is_decoder", false);
  k.only("add_cross_attention", false);
  k.integer("num_hidden_layers", c.layers, 1, 1024);
  k.integer("hidden_size", c.hidden, 1, 1 << 20);
  k.integer("num_attention_heads", c.heads, 1, 65536);
  k.integer("intermediate_size", c.ffn, 1, 1 << 23);
  k.integer("vocab_size", c.vocab, 2, 1 << 22);
  k.integer("max_position_embeddings", c.seq, 1, 1 << 20);
  k.integer("type_vocab_size", c.token_types, 2, 1024, 2);
  k.number("layer_norm_eps", c.norm_eps, 1e-15, 1, 1e-12);
  k.boolean("tie_word_embeddings", c.tied, true);
  k.number("initializer_range", c.init_std, 1e-9, 10, 0.02);
  k.number("hidden_dropout_prob", c.dropout, 0, 0.999, 0.1);
  k.number("attention_probs_dropout_prob", c.attn_dropout, 0, 0.999, 0.1);
  if (k.reading() && c.hidden % c.heads != 0)
    k.problem(cat("num_attention_heads: ", c.heads, " does not divide hidden_size ", c.hidden));
}

constexpr NameRule kNames[] = {
    {"embed.weight", "bert.embeddings.word_embeddings.weight"},
    {"pos_embed.weight", "bert.embeddings.position_embeddings.weight"},
    {"type_embed.weight", "bert.embeddings.token_type_embeddings.weight"},
    {"embed_norm.weight", "bert.embeddings.LayerNorm.weight"},
    {"embed_norm.bias", "bert.embeddings.LayerNorm.bias"},
    {"layers.*.attn.qkv.weight",
     "bert.encoder.layer.*.attention.self.query.weight bert.encoder.layer.*.attention.self.key.weight "
     "bert.encoder.layer.*.attention.self.value.weight"},
    {"layers.*.attn.qkv.bias",
     "bert.encoder.layer.*.attention.self.query.bias bert.encoder.layer.*.attention.self.key.bias "
     "bert.encoder.layer.*.attention.self.value.bias"},
    {"layers.*.attn.out.weight", "bert.encoder.layer.*.attention.output.dense.weight"},
    {"layers.*.attn.out.bias", "bert.encoder.layer.*.attention.output.dense.bias"},
    {"layers.*.norm1.weight", "bert.encoder.layer.*.attention.output.LayerNorm.weight"},
    {"layers.*.norm1.bias", "bert.encoder.layer.*.attention.output.LayerNorm.bias"},
    {"layers.*.mlp.up.weight", "bert.encoder.layer.*.intermediate.dense.weight"},
    {"layers.*.mlp.up.bias", "bert.encoder.layer.*.intermediate.dense.bias"},
    {"layers.*.mlp.down.weight", "bert.encoder.layer.*.output.dense.weight"},
    {"layers.*.mlp.down.bias", "bert.encoder.layer.*.output.dense.bias"},
    {"layers.*.norm2.weight", "bert.encoder.layer.*.output.LayerNorm.weight"},
    {"layers.*.norm2.bias", "bert.encoder.layer.*.output.LayerNorm.bias"},
    {"mlm.dense.weight", "cls.predictions.transform.dense.weight"},
    {"mlm.dense.bias", "cls.predictions.transform.dense.bias"},
    {"mlm.norm.weight", "cls.predictions.transform.LayerNorm.weight"},
    {"mlm.norm.bias", "cls.predictions.transform.LayerNorm.bias"},
    {"head.weight", "cls.predictions.decoder.weight"},
    {"mlm.decoder.bias", "cls.predictions.bias"},
    {"pairs.pooler.weight", "bert.pooler.dense.weight"},
    {"pairs.pooler.bias", "bert.pooler.dense.bias"},
    {"pairs.classes.weight", "cls.seq_relationship.weight"},
    {"pairs.classes.bias", "cls.seq_relationship.bias"},
};

constexpr NameRule kCopies[] = {{"mlm.decoder.bias", "cls.predictions.decoder.bias"}};

}  // namespace

extern const Family kBert{.name = "bert",
                          .model_type = "bert",
                          .architecture = "BertForPreTraining",
                          .prefix = "bert.",
                          .defaults = {.vocab = 30522,
                                       .seq = 512,
                                       .norm_eps = 1e-12,
                                       .norm_place = NormPlace::kSum,
                                       .mask = MaskKind::kFull,
                                       .head = HeadKind::kMaskedLmAndPairs,
                                       .token_types = 2,
                                       .embed_norm = true,
                                       .activation = Activation::kGeluErf,
                                       .lora = {.separate_qkv = true}},
                          .keys = keys,
                          .names = kNames,
                          .copies = kCopies,
                          .auto_class = "AutoModelForPreTraining"};

}  // namespace gt
