#include "tests/llmc/debug_state.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "launch/tools/weights/model_weights.h"
#include "tests/support/test.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHeader = 256 * 4;

std::array<int32_t, 256> header_of(const File& f) {
  std::array<int32_t, 256> h{};
  REQUIRE(f.size() >= kHeader);
  f.read(h.data(), kHeader, 0);
  return h;
}

std::string path_without_suffix(const std::string& folder) {
  const std::string end = "_debug_state.bin";
  std::vector<std::string> found;
  for (const auto& e : fs::directory_iterator(folder))
    if (const std::string p = e.path().string(); p.size() > end.size() && p.ends_with(end))
      found.push_back(p.substr(0, p.size() - end.size()));
  INFO(folder << " holds " << found.size() << " files *" << end);
  REQUIRE(found.size() == 1);
  return found.front();
}

// Restricts the position table to the rows that a sequence of `length` uses.
std::vector<float> reached(const DebugState& s, const WeightInfo& t, std::vector<float> values) {
  if (t.name != "pos_embed.weight") return values;
  values.resize(static_cast<size_t>(s.length * t.shape[1]));
  return values;
}

// Gradients follow in the order and with the padding of the model file.
void read_grads(DebugState& s, const File& f, int64_t at, const WeightFile& model, int64_t padded) {
  for (const WeightInfo& t : model.list()) {
    std::vector<float> all = read_values(f, at, t.numel(), "f32");
    at += 4 * (t.name == "embed.weight" ? padded * t.shape[1] : t.numel());
    if (t.name == "pos_embed.weight") {
      INFO("gradients of positions that no token of the batch has");
      REQUIRE(std::all_of(all.begin() + s.length * t.shape[1], all.end(), [](float g) { return g == 0; }));
    }
    s.grads[t.name] = reached(s, t, std::move(all));
  }
  INFO("bytes of the debug state");
  REQUIRE(at == f.size());
}

// Targets are the next tokens of one text, so inputs and targets form samples.
void read_tokens(DebugState& s, const File& f) {
  const auto n = static_cast<size_t>(s.batch * s.length), length = static_cast<size_t>(s.length);
  std::vector<int32_t> y(n);
  s.x.resize(n);
  f.read(s.x.data(), 4 * s.batch * s.length, kHeader);
  f.read(y.data(), 4 * s.batch * s.length, kHeader + 4 * s.batch * s.length);
  for (size_t begin = 0; begin < n; begin += length) {
    std::vector<int32_t> sample(s.x.begin() + static_cast<int64_t>(begin),
                                s.x.begin() + static_cast<int64_t>(begin + length));
    REQUIRE(std::equal(sample.begin() + 1, sample.end(), y.begin() + static_cast<int64_t>(begin)));
    sample.push_back(y[begin + length - 1]);
    s.samples.push_back(std::move(sample));
  }
}

void read_losses(DebugState& s, const std::string& path) {
  std::ifstream in(path);
  for (std::string word; in >> word;) in >> (word == "lr" ? s.lr : s.losses.emplace_back());
  if (s.losses.empty())  // llm.c, test_gpt2.c and test_gpt2.cu
    s.losses = {5.270009, 4.060681, 3.320085, 2.717550, 2.181066, 1.653923, 1.168050, 0.736873, 0.401021, 0.187493};
  REQUIRE(s.losses.size() == 10);
}

}  // namespace

DebugState read_debug_state(const std::string& folder) {
  const std::string name = path_without_suffix(folder);
  DebugState s;
  Vfs vfs;
  s.model = name + ".bin";
  const auto model = open_llmc(vfs, s.model, llmc_tensors);
  const auto shape = header_of(File::open(vfs, s.model));
  s.positions = shape[2], s.vocab = shape[3];
  const File f = File::open(vfs, name + "_debug_state.bin");
  const auto h = header_of(f);
  INFO("header of the debug state: " << h[0] << ", version " << h[1] << ", B " << h[2] << ", T " << h[3]);
  REQUIRE((h[0] == 20240327 && h[1] == 2 && h[2] >= 1 && h[3] >= 1 && h[3] <= s.positions));
  s.batch = h[2], s.length = h[3];
  read_tokens(s, f);
  const int64_t tokens = s.batch * s.length, after = kHeader + 8 * tokens + 4 * tokens * s.vocab;
  s.logits = read_values(f, kHeader + 8 * tokens, tokens * s.vocab, "f32");
  s.loss = read_values(f, after, 1, "f32").front();
  read_grads(s, f, after + 4, *model, shape[7]);
  for (size_t k = 0; k < model->list().size(); ++k)
    s.weights[model->list()[k].name] = reached(s, model->list()[k], model->read(k));
  read_losses(s, name + "_losses.txt");
  return s;
}

}  // namespace gt
