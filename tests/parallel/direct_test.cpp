// Device tensors of thread ranks that share the device, against the common suite; and the events that order their work.
#include <algorithm>
#include <mutex>

#include "kernels/core/combine.h"
#include "parallel/comm/side_channel.h"
#include "tests/parallel/comm_suite.h"
#include "tests/parallel/device_memory.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

void combine_here(const Combine& c, Stream) {
  GT_CHECK(c.parts >= 1 && c.parts <= Combine::kMost && c.targets <= Combine::kMost);
  std::vector<std::byte> sum(static_cast<size_t>(c.count * size_of(c.dtype)));
  if (c.parts == 1)
    std::copy_n(c.from[0], sum.size(), sum.begin());
  else
    reduce_in_order(sum.data(), c.from, c.parts, c.count, c.dtype, c.op);
  for (int k = 0; k < c.targets; ++k) std::copy(sum.begin(), sum.end(), c.to[k]);
}

const DeviceApi& device() {
  static const DeviceApi api = [] {
    DeviceApi a = plain_device();
    a.combine = combine_here;
    a.await = [](Event) {};
    return a;
  }();
  return api;
}

std::unique_ptr<GroupFactory> direct(GroupFactory& threads, const DeviceApi& api) {
  auto* side = dynamic_cast<SideChannel*>(&threads);
  GT_CHECK(side != nullptr);
  return std::make_unique<MarkedFactory>(side->direct(api, 0));
}

std::vector<std::string> errors_of(int ranks, const std::function<void(GroupFactory&)>& body,
                                   std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
  return suite::run_threads(
      ranks, [&](GroupFactory& f) { body(*direct(f, device())); }, deadline);
}

void on_ranks(int ranks, const std::function<void(GroupFactory&)>& body) {
  for (const std::string& error : errors_of(ranks, body)) REQUIRE(error == "");
}

}  // namespace

TEST_CASE("on a shared device every collective equals the serial rank-ordered reference") {
  suite::everything(on_ranks);
}

TEST_CASE("on a shared device 500 random operations are bitwise those of separate ranks") {
  CHECK(suite::random_operations_agree_with_threads(on_ranks));
}

TEST_CASE("a call on a shared device waits for every rank's stream, and every rank's stream for it") {
  std::vector<std::string> log;
  static std::mutex one;  // one thread at a time writes the log
  static DeviceApi logging;
  logging = logging_device(log);
  DeviceApi api = logging;
  api.combine = combine_here;
  api.record = [](Event e, Stream s) {
    const std::lock_guard lock(one);
    logging.record(e, s);
  };
  api.wait = [](Event e, Stream s) {
    const std::lock_guard lock(one);
    logging.wait(e, s);
  };
  for (const std::string& error : suite::run_threads(2, [&](GroupFactory& f) {
         static int compute = 0;
         const Stream s{{DeviceKind::kCuda, 0}, &compute};
         const std::vector<int> both{0, 1};
         const auto g = direct(f, api)->make(both);
         suite::Block x = suite::make_input(100, DType::kF32, 1, f.world_rank());
         g->all_reduce(x.tensor, ReduceOp::kSum, s).wait(s);
       }))
    REQUIRE(error == "");
  // Events are named in the order of their first use: a and b are the ranks', c marks the end of the call.
  REQUIRE(log.size() == 7);
  CHECK(log[0] == "record a on compute");
  CHECK(log[1] == "record b on compute");
  std::sort(log.begin() + 2, log.begin() + 4);
  CHECK(log[2] == "wait a on own");
  CHECK(log[3] == "wait b on own");
  CHECK(log[4] == "record c on own");
  CHECK(log[5] == "wait c on compute");
  CHECK(log[6] == "wait c on compute");
}

TEST_CASE("ranks that disagree about a call, or about its memory kind, fail with both calls") {
  const std::vector<int> both{0, 1};
  for (const bool placement : {false, true}) {
    const auto errors = suite::run_threads(2, [&](GroupFactory& f) {
      auto* side = dynamic_cast<SideChannel*>(&f);
      const auto factory = side->direct(device(), 0);
      const auto g = factory->make(both);
      suite::Block x(placement || f.world_rank() == 0 ? 100 : 50, DType::kF32);
      if (!placement || f.world_rank() == 0) x.tensor.device.kind = DeviceKind::kCuda;
      g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
    });
    const std::string all = errors[0] + errors[1];
    INFO(all);
    CHECK(all.find("all_reduce(sum, f32 x 100)") != std::string::npos);
    CHECK(all.find(placement ? "on the device" : "f32 x 50") != std::string::npos);
  }
}

TEST_CASE("a rank missing from a call on a shared device is named after the others' deadline") {
  const std::vector<int> both{0, 1};
  const auto errors = errors_of(
      2,
      [&](GroupFactory& f) {
        const auto g = f.make(both);
        suite::Block x = suite::make_input(100, DType::kF32, 1, f.world_rank());
        if (f.world_rank() == 0) g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
      },
      std::chrono::milliseconds(200));
  INFO(errors[0]);
  CHECK(errors[0].find("not arrived: rank 1 (world rank 1)") != std::string::npos);
}
