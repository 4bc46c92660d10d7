// Parameters gathered on use: versions, order of gathers, and allocations of a warm step.
#include <set>

#include "tests/parallel/toy_store.h"
#include "tests/support/heap/count_allocations.h"

using namespace gt;
using namespace gt::toy_store;

TEST_CASE("reused gather buffers never repeat a parameter version") {
  on_ranks({.dp = 2}, [](GroupFactory& f) {
    std::map<const std::byte*, std::set<int64_t>> versions;
    bool shared = false;
    for (int store = 0; store < 2; ++store) {  // the second store reuses the addresses of the first
      Rank r({.dp = 2}, f, {.stage = 3, .prefetch = 0, .persist_numel = 0});
      r.store.init(3, 1);
      std::map<const std::byte*, std::string> holder;
      for (int step = 0; step < 3; ++step) {
        for_each_readable(r, [&](Parameter& p) {
          if (!p.tied_to.empty()) return;
          GT_CHECK(p.version > 0 && versions[p.value.data].insert(p.version).second, p.name, " version ", p.version,
                   " was at this address before");
          const auto [at, fresh] = holder.try_emplace(p.value.data, p.name);
          shared = shared || (!fresh && at->second != p.name);
        });
        for (const Parameter& p : r.model.params)
          if (p.name != "head.weight" && p.name != "embed.weight")
            GT_CHECK(!p.value && p.value.shape == p.local_shape, p.name, " is still readable after its use");
        r.store.all_gather_values();
        for (const Parameter& p : r.model.params) GT_CHECK(!p.value, p.name, " survives an update");
      }
    }
    GT_CHECK(shared, "no two units shared an address: the test shows nothing");
  });
}

TEST_CASE("units are gathered ahead in the order of use, and an unexpected one is an error") {
  for (int prefetch : {0, 1})
    on_ranks({.dp = 2}, [=](GroupFactory& f) {
      Rank r({.dp = 2}, f, {.stage = 3, .prefetch = prefetch, .persist_numel = 0});
      r.store.init(3, 1);
      const StagePass step[] = {{0, false}, {0, true}}, evaluation[] = {{0, false}};
      r.store.set_order(step, evaluation);
      // In units of the table's 128 elements; the block is three of them.
      const auto gathered = [&] {
        return r.mesh.group(Axis::kDp).counters().bytes(CommOp::kAllGather) / (4 * 128 / 2);
      };
      const auto use = [&](const char* name, int64_t expected) {
        r.store.unit(name).acquire({});
        r.store.unit(name).release({});
        GT_CHECK(gathered() == expected, "at ", name, " ", gathered(), " units are gathered, not ", expected);
      };
      r.store.begin_step();
      GT_CHECK(gathered() == prefetch, "the first unit is not being gathered");
      use("embed", prefetch ? 4 : 1);
      use("layers.0", 4);
      use("head", prefetch ? 4 : 5);  // the same table; with prefetch it was kept, because it was next in the order
      use("head", prefetch ? 4 : 5);  // its backward
      use("layers.0", prefetch ? 4 : 8);
      use("embed", prefetch ? 4 : 9);
      const int64_t before = gathered();
      r.store.begin_evaluation();
      use("embed", before + (prefetch ? 4 : 1));
      use("layers.0", before + 4);
      use("head", before + (prefetch ? 4 : 5));
      std::string error;
      r.store.begin_step();
      try {
        use("layers.0", 0);
      } catch (const Error& e) { error = e.what(); }
      r.store.all_gather_values();  // completes prefetched gathers before their memory is freed
      GT_CHECK(error.find("FSDP unit layers.0 is used where the order has embed") != std::string::npos, error);
    });
}

TEST_CASE("a warm step of a store allocates nothing") {
  for (const ZeroOptions& z : all_stages())
    on_ranks({.dp = 2}, [&](GroupFactory& f) {
      Rank r({.dp = 2}, f, z);
      r.store.init(3, 1);
      const StagePass order[] = {{0, false}, {0, true}};
      r.store.set_order(order, order);
      std::vector<double> norms(kUnits + 1);
      const char* units[] = {"embed", "layers.0", "head"};
      const auto step = [&] {
        r.store.begin_step();
        for (int k : {0, 1, 2, 2, 1, 0}) {
          ParamUnit& s = r.store.unit(units[k]);
          s.acquire({});
          s.release({});
        }
        r.store.begin_backward(0, 0, true);
        for (int k : {2, 1, 0}) {
          for (Parameter* p : r.model.units[static_cast<size_t>(k)].params) grad_dst(*p);
          r.store.unit(units[k]).grads_ready({});
        }
        r.store.reduce_grads(0);
        r.store.reduce_tied();
        r.store.finish_reduction();
        r.store.norm_squares({reinterpret_cast<std::byte*>(norms.data()), {kUnits + 1}, DType::kF64, {}});
        r.store.all_gather_values();
      };
      for (int k = 0; k < 16; ++k) step();  // fills the groups' rings of calls
      CountAllocations count;
      step();
      const int64_t made = count.stop();
      GT_CHECK(made == 0, text(z), ": ", made, " allocations");
    });
}
