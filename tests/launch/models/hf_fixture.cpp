#include "tests/launch/models/hf_fixture.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/weights/weights.h"
#include "launch/tools/weights/model_weights.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

namespace gt {

std::vector<Prompt> prompts_of(const std::string& folder) {
  const std::string bytes = read_file(folder + "/logits.safetensors");
  uint64_t n = 0;
  std::memcpy(&n, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, n));
  std::vector<Prompt> out;
  for (int k = 0; header.contains("tokens." + std::to_string(k)); ++k) {
    const auto part = [&](const std::string& name, auto& to) {
      const auto& t = header[name + "." + std::to_string(k)]["data_offsets"];
      const size_t begin = t[0], end = t[1];
      to.resize((end - begin) / 4);
      std::memcpy(to.data(), bytes.data() + 8 + n + begin, end - begin);
    };
    part("tokens", out.emplace_back().tokens);
    part("logits", out.back().logits);
  }
  return out;
}

std::vector<float> logits_of(LoadedModel& m, const std::vector<int32_t>& tokens) {
  const DeviceApi& device = *m.backend->device;
  const auto n = static_cast<int64_t>(tokens.size());
  Buffer ids(n * 4, m.stream.device(), device);
  device.copy(ids.data(), tokens.data(), n * 4, m.stream);
  MicroBatch mb;
  mb.batch = 1;
  mb.seq = n;
  mb.tokens = ids.tensor({1, n}, DType::kI32);
  Arena arena(Buffer(8 << 20, m.stream.device(), device));
  Pool pool(Buffer(kAlign, m.stream.device(), device));
  Tape tape(arena, pool, *m.backend->ops, m.stream);
  tape.set_recording(false);
  const Tensor logits = m.engine->stages().front()->next_logits(tape, mb, n - 1);
  std::vector<float> out(static_cast<size_t>(m.config.model.vocab));
  device.copy(out.data(), logits.data, m.config.model.vocab * 4, m.stream);
  device.synchronize(m.stream);
  return out;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double d = 0;
  for (size_t k = 0; k < a.size(); ++k) d = std::max(d, std::fabs(static_cast<double>(a[k]) - b[k]));
  return d;
}

Logical tensors_of(const std::string& path) {
  Vfs vfs;
  const auto f = open_safetensors(vfs, path);
  Logical out;
  for (size_t k = 0; k < f->list().size(); ++k)
    if (f->list()[k].dtype == "f32" || f->list()[k].dtype == "i8") out[f->list()[k].name] = f->read(k);
  return out;
}

std::vector<std::vector<int32_t>> samples_of(const std::string& file) {
  const std::string bytes = read_file(file);
  uint64_t n = 0;
  std::memcpy(&n, bytes.data(), 8);
  const auto t = nlohmann::json::parse(bytes.substr(8, n))["samples"];
  const size_t rows = t["shape"][0], width = t["shape"][1], at = t["data_offsets"][0];
  std::vector<std::vector<int32_t>> out(rows, std::vector<int32_t>(width));
  for (size_t r = 0; r < rows; ++r) std::memcpy(out[r].data(), bytes.data() + 8 + n + at + 4 * width * r, 4 * width);
  return out;
}

MeshRun adamw_run(const ModelConfig& model, const MeshShape& mesh, double lr, int64_t global_batch,
                  const std::string& file) {
  MeshRun run;
  run.engine.model = model;
  run.engine.micro_batch = 1;
  run.engine.optim = {.type = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
  run.engine.lr = {.type = "constant", .peak = lr};
  run.engine.grad_clip = 0;
  run.global_batch = global_batch;
  run.mesh = mesh;
  run.samples = samples_of(file);
  run.steps = static_cast<int>(tensors_of(file).at("losses").size());
  return run;
}

Logical native_tensors(const ModelConfig& model, const Logical& theirs, const std::string& prefix) {
  Logical out;
  for (const ModelWeight& w : model_weights(model))
    for (size_t b = 0; b < w.hf.size(); ++b) {
      if (w.always_f32 && prefix == "grad.") continue;  // a bias of a router has none
      std::vector<float> v = theirs.at(prefix + w.hf[b].name);
      if (w.transposed) v = transpose(v, w.hf_shape(b)[0], w.hf_shape(b)[1]);
      out[w.native].insert(out[w.native].end(), v.begin(), v.end());
    }
  return out;
}

}  // namespace gt
