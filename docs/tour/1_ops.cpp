// 1. Tensors and the op table.
//
// A Tensor is a typed view of memory that somebody else owns. A primitive operation is an argument struct (Gemm) and a
// function pointer in an OpTable; a backend is one such table. Whatever runs on a GPU runs on a CPU through the same
// struct, and on the null backend, which computes nothing and is how memory and time are planned.
#include "docs/tour/show.h"
#include "kernels/op_cost.h"

using namespace gt;

int main() {
  tour::Host host;
  const Tensor x = host.of({2, 3}, {1, 2, 3, 4, 5, 6});                    // two tokens, hidden size 3
  const Tensor w = host.of({4, 3}, {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1});  // a linear layer [out, in]
  const Tensor bias = host.of({4}, {0, 0, 0, 10});
  const Tensor y = host.tensor({2, 4});

  const Gemm gemm{.a = x, .b = w, .bias = bias, .out = y, .trans_b = true};  // y = x w^T + bias
  const Stream calling_thread;
  cpu_backend().ops->gemm(gemm, calling_thread);
  std::printf("y = %g %g %g %g | %g %g %g %g\n", y.as<float>()[0], y.as<float>()[1], y.as<float>()[2], y.as<float>()[3],
              y.as<float>()[4], y.as<float>()[5], y.as<float>()[6], y.as<float>()[7]);
  tour::claim(y.as<float>()[3] == 16 && y.as<float>()[7] == 25, "y = x w^T + bias");

  const OpCost cost = op_cost(gemm);
  std::printf("cost: %.0f FLOPs, %.0f bytes\n", cost.flops, cost.bytes);
  tour::claim(cost.flops == 2 * 2 * 3 * 4, "a GEMM costs 2 m n k FLOPs");
  tour::claim(cost.bytes == 4 * (6 + 12 + 4 + 8), "and moves each operand once");

  // The null backend takes the same call. Its tensors have shapes and no data.
  const Gemm planned{.a = {nullptr, {65536, 12288}, DType::kBF16, {DeviceKind::kNull, 0}},
                     .b = {nullptr, {49152, 12288}, DType::kBF16, {DeviceKind::kNull, 0}},
                     .out = {nullptr, {65536, 49152}, DType::kBF16, {DeviceKind::kNull, 0}},
                     .trans_b = true};
  null_backend().ops->gemm(planned, {{DeviceKind::kNull, 0}, nullptr});
  tour::claim(op_cost(planned).flops == 2.0 * 65536 * 49152 * 12288, "a GEMM of GPT-3 is planned without 14 GB");

  // Kernels reject what they do not compute, by name.
  std::string refusal;
  try {
    cpu_backend().ops->gemm({.a = x, .b = bias, .out = y, .trans_b = true}, calling_thread);
  } catch (const Error& e) { refusal = e.what(); }
  std::printf("refused: %s\n", refusal.c_str());
  tour::claim(!refusal.empty(), "shapes that do not fit are an error, not a wrong number");
}
