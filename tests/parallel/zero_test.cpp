// Initial values and the parameter store on thread ranks: what is reduced, counted, owned and all-gathered.
#include <cmath>
#include <set>

#include "parallel/zero/init.h"
#include "tests/parallel/toy_store.h"

using namespace gt;
using namespace gt::toy_store;

TEST_CASE("initial values are equal under every layout and equal to the fixed numbers") {
  for (const MeshShape& shape : shapes())
    for (int stage : {1, 3}) {
      const int threads = stage;
      Assembled all;
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, {.stage = stage, .persist_numel = 0});
        r.store.init(1234, threads);
        all.add(r.store.value_views());
        for_each_readable(r, [&](Parameter& p) {  // also what is not saved: padding, the tied copy
          for (int64_t i = 0; i < p.value.numel(); ++i) {
            const int64_t at = logical(r, p, i);
            const std::string name = p.tied_to.empty() ? p.name : p.tied_to;
            const uint64_t key = stream_key(1234, "init/" + name);
            float expected = p.init.kind == Init::Kind::kOne ? 1.f : 0.f;
            if (p.init.kind == Init::Kind::kNormal && at >= 0)
              expected = static_cast<float>(philox_normal(key, static_cast<uint64_t>(at)));
            GT_CHECK(p.value.as<float>()[i] == expected, p.name, " element ", i, ": ", p.value.as<float>()[i],
                     " instead of ", expected);
          }
        });
      });
      all.check_whole("master");
      const double fixed[] = {-0.591299335, -0.206624591, -0.125607202, 0.182982499};
      for (size_t i = 0; i < 4; ++i)
        CHECK(all.values["master/layers.0.attn.qkv.weight"][i] == Approx(fixed[i]).epsilon(1e-7));
    }
}

TEST_CASE("reduced gradients equal the serial sum for every stage, bucket and overlap") {
  for (const MeshShape& shape : shapes())
    for (int64_t bucket : {int64_t{1}, int64_t{1500}, int64_t{1} << 30})
      for (bool overlap : {false, true})
        for (const ZeroOptions& z : all_stages(bucket, overlap)) {
          INFO(text(z));
          Assembled all;
          on_ranks(shape, [&](GroupFactory& f) {
            Rank r(shape, f, z);
            for (int step = 0; step < 2; ++step)
              backward(r);  // the second step starts from the state left by the first
            all.add(r.store.grad_views());
            if (z.stage == 0)  // every rank updates everything: unsharded gradients
              for (const Parameter& p : r.model.params)
                for (int64_t i = 0; i < p.grad.numel(); ++i)
                  if (const int64_t at = logical(r, p, i); at >= 0 && (p.tied_to.empty() || shape.pp > 1))
                    GT_CHECK(p.grad.as<float>()[i] == reduced(p.name, at, shape.dp), p.name, " element ", at);
          });
          all.check_whole("grad");
          for (const auto& [name, size] : logical_sizes())
            for (int64_t i = 0; i < size; ++i) {
              INFO(name << " element " << i);
              REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == reduced(name, i, shape.dp));
            }
        }
}

TEST_CASE("the norm counts each element once, whichever rank holds it") {
  // Perturbs one element at a time: in each parameter, on several dp ranks, at the first, a middle and the last
  // element, so that every tp rank's slice is covered.
  std::vector<Perturb> perturbs{{}};
  for (const auto& [name, size] : logical_sizes())
    for (int64_t at : {int64_t{0}, size / 2, size - 1})
      for (int dp : {0, 1, 3}) {
        perturbs.push_back({name, at, dp});
        if (name == "embed.weight") perturbs.push_back({"head.weight", at, dp});
      }
  for (const MeshShape& shape : shapes())
    for (const ZeroOptions& z : all_stages()) {
      INFO(text(z));
      std::vector<std::vector<double>> totals(perturbs.size(), std::vector<double>(kUnits));
      std::mutex mutex;
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, z);
        for (size_t k = 0; k < perturbs.size(); ++k) {
          backward(r, perturbs[k]);
          std::vector<double> norms(kUnits + 1, 7.0);
          r.store.norm_squares({reinterpret_cast<std::byte*>(norms.data()), {kUnits + 1}, DType::kF64, {}});
          const std::lock_guard lock(mutex);
          for (size_t s = 0; s < kUnits; ++s) totals[k][s] += norms[s];
        }
      });
      for (size_t k = 0; k < perturbs.size(); ++k) {
        INFO(perturbs[k].name << " element " << perturbs[k].element << " dp " << perturbs[k].dp);
        std::vector<double> expected(kUnits);
        for (const auto& [name, size] : logical_sizes())
          for (int64_t i = 0; i < size; ++i) {
            const double g = reduced(name, i, shape.dp, perturbs[k]);
            expected[name == "embed.weight" ? 0 : 1] += g * g;
          }
        CHECK(totals[k] == expected);  // integers: exact
      }
    }
}

TEST_CASE("update ranges cover each element once a replica, with its decay, and the all-gather reaches every rank") {
  for (const MeshShape& shape : shapes())
    for (const ZeroOptions& z : all_stages()) {
      INFO(text(z));
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, z);
        r.store.init(1, 1);
        std::vector<int64_t> versions;
        for_each_readable(r, [&](Parameter& p) { versions.push_back(p.version); });
        std::vector<int> times(static_cast<size_t>(r.store.num_units()));
        for (const TensorRange& u : r.store.ranges()) {
          GT_CHECK(u.at + u.value.numel() <= r.store.state_elements(u.unit), "a range leaves the unit's state");
          GT_CHECK(u.value.numel() == u.grad.numel(), "value and gradient differ");
          for (int64_t i = 0; i < u.value.numel(); ++i) u.value.as<float>()[i] += u.decay ? 100 : 1000;
        }
        r.store.all_gather_values();
        size_t k = 0;
        for_each_readable(r, [&](Parameter& p) {
          GT_CHECK(p.version > versions[k], p.name, " kept its version");
          ++k;
          const std::string name = p.tied_to.empty() ? p.name : p.tied_to;
          const uint64_t key = stream_key(1, "init/" + name);
          for (int64_t i = 0; i < p.value.numel(); ++i) {
            const int64_t at = logical(r, p, i);
            if (at < 0) continue;
            float before = p.init.kind == Init::Kind::kOne ? 1.f : 0.f;
            if (p.init.kind == Init::Kind::kNormal)
              before = static_cast<float>(philox_normal(key, static_cast<uint64_t>(at)));
            const float expected = before + (p.decay ? 100.f : 1000.f);
            GT_CHECK(p.value.as<float>()[i] == expected, p.name, " element ", at, ": ", p.value.as<float>()[i],
                     " instead of ", expected);
          }
        });
      });
    }
}

TEST_CASE("diverging copies of a tied table are found on both stages") {
  for (const MeshShape& shape : {MeshShape{.pp = 2}, MeshShape{.pp = 2, .dp = 2, .tp = 2}})
    for (const ZeroOptions& z : all_stages()) {
      INFO(text(z));
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, z);
        r.store.init(1, 1);
        r.store.require_equal_copies();
        const bool here = r.dp() == 0 && r.mesh.coord(Axis::kTp) == shape.tp - 1;
        if (here && r.mesh.last_stage()) r.store.ranges().front().value.as<float>()[0] += 1;
        std::string error;
        try {
          r.store.require_equal_copies();
        } catch (const Error& e) { error = e.what(); }
        const char* text = "the copies of embed.weight on the first and the last stage differ";
        const bool named = error.find(text) != std::string::npos;
        GT_CHECK(named == here, "rank ", f.world_rank(), ": ", error);
      });
    }
}

TEST_CASE("a rank holds the bytes that its ZeRO stage specifies") {
  for (const ZeroOptions& z : all_stages())
    on_ranks({.pp = 1, .dp = 4, .tp = 2}, [&](GroupFactory& f) {
      Rank r({.pp = 1, .dp = 4, .tp = 2}, f, z);
      // embed 64 padded to 256; block 8 + 48 + 6 + 96 + 8 = 166 to 256; the tied copy has gradients, no values
      const int values = z.stage == 3 ? 4 : 1, grads = z.grad_reduce == GradReduce::kEach ? 4 : 1;
      GT_CHECK(r.store.value_bytes() == 4 * (256 + 256) / values, "values ", r.store.value_bytes());
      GT_CHECK(r.store.grad_bytes() == 4 * (256 + 256 + 256) / grads, "gradients ", r.store.grad_bytes());
      for (int k : {0, 1})
        GT_CHECK(r.store.state_elements(k) == (z.stage == 0 ? 256 : 64), "state ", r.store.state_elements(k));
      GT_CHECK(r.store.state_elements(2) == 0, "the tied copy has state");
      backward(r);
      for_each_readable(r, [](Parameter&) {});
      const ZeroMemory live = r.store.temporary_bytes();  // one unit in use; one in flight, one being written
      GT_CHECK(live.gathered == (z.stage == 3 ? 4 * 256 : 0), "gathered ", live.gathered);
      GT_CHECK(live.gradients == (grads == 4 ? 2 * 4 * 256 : 0), "whole gradients ", live.gradients);
    });
}
