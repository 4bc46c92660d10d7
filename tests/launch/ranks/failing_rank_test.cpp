// A rank as a thread that throws while others may be reading its buffers: all exit together with one message and its
// exit code.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "kernels/core/open_stream.h"
#include "launch/commands/cli.h"
#include "launch/engine/engine_options.h"
#include "launch/ranks/ranks.h"
#include "tests/launch/engine_ranks.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

thread_local int calls_left = -1;  // remaining calls of this rank's norms, forward and backward

const Backend& failing_backend() {
  static const OpTable table = [] {
    OpTable t = *cpu_backend().ops;
    t.layer_norm = [](const LayerNorm& a, Stream s) {
      if (calls_left-- == 0) fail(Exit::kNumerical, "injected failure");
      cpu_backend().ops->layer_norm(a, s);
    };
    t.layer_norm_grad = [](const LayerNormGrad& a, Stream s) {
      if (calls_left-- == 0) fail(Exit::kNumerical, "injected failure");
      cpu_backend().ops->layer_norm_grad(a, s);
    };
    return t;
  }();
  static const Backend backend{DeviceKind::kCpu, &table, cpu_backend().device};
  return backend;
}

// Returns what is written to standard error during `run`.
template <class Run>
std::string standard_error(const std::string& file, Run run) {
  const int keep = dup(2), out = open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  dup2(out, 2);
  close(out);
  run();
  fflush(stderr);
  dup2(keep, 2);
  close(keep);
  return read_file(file);
}

const std::vector<std::vector<std::string>> kLayouts{
    {"--dp", "2"},
    {"--tp", "2", "--dp", "2", "--zero", "2"},
    {"--pp", "2", "--dp", "2", "--zero", "3", "--zero.persist_numel", "0"},
    {"--tp", "2", "--pp", "2", "--dp", "2"},
    {"--dp", "4", "--zero", "3", "--zero.persist_numel", "0", "--zero.bucket_bytes", "1"}};

Command command_of(std::vector<std::string> flags) {
  for (const char* f :
       {"--model.layers", "4",       "--model.hidden",      "32", "--model.heads",      "4", "--model.vocab", "300",
        "--model.seq",    "16",      "--train.micro_batch", "1",  "--train.grad_accum", "3", "--data.train",  "mock",
        "--launch.ranks", "threads", "--device.kind",       "cpu"})
    flags.emplace_back(f);
  Command c;
  c.loaded = load_config({.file = "", .flags = flags});
  return c;
}

}  // namespace

TEST_CASE("a rank that fails during a step ends the others with one message and its code") {
  const TempDir dir;
  for (int k = 0; k < 50; ++k) {
    const Command command = command_of(kLayouts[static_cast<size_t>(k) % kLayouts.size()]);
    const Config& config = command.loaded.config;
    const MeshShape shape = mesh_shape(config);
    const int bad = k % shape.world(), call = (k * 7) % 12;
    std::atomic<int> finished{0};
    Exit code = Exit::kOk;
    const std::string output = standard_error(dir / "err", [&] {
      code = run_ranks(command, [&](GroupFactory& factory) {
        const Mesh mesh(shape, factory);
        const OpenStream stream(*cpu_backend().device, 0, 1);
        const EngineOptions o = engine_options(config, 1);
        Engine engine(o, mesh, failing_backend(), stream, plan_memory(o, shape, mesh.rank()));
        engine.init_weights();
        EngineRank rank{mesh, engine};
        calls_left = -1;
        rank.step(0);
        calls_left = mesh.rank() == bad ? call : -1;
        rank.step(1);
        ++finished;
        return Exit::kOk;
      });
    });
    INFO("repetition " << k << ", rank " << bad << " of " << shape.world() << ", call " << call << ":\n" << output);
    CHECK(code == Exit::kNumerical);
    CHECK(finished == 0);
    CHECK(std::count(output.begin(), output.end(), '\n') == 1);
    CHECK(output.find("gpttrain: rank " + std::to_string(bad) + " (") == 0);
    CHECK(output.find("injected failure\n") != std::string::npos);
    CHECK(output.find("failed first") == std::string::npos);
  }
}
