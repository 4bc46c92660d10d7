// Megatron-core on the CPU as the oracle: tests/readers/megatron_steps.py trains its GPTModel and its BertModel on each
// layout, and the same weights and samples are trained here on that layout.
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/weights/model_weights.h"
#include "tests/launch/models/hf_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::vector<MeshShape> layouts() {
  if (!full_size()) return {MeshShape{}, MeshShape{.pp = 2, .dp = 2, .tp = 2}, MeshShape{.pp = 4, .tp = 2}};
  std::vector<MeshShape> out;
  for (const int tp : {1, 2})
    for (const int pp : {1, 2, 4})
      for (const int dp : {1, 2}) out.push_back({.pp = pp, .dp = dp, .tp = tp});
  return out;
}

std::string text_of(const MeshShape& m, char between) {
  return std::to_string(m.tp) + between + std::to_string(m.pp) + between + std::to_string(m.dp);
}

std::string short_text(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", x);
  return text;
}

struct Errors {
  double loss = 0, norm = 0, grad = 0;
};

double relative(double ours, double theirs) { return std::fabs(ours - theirs) / std::fabs(theirs); }

// Model of the folder. Megatron's BERT norms what branches read; transformers' norms sums, and no Hugging Face name
// fits the difference, so that its tensors have our names.
ModelConfig model_of(const std::string& folder) {
  ModelConfig model = parse_hf_config(read_file(folder + "/config.json"), "config.json").model;
  if (model.predicts_pairs()) model.norm_place = NormPlace::kPre, model.embed_norm = false;
  return model;
}

Logical tensors_in(const ModelConfig& model, const Logical& theirs, const std::string& prefix = "") {
  if (!model.predicts_pairs()) return native_tensors(model, theirs, prefix);
  Logical out;
  for (const auto& [name, values] : theirs)
    if (name.starts_with(prefix)) out[name.substr(prefix.size())] = values;
  return out;
}

// Trains the folder's model on a layout as the script did, and compares.
void check_layout(const std::string& folder, const MeshShape& mesh, Errors& largest) {
  INFO(folder << ", tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
  const std::string file = folder + "/" + text_of(mesh, '-') + ".safetensors";
  const Logical theirs = tensors_of(file);
  const ModelConfig model = model_of(folder);
  MeshRun run = adamw_run(model, mesh, 1e-2, 8, file);
  const Logical weights = tensors_in(model, tensors_of(folder + "/model.safetensors"));
  const Logical grads = tensors_in(model, theirs, "grad.");
  run.weights = &weights;
  const MeshResult ours = run_mesh(run);
  REQUIRE(run.steps == 3);
  for (size_t k = 0; k < 3; ++k) {
    INFO("step " << k);
    const double loss = relative(ours.losses[k], theirs.at("losses")[k]),
                 norm = relative(ours.norms[k], theirs.at("norms")[k]);
    CHECK(loss <= 1e-6);
    CHECK(norm <= 1e-6);
    largest.loss = std::max(largest.loss, loss), largest.norm = std::max(largest.norm, norm);
  }
  REQUIRE(ours.grads.size() == grads.size());
  for (const auto& [name, expected] : grads) {
    INFO(name);
    const double error = relative_error(ours.grads.at(name), expected);
    CHECK(error <= 1e-5);
    largest.grad = std::max(largest.grad, error);
  }
}

}  // namespace

TEST_CASE("losses, gradient norms and gradients equal Megatron-core's on the same layout") {
  const std::string python = source_dir() + "/build/hf/bin/python";
  if (!std::filesystem::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  TempDir dir;
  std::string words = python + " " + source_dir() + "/tests/readers/megatron_steps.py out";
  for (const MeshShape& m : layouts()) words += " " + text_of(m, ',');
  const Outcome r = shell(words, dir.path(), 300);
  INFO(r.out);
  REQUIRE(r.code == 0);
  for (const char* family : {"gpt", "llama", "bert"}) {
    Errors largest;
    for (const MeshShape& m : layouts()) check_layout(dir / (std::string("out/") + family), m, largest);
    print_figure("megatron", std::string(family) + ", " + std::to_string(layouts().size()) +
                                 " layouts: largest relative difference of a loss " + short_text(largest.loss) +
                                 ", a gradient norm " + short_text(largest.norm) + ", a gradient " +
                                 short_text(largest.grad));
  }
}
