#include "tests/launch/layouts/mesh_checks.h"

#include "tests/support/test.h"

namespace gt {

void check_bitwise(const MeshResult& a, const MeshResult& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.grads == b.grads);
  CHECK(a.weights == b.weights);
  CHECK(a.ratios == b.ratios);
  CHECK(a.eval_loss == b.eval_loss);
}

void check_close(const MeshResult& layout, const MeshResult& one) {
  CHECK(layout.losses[0] == Approx(one.losses[0]).epsilon(1e-6));
  CHECK(layout.norms[0] == Approx(one.norms[0]).epsilon(1e-6));
  const auto [name, error] = worst_error(layout.grads, one.grads);
  INFO("worst gradient: " << name);
  CHECK(error <= 1e-5);
  for (size_t k = 0; k < one.losses.size(); ++k) {
    INFO("step " << k);
    CHECK(layout.losses[k] == Approx(one.losses[k]).epsilon(1e-5));
  }
  CHECK(layout.eval_loss == Approx(one.eval_loss).epsilon(1e-5));
}

void check_planned(const MeshResult& r, int steps) {
  for (size_t rank = 0; rank < r.planned.size(); ++rank) {
    INFO("rank " << rank);
    const EnginePlan &plan = r.planned[rank], &real = r.measured[rank];
    CHECK(plan.train.activation_bytes == real.train.activation_bytes);
    CHECK(plan.train.gradient_bytes == real.train.gradient_bytes);
    CHECK(plan.train.boundary_bytes == real.train.boundary_bytes);
    CHECK(plan.eval.activation_bytes == real.eval.activation_bytes);
    CHECK(plan.eval.gradient_bytes == real.eval.gradient_bytes);
    CHECK(plan.zero.gathered == real.zero.gathered);
    CHECK(plan.zero.gradients == real.zero.gradients);
    CHECK(plan.memory.weights == real.memory.weights);
    CHECK(plan.memory.gradients == real.memory.gradients);
    CHECK(plan.memory.optimizer == real.memory.optimizer);
    CHECK(plan.memory.total() == real.memory.total());
    CHECK(r.ranks[rank].data_parallel.bytes(CommOp::kAllGather) ==
          steps * plan.sent.data_parallel.bytes(CommOp::kAllGather));
    CHECK(r.ranks[rank].data_parallel.bytes(CommOp::kReduceScatter) ==
          steps * plan.sent.data_parallel.bytes(CommOp::kReduceScatter));
  }
}

}  // namespace gt
