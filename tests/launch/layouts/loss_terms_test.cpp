// A model with three losses, two of them of blocks: on random layouts every loss, the objective, all gradients and an
// evaluation equal those of one rank. GPT_TEST_SEED selects other layouts, GPT_TEST_LAYOUTS more.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "autograd/ops.h"
#include "launch/engine/engine_options.h"
#include "launch/tools/verify/layouts.h"
#include "launch/tools/verify/mesh_run.h"
#include "model/families/family.h"
#include "model/transformer.h"
#include "parallel/tensor/collective_ops.h"
#include "tests/launch/process.h"
#include "tests/support/environment.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Matchers::Contains;

namespace {

constexpr int kRanks = 8, kSteps = 2;

// "rows": of every token behind blocks 0 and 4, so that it has two sums, on one stage or on two. "first": of the first
// token of each sequence behind block 1. Each classifies the residual stream itself, without weights.
const std::vector<LossTerm> kTerms{
    {.name = "rows", .weight = 0.125, .divisor = LossDivisor::kTokens, .layers = {1, 5}},
    {.name = "first", .weight = 0.5, .divisor = LossDivisor::kSequences, .hits = true, .layers = {2}}};

class ThreeLosses : public TransformerStage {
 public:
  ThreeLosses(LayerRange range, int stage, const Build& b)
      : TransformerStage(range, stage, b),
        axis_(b.tensor()),
        classes_(b.config().hidden),
        first_(b.model.loss_sum("first")),
        rows_{{0, b.model.loss_sum("rows", 1)}, {4, b.model.loss_sum("rows", 5)}} {}

 protected:
  Block::Stream block_losses(Tape& t, int64_t block, Block::Stream s, const MicroBatch& mb) override {
    if (block != 1 && rows_.count(block) == 0) return s;
    const Var x = Block::join(t, s);
    const RowSlice held = axis_.rows(mb);
    if (block == 1) {
      const Var first = ops::first_tokens(t, x, mb, axis_);
      keep(t, mb, first_, first, targets(t, mb.first_sample, mb.batch));
    } else {
      const Var sums =
          keep(t, mb, rows_.at(block), x, targets(t, mb.first_sample * mb.seq + held.first + block, held.rows));
      if (axis_.splits_rows()) {  // each TP rank has the sum over its own rows
        axis_.group.all_reduce(sums.value, ReduceOp::kSum, t.stream()).wait(t.stream());
        ops::keep_loss(t, mb, rows_.at(block), sums);
      }
    }
    return {x, {}, {}};
  }

 private:
  static Var keep(Tape& t, const MicroBatch& mb, int loss, const Var& logits, Tensor targets) {
    const Var sums = ops::class_cross_entropy(t, logits, targets, mb.dloss.slice(loss, 1));
    ops::keep_loss(t, mb, loss, sums);
    return sums;
  }
  Tensor targets(Tape& t, int64_t begin, int64_t count) const {
    const Tensor out = t.scratch({count}, DType::kI32);
    for (int64_t i = 0; t.stream().device.kind == DeviceKind::kCpu && i < count; ++i)
      out.as<int32_t>()[i] = static_cast<int32_t>((begin + i) * 5 % classes_);
    return out;
  }
  const TensorAxis axis_;
  const int64_t classes_;
  const int first_;
  const std::map<int64_t, int> rows_;  // index of the sum by block
};

Config base() {
  return load_config({.file = "",
                      .flags = {"--model.layers", "6",     "--model.hidden",      "16",       "--model.heads",      "4",
                                "--model.vocab",  "379",   "--model.seq",         "8",        "--model.loss_chunk", "6",
                                "--train.steps",  "40",    "--train.micro_batch", "1",        "--train.grad_accum", "2",
                                "--optim.lr",     "0.003", "--data.pack",         "documents"}})
      .config;
}

// Draws values of every axis; targets of microbatches differ in number, as documents begin anywhere.
CheckedLayout draw(const Config& c, const std::vector<LayoutAxis>& axes, std::mt19937_64& random) {
  std::map<std::string, std::string> s;
  const auto number = [&](const char* key) { return std::stoll(s.at(key)); };
  do {
    for (const LayoutAxis& a : axes) s[a.key] = a.values[random() % a.values.size()];
  } while (number("parallel.tp") * number("parallel.pp") * number("parallel.dp") > kRanks);
  s["precision.amp"] = "O0";
  s["parallel.vpp"] = s["parallel.schedule"] == "interleaved" ? "2" : "1";
  s["train.grad_accum"] = std::to_string(1 + random() % 4);
  s["train.micro_batch"] = std::to_string(1 + random() % 2);
  s["train.loss_mean"] = random() % 4 == 0 ? "microbatch" : "token";
  return check_layout(c, {s.begin(), s.end()});
}

MeshRun run_of(const Config& c, const std::vector<LossTerm>& terms) {
  MeshRun run;
  run.engine = engine_options(c, 1);
  run.engine.model.losses = terms;
  run.engine.build_stage = [](LayerRange range, int stage, const Build& b) -> std::unique_ptr<ModelStage> {
    return std::make_unique<ThreeLosses>(range, stage, b);
  };
  run.mesh = mesh_shape(c);
  run.global_batch = c.train.global_batch;
  run.steps = kSteps;
  run.stir = run.evaluate = run.engine.evaluates = true;
  run.samples = synthetic_samples(c.model, static_cast<int>(run.global_batch) * (kSteps + 1), 3);
  return run;
}

MeshResult train(const Config& c, const std::vector<LossTerm>& terms = kTerms) { return run_mesh(run_of(c, terms)); }

void check_equal(const MeshResult& layout, const MeshResult& one) {
  REQUIRE((layout.parts.size() == 3 && one.parts.size() == 3));
  for (size_t k = 0; k < kSteps; ++k) {
    INFO("step " << k);
    double sum = 0;
    for (size_t i = 0; i < 3; ++i) {
      INFO("loss " << one.parts[i].first);
      CHECK(one.parts[i].second.at(k) > 0);
      CHECK(layout.parts[i].second.at(k) == Approx(one.parts[i].second[k]).epsilon(k == 0 ? 1e-6 : 1e-5));
      sum += layout.parts[i].second[k];
    }
    CHECK(layout.losses.at(k) == Approx(sum).epsilon(1e-12));
  }
  CHECK(layout.norms[0] == Approx(one.norms[0]).epsilon(2e-6));
  const auto [name, error] = worst_error(layout.grads, one.grads);
  INFO("worst gradient: " << name);
  CHECK(error <= 1e-5);
  CHECK(layout.eval_loss == Approx(one.eval_loss).epsilon(1e-5));
  CHECK(layout.eval_hits == one.eval_hits);
}

}  // namespace

TEST_CASE("three losses, two of blocks, train on random layouts as on one rank") {
  const Config plain = base();
  const uint64_t seed = from_environment("GPT_TEST_SEED", 1), goal = from_environment("GPT_TEST_LAYOUTS", 40);
  const std::vector<LayoutAxis> axes = layout_axes(plain, kRanks);
  std::mt19937_64 random(seed);
  std::map<std::string, MeshResult> references;
  std::set<std::string> done;
  for (size_t drawn = 0; done.size() < goal && drawn < 500 * goal; ++drawn) {
    const CheckedLayout layout = draw(plain, axes, random);
    if (!layout.problems.empty() || !done.insert(config_json(layout.config)).second) continue;
    INFO("GPT_TEST_SEED=" << seed << ": " << layout_text(layout.config) << " micro_batch "
                          << layout.config.train.micro_batch);
    const Config one = one_rank(layout.config);
    const auto [reference, fresh] = references.try_emplace(config_json(one));
    if (fresh) reference->second = train(one);
    check_equal(train(layout.config), reference->second);
  }
  CHECK(done.size() == goal);
  double hits = 0;
  for (const auto& [config, one] : references) hits += std::accumulate(one.eval_hits.begin(), one.eval_hits.end(), 0.);
  CHECK(hits > 0);
}

TEST_CASE("the weight of a loss scales its part and its gradient once") {
  const auto weighted = [](double factor) {
    std::vector<LossTerm> terms = kTerms;
    for (LossTerm& t : terms) t.weight *= factor;
    return train(base(), terms);
  };
  const MeshResult none = weighted(0), one = weighted(1), two = weighted(2);
  for (size_t i = 0; i < 3; ++i) {
    INFO("loss " << one.parts[i].first);
    const double part = one.parts[i].second[0];
    CHECK(none.parts[i].second[0] == (i == 0 ? part : 0));
    CHECK(two.parts[i].second[0] == (i == 0 ? part : 2 * part));
  }
  double off = 0, length = 0;  // gradients of all losses but that of tokens: twice those of weight 1
  for (const auto& [name, of_tokens] : none.grads)
    for (size_t i = 0; i < of_tokens.size(); ++i) {
      const auto beyond = [&](const MeshResult& r) { return static_cast<double>(r.grads.at(name)[i] - of_tokens[i]); };
      off += std::pow(beyond(two) - 2 * beyond(one), 2), length += std::pow(beyond(two), 2);
    }
  CHECK(length > 0);
  CHECK(off <= 1e-10 * length);
}

TEST_CASE("a small step against the gradient of three losses lowers their sum by its squared norm") {
  MeshRun run = run_of(base(), kTerms);
  run.engine.optim = {.type = "sgd", .weight_decay = 0};
  run.engine.lr = {.type = "constant", .peak = 1e-3, .total_steps = kSteps};
  run.engine.grad_clip = 0;
  run.engine.documents = false;
  run.global_batch =
      16;  // both steps have the same samples and, as targets repeat after 16 sequences, the same targets
  run.samples = synthetic_samples(run.engine.model, 16, 3);
  const MeshResult r = run_mesh(run);
  CHECK(r.losses[0] - r.losses[1] == Approx(1e-3 * r.norms[0] * r.norms[0]).epsilon(0.05));
}

TEST_CASE("a model lists its losses, and an impossible list is refused by name") {
  const auto names = [](const TransformerConfig& c) {
    std::vector<std::string> out;
    for (const LossTerm& t : describe(c).losses) out.push_back(t.name);
    return out;
  };
  TransformerConfig c = base().model;
  CHECK(names(c) == std::vector<std::string>{"token"});
  CHECK(names(find_family("bert")->defaults) == std::vector<std::string>{"token", "pair"});
  CHECK(loss_keys({}) == std::vector<std::string>{"pair_loss"});
  c.losses = kTerms;
  const ModelSpec spec = describe(c);
  CHECK(names(c) == std::vector<std::string>{"token", "rows", "first"});
  CHECK(loss_keys(spec.losses) == std::vector<std::string>{"rows_loss", "first_loss", "pair_loss"});
  CHECK(spec.loss_sums.size() == 4);
  CHECK(spec.losses_in(0, 3) == std::vector<int>{1, 3});
  CHECK(spec.losses_in(3, 9) == std::vector<int>{0, 2});
  CHECK_THROWS_WITH(spec.loss_sum("row"), Contains("no loss row"));
  c.losses[1].layers = {9};
  CHECK_THROWS_WITH(describe(c), Contains("loss first") && Contains("no layer 9"));
  c.losses[1] = c.losses[0];
  CHECK_THROWS_WITH(describe(c), Contains("two losses are named rows"));
  c.losses.clear();
  for (size_t i = 0; i < kMostLosses; ++i) c.losses.push_back({.name = "extra" + std::to_string(i)});
  CHECK_THROWS_WITH(describe(c), Contains("loss extra7") && Contains("at most 8 losses"));
}

TEST_CASE("a loss that is not finite is named") {
  TempDir dir;
  const Outcome r = gpttrain(
      "--model.arch bert --model.layers 2 --model.hidden 32 --model.heads 4 --model.ffn 64 --model.vocab 400 "
      "--model.seq "
      "32 --data.train mock --device.kind cpu --train.micro_batch 2 --train.global_batch 8 --train.steps 9 "
      "--checkpoint.every 0 --log.name x --fault.inject inf@master:rank=0,step=3,param=pairs.classes.weight",
      dir.path());
  INFO(r.out);
  CHECK(r.code == 17);
  CHECK(r.prints("the pair loss of microbatch 0 of dp rank 0 (samples 16 to 17) is "));
}
