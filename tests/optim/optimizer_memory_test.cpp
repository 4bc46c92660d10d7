// A warm optimizer step allocates nothing on the heap. Of Muon, whose GEMMs oneDNN runs with allocations of its own,
// tests/launch/warm_step_test.cpp counts all other code.
#include "tests/optim/optimizer_fixture.h"
#include "tests/support/heap/count_allocations.h"

using namespace gt;

TEST_CASE("a warm step of any elementwise optimizer under any schedule allocates nothing") {
  for (const std::string& type : optimizer_names())
    for (const std::string& name : lr_schedule_names()) {
      if (type == "muon") continue;
      OptimizerOptions o = options(type.c_str());
      o.momentum = 0.9f;
      OptimizerFixture rig(o);
      const auto schedule = make_lr_schedule({.type = name, .total_steps = 20});
      rig.step(1, kGrads[0]);
      CountAllocations count;
      for (int t = 2; t <= 4; ++t) {
        rig.point = schedule->at(t);
        rig.step(t, kGrads[t % 3]);
      }
      const int64_t taken = count.stop();
      INFO(type << " " << name);
      CHECK(taken == 0);
    }
}
