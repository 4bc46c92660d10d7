// Ops over segments, whose rule in the static proof of layouts is: gradients are summed over all ranks, what a rank has
// of them is updated as one rank updates the whole, and their squares are sums over the ranks that hold shards.
#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/backend.h"
#include "parallel/proof/op_rules.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int64_t kCount = 16;
constexpr int kRanks = 4;

std::vector<float> drawn(unsigned seed, bool positive = false) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(kCount);
  for (float& x : out) x = positive ? 0.5f + std::fabs(normal(random)) : normal(random);
  return out;
}

// What a rank has: parameters, moments, gradients.
struct State {
  std::vector<float> master = drawn(1), grad = drawn(2), m = drawn(3), v = drawn(4, true);
  State shard(int rank) const {
    State out;
    const auto cut = [&](std::vector<float> x) {
      const auto part = kCount / kRanks, first = rank * part;
      return std::vector<float>(x.begin() + first, x.begin() + first + part);
    };
    out.master = cut(master), out.grad = cut(grad), out.m = cut(m), out.v = cut(v);
    return out;
  }
  void add(const State& s) {
    for (auto [to, from] : {std::pair{&master, &s.master}, {&m, &s.m}, {&v, &s.v}})
      to->insert(to->end(), from->begin(), from->end());
  }
};

Tensor tensor(void* data, int64_t n, DType t) { return {static_cast<std::byte*>(data), {n}, t, {}}; }

// Calls op(table, scalars).
template <class Op>
void call(State& s, Op op) {
  std::vector<float> scalars(kNumScalars, 1);
  scalars[kLr] = 0.5f, scalars[kBeta1] = 0.9f, scalars[kBeta2] = 0.95f, scalars[kSkip] = 0;
  scalars[kBiasCorrection1] = 0.271f, scalars[kBiasCorrection2] = 0.1855f, scalars[kGradCoefficient] = 0.7f;
  SegmentTables tables;
  tables.open(DType::kF32, DType::kF32, DType::kF32);
  tables.add({.master = reinterpret_cast<std::byte*>(s.master.data()),
              .grad = reinterpret_cast<const std::byte*>(s.grad.data()),
              .m = s.m.data(),
              .v = s.v.data(),
              .count = static_cast<int64_t>(s.master.size()),
              .weight_decay = 0.1f});
  tables.upload(1, {}, *cpu_backend().device);
  op(tables.tables().front(), tensor(scalars.data(), kNumScalars, DType::kF32));
}

using Update = void (*)(const SegmentTable&, const Tensor&);

bool close(const State& a, const State& b) {
  for (auto list : {&State::master, &State::m, &State::v})
    for (size_t i = 0; i < (b.*list).size(); ++i)
      if (std::fabs((a.*list)[i] - (b.*list)[i]) > 1e-5f) return false;
  return true;
}

// Whether shards of summed gradients, and partial sums of them, are updated as one rank updates the whole.
void check_update(const char* name, Update update) {
  INFO(name);
  State one, shards;
  call(one, update);
  shards.master.clear(), shards.m.clear(), shards.v.clear();
  State ranks[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    State s = State().shard(r);
    call(s, update);
    shards.add(s);
    for (float& g : ranks[r].grad) g *= r == 0 ? 3 : -2.f / (kRanks - 1);  // their sum is the gradient
    call(ranks[r], update);
  }
  CHECK(close(shards, one));
  for (const State& s : ranks) CHECK_FALSE(close(s, one));
}

}  // namespace

TEST_CASE("optimizers update shards of summed gradients as one rank the whole, and partial sums otherwise") {
  check_update("adamw", [](const SegmentTable& t, const Tensor& scalars) {
    cpu_backend().ops->adamw({.table = t, .scalars = scalars}, {});
  });
  check_update("sgd", [](const SegmentTable& t, const Tensor& scalars) {
    cpu_backend().ops->sgd({.table = t, .scalars = scalars}, {});
  });
  check_update("lion", [](const SegmentTable& t, const Tensor& scalars) {
    cpu_backend().ops->lion({.table = t, .scalars = scalars}, {});
  });
  check_update("adagrad", [](const SegmentTable& t, const Tensor& scalars) {
    cpu_backend().ops->adagrad({.table = t, .scalars = scalars}, {});
  });
  check_update("lamb", [](const SegmentTable& t, const Tensor& scalars) {
    double parts[2] = {}, norms[] = {4, 9};  // norms: of whole tensors
    const auto of = [](double* x) { return tensor(x, 2, DType::kF64).view({1, 2}); };
    cpu_backend().ops->lamb_moments({.table = t, .scalars = scalars, .norms = of(parts)}, {});
    cpu_backend().ops->lamb_apply({.table = t, .scalars = scalars, .norms = of(norms)}, {});
  });
}

TEST_CASE(
    "squares of shards are sums over their ranks, those of what every rank has are equal, of partial sums neither") {
  const auto squares = [](State s) {
    double sum = 0, norms[2] = {};
    call(s, [&](const SegmentTable& t, const Tensor& scalars) {
      cpu_backend().ops->sum_squares({.table = t, .out = tensor(&sum, 1, DType::kF64)}, {});
      cpu_backend().ops->lamb_moments(
          {.table = t, .scalars = scalars, .norms = tensor(norms, 2, DType::kF64).view({1, 2})}, {});
    });
    return std::vector{sum, norms[0], norms[1]};
  };
  const std::vector<double> one = squares({});
  std::vector<double> shards(3), partial(3);
  for (int r = 0; r < kRanks; ++r) {
    State s;
    for (float& g : s.grad) g *= r == 0 ? 3 : -2.f / (kRanks - 1);
    for (size_t k = 0; k < 3; ++k) shards[k] += squares(State().shard(r))[k], partial[k] += squares(s)[k];
  }
  for (size_t k = 0; k < 3; ++k) {
    CHECK(std::fabs(shards[k] - one[k]) < 1e-5 * one[k]);
    CHECK(std::fabs(partial[k] - one[k]) > 1e-2 * one[k]);
  }
}

TEST_CASE("the ops over segments and those of a step's scalars are the ones whose rules have no letters") {
  std::vector<std::string> tables, scalars;
#define X(entry, Args, ...)                                                  \
  if (proof::rule_of(Args{}) == proof::kTables) tables.emplace_back(#entry); \
  if (proof::rule_of(Args{}) == proof::kScalars) scalars.emplace_back(#entry);
  GT_OPS(X)
#undef X
  CHECK(tables ==
        std::vector<std::string>{"sum_squares", "adamw", "sgd", "lion", "adagrad", "lamb_moments", "lamb_apply"});
  CHECK(scalars == std::vector<std::string>{"clip_factor", "check_step", "max_abs", "amax_history"});
}
