// Experts on 2 to 4 ranks (threads) against all of them on one, bit by bit: outputs, and the gradients of tokens,
// routers and experts; and their memory against a plan made without knowing what a router chooses.
#include "parallel/tensor/expert_exchange.h"

#include <numeric>
#include <random>

#include "kernels/backend.h"
#include "kernels/core/rng.h"
#include "parallel/comm/null_group.h"
#include "parallel/proof/op_rules.h"
#include "parallel/proof/op_types.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

using Floats = std::vector<float>;
constexpr int64_t kHidden = 5, kWidth = 6;

Floats normals(int64_t n, uint64_t seed, double std = 1) {
  Floats out(static_cast<size_t>(n));
  philox_normals(stream_key(seed, "test/experts"), 0, n, std, out.data());
  return out;
}
Tensor view(Floats& v, Shape s) { return {reinterpret_cast<std::byte*>(v.data()), s, DType::kF32, {}}; }
Floats rows(const Floats& v, int64_t first, int64_t count, int64_t width) {
  return {v.begin() + first * width, v.begin() + (first + count) * width};
}

struct Problem {
  int ranks = 1;
  int64_t n = 1, experts = 4, k = 2;  // n: tokens of a rank
  Floats logits;                      // of all ranks
  ops::Keep keep = ops::Keep::kOutputs;
  Pass pass = Pass::kFull;
  Floats x() const { return normals(ranks * n * kHidden, 1); }
  Floats dy() const { return normals(ranks * n * kHidden, 2); }
  Floats up() const { return normals(experts * 2 * kWidth * kHidden, 3, 0.5); }
  Floats down() const { return normals(experts * kHidden * kWidth, 4, 0.5); }
};

struct Result {
  Floats y, dx, dlogits, dup, ddown;
  int64_t arena = 0, pool = 0;  // most bytes
  friend bool operator==(const Result& a, const Result& b) {
    return a.y == b.y && a.dx == b.dx && a.dlogits == b.dlogits && a.dup == b.dup && a.ddown == b.ddown;
  }
};

Floats copy_of(const Tensor& t) { return {t.as<float>(), t.as<float>() + t.numel()}; }

// The layer on tokens [first, first + count) with this rank's experts of `group`; without memory nothing is computed.
Result run_layer(const Problem& p, int64_t first, int64_t count, ProcessGroup& group, const Backend& backend) {
  const bool counts = backend.kind == DeviceKind::kNull;
  const Device device{backend.kind, 0};
  const int64_t own = p.experts / group.size(), from = own * group.rank();
  constexpr int64_t kBytes = 1 << 20;
  Arena arena(Buffer(kBytes, device, *backend.device));
  Pool pool(Buffer(kBytes, device, *backend.device));
  Tape t(arena, pool, *backend.ops, {device, nullptr}, 64);
  Floats x = rows(p.x(), first, count, kHidden), logits = rows(p.logits, first, count, p.experts);
  Floats dy = rows(p.dy(), first, count, kHidden), up = rows(p.up(), from, own, 2 * kWidth * kHidden);
  Floats down = rows(p.down(), from, own, kHidden * kWidth), dup(up.size(), 7), ddown(down.size(), 7);
  Parameter w_up, w_down;
  w_up.value = view(up, {own, 2 * kWidth, kHidden}), w_up.grad = view(dup, w_up.value.shape);
  w_down.value = view(down, {own, kHidden, kWidth}), w_down.grad = view(ddown, w_down.value.shape);
  const auto input = [&](Floats& v, Shape s) {
    Tensor in = view(v, s);
    in.device = device;
    return t.input(in, true);
  };
  const Var vx = input(x, {count, kHidden}), vl = input(logits, {count, p.experts});
  const ExpertAxis axis{group, backend.device, p.experts};
  const ops::Routing r = ops::route(t, vl, p.k, {});
  const ops::ExpertInputs in = ops::send_to_experts(t, vx, r, axis);
  const Var h = ops::expert_linear(t, in.tokens, in.routing, w_up);
  const ops::ExpertActivated a = ops::expert_activate(t, h, in.routing, Activation::kSilu, true, p.keep);
  const Var y = ops::expert_combine(t, a.out, in.routing, w_down,
                                    group.size() > 1 ? ops::Output::kTransient : ops::Output::kKept);
  ops::discard(t, a, p.keep);
  const Var out = ops::return_to_tokens(t, in, y, ops::Output::kKept);
  Result result;
  if (!counts) result.y = copy_of(out.value);
  Tensor seed = view(dy, out.value.shape);
  seed.device = device;
  t.seed(out, seed);
  t.backward(0, p.pass);
  if (p.pass == Pass::kInput) t.run_deferred();
  if (!counts) result.dx = copy_of(t.grad(vx)), result.dlogits = copy_of(t.grad(vl));
  result.dup = dup, result.ddown = ddown;
  t.reset();
  GT_CHECK(pool.live() == 0 && arena.used() == 0, "memory left behind");
  result.arena = arena.high_water(), result.pool = pool.high_water();
  return result;
}

Result on_one_rank(const Problem& p, int64_t first, int64_t count) {
  Result out;
  for (const std::string& error : suite::run_threads(1, [&](GroupFactory& f) {
         const std::vector<int> one{0};
         out = run_layer(p, first, count, *f.make(one), cpu_backend());
       }))
    CHECK(error == "");
  return out;
}

// Every rank's part equals one rank's; returns what the ranks took.
std::vector<Result> check_layer(const Problem& p) {
  const Result all = on_one_rank(p, 0, p.ranks * p.n);
  std::vector<Result> found(static_cast<size_t>(p.ranks));
  for (const std::string& error : suite::run_threads(p.ranks, [&](GroupFactory& f) {
         std::vector<int> ranks(static_cast<size_t>(p.ranks));
         std::iota(ranks.begin(), ranks.end(), 0);
         const int me = f.world_rank();
         found[static_cast<size_t>(me)] = run_layer(p, me * p.n, p.n, *f.make(ranks), cpu_backend());
       }))
    CHECK(error == "");
  const int64_t own = p.experts / p.ranks;
  for (int r = 0; r < p.ranks; ++r) {
    INFO("rank " << r << " of " << p.ranks << ", " << p.n << " tokens, " << p.k << " of " << p.experts);
    const Result expected{.y = rows(all.y, r * p.n, p.n, kHidden),
                          .dx = rows(all.dx, r * p.n, p.n, kHidden),
                          .dlogits = rows(all.dlogits, r * p.n, p.n, p.experts),
                          .dup = rows(all.dup, r * own, own, 2 * kWidth * kHidden),
                          .ddown = rows(all.ddown, r * own, own, kHidden * kWidth)};
    CHECK(found[static_cast<size_t>(r)] == expected);
  }
  return found;
}

// Logits that make every token choose among experts [first, first + count).
Floats logits_for(const Problem& p, int64_t first, int64_t count, uint64_t seed) {
  Floats out = normals(p.ranks * p.n * p.experts, seed);
  for (size_t i = 0; i < out.size(); ++i)
    if (const auto e = static_cast<int64_t>(i) % p.experts; e < first || e >= first + count) out[i] -= 100;
  return out;
}

}  // namespace

TEST_CASE("experts on several ranks compute what they do on one, whichever the router chooses") {
  for (const int ranks : {2, 3, 4})
    for (const int64_t k : {1, 2, 3})
      for (const bool deferred : {false, true}) {
        Problem p{.ranks = ranks, .n = 9, .experts = 2 * ranks, .k = k};
        p.keep = deferred ? ops::Keep::kInputs : ops::Keep::kOutputs;
        p.pass = deferred ? Pass::kInput : Pass::kFull;
        p.logits = normals(ranks * p.n * p.experts, 10);
        check_layer(p);
        const int64_t few = std::max<int64_t>(k, 2);  // the other ranks have no token
        for (const int64_t first : {int64_t{0}, p.experts - few}) {
          p.logits = logits_for(p, first, few, 11);
          check_layer(p);
        }
        p.n = 1, p.logits = normals(ranks * p.experts, 12);
        check_layer(p);
        p.experts = ranks, p.k = std::min<int64_t>(k, ranks), p.logits = normals(ranks * p.experts, 13);
        check_layer(p);
      }
}

TEST_CASE("a layer of experts takes no more memory than its plan, whichever the router chooses") {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    Problem p{.ranks = 2 + i % 3, .n = 1 + i % 13};
    p.experts = p.ranks * (1 + i % 4), p.k = std::min<int64_t>(1 + i % 5, p.experts);
    const int64_t choices = p.k + static_cast<int64_t>(random() % static_cast<uint64_t>(p.experts - p.k + 1));
    const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(p.experts - choices + 1));
    p.logits = logits_for(p, first, choices, random());
    p.keep = i % 2 == 0 ? ops::Keep::kOutputs : ops::Keep::kInputs;
    p.pass = i % 4 < 2 ? Pass::kFull : Pass::kInput;
    const std::vector<Result> found = check_layer(p);
    for (int r = 0; r < p.ranks; ++r) {
      NullGroup group(r, p.ranks);
      const Result plan = run_layer(p, r * p.n, p.n, group, null_backend());
      INFO("rank " << r << " of " << p.ranks << ", " << p.n << " tokens, " << p.k << " of " << p.experts);
      CHECK(found[static_cast<size_t>(r)].arena <= plan.arena);
      CHECK(found[static_cast<size_t>(r)].pool == plan.pool);  // blocks of the planned sizes, at the planned addresses
    }
  }
}

TEST_CASE("types: rows of each rank's experts meet their matrices alone, and add up to gradients of these") {
  using namespace proof;
  constexpr Along kEp = Along::kDpInEp;
  const Tensor any{reinterpret_cast<std::byte*>(64), {4, 4, 4}, DType::kF32, {}};
  const auto type = [](AxisType t) {
    LayoutType all;
    all[kEp] = t;
    return all;
  };
  AxisType by_experts = split(0);
  by_experts.experts = true;
  const auto result = [&](std::string_view rule, const char* out, AxisType a, AxisType b) -> std::string {
    try {
      const std::vector<Operand> read{{"a", any, type(a)}, {"b", any, type(b)}}, written{{out, any, {}}};
      return to_string(
          result_types("op", rule, read, written, {kEp}, [](const Operand&, Along, int) { return false; })[0][kEp]);
    } catch (const Violation& v) { return v.text; }
  };
  const std::string_view gemm = rule_of(GroupedGemm{.trans_b = true}), grad = rule_of(GroupedGemmGrad{});
  CHECK(result(gemm, "out", by_experts, split(0)) == to_string(by_experts));
  CHECK(result(gemm, "out", split(0), kSame) == to_string(split(0)));
  CHECK_THAT(result(gemm, "out", split(0), split(0)), Catch::Contains("the rows are not those of each rank's experts"));
  CHECK_THAT(result(gemm, "out", by_experts, kSame), Catch::Contains("the rows are those of each rank's experts"));
  CHECK(result(grad, "out", by_experts, by_experts) == to_string(split(0)));
  CHECK(result(grad, "out", split(0), split(0)) == to_string(kPartial));
  CHECK_THAT(result(grad, "out", by_experts, split(0)), Catch::Contains("other rows are those of each rank's experts"));
}
