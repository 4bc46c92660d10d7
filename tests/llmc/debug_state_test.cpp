// Reproduces llm.c's debug state after `gpttrain import`. Compares the loaded checkpoint's logits, and the trainer's
// loss, gradients and ten AdamW steps, on the CPU and, if present, a GPU.
#include "tests/llmc/debug_state.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <iostream>

#include "launch/commands/cli.h"
#include "launch/engine/engine_options.h"
#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/weights/loaded_model.h"
#include "launch/tools/weights/subcommands.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

using Flags = std::vector<std::string>;

// Tolerances against PyTorch.
struct Limits {
  double logit, loss;          // largest absolute difference
  double gradient = INFINITY;  // relative, per tensor; llmq's criterion applies too (see compare_gradients)
};

struct TenSteps {
  std::vector<float> logits;  // rows 0, stride, 2 stride …
  size_t stride = 1;
  double first_loss = 0;
  std::vector<double> losses;
  Logical grads;
};

// Failures, one line each, and the worst deviations, for the log.
struct Report {
  Flags wrong;
  std::string figures;
};

void compare_logits(const DebugState& s, const TenSteps& o, const Limits& l, Report& v) {
  double worst = 0, square = 0, all = 0;
  const auto vocab = static_cast<size_t>(s.vocab);
  for (size_t k = 0; k < o.logits.size(); ++k) {
    const double expected = s.logits[k / vocab * o.stride * vocab + k % vocab], d = o.logits[k] - expected;
    worst = std::max(worst, std::isfinite(d) ? std::fabs(d) : INFINITY);
    square += d * d, all += expected * expected;
  }
  const double relative = std::sqrt(square / all);
  if (!(worst <= l.logit)) v.wrong.push_back(fmt::format("a logit differs by {:.3g}", worst));
  if (!(relative <= 0.02)) v.wrong.push_back(fmt::format("logits differ by {:.3g} of their norm", relative));
  v.figures += fmt::format("logits within {:.2g}", worst);
}

void compare_losses(const DebugState& s, const TenSteps& o, const Limits& l, Report& v) {
  double worst = 0;
  const auto compare = [&](const std::string& name, double found, double expected) {
    const double d = std::fabs(found - expected);
    worst = std::max(worst, std::isfinite(d) ? d : INFINITY);
    if (!(d <= l.loss)) v.wrong.push_back(fmt::format("{} {:.6f}, expected {:.6f}", name, found, expected));
  };
  compare("loss of the state", o.losses.front(), s.loss);
  for (size_t k = 0; k < s.losses.size(); ++k) compare(fmt::format("loss of step {}", k + 1), o.losses[k], s.losses[k]);
  v.figures += fmt::format(", losses {:.2g}", worst);
}

// llmq's criterion: cosine of each tensor at least 0.95, its norm within 5 %, mean cosine above 0.99.
void compare_gradients(const DebugState& s, const TenSteps& o, const Limits& l, Report& v) {
  double sum = 0, worst = 0, lowest = 1;
  for (const auto& [name, expected] : s.grads) {
    const auto it = o.grads.find(name);
    const TensorDistance d = it == o.grads.end() ? TensorDistance{INFINITY, 0, 0, 0} : distance(it->second, expected);
    if (!(d.cosine >= 0.95 && std::fabs(d.length - 1) <= 0.05 && d.relative <= l.gradient))
      v.wrong.push_back(fmt::format("gradient of {}: cosine {:.6f}, norm {:.6f} of PyTorch's, differs by {:.3g}", name,
                                    d.cosine, d.length, d.relative));
    sum += d.cosine;
    worst = std::max(worst, d.relative), lowest = std::min(lowest, d.cosine);
  }
  const double mean = sum / static_cast<double>(s.grads.size());
  if (!(mean > 0.99)) v.wrong.push_back(fmt::format("gradients: mean cosine {:.6f}, expected more than 0.99", mean));
  v.figures += fmt::format(", gradients {:.2g}, their cosine {:.6f} at least", worst, lowest);
}

Report compare_state(const DebugState& s, const TenSteps& o, const Limits& l) {
  Report v;
  compare_logits(s, o, l, v);
  compare_losses(s, o, l, v);
  compare_gradients(s, o, l, v);
  return v;
}

// At most 64 evenly spaced rows: each takes a forward pass.
void predict(const DebugState& s, const std::string& checkpoint, const Flags& flags, TenSteps& out) {
  const auto m = load_model(checkpoint, flags);
  const DeviceApi& device = *m->backend->device;
  out.stride = std::max<size_t>(1, s.x.size() / 64);
  const Buffer ids(s.batch * s.length * 4, m->stream.device(), device);
  device.copy(ids.data(), s.x.data(), ids.bytes(), m->stream);
  MicroBatch mb;
  mb.batch = s.batch;
  mb.seq = s.length;
  mb.tokens = ids.tensor({s.batch, s.length}, DType::kI32);
  const int64_t arena_bytes = (1 << 20) + 8 * s.vocab + 256 * s.batch * s.length * m->config.model.hidden;
  for (size_t row = 0; row < s.x.size(); row += out.stride) {
    Arena arena(Buffer(arena_bytes, m->stream.device(), device));
    Pool pool(Buffer(kAlign, m->stream.device(), device));
    Tape tape(arena, pool, *m->backend->ops, m->stream);
    tape.set_recording(false);
    const Tensor logits = m->engine->stages().front()->next_logits(tape, mb, static_cast<int64_t>(row));
    const size_t at = out.logits.size();
    out.logits.resize(at + static_cast<size_t>(s.vocab));
    device.copy(out.logits.data() + at, logits.data, 4 * s.vocab, m->stream);
    device.synchronize(m->stream);
  }
}

void train(const DebugState& s, const std::string& checkpoint, Flags flags, const MeshShape& mesh, TenSteps& out) {
  const std::string batch = fmt::to_string(s.batch / mesh.dp);
  const Flags steps{"--train.micro_batch",  batch,
                    "--train.global_batch", batch,
                    "--model.seq",          fmt::to_string(s.length),
                    "--optim.lr",           fmt::format("{}", s.lr),
                    "--optim.betas",        "0.9,0.95",
                    "--optim.eps",          "1e-8",
                    "--optim.weight_decay", "0",
                    "--optim.grad_clip",    "1",
                    "--schedule.type",      "constant"};
  flags.insert(flags.end(), steps.begin(), steps.end());
  const Config config = load_config({.file = resolve_step(checkpoint) + "/config.json", .flags = flags}).config;
  MeshHooks hooks;
  hooks.backend = &choose_backend(config);
  MeshRun run;
  run.engine = engine_options(config, threads_per_rank(config, mesh.world()));
  run.mesh = mesh;
  run.global_batch = s.batch;
  run.steps = static_cast<int>(s.losses.size());
  run.samples = s.samples;
  run.weights = &s.weights;
  run.deadline = std::chrono::seconds(600);
  run.hooks = &hooks;
  MeshResult r = run_mesh(run);
  out.losses = std::move(r.losses);
  out.grads = std::move(r.grads);
}

TenSteps all_of(const DebugState& s, const Flags& flags, const MeshShape& mesh = {}) {
  const TempDir dir;
  const Flags words{"import", "--from", s.model, "--output", dir / "in"};
  REQUIRE(run_import(parse_command(words, {})) == Exit::kOk);
  TenSteps out;
  predict(s, dir / "in", flags, out);
  train(s, dir / "in", flags, mesh, out);
  return out;
}

void expect(const DebugState& s, const std::string& name, const Flags& flags, const Limits& limits,
            const MeshShape& mesh = {}) {
  const Report v = compare_state(s, all_of(s, flags, mesh), limits);
  std::cout << name << ": " << v.figures << std::endl;
  for (const std::string& w : v.wrong) UNSCOPED_INFO(w);
  CHECK(v.wrong.empty());
}

const Flags kCpu{"--device.kind", "cpu"}, kCuda{"--device.kind", "cuda"};
Flags in_bf16(Flags flags) {
  flags.insert(flags.end(), {"--precision.amp", "O2", "--precision.dtype", "bf16"});
  return flags;
}
// Returns "" if there is a GPU, otherwise why not.
std::string no_gpu() {
  std::string why;
  return cuda_backend(&why) != nullptr ? "" : "on a GPU: " + why;
}

// Folder of the suite's small files; GPT_LLMC_SMALL overrides it on machines without the sources.
std::string small_folder() {
  const char* given = std::getenv("GPT_LLMC_SMALL");
  return given != nullptr ? given : source_dir() + "/tests/golden/llmc";
}

constexpr Limits kSmall{2e-5, 1e-5, 1e-4}, kBf16{INFINITY, 0.05};

}  // namespace

TEST_CASE("a small debug state in llm.c's format: the CPU's logits, gradients and ten losses are PyTorch's") {
  const DebugState s = read_debug_state(small_folder());
  expect(s, "small, CPU", kCpu, kSmall);
  expect(s, "small, CPU, tp 2 pp 2 dp 2", kCpu, kSmall, {.pp = 2, .dp = 2, .tp = 2});
  expect(s, "small, CPU, bf16", in_bf16(kCpu), kBf16);
}

TEST_CASE("a small debug state in llm.c's format: a GPU's logits, gradients and ten losses are PyTorch's") {
  if (const std::string why = no_gpu(); !why.empty()) GT_SKIP(why);
  const DebugState s = read_debug_state(small_folder());
  expect(s, "small, GPU", kCuda, kSmall);
  expect(s, "small, GPU, bf16", in_bf16(kCuda), kBf16);
}

TEST_CASE("GPT-2 124M by llm.c's own debug state: logits, gradients and the ten published losses") {
  const char* folder = std::getenv("GPT_LLMC_DIR");
  if (folder == nullptr) {
    GT_SKIP(
        "GPT_LLMC_DIR names no folder with gpt2_124M.bin and gpt2_124M_debug_state.bin, which llm.c's "
        "train_gpt2.py writes");
  }
  const DebugState s = read_debug_state(folder);
  expect(s, "124M, CPU", kCpu, {1e-2, 1e-3});
  if (const std::string why = no_gpu(); !why.empty()) return report_partly_skipped(why);
  expect(s, "124M, GPU", kCuda, {1e-3, 1e-5});
  expect(s, "124M, GPU, bf16", in_bf16(kCuda), kBf16);
}

TEST_CASE("a differing debug state is found, and the differing tensor is named") {
  const DebugState s = read_debug_state(small_folder());
  const TenSteps right = all_of(s, kCpu);
  REQUIRE(compare_state(s, right, kSmall).wrong.empty());
  const auto only = [&](const TenSteps& o, const std::string& words, const Limits& limits = kBf16) {
    const Report v = compare_state(s, o, limits);
    REQUIRE(v.wrong.size() == 1);
    CHECK_THAT(v.wrong.front(), Catch::Contains(words));
  };
  TenSteps o = right;
  for (float& g : o.grads["layers.1.mlp.up.weight"]) g *= 1.06f;
  only(o, "gradient of layers.1.mlp.up.weight");
  o = right;
  o.grads.erase("final_norm.bias");
  CHECK(compare_state(s, o, kBf16).wrong.front().find("final_norm.bias") != std::string::npos);
  o = right;
  std::swap(o.grads["layers.0.attn.out.bias"], o.grads["layers.1.attn.out.bias"]);
  CHECK(compare_state(s, o, kBf16).wrong.size() >= 2);
  o = right;
  o.losses[9] += 0.06;
  only(o, "loss of step 10");
  o = right;
  o.logits[5] += 3e-5f;
  only(o, "a logit", kSmall);
  o = right;
  for (float& z : o.logits) z *= 1.03f;
  only(o, "of their norm");
  DebugState faster = s;  // a slightly wrong optimizer
  faster.lr *= 1.01;
  for (const std::string& w : compare_state(s, all_of(faster, kCpu), kSmall).wrong)
    CHECK_THAT(w, Catch::Contains("loss of step"));
  CHECK(compare_state(s, all_of(faster, kCpu), kSmall).wrong.size() == 9);  // all but the first
}
