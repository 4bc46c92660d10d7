// Latency of a 4-byte all-reduce and time of a 16 MB one. Under mpirun: MPI ranks. Otherwise threads:
// `bench_comm [ranks]`.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "parallel/comm/messages/mpi_group.h"
#include "parallel/comm/threads/thread_group.h"

namespace {
double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void measure(gt::GroupFactory& f) {
  std::vector<int> all(static_cast<size_t>(f.world_size()));
  std::iota(all.begin(), all.end(), 0);
  auto g = f.make(all);
  struct Case {
    int64_t elements;
    int repeats;
  };
  for (Case c : {Case{1, 300}, Case{1024, 300}, Case{4 << 20, 7}}) {
    std::vector<float> x(static_cast<size_t>(c.elements), 1.0f);
    const gt::Tensor t{reinterpret_cast<std::byte*>(x.data()), {c.elements}, gt::DType::kF32, {}};
    std::vector<double> times;
    for (int i = 0; i < c.repeats + 2; ++i) {
      g->barrier();
      const double begin = seconds();
      g->all_reduce(t, gt::ReduceOp::kMax, {}).wait({});
      if (i >= 2) times.push_back(seconds() - begin);
    }
    std::sort(times.begin(), times.end());
    if (f.world_rank() == 0) {
      std::printf("%s %d ranks, all_reduce of %8lld bytes: median %10.1f us, best %10.1f us\n", f.backend().data(),
                  f.world_size(), static_cast<long long>(t.bytes()), times[times.size() / 2] * 1e6,
                  times.front() * 1e6);
    }
  }
}
}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    gt::MpiFactory f(std::chrono::seconds(60));
    measure(f);
    return 0;
  }
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 16;
  gt::ThreadWorld world(ranks, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      auto f = world.factory(r);
      measure(*f);
    });
  }
  for (auto& t : threads) t.join();
}
