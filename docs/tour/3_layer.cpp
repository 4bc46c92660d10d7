// 3. A model as data, and a layer of it.
//
// describe() turns a configuration into a ModelSpec: the only source of shapes, names, initial values and the
// split of every parameter. Layers are constructed from it; so are costs, memory plans, import and export. A family
// (Llama, Qwen, Gemma …) is a set of decisions in a TransformerConfig, not a class.
#include <memory>

#include "docs/tour/show.h"
#include "model/families/family.h"
#include "model/model_stage.h"
#include "parallel/comm/null_group.h"

using namespace gt;

int main() {
  TransformerConfig c = find_family("llama")->defaults;
  c.layers = 2, c.hidden = 64, c.heads = 8, c.kv_heads = 2, c.ffn = 176, c.vocab = 1000, c.seq = 32, c.tied = false;
  const ModelSpec model = describe(c);
  const RankCoordinates two({.rank = 0, .size = 2});  // on tp
  std::printf("%-34s %-14s %s\n", "parameter", "shape", "tp 2: shape on a rank");
  for (const ParamSpec& p : model.params)
    if (p.layer <= 1) {
      const std::string whole = to_string(p.shape), part = to_string(local_shape(p, two));
      std::printf("%-34s %-14s %s\n", p.name.c_str(), whole.c_str(), part.c_str());
    }
  tour::claim(local_shape(model.param("layers.0.attn.qkv.weight"), two) == Shape({48, 64}),
              "4 query heads and 1 key and value head of width 8 each on a rank: 48 rows");
  tour::claim(local_shape(model.param("layers.0.mlp.down.weight"), two) == Shape({64, 88}), "down is split by columns");
  tour::claim(local_shape(model.param("layers.0.norm1.weight"), two) == Shape({64}), "norms are replicated");
  std::printf("%lld parameters, %.3g FLOPs a token\n", static_cast<long long>(model.parameters()),
              model.train_flops(1));

  // A stage is a range of the layer list on one rank of a mesh. Null groups stand for the ranks that are not there.
  NullFactory rank0(0, 4);
  const Mesh mesh({.pp = 2, .tp = 2}, rank0);
  const std::unique_ptr<ModelStage> stage = make_stage({0, 2}, 0, {.model = model, .mesh = mesh});
  int64_t elements = 0;
  for (const UnitSpec& unit : stage->units()) {
    int64_t of_unit = 0;
    for (const Parameter* p : unit.params) of_unit += p->local_shape.numel();
    std::printf("FSDP unit %-10s %7lld elements on this rank\n", unit.name.c_str(), static_cast<long long>(of_unit));
    elements += of_unit;
  }
  tour::claim(stage->blocks() == 1 && stage->units().size() == 2, "the first of two stages: embedding and one block");
  tour::claim(elements < model.parameters() / 3, "a quarter of the model, and padding of the vocabulary");
}
