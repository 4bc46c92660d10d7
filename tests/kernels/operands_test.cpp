// Op self-descriptions are consistent with what is derived from them: roles, costs, directions.
#include <set>
#include <string>

#include "kernels/op_cost.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

template <class Args>
std::string roles_of(const Args& args) {
  std::string out;
  each_operand(args, [&](const char* name, const Tensor& t, OperandRole role) {
    constexpr const char* kRoles[] = {"in", "out", "inout", "control"};
    if (t) out += cat(out.empty() ? "" : " ", name, ':', kRoles[static_cast<size_t>(role)]);
  });
  return out;
}

Tensor rows(int64_t n, DType t = DType::kF32) { return {reinterpret_cast<std::byte*>(64), {n, 4}, t, {}}; }

}  // namespace

TEST_CASE("operands: roles follow the arguments") {
  Gemm g{.a = rows(2), .b = rows(3), .aux = rows(2), .out = rows(2), .epilogue = Epilogue::kGelu};
  CHECK(roles_of(g) == "a:in b:in out:out aux:out");
  g.epilogue = Epilogue::kGeluGrad;
  g.accumulate = true;
  CHECK(roles_of(g) == "a:in b:in out:inout aux:in");
  CHECK(roles_of(Rope{.x = rows(2), .table = rows(9), .positions = rows(1, DType::kI32)}) ==
        "x:inout table:control positions:control");
  const QuantizeFp8 q{.x = rows(2), .fp8 = {.amax = rows(1), .rowwise = rows(2, DType::kF8E4M3), .step_amax = rows(1)}};
  CHECK(roles_of(q) == "x:in amax:control rowwise:out step_amax:control");
}

TEST_CASE("operands: every op has distinct names, a class and a direction"){
#define X(entry, Args, ...)                                                                                      \
  {                                                                                                              \
    INFO(#entry);                                                                                                \
    const Args args{};                                                                                           \
    std::set<std::string> names;                                                                                 \
    each_operand(args, [&](const char* name, const Tensor&, OperandRole) { CHECK(names.insert(name).second); }); \
    CHECK_FALSE(names.empty());                                                                                  \
    CHECK(std::string(OpOf<Args>::kInfo.name) == #entry);                                                        \
    CHECK(OpOf<Args>::kInfo.kind < OpClass::kNumOpClasses);                                                      \
    CHECK(direction_of(args) != Direction::kByArguments);                                                        \
  }
    GT_OPS(X)
#undef X
}

TEST_CASE("operands: bytes are counted once where an op writes and twice where it accumulates") {
  const Axpy axpy{.x = rows(8), .y = rows(8)};
  CHECK(op_cost(axpy).bytes == 3 * 8 * 4 * 4);
  CHECK(op_cost(axpy).fused_bytes == 0);
  GeluGrad grad{.x = rows(8), .dout = rows(8), .dx = rows(8)};
  CHECK(op_cost(grad).bytes == 3 * 8 * 4 * 4);
  grad.accumulate = true;
  CHECK(op_cost(grad).bytes == 4 * 8 * 4 * 4);
  CHECK(op_cost(grad).fused_bytes == op_cost(grad).bytes);
  CHECK(op_cost(FakeQuant{.x = rows(8), .limits = rows(2), .out = rows(8)}).kind == OpClass::kElementwise);
}

TEST_CASE("operands: a GEMM's direction follows its weight") {
  CHECK(direction_of(Gemm{.trans_b = true}) == Direction::kForward);
  CHECK(direction_of(Gemm{}) == Direction::kBackward);
  CHECK(direction_of(GemmFp8{.a = rows(2, DType::kF8E5M2)}) == Direction::kBackward);
  CHECK(direction_of(Rope{.backward = true}) == Direction::kBackward);
}

}  // namespace gt::test
