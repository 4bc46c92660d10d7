#include "launch/engine/torch_init.h"

#include <cmath>

#include "kernels/core/check.h"
#include "launch/engine/logical.h"

namespace gt {
namespace {

constexpr uint32_t kSeed = 42;  // as llm.c
constexpr int64_t kBlock = 16;

float uniform(std::mt19937& random) { return static_cast<float>(random() & 0xFFFFFF) * 0x1p-24f; }

// Converts eight radii and eight angles into eight cosines and eight sines.
void normals_of(float* u, float std) {
  constexpr double kTwoPi = 6.283185307179586;
  for (int j = 0; j < kBlock / 2; ++j) {
    const float radius = std::sqrt(-2.f * std::log(1.f - u[j] + 1e-12f));
    const auto angle = static_cast<float>(kTwoPi * static_cast<double>(u[j + 8]));
    u[j] = radius * std::cos(angle) * std;
    u[j + 8] = radius * std::sin(angle) * std;
  }
}

struct Drawn {
  std::string name;
  int64_t count;
  float std;
};

// Returns the tensors in stream order. Vocabulary padding is not drawn.
std::vector<Drawn> drawn_tensors(const ModelSpec& m) {
  const auto base = static_cast<float>(m.config.init_std);
  const float out = base * (1.f / std::sqrt(2.f * static_cast<float>(m.config.layers)));
  std::vector<Drawn> list;
  for (const ParamSpec& p : m.params)
    if (p.init.kind == Init::Kind::kNormal && p.tied_to.empty())
      list.push_back({p.name, p.shape.numel(), p.residual ? out : base});
  return list;
}

}  // namespace

std::vector<float> torch_normals(std::mt19937& random, int64_t count, float std) {
  GT_CHECK(count >= kBlock, count, " numbers are drawn in another way");
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = uniform(random);
  for (int64_t at = 0; at + kBlock <= count; at += kBlock) normals_of(out.data() + at, std);
  if (count % kBlock == 0) return out;
  float* last = out.data() + count - kBlock;
  for (int64_t k = 0; k < kBlock; ++k) last[k] = uniform(random);
  normals_of(last, std);
  return out;
}

void init_as_torch(const ModelSpec& m, const std::vector<ShardView>& values, const Backend& backend, Stream stream) {
  std::mt19937 random(kSeed);
  for (const Drawn& t : drawn_tensors(m)) {
    std::vector<ShardView> mine;
    for (const ShardView& v : values)
      if (logical_name(v.name) == t.name) mine.push_back(v);
    if (mine.empty()) {
      random.discard(static_cast<unsigned long long>(t.count + (t.count % kBlock == 0 ? 0 : kBlock)));
      continue;
    }
    Logical drawn;
    drawn[t.name] = torch_normals(random, t.count, t.std);
    write_views(mine, drawn, backend, stream);
  }
}

}  // namespace gt
