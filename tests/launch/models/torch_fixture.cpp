#include "tests/launch/models/torch_fixture.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace gt {

TorchFixture read_torch_fixture(const std::string& name) {
  std::ifstream in(source_dir() + "/tests/golden/" + name, std::ios::binary);
  REQUIRE(in.good());
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string text(length, ' ');
  in.read(text.data(), static_cast<std::streamsize>(length));
  const std::string data((std::istreambuf_iterator<char>(in)), {});
  TorchFixture f;
  const auto header = nlohmann::json::parse(text);
  for (const auto& [name, t] : header.items()) {
    const size_t begin = t["data_offsets"][0], end = t["data_offsets"][1];
    if (t["dtype"] == "F32") {
      auto& out = f.f32[name];
      out.resize((end - begin) / 4);
      std::memcpy(out.data(), data.data() + begin, end - begin);
    } else {
      const size_t width = t["shape"][2];
      for (size_t at = begin; at < end; at += 4 * width) {
        f.samples.emplace_back(width);
        std::memcpy(f.samples.back().data(), data.data() + at, 4 * width);
      }
    }
  }
  return f;
}

Logical TorchFixture::with_prefix(const std::string& prefix) const {
  Logical out;
  for (const auto& [name, values] : f32)
    if (name.rfind(prefix, 0) == 0) out[name.substr(prefix.size())] = values;
  return out;
}

MeshRun torch_fixture_run(const TorchFixture& f, const Logical& weights, MeshShape mesh) {
  MeshRun run;
  run.engine.model = {.layers = 3, .hidden = 32, .heads = 4, .ffn = 128, .vocab = 61, .seq = 16};
  run.engine.micro_batch = 1;
  run.engine.optim = {.type = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
  run.engine.lr = {.type = "constant", .peak = 1e-2};
  run.engine.grad_clip = 1;
  run.global_batch = 4;
  run.steps = 10;
  run.mesh = mesh;
  run.samples = f.samples;
  run.weights = &weights;
  return run;
}

}  // namespace gt
