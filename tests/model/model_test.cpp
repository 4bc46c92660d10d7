// The model as data: parameter counts, costs, names, shapes, slices. Nothing here computes.
#include <cmath>
#include <map>
#include <set>

#include "model/families/family.h"
#include "model/layers/embedding.h"
#include "model/model_stage.h"
#include "parallel/comm/null_group.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

ModelSpec gpt2() { return describe({}); }  // 124M

struct Built {
  NullFactory factory;
  Mesh mesh;
  ModelSpec spec;
  std::unique_ptr<ModelStage> stage;
  Built(const TransformerConfig& c, MeshShape shape, int rank, int begin, int end, bool sequence_parallel = false)
      : factory(rank, shape.world()),
        mesh(shape, factory),
        spec(describe(c)),
        stage(make_stage({begin, end}, mesh.coord(Axis::kPp),
                         {.model = spec, .mesh = mesh, .sequence_parallel = sequence_parallel})) {}
};

std::map<std::string, Parameter> parameters(const TransformerConfig& c, MeshShape shape, int rank, int begin, int end) {
  Built b(c, shape, rank, begin, end);
  std::map<std::string, Parameter> out;
  for (const UnitSpec& s : b.stage->units())
    for (const Parameter* p : s.params) {
      CHECK(p->name.rfind(s.name + ".", 0) == 0);  // parameters are prefixed by the unit's name
      CHECK(out.emplace(p->name, *p).second);
    }
  return out;
}

int layers(const TransformerConfig& c) { return static_cast<int>(c.layers) + 3; }

}  // namespace

TEST_CASE("published shapes have the published number of parameters") {
  CHECK(gpt2().parameters() == 124439808);
  CHECK(gpt2().layers[1].parameters == 7087872);
  CHECK(describe({.layers = 24, .hidden = 1024, .heads = 16, .ffn = 4096}).parameters() == 354823168);
  CHECK(describe({.layers = 36, .hidden = 1280, .heads = 20, .ffn = 5120}).parameters() == 774030080);
  CHECK(describe({.layers = 48, .hidden = 1600, .heads = 25, .ffn = 6400}).parameters() == 1557611200);
  CHECK(describe({.layers = 32,
                  .hidden = 4096,
                  .heads = 32,
                  .ffn = 11008,
                  .vocab = 32000,
                  .tied = false,
                  .norm = NormKind::kRms,
                  .position = PositionKind::kRotary,
                  .gated = true,
                  .qkv_bias = false,
                  .out_bias = false,
                  .mlp_bias = false})
            .parameters() == 6738415616);  // Llama 7B
  CHECK(describe({.layers = 32,
                  .hidden = 4096,
                  .heads = 32,
                  .kv_heads = 8,
                  .ffn = 14336,
                  .vocab = 32000,
                  .seq = 32768,
                  .tied = false,
                  .norm = NormKind::kRms,
                  .position = PositionKind::kRotary,
                  .gated = true,
                  .qkv_bias = false,
                  .out_bias = false,
                  .mlp_bias = false,
                  .window = 4096})
            .parameters() == 7241732096);  // Mistral 7B
  const auto of = [](const char* family, TransformerConfig sizes) {
    TransformerConfig c = find_family(family)->defaults;
    c.layers = sizes.layers, c.hidden = sizes.hidden, c.heads = sizes.heads, c.kv_heads = sizes.kv_heads;
    c.ffn = sizes.ffn, c.vocab = sizes.vocab, c.tied = sizes.tied;
    return describe(c).parameters();
  };
  CHECK(of("llama", {.layers = 16, .hidden = 2048, .heads = 32, .kv_heads = 8, .ffn = 8192, .vocab = 128256}) ==
        1235814400);
  CHECK(of("llama",
           {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 128256, .tied = false}) ==
        8030261248);
  CHECK(of("qwen2", {.layers = 24, .hidden = 896, .heads = 14, .kv_heads = 2, .ffn = 4864, .vocab = 151936}) ==
        494032768);
  CHECK(of("qwen3", {.layers = 28, .hidden = 1024, .heads = 16, .kv_heads = 8, .ffn = 3072, .vocab = 151936}) ==
        596049920);
  CHECK(of("qwen3", {.layers = 36, .hidden = 2560, .heads = 32, .kv_heads = 8, .ffn = 9728, .vocab = 151936}) ==
        4022468096);
  CHECK(of("olmo2", {.layers = 32, .hidden = 4096, .heads = 32, .ffn = 11008, .vocab = 100352, .tied = false}) ==
        7298617344);
  CHECK(of("gemma2", {.layers = 26, .hidden = 2304, .heads = 8, .kv_heads = 4, .ffn = 9216, .vocab = 256000}) ==
        2614341888);
  CHECK(of("gemma3", {.layers = 26, .hidden = 1152, .heads = 4, .kv_heads = 1, .ffn = 6912, .vocab = 262144}) ==
        999885952);
  CHECK(of("mixtral",
           {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 32000, .tied = false}) ==
        46702792704);
  CHECK(of("olmoe", {.layers = 16, .hidden = 2048, .heads = 16, .ffn = 1024, .vocab = 50304, .tied = false}) ==
        6919161856);
  CHECK(of("qwen3_moe",
           {.layers = 48, .hidden = 2048, .heads = 32, .kv_heads = 4, .ffn = 768, .vocab = 151936, .tied = false}) ==
        30532122624);
  // transformers counts no biases of routers: they are its buffers.
  TransformerConfig dots1 = find_family("dots1")->defaults;
  dots1.layers = 62, dots1.hidden = 4096, dots1.heads = 32, dots1.ffn = 1408, dots1.vocab = 152064;
  dots1.moe.dense_blocks = {0}, dots1.moe.dense_ffn = 10944, dots1.head_dim = 128;
  CHECK(describe(dots1).parameters() == 142774373888 + 61 * 128);
  CHECK(of("qwen2_moe", {.layers = 24, .hidden = 2048, .heads = 16, .ffn = 1408, .vocab = 151936, .tied = false}) ==
        14315784192);
  CHECK(describe({.tied = false}).parameters() == 124439808 + 50257 * 768);
}

TEST_CASE("the built layers hold as many parameters as the formula states") {
  for (bool tied : {true, false}) {
    TransformerConfig c{.layers = 3, .hidden = 16, .heads = 4, .ffn = 40, .vocab = 300, .seq = 8, .tied = tied};
    int64_t total = 0;
    for (const auto& [name, p] : parameters(c, {}, 0, 0, layers(c)))
      total += p.tied_to.empty() ? p.full_shape.numel() : 0;
    CHECK(total == describe(c).parameters());
  }
}

TEST_CASE("layer costs equal the integers of the partition fixture") {
  const std::vector<LayerCost> costs = gpt2().layer_costs();
  REQUIRE(costs.size() == 15);
  CHECK(costs[0].type == "embedding");
  CHECK(costs[0].flops == 0);
  CHECK(costs[0].parameters == 38597376 + 1024 * 768);  // token and position embeddings
  for (size_t i = 1; i <= 12; ++i) {
    CHECK(costs[i].type == "block");
    CHECK(costs[i].flops == 15728640);
    CHECK(costs[i].parameters == 7087872);
  }
  CHECK(costs[13].type == "norm");
  CHECK(costs[13].flops == 0);
  CHECK(costs[14].type == "head");
  CHECK(costs[14].flops == 77194752);
  CHECK(costs[14].parameters == 38597376);
  CHECK(partition("flops", costs, 4) == std::vector<int>{0, 5, 9, 13, 15});
  CHECK(costs[13].parameters == 2 * 768);
  // The fixture {0, 1, 7, 14, 15} gives the norm no weight; with its actual 1536 parameters it belongs with the head.
  CHECK(partition("parameters", costs, 4) == std::vector<int>{0, 1, 7, 13, 15});
  CHECK(partition("uniform", costs, 4) == std::vector<int>{0, 4, 8, 12, 15});
}

TEST_CASE("FLOPs of a training step are exact integers") {
  CHECK(gpt2().matmul_parameters() == 123568128);
  CHECK(gpt2().train_flops(1) == 798031872);
  CHECK(gpt2().train_flops(524288) == 798031872.0 * 524288);
}

TEST_CASE("a window reduces the FLOPs of its own blocks only") {
  const TransformerConfig c{.layers = 5,
                            .hidden = 24,
                            .heads = 4,
                            .ffn = 60,
                            .vocab = 300,
                            .seq = 16,
                            .window = 4,
                            .global_every = 2,
                            .global_first = 1};
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < c.layers; ++i) windows.push_back(c.window_of(i));
  CHECK(windows == std::vector<int64_t>{0, 0, 4, 0, 4});
  const ModelSpec spec = describe(c),
                  whole = describe({.layers = 5, .hidden = 24, .heads = 4, .ffn = 60, .vocab = 300, .seq = 16});
  // Twice the query-key pairs of 16 tokens, the diagonal counted half: 16 * 16; with a window of 4: 4 * (2 * 16 - 4).
  // attended_keys() is that number per token.
  CHECK(attended_keys(16, 0) == 16);
  CHECK(attended_keys(16, 4) == 7);
  CHECK(attended_keys(16, 16) == 16);
  CHECK(attended_keys(3, 4) == 3);
  CHECK(whole.layers[3].flops - spec.layers[3].flops == 2 * 24 * (16 - 7));
  CHECK(whole.layers[4].flops == spec.layers[4].flops);
  CHECK(whole.train_flops(10) - spec.train_flops(10) == 10 * 6 * 2 * 24 * (16 - 7));
  CHECK(whole.train_flops(10, 4) == spec.train_flops(10, 4));  // shorter than the window
  CHECK(spec.module("layers.2.attn.core").window == 4);
  CHECK(spec.module("layers.3.attn.core").window == 0);
}

TEST_CASE("names and local shapes depend on the tp slice, logical shapes do not") {
  const TransformerConfig c{.layers = 2, .hidden = 16, .heads = 4, .ffn = 40, .vocab = 300, .seq = 8};
  for (int tp : {1, 2, 4}) {
    const int64_t t = tp, padded = (300 + 128 * t - 1) / (128 * t) * 128 * t;
    struct Expected {
      Shape full, local;
      ShardSpec shard;
      int64_t pad = 0;
    };
    std::map<std::string, Expected> expected{
        {"embed.weight", {{300, 16}, {padded / t, 16}, ShardSpec::split(0), padded}},
        {"head.weight", {{300, 16}, {padded / t, 16}, ShardSpec::split(0), padded}},
        {"pos_embed.weight", {{8, 16}, {8, 16}, ShardSpec::replicate()}},
        {"final_norm.weight", {{16}, {16}, ShardSpec::replicate()}},
        {"final_norm.bias", {{16}, {16}, ShardSpec::replicate()}}};
    for (const std::string& l : {std::string("layers.0."), std::string("layers.1.")}) {
      for (const char* norm : {"norm1", "norm2"})
        for (const char* leaf : {".weight", ".bias"}) expected[l + norm + leaf] = {{16}, {16}, ShardSpec::replicate()};
      expected[l + "attn.qkv.weight"] = {{48, 16}, {48 / t, 16}, ShardSpec::qkv(4, 4)};
      expected[l + "attn.qkv.bias"] = {{48}, {48 / t}, ShardSpec::qkv(4, 4)};
      expected[l + "attn.out.weight"] = {{16, 16}, {16, 16 / t}, ShardSpec::split(1)};
      expected[l + "attn.out.bias"] = {{16}, {16}, ShardSpec::replicate()};
      expected[l + "mlp.up.weight"] = {{40, 16}, {40 / t, 16}, ShardSpec::split(0)};
      expected[l + "mlp.up.bias"] = {{40}, {40 / t}, ShardSpec::split(0)};
      expected[l + "mlp.down.weight"] = {{16, 40}, {16, 40 / t}, ShardSpec::split(1)};
      expected[l + "mlp.down.bias"] = {{16}, {16}, ShardSpec::replicate()};
    }
    const auto got = parameters(c, {.tp = tp}, tp - 1, 0, layers(c));
    REQUIRE(got.size() == expected.size());
    for (const auto& [name, w] : expected) {
      INFO("tp " << tp << " " << name);
      REQUIRE(got.count(name) == 1);
      const Parameter& p = got.at(name);
      CHECK(p.full_shape == w.full);
      CHECK(p.local_shape == w.local);
      CHECK(p.shard == w.shard);
      CHECK(p.pad_rows == w.pad);
      CHECK(p.decay == (w.full.rank == 2));
    }
    CHECK(got.at("head.weight").tied_to == "embed.weight");
    CHECK(got.at("embed.weight").tied_owner);
    // Projections into the residual stream are initialized smaller by 1/sqrt(2 L).
    CHECK(got.at("layers.0.attn.out.weight").init.stddev == Approx(0.02 / 2));
    CHECK(got.at("layers.1.mlp.down.weight").init.stddev == Approx(0.02 / 2));
    CHECK(got.at("layers.0.attn.qkv.weight").init.stddev == 0.02f);
    CHECK(got.at("layers.0.norm1.weight").init.kind == Init::Kind::kOne);
    CHECK(got.at("layers.0.mlp.up.bias").init.kind == Init::Kind::kZero);
  }
}

TEST_CASE("with sequence parallelism tensors replicated over tp have partial gradients, and nothing else changes") {
  const TransformerConfig c{.layers = 2, .hidden = 16, .heads = 4, .ffn = 40, .vocab = 300, .seq = 8};
  for (int tp : {1, 2, 4}) {
    Built plain(c, {.tp = tp}, tp - 1, 0, layers(c)), cut(c, {.tp = tp}, tp - 1, 0, layers(c), true);
    const std::vector<UnitSpec> before = plain.stage->units(), after = cut.stage->units();
    int partial = 0;
    for (size_t s = 0; s < before.size(); ++s)
      for (size_t i = 0; i < before[s].params.size(); ++i) {
        const Parameter &p = *before[s].params[i], &q = *after[s].params[i];
        INFO("tp " << tp << " " << q.name);
        CHECK(q.name == p.name);
        CHECK(q.local_shape == p.local_shape);
        const bool whole = p.shard == ShardSpec::replicate();
        CHECK(q.shard == (whole && tp > 1 ? ShardSpec::partial() : p.shard));
        partial += q.shard == ShardSpec::partial();
      }
    CHECK(partial == (tp > 1 ? 1 + 6 * 2 + 2 : 0));  // positions; norms and row biases of two blocks; final norm
    MicroBatch mb;
    mb.batch = 3;
    mb.seq = 8;
    CHECK(plain.stage->boundary(mb) == Shape{24, 16});
    CHECK(cut.stage->boundary(mb) == Shape{24 / tp, 16});
  }
}

TEST_CASE("norms of queries and keys: the per-head norm is replicated with partial gradient, the row norm sliced") {
  TransformerConfig c{
      .layers = 1, .hidden = 16, .heads = 4, .kv_heads = 2, .ffn = 40, .vocab = 300, .seq = 8, .head_dim = 6};
  const std::string name = "layers.0.attn.qk_norm.weight";
  for (int tp : {1, 2, 4}) {
    INFO("tp " << tp);
    const MeshShape shape{.tp = tp, .kv_ranks = tp == 4 ? 2 : 1};
    c.qk_norm = QkNormKind::kHead;
    const Parameter head = parameters(c, shape, tp - 1, 0, layers(c)).at(name);
    CHECK(head.local_shape == Shape{12});
    CHECK(head.shard == (tp > 1 ? ShardSpec::partial() : ShardSpec::replicate()));
    c.qk_norm = QkNormKind::kRow;
    const Parameter row = parameters(c, shape, tp - 1, 0, layers(c)).at(name);
    CHECK(row.full_shape == Shape{36});
    CHECK(row.local_shape == Shape{24 / tp + (tp == 4 ? 6 : 12 / tp)});
    CHECK(row.shard == ShardSpec::qk(4, 2));
    CHECK_FALSE(row.decay);
  }
}

TEST_CASE("weights of norms that are stored minus 1 begin at 0, and embeddings are scaled by a number of their dtype") {
  TransformerConfig c{.layers = 1, .hidden = 16, .heads = 4, .ffn = 40, .vocab = 300, .seq = 8, .norm = NormKind::kRms};
  c.qk_norm = QkNormKind::kHead;
  for (const bool zero_centered : {false, true}) {
    c.norm_zero_centered = zero_centered;
    const auto got = parameters(c, {}, 0, 0, layers(c));
    for (const char* norm : {"layers.0.norm1.weight", "layers.0.attn.qk_norm.weight", "final_norm.weight"})
      CHECK(got.at(norm).init.kind == (zero_centered ? Init::Kind::kZero : Init::Kind::kOne));
  }
  CHECK(embed_scale(2304, DType::kBF16) == 48);
  CHECK(embed_scale(3072, DType::kBF16) == 55.5f);  // of 55.4256, transformers' example
  CHECK(embed_scale(3072, DType::kF16) == 55.4375f);
  CHECK(embed_scale(3072, DType::kF32) == std::sqrt(3072.f));
}

TEST_CASE("the norm placement determines the norms of a block") {
  TransformerConfig c{.layers = 1, .hidden = 16, .heads = 4, .ffn = 40, .vocab = 300, .seq = 8};
  for (const NormPlace place : {NormPlace::kPre, NormPlace::kPost, NormPlace::kBoth}) {
    c.norm_place = place;
    const auto got = parameters(c, {}, 0, 0, layers(c));
    for (const char* norm : {"norm1", "norm2"}) {
      CHECK(got.count(cat("layers.0.", norm, ".weight")) == (place != NormPlace::kPost));
      CHECK(got.count(cat("layers.0.post_", norm, ".weight")) == (place != NormPlace::kPre));
    }
    CHECK(got.count("final_norm.weight") == 1);
  }
}

TEST_CASE("a tp that does not divide a parameter is refused by name") {
  const TransformerConfig c{.layers = 1, .hidden = 16, .heads = 4, .ffn = 42, .vocab = 300, .seq = 8};
  CHECK_THROWS_WITH(Built(c, {.tp = 4}, 0, 0, layers(c)),
                    Catch::Contains("layers.0.mlp.up.weight") && Catch::Contains("42"));
}

TEST_CASE("the stages of every partition hold each parameter exactly once, in one unit order") {
  const TransformerConfig c{.layers = 6, .hidden = 16, .heads = 4, .ffn = 40, .vocab = 300, .seq = 8};
  std::map<std::string, Parameter> whole = parameters(c, {}, 0, 0, layers(c));
  for (const char* rule : {"flops", "uniform", "parameters", "type:block"})
    for (int pp : {1, 2, 3, 5, 9}) {
      INFO(rule << " pp " << pp);
      if (pp == 9 && std::string(rule) == "type:block") continue;
      const std::vector<int> cut = partition(rule, describe(c).layer_costs(), pp);
      std::multiset<std::string> names;
      std::map<int, std::string> units;
      int last = -1;
      for (int s = 0; s < pp; ++s) {
        Built b(c, {.pp = pp}, s, cut[static_cast<size_t>(s)], cut[static_cast<size_t>(s) + 1]);
        for (const UnitSpec& unit : b.stage->units()) {
          CHECK(unit.stage == s);
          CHECK(unit.index > last);  // ascending in model order for every partition
          last = unit.index;
          CHECK(unit.index < static_cast<int>(describe(c).units.size()));
          CHECK(units.emplace(unit.index, unit.name).second);
          for (const Parameter* p : unit.params) names.insert(p->name);
        }
      }
      CHECK(units.size() == describe(c).units.size());
      CHECK(units[0] == "embed");
      CHECK(units[2] == "layers.0");
      CHECK(units[static_cast<int>(describe(c).units.size()) - 1] == "head");
      CHECK(names.size() == whole.size());
      for (const auto& [name, p] : whole) CHECK(names.count(name) == 1);
    }
}

TEST_CASE(
    "names of blocks and of their experts map to one class each, and to another library's names by both numbers") {
  std::vector<int64_t> numbers{9};
  CHECK(leaf_class("layers.3.norm1.weight", &numbers) == "layers.*.norm1.weight");
  CHECK(numbers == std::vector<int64_t>{3});
  CHECK(leaf_class("layers.12.mlp.experts.70.up.weight", &numbers) == "layers.*.mlp.experts.*.up.weight");
  CHECK(numbers == std::vector<int64_t>{12, 70});
  for (const char* name : {"embed.weight", "layers.3", "experts.7.weight", "layers.x.norm1.weight", ""}) {
    CHECK(leaf_class(name, &numbers) == name);
    CHECK(numbers.empty());
  }
  constexpr NameRule kNames[] = {
      {"layers.*.mlp.experts.*.up.weight",
       "model.layers.*.mlp.experts.*.gate_proj.weight model.layers.*.mlp.experts.*.up_proj.weight"},
      {"layers.*.mlp.router.weight", "model.layers.*.mlp.gate.weight"}};
  Family family{};
  family.names = kNames;
  ParamSpec p;
  p.name = "layers.12.mlp.experts.70.up.weight";
  CHECK(hf_names(family, p) == std::vector<std::string>{"model.layers.12.mlp.experts.70.gate_proj.weight",
                                                        "model.layers.12.mlp.experts.70.up_proj.weight"});
  p.name = "layers.7.mlp.router.weight";
  CHECK(hf_names(family, p) == std::vector<std::string>{"model.layers.7.mlp.gate.weight"});
}
