// The mean over unmasked targets: PyTorch's cross_entropy(ignore_index=-100).
#include <array>
#include <vector>

#include "kernels/backend.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("the mean loss over unmasked targets and its gradient are those of PyTorch's cross_entropy") {
  // torch 1.13, float64: cross_entropy(z, [3, -100, 0, 4, -100, 1], ignore_index=-100), z as below.
  constexpr double kLoss = 1.5833316360821863;
  constexpr double kGrad[6][5] = {{0.0136088117261, 0.0288098546502, 0.060990462773, -0.120883189296, 0.0174740601472},
                                  {0, 0, 0, 0, 0},
                                  {-0.220909789002, 0.101534813088, 0.0226554791049, 0.0790753919417, 0.0176441048678},
                                  {0.135731733978, 0.0388877928708, 0.0111415391968, 0.049932914445, -0.23569398049},
                                  {0, 0, 0, 0, 0},
                                  {0.0174740601472, -0.120883189296, 0.060990462773, 0.0288098546502, 0.0136088117261}};
  std::vector<float> z, loss(6), grad(30), stats(18), seed{1.f / 4};  // of 4 targets
  for (int i = 0; i < 6; ++i)
    for (int j = 0; j < 5; ++j) z.push_back(static_cast<float>((7 * i + 3 * j + i * j) % 11) / 4 - 1);
  std::array<int32_t, 6> targets{3, -1, 0, 4, -1, 1};
  const auto tensor = [](auto& v, Shape s, DType t) {
    return Tensor{reinterpret_cast<std::byte*>(v.data()), s, t, {}};
  };
  const Tensor logits = tensor(z, {6, 5}, DType::kF32), ids = tensor(targets, {6}, DType::kI32),
               each = tensor(loss, {6}, DType::kF32), d = tensor(grad, {6, 5}, DType::kF32),
               one = tensor(seed, {1}, DType::kF32), parts = tensor(stats, {1, 6, 3}, DType::kF32);
  const Backend& cpu = cpu_backend();
  const Stream s = cpu.device->open_stream(0, 1);
  for (const bool parallel : {false, true}) {  // one pass; two passes, as over a split vocabulary
    if (parallel) {
      cpu.ops->cross_entropy_stats({.logits = logits, .targets = ids, .stats = parts.view({6, 3}), .vocab = 5}, s);
      cpu.ops->cross_entropy_grad(
          {.logits = logits, .targets = ids, .stats = parts, .seed = one, .loss = each, .dlogits = d, .vocab = 5}, s);
    } else {
      cpu.ops->cross_entropy({.logits = logits, .targets = ids, .seed = one, .loss = each, .dlogits = d, .vocab = 5},
                             s);
    }
    double sum = 0;
    for (const float l : loss) sum += l;
    CHECK(sum / 4 == Approx(kLoss).epsilon(1e-6));
    CHECK((loss[1] == 0 && loss[4] == 0));
    for (size_t i = 0; i < 30; ++i) CHECK(grad[i] == Approx(kGrad[i / 5][i % 5]).epsilon(1e-5).margin(1e-7));
  }
  cpu.device->close_stream(s);
}
