#include "tests/launch/ranks/agreed_errors.h"

#include <chrono>
#include <thread>

#include "launch/ranks/agree.h"
#include "parallel/comm/threads/thread_group.h"
#include "parallel/mesh.h"

namespace gt {

std::vector<std::string> agreed_errors(int ranks, const std::function<void(ProcessGroup& world, int rank)>& check) {
  std::vector<std::string> out(static_cast<size_t>(ranks));
  ThreadWorld world(ranks, std::chrono::seconds(60));
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      const auto factory = world.factory(r);
      const Mesh mesh({.dp = ranks}, *factory);
      try {
        check(mesh.world(), r);
      } catch (const AgreedError& e) {
        out[static_cast<size_t>(r)] = cat(static_cast<int>(e.code()), e.prints() ? " reports: " : ": ", e.what());
      }
    });
  threads.clear();  // joins the threads
  return out;
}

}  // namespace gt
