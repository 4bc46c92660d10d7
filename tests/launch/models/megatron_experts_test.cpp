// Routed experts against Megatron-core on the CPU: models that gpttrain trained and exported are computed by
// Megatron-core's experts over 1, 2 and 4 expert-parallel ranks with both dispatchers
// (tests/readers/megatron_experts.py), and here.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <utility>

#include "launch/tools/verify/mesh_run.h"
#include "tests/launch/models/hf_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct Router {
  std::string name, flags;
  double balance;  // coefficient of the balance loss
};
// Weights by a softmax over the chosen experts, with square matrices and with a norm of queries and keys; over all
// experts; and by sigmoids.
const Router kMixtral{"mixtral", "--model.arch mixtral --model.ffn 24", 0};
const Router kQwen3{"qwen3", "--model.arch qwen3_moe --model.ffn 12 --model.moe_top_k 3", 0.05};
const Router kPlain{
    "plain",
    "--model.arch qwen3_moe --model.ffn 20 --model.moe_top_k 3 --model.moe_normalize false --model.moe_scale 2", 0.1};
const Router kSigmoid{"sigmoid", "--model.arch mixtral --model.ffn 20 --model.moe_gate sigmoid --model.moe_scale 1.5",
                      0.05};

// A bias and groups for the choice, shared experts and a dense block; and shared experts behind a gate. Megatron-core's
// balance loss counts what would be chosen without bias and groups.
const Router kDots1{
    "dots1",
    "--model.arch dots1 --model.ffn 12 --model.moe_top_k 4 --model.moe_groups 4 --model.moe_top_groups 2 "
    "--model.moe_scale 2.5 --model.moe_bias_rate 0.05 --model.moe_shared 2 --model.moe_dense_blocks 0 "
    "--model.moe_dense_ffn 20",
    0};
const Router kShared{"shared",
                     "--model.arch qwen3_moe --model.ffn 12 --model.moe_top_k 2 --model.moe_shared 2 "
                     "--model.moe_shared_gate true",
                     0.05};

struct TheirLayout {
  int ep, dp;
  std::string dispatcher;
  std::string file(const std::string& folder) const {
    return folder + "/" + std::to_string(ep) + "-" + std::to_string(dp) + "-" + dispatcher + ".safetensors";
  }
};
using TheirLayouts = std::vector<TheirLayout>;

// Each is compared with all of theirs.
const std::vector<MeshShape> kOurLayouts = {{}, {.dp = 2, .ep = 2}, {.dp = 4, .ep = 2}, {.dp = 2, .ep = 2, .tp = 2}};

// Loss of tokens, balance loss with its coefficient, and gradients of one step, and the biases of routers after it.
struct Results {
  double loss = 0, balance = 0;
  Logical grads, biases;
};

Results theirs_in(const Logical& file) {
  const auto number = [&](const char* name) { return static_cast<double>(file.at(name)[0]) + file.at(name)[1]; };
  Results out{.loss = number("loss"), .balance = number("balance")};
  for (const auto& [name, values] : file) {
    if (name.starts_with("grad.")) out.grads[name.substr(5)] = values;
    if (name.starts_with("next.")) out.biases[name.substr(5)] = values;
  }
  return out;
}

// A model that was trained and exported here, and folder/EP-DP-DISPATCHER.safetensors of Megatron-core.
struct Model {
  std::string folder;
  ModelConfig config;
  Logical weights;
};

Results ours(const Model& m, const MeshShape& mesh, const std::string& samples) {
  MeshRun run;
  run.engine.model = m.config;
  run.engine.micro_batch = 2;
  run.global_batch = 8;
  run.mesh = mesh;
  run.samples = samples_of(samples);
  run.weights = &m.weights;
  MeshResult r = run_mesh(run);
  Results out{.loss = r.losses[0], .grads = std::move(r.grads)};
  for (auto& [name, values] : r.weights)
    if (name.ends_with("router.bias")) out.biases[name] = values;
  for (const auto& [name, values] : r.parts) (name == "balance" ? out.balance : out.loss) = values[0];
  return out;
}

// Trains two steps, which move norms off 1, and exports; all in `dir`.
Model make_model(const Router& router, const TempDir& dir) {
  must(router.flags +
           " --model.layers 2 --model.hidden 24 --model.heads 4 --model.kv_heads 2 --model.head_dim 6 --model.vocab 61"
           " --model.seq 16 --model.moe_experts 8 --model.init_std 0.1 --data.train mock --device.kind cpu"
           " --train.steps 2 --train.global_batch 4 --train.micro_batch 1 --optim.lr 0.05 --log.name " +
           router.name,
       dir);
  must("export --load runs/" + router.name + " --format safetensors --naming native --output " + router.name, dir);
  Model out{.folder = dir / router.name};
  out.config = find_model(dir / ("runs/" + router.name), {"--device.kind", "cpu"}).loaded.config.model;
  out.config.moe.balance = router.balance;
  out.weights = tensors_of(out.folder + "/model.safetensors");
  return out;
}

std::vector<Model> made_by_both(const std::vector<Router>& routers, const TheirLayouts& layouts, const TempDir& dir) {
  std::string words = source_dir() + "/build/hf/bin/python " + source_dir() + "/tests/readers/megatron_experts.py";
  for (const TheirLayout& l : layouts) words += fmt::format(" --layout {} {} {}", l.ep, l.dp, l.dispatcher);
  std::vector<Model> out;
  for (const Router& r : routers) {
    out.push_back(make_model(r, dir));
    words += fmt::format(" --model {} {}", r.name, r.balance);
  }
  const Outcome r = shell(words, dir.path(), 500);
  INFO(r.out);
  REQUIRE(r.code == 0);
  return out;
}

// Relative differences; that of gradients is of the largest element from the largest, in the worst tensor. Biases: the
// largest difference.
struct Errors {
  double loss = 0, balance = 0, grad = 0, bias = 0;
  std::string grad_of;
};

double relative(double a, double b) { return b == 0 ? std::fabs(a) : std::fabs(a / b - 1); }

double largest(const std::vector<float>& x) {
  return *std::max_element(x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

Errors compared(const Results& a, const Results& b) {
  REQUIRE(a.grads.size() == b.grads.size());
  Errors out{.loss = relative(a.loss, b.loss), .balance = relative(a.balance, b.balance)};
  for (const auto& [name, values] : b.grads) {
    const double error = largest_difference(a.grads.at(name), values) / std::fabs(largest(values));
    if (!(error <= out.grad)) out.grad = error, out.grad_of = name;
  }
  REQUIRE(a.biases.size() == b.biases.size());
  for (const auto& [name, values] : b.biases)
    out.bias = std::max(out.bias, largest_difference(a.biases.at(name), values));
  return out;
}

const char* no_megatron() {
  const bool here = std::filesystem::exists(source_dir() + "/build/hf/bin/python");
  return here ? nullptr : "no build/hf/bin/python; tests/readers/setup.sh makes it";
}

}  // namespace

TEST_CASE("losses and gradients of routed experts equal Megatron-core's over 1, 2 and 4 ranks, with both dispatchers") {
  if (const char* why = no_megatron()) GT_SKIP(why);
  const TheirLayouts layouts{{1, 1, "allgather"}, {1, 1, "alltoall"}, {2, 2, "allgather"}, {2, 2, "alltoall"},
                             {4, 4, "allgather"}, {4, 4, "alltoall"}, {2, 4, "alltoall"}};
  TempDir dir;
  Errors most;
  for (const Model& m : made_by_both({kMixtral, kQwen3, kPlain, kSigmoid, kDots1, kShared}, layouts, dir))
    for (const MeshShape& mesh : kOurLayouts) {
      const Results here = ours(m, mesh, layouts[0].file(m.folder));
      for (const TheirLayout& l : layouts) {
        INFO(l.file(m.folder) << ", ours ep " << mesh.ep << " dp " << mesh.dp);
        const Logical file = tensors_of(l.file(m.folder));
        REQUIRE(file.at("margin")[0] > 1e-5);  // else rounding decides which experts are chosen
        const Errors e = compared(here, theirs_in(file));
        INFO(e.grad_of);
        CHECK(e.loss <= 1e-7);
        CHECK(e.balance <= 1e-6);
        CHECK(e.grad <= 2e-6);
        CHECK(e.bias <= 1e-7);
        most = {std::max(most.loss, e.loss), std::max(most.balance, e.balance), std::max(most.grad, e.grad)};
      }
    }
  print_figure("megatron experts",
               fmt::format("largest relative difference of a loss {:.2g}, a balance loss {:.2g}, a gradient {:.2g}",
                           most.loss, most.balance, most.grad));
}

TEST_CASE("logits of routed experts equal Megatron-core's") {
  if (const char* why = no_megatron()) GT_SKIP(why);
  TempDir dir;
  const TheirLayout layout{2, 2, "alltoall"};
  for (const Model& m : made_by_both({kMixtral, kDots1}, {layout}, dir)) {
    const std::string file = layout.file(m.folder);
    const std::vector<float> theirs = tensors_of(file).at("logits");
    std::vector<int32_t> tokens = samples_of(file)[0];
    tokens.pop_back();
    const std::vector<float> last(theirs.end() - m.config.vocab, theirs.end());
    const auto model = load_model(dir / ("runs" + m.folder.substr(dir.path().size())), {"--device.kind", "cpu"});
    CHECK(largest_difference(logits_of(*model, tokens), last) < 1e-5);
  }
}

TEST_CASE("a difference from Megatron-core's experts is found: halves or experts swapped, weights, balance loss") {
  if (const char* why = no_megatron()) GT_SKIP(why);
  TempDir dir;
  const TheirLayout layout{1, 1, "alltoall"};
  const Model right = made_by_both({kQwen3}, {layout}, dir).front();
  const std::string file = layout.file(right.folder);
  const Results theirs = theirs_in(tensors_of(file));
  REQUIRE(compared(ours(right, {}, file), theirs).grad <= 2e-6);
  const auto errors = [&](const std::function<void(Model&)>& change) {
    Model wrong = right;
    change(wrong);
    return compared(ours(wrong, {}, file), theirs);
  };
  const auto half = right.config.ffn * right.config.hidden;
  const Errors swapped = errors([&](Model& m) {
    for (auto& [name, x] : m.weights)
      if (name.ends_with("experts.up.weight"))
        for (auto at = x.begin(); at != x.end(); at += 2 * half) std::rotate(at, at + half, at + 2 * half);
  });
  const Errors renumbered = errors([&](Model& m) {
    for (auto& [name, x] : m.weights)
      if (name.find(".experts.") != std::string::npos)
        std::rotate(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size()) / 8, x.end());
  });
  const Errors unnormalized = errors([](Model& m) { m.config.moe.normalize = false; });
  for (const Errors& e : {swapped, renumbered, unnormalized}) {
    CHECK(e.loss > 1e-6);
    CHECK(e.grad > 1e-2);
  }
  const Errors balanced = errors([](Model& m) { m.config.moe.balance *= 2; });
  CHECK(balanced.loss <= 1e-7);
  CHECK(balanced.balance > 0.9);
  CHECK(balanced.grad > 1e-3);
}
