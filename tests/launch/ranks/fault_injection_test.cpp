// Fault detection of the oracle: each injected fault fails verification, and the report names the tensor where it first
// appears.
#include <algorithm>
#include <cmath>

#include "launch/engine/engine_options.h"
#include "launch/tools/verify/report.h"
#include "launch/tools/verify/verifier.h"
#include "tests/launch/ranks/faults.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

Config tiny(const std::vector<std::string>& flags) {
  std::vector<std::string> all{"--model.layers",     "3",   "--model.hidden",     "32", "--model.heads",       "4",
                               "--model.vocab",      "379", "--model.seq",        "8",  "--train.micro_batch", "2",
                               "--train.grad_accum", "2",   "--model.loss_chunk", "8",  "--train.steps",       "6"};
  all.insert(all.end(), {"--parallel.sequence_parallel", "false"});
  all.insert(all.end(), flags.begin(), flags.end());
  return load_config({.file = "", .flags = all}).config;
}

// Returns the first mismatching tensor as text; "" if the layout passes.
std::string found(const Config& layout, const MeshHooks& hooks) {
  static Verifier verifier({});
  const VerifyResult v = verifier.check(layout, &hooks);
  const Difference* d = v.bad();
  return d == nullptr ? "" : describe(*d, mesh_shape(layout));
}

MeshHooks skipping(const SkippedCall& fault) {
  MeshHooks hooks;
  hooks.wrap = [fault](GroupFactory& inner) { return skip_call(inner, fault); };
  return hooks;
}

using Op = SkippedCall::Op;

}  // namespace

TEST_CASE("without a fault the layouts of the injected faults pass") {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--tp", "2"}, {"--tp", "4", "--pp", "2"}, {"--pp", "2", "--dp", "2"}, {"--dp", "2"}})
    CHECK(found(tiny(flags), {}) == "");
}

TEST_CASE("the report of a fault ends with the first difference, that of a correct layout with the word equal") {
  const Config tp2 = tiny({"--tp", "2"});
  Verifier verifier({});
  const MeshHooks hooks = skipping({Op::kAllReduce, "tp", 3});
  const std::string wrong = report(tp2, verifier.check(tp2, &hooks)), right = report(tp2, verifier.check(tp2));
  CHECK_THAT(wrong,
             Catch::Contains("\nDIFFERENT. First in execution order: the output of layers.1.attn.out in step 1") &&
                 Catch::Contains("! gradient") && !Catch::Contains("equal:"));
  CHECK_THAT(right, Catch::Contains("\nequal: ") && !Catch::Contains("DIFFERENT") && !Catch::Contains("\n! "));
}

TEST_CASE("a skipped all-reduce of a row-parallel layer is reported at the layer whose sum is missing") {
  // All-reduces of each microbatch's forward: the embedding's, then those of attention and MLP of every block.
  const Config tp2 = tiny({"--tp", "2"});
  CHECK_THAT(found(tp2, skipping({Op::kAllReduce, "tp", 0})), Catch::Contains("the output of embed in step 1"));
  CHECK_THAT(found(tp2, skipping({Op::kAllReduce, "tp", 3})),
             Catch::Contains("the output of layers.1.attn.out in step 1"));
  CHECK_THAT(found(tp2, skipping({Op::kAllReduce, "tp", 6})),
             Catch::Contains("the output of layers.2.mlp.down in step 1"));
}

TEST_CASE("a skipped all-reduce of a column-parallel layer's backward is reported at the gradient before it") {
  // After 7 of the forward: the head's, then those of MLP and attention of the last block.
  const Config tp2 = tiny({"--tp", "2"});
  CHECK_THAT(found(tp2, skipping({Op::kAllReduce, "tp", 7})),
             Catch::Contains("the gradient of final_norm.bias in step 1"));
  CHECK_THAT(found(tp2, skipping({Op::kAllReduce, "tp", 8})), Catch::Contains("the gradient of layers.2.norm2.bias"));
  CHECK_THAT(found(tp2, skipping({Op::kAllReduce, "tp", 9})), Catch::Contains("the gradient of layers.2.norm1.bias"));
}

TEST_CASE("with sequence parallelism a skipped reduce-scatter of a row-parallel layer is reported at that layer") {
  // Reduce-scatters of each microbatch's forward: the embedding's, then those of attention and MLP of every block.
  const Config sp = tiny({"--tp", "2", "--parallel.sequence_parallel", "true"});
  CHECK(found(sp, {}) == "");
  CHECK_THAT(found(sp, skipping({Op::kReduceScatter, "tp", 3})),
             Catch::Contains("the output of layers.1.attn.out in step 1"));
}

TEST_CASE("a row bias added twice is reported at its layer") {
  MeshHooks hooks;
  hooks.backend = &doubled_row_bias(2);  // attention of block 1
  CHECK_THAT(found(tiny({"--tp", "2"}), hooks), Catch::Contains("the output of layers.1.attn.out in step 1"));
  hooks.backend = &doubled_row_bias(5);  // MLP of block 2
  CHECK_THAT(found(tiny({"--tp", "2"}), hooks), Catch::Contains("the output of layers.2.mlp.down in step 1"));
}

TEST_CASE("a skipped sum of tied gradients is reported at the shared table") {
  const std::string text =
      found(tiny({"--pp", "2"}), skipping({.op = Op::kAllReduce, .group = "embedding", .every = true}));
  CHECK_THAT(text, Catch::Contains("the gradient of embed.weight in step 1") && Catch::Contains("pp0-1"));
}

TEST_CASE("labels off by one on one replica are reported at the loss, with its samples") {
  MeshHooks hooks;
  hooks.batch = [](const Mesh& mesh, MicroBatch& mb) {
    if (mesh.coord(Axis::kDp) != 1) return;
    auto* t = mb.targets.as<int32_t>();
    std::rotate(t, t + 1, t + mb.targets.numel());
  };
  CHECK_THAT(found(tiny({"--dp", "2"}), hooks),
             Catch::Contains("the output of head in step 1, microbatch of sample 2") ||
                 Catch::Contains("the output of head in step 1, microbatch of sample 6"));
}

TEST_CASE("padded logits included in the softmax are reported at the head") {
  MeshHooks hooks;
  hooks.backend = &padded_logits_zero();
  for (const char* tp : {"1", "2", "4"})
    CHECK_THAT(found(tiny({"--tp", tp}), hooks), Catch::Contains("the output of head in step 1"));
}

TEST_CASE("a window pattern that restarts on a pipeline stage is reported at the first block of that stage") {
  const Config pp2 =
      tiny({"--pp", "2", "--model.window", "3", "--model.global_every", "2", "--parallel.partition", "1,2"});
  CHECK(found(pp2, {}) == "");
  MeshHooks hooks;
  hooks.backend = &moved_windows(3);
  hooks.batch = [](const Mesh& mesh, MicroBatch&) { moved_windows_here(mesh.coord(Axis::kPp) == 1); };
  CHECK_THAT(found(pp2, hooks), Catch::Contains("the output of layers.1.attn.out in step 1"));
}

TEST_CASE("a skipped reduction over the replicas is reported at the gradient") {
  // FSDP units are reduced from the last to the first: head, final norm, blocks.
  CHECK_THAT(found(tiny({"--dp", "2"}), skipping({Op::kReduceScatter, "dp", 3})),
             Catch::Contains("the gradient of layers.1.mlp.down.bias in step 1"));
}

TEST_CASE("parameters that are not gathered after the step are reported at the stale copy or the tensor") {
  // Calls 0 to 5 all-gather the initial values of the six FSDP units.
  CHECK_THAT(found(tiny({"--dp", "2"}), skipping({Op::kAllGather, "dp", 6})),
             Catch::Contains("the copy of embed.weight") && Catch::Contains("after step 1"));
}

TEST_CASE("a deviating value on one rank is reported with the parameter and the rank") {
  MeshHooks hooks;
  hooks.after_step = [](Engine& engine, int step) {
    if (engine.mesh().rank() != 0 || step != 1) return;  // the other rank's value is saved and compared
    for (const ShardView& v : engine.store().value_views())
      if (v.name == "master/layers.1.norm1.weight") v.data.as<float>()[0] *= 1.0001f;
  };
  const std::string text = found(tiny({"--tp", "2"}), hooks);
  CHECK_THAT(text, Catch::Contains("the copy of layers.1.norm1.weight on pp0 dp0 tp0 differs") &&
                       Catch::Contains("after step 2"));
}

TEST_CASE("an optimizer without its weight decay is reported at the first parameter that decays") {
  MeshHooks hooks;
  hooks.backend = &omitted_weight_decay();
  CHECK_THAT(found(tiny({"--optim.weight_decay", "1", "--optim.lr", "0.01"}), hooks),
             Catch::Contains("the parameter of embed.weight in step 1"));
}

TEST_CASE("wrong rotary positions under sequence parallelism are reported at attention") {
  const Config sp =
      tiny({"--tp", "2", "--parallel.sequence_parallel", "true", "--model.arch", "llama", "--model.ffn", "48"});
  CHECK(found(sp, {}) == "");
  MeshHooks hooks;
  hooks.backend = &shifted_positions();
  CHECK_THAT(found(sp, hooks), Catch::Contains("the output of layers.0.attn.out in step 1"));
}

TEST_CASE("unsummed gradients of the per-head norm under TP are reported at its weight") {
  const Config tp2 = tiny({"--tp", "2", "--model.arch", "qwen3", "--model.ffn", "48", "--model.head_dim", "8"});
  CHECK(found(tp2, {}) == "");
  // The reductions of each step follow the 2 x 14 calls of its microbatches, except those that overlap with the last
  // backward.
  size_t named = 0;
  for (int call = 20; call < 34; ++call)
    named += found(tp2, skipping({Op::kAllReduce, "tp", call})).find(".attn.qk_norm.weight") != std::string::npos;
  CHECK(named == 3);
}

TEST_CASE("a whole-row norm over the heads of one rank only is reported at attention") {
  const Config tp2 = tiny({"--tp", "2", "--model.arch", "olmo2", "--model.ffn", "48"});
  CHECK(found(tp2, {}) == "");
  MeshHooks hooks;
  hooks.backend = &norm_of_own_heads();
  CHECK_THAT(found(tp2, hooks), Catch::Contains("the output of layers.0.attn.out in step 1"));
  // All-reduces of the forward: the embedding's, then those of the norm, attention and MLP of every block.
  CHECK_THAT(found(tp2, skipping({Op::kAllReduce, "tp", 1})),
             Catch::Contains("the output of layers.0.attn.out in step 1"));
}

TEST_CASE("a one-bit difference within tolerance fails against the bitwise reference of the layout") {
  MeshHooks hooks;
  hooks.after_step = [](Engine& engine, int step) {
    if (step != 2) return;
    for (const ShardView& v : engine.store().value_views())
      if (v.name == "master/layers.2.mlp.up.weight") v.data.as<float>()[5] = std::nextafter(v.data.as<float>()[5], 9.f);
  };
  Verifier verifier({});
  const VerifyResult v = verifier.check(tiny({"--pp", "2"}), &hooks);
  CHECK(first_bad(v.close) == nullptr);
  REQUIRE(v.bad() != nullptr);
  CHECK(v.bad()->name == "layers.2.mlp.up.weight");
  CHECK(v.bad()->quantity == Quantity::kParameter);
  CHECK(v.exact.size() == 1);
}
