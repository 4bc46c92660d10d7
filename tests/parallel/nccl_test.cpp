// NCCL groups over a fake libnccl of threads, against the common suite; and errors of the library.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "parallel/comm/gpu/nccl_engine.h"
#include "parallel/comm/gpu/nccl_group.h"
#include "parallel/comm/gpu/nccl_tickets.h"
#include "parallel/comm/side_channel.h"
#include "tests/parallel/comm_suite.h"
#include "tests/parallel/device_memory.h"
#include "tests/parallel/fake_nccl/fake_nccl.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::string fake_library() { return GPT_FAKE_NCCL; }

FakeNccl& control() {
  void* library = dlopen(fake_library().c_str(), RTLD_NOW);
  REQUIRE(library != nullptr);
  return *reinterpret_cast<FakeNccl* (*)()>(dlsym(library, "fake_nccl_control"))();
}

std::shared_ptr<const nccl::Api> fake_api() {
  std::string why;
  auto api = nccl::load(fake_library(), &why);
  GT_CHECK(api != nullptr, why);
  return api;
}

void* raw(Stream s) { return s.native; }

struct MarkedNccl final : MarkedFactory {
  explicit MarkedNccl(GroupFactory& inner, NcclOptions o = {})
      : MarkedFactory(std::make_unique<NcclFactory>(inner, fake_api(), plain_device(), 0, raw, o)) {}
};

std::vector<std::string> errors_of(int ranks, const std::function<void(GroupFactory&)>& body, NcclOptions o = {}) {
  return suite::run_threads(ranks, [&](GroupFactory& f) {
    MarkedNccl marked(f, o);
    body(marked);
  });
}

void on_ranks(int ranks, const std::function<void(GroupFactory&)>& body) {
  for (const std::string& error : errors_of(ranks, body)) REQUIRE(error == "");
  CHECK(control().comms == 0);
}

std::unique_ptr<ProcessGroup> pair_of(GroupFactory& f) {
  const std::vector<int> both{0, 1};
  auto g = f.make(both);
  g->set_label("the pair");
  return g;
}

void sum_once(ProcessGroup& g) {
  suite::Block x = suite::make_input(100, DType::kF32, 1, g.rank());
  g.all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
}

}  // namespace

TEST_CASE("over NCCL every collective and message equals the serial reference") { suite::everything(on_ranks); }

TEST_CASE("over NCCL 500 random operations, several in flight, equal those of ranks on threads") {
  CHECK(suite::random_operations_agree_with_threads(on_ranks));
}

TEST_CASE("a call over NCCL is ordered between the work before and after it, without the host") {
  std::vector<std::string> log;
  const DeviceApi device = logging_device(log);
  const auto errors = suite::run_threads(2, [&](GroupFactory& f) {
    const bool is_rank0 = f.world_rank() == 0;
    NcclFactory nccl(f, fake_api(), is_rank0 ? device : plain_device(), 0, raw, {});
    const auto g = pair_of(nccl);
    suite::Block x = suite::make_input(8, DType::kF32, 1, g->rank());
    int name = 7;
    const Stream compute{{DeviceKind::kCuda, 0}, &name};
    if (is_rank0) log.clear();
    Tensor t = x.tensor;
    t.device.kind = DeviceKind::kCuda;
    Work w = g->all_reduce(t, ReduceOp::kSum, compute);
    w.wait(compute);
    g->barrier();
    GT_CHECK(!is_rank0 || log == std::vector<std::string>(
                                     {"record a on compute", "wait a on own", "record b on own", "wait b on compute"}),
             log.empty() ? "nothing" : log[0]);
  });
  for (const std::string& e : errors) CHECK(e == "");
}

TEST_CASE("each direction, peer and tag has its own communicator, created once, and host tensors need none") {
  control().narrow_comms = 0;
  on_ranks(2, [](GroupFactory& f) {
    const auto g = pair_of(f);
    for (int k = 0; k < 3; ++k)
      for (int tag : {4, 9}) {
        suite::Block x = suite::make_input(5, DType::kF32, 1, 0), y(5, DType::kF32);
        Work out = g->send(x.tensor, 1 - g->rank(), tag, {}), in = g->recv(y.tensor, 1 - g->rank(), tag, {});
        out.wait({}), in.wait({});
      }
  });
  CHECK(control().narrow_comms == 2 * 2 * 2);  // two directions, two tags, two ends
  const int64_t calls = control().calls;
  for (const std::string& e : suite::run_threads(2, [](GroupFactory& f) {
         NcclFactory nccl(f, fake_api(), plain_device(), 0, raw, {});
         suite::every_collective_equals_the_serial_reference(nccl);
       }))
    CHECK(e == "");
  CHECK(control().calls == calls);
}

TEST_CASE("a missing, a too old and an unsupported NCCL are reported in one sentence each") {
  std::string why;
  CHECK(nccl::load("libno-such-nccl.so.2", &why) == nullptr);
  CHECK(why.find("libno-such-nccl.so.2 was looked for in LD_LIBRARY_PATH") != std::string::npos);
  CHECK(nccl::load("/nowhere/libnccl.so.2", &why) == nullptr);
  CHECK(why.find("/nowhere/libnccl.so.2 was looked for at that path") != std::string::npos);
  setenv("FAKE_NCCL_VERSION", "21703", 1);
  CHECK(nccl::load(fake_library(), &why) == nullptr);
  unsetenv("FAKE_NCCL_VERSION");
  CHECK(why.find("is NCCL 2.17.3; 2.18.0 or later is needed") != std::string::npos);
  CHECK(nccl::load("libdl.so.2", &why) == nullptr);
  CHECK(why.find("is not a supported NCCL: it lacks ncclGetVersion") != std::string::npos);
  const auto api = nccl::load(fake_library(), &why);
  REQUIRE(api != nullptr);
  CHECK(api->describe() == "NCCL 2.32.3 (" + fake_library() + ")");
  CHECK(nccl::version_text(2804) == "2.8.4");
}

TEST_CASE("an error that NCCL reports is named with its call, and ends all ranks' waits") {
  control().fail_at = control().calls + 5;
  const auto errors = errors_of(2, [](GroupFactory& f) {
    const auto g = pair_of(f);
    for (int k = 0; k < 10; ++k) sum_once(*g);
  });
  control().fail_at = -1;
  int named = 0;
  for (const std::string& e : errors) {
    CHECK(e != "");
    named += e.find("the pair: all_reduce(sum, f32 x 100)") != std::string::npos &&
             e.find("network error: a network cable was pulled") != std::string::npos;
  }
  CHECK(named >= 1);
  CHECK(control().comms == 0);
}

TEST_CASE("the death of a rank aborts the communicators that others wait in") {
  const auto errors = errors_of(3, [](GroupFactory& f) {
    const std::vector<int> all{0, 1, 2};
    const auto g = f.make(all);
    sum_once(*g);
    if (f.world_rank() == 1) fail(Exit::kInternal, "rank 1 has had enough");
    sum_once(*g);
  });
  for (const std::string& e : errors) CHECK(e.find("rank 1 has had enough") != std::string::npos);
  CHECK(control().comms == 0);
}

TEST_CASE("an abort ends the kernels of every communicator, even those that graphs keep alive") {
  control().signalled = 0;
  control().graphs_live = true;
  int64_t at_once = 0;
  std::thread graphs([&] {  // graphs are destroyed when a rank unwinds, which it does once all kernels were signalled
                            // to end
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (control().signalled < 6 && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    at_once = control().signalled;
    control().graphs_live = false;
  });
  const auto errors = errors_of(2, [](GroupFactory& f) {
    const auto a = pair_of(f), b = pair_of(f), c = pair_of(f);
    for (const auto* g : {&a, &b, &c}) sum_once(**g);
    if (f.world_rank() == 1) {
      a->abandon("rank 1 has had enough", Exit::kInternal);
      fail(Exit::kInternal, "rank 1 has had enough");
    }
    sum_once(*a);
  });
  graphs.join();
  for (const std::string& e : errors) CHECK(e.find("rank 1 has had enough") != std::string::npos);
  CHECK(at_once == 6);
  CHECK(control().comms == 0);
}

TEST_CASE("calls on several communicators are launched in sequence") {
  control().races = 0;
  control().launch_us = 50;
  on_ranks(2, [](GroupFactory& f) {
    const auto a = pair_of(f), b = pair_of(f);
    suite::Block x = suite::make_input(8, DType::kF32, 1, 0), y = suite::make_input(8, DType::kF32, 1, 0);
    for (int k = 0; k < 50; ++k) {
      Work first = a->all_reduce(x.tensor, ReduceOp::kSum, {}), second = b->all_reduce(y.tensor, ReduceOp::kSum, {});
      first.wait({}), second.wait({});
    }
  });
  control().launch_us = 0;
  CHECK(control().races == 0);
}

TEST_CASE("the watching thread selects its device before it queries events") {
  static thread_local bool is_rank = false, selected = false;
  static std::atomic<int> requests, strange;
  requests = strange = 0;
  DeviceApi device = plain_device();
  device.create_event = [](int index) -> Event { return selected = index == 3, new int{0}; };
  device.done = [](Event) {
    if (is_rank) return requests > 0;
    strange += !selected;
    return ++requests > 0;
  };
  const auto errors = suite::run_threads(2, [&](GroupFactory& f) {
    is_rank = true;
    const bool is_rank0 = f.world_rank() == 0;
    NcclFactory nccl(f, fake_api(), is_rank0 ? device : plain_device(), is_rank0 ? 3 : 0, raw, {});
    const auto g = pair_of(nccl);
    suite::Block x = suite::make_input(8, DType::kF32, 1, g->rank());
    int name = 7;
    x.tensor.device.kind = DeviceKind::kCuda;
    g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({{DeviceKind::kCuda, 0}, &name});
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (is_rank0 && requests == 0 && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    g->barrier();
  });
  for (const std::string& e : errors) CHECK(e == "");
  CHECK(requests > 0);
  CHECK(strange == 0);
}

namespace {
// An engine of two ranks with a lane whose calls may be captured.
struct CapturingPair {
  GroupTrace trace;
  CommCounters counters;
  NcclEngine engine;
  std::unique_ptr<ProcessGroup> host;
  NcclLane* lane = nullptr;
  float x = 1;
  const Tensor t{reinterpret_cast<std::byte*>(&x), {1}, DType::kF32, {}};
  const CommCall sum{CommOp::kAllReduce, ReduceOp::kSum, DType::kF32, 1, 0, 0};

  CapturingPair(GroupFactory& f, std::chrono::milliseconds deadline)
      : engine(side_of(f), fake_api(), plain_device(), 0, raw, {.deadline = deadline, .captures = true}),
        host(f.make(std::vector<int>{0, 1})) {
    nccl::UniqueId id{};
    if (host->rank() == 0) id = engine.new_id();
    host->broadcast({reinterpret_cast<std::byte*>(&id), {sizeof id}, DType::kByte, {}}, 0, {}).wait({});
    lane = &engine.add_lane(host->rank(), 2, "the pair", trace, counters, [](bool good) { return good; });
    engine.start(*lane, id);
  }
  void sum_once() { engine.wait(engine.post(*lane, sum, t, {}, {}, 0), {}); }

 private:
  static SideChannel& side_of(GroupFactory& f) {
    auto& side = dynamic_cast<SideChannel&>(f);
    side.open_notes();
    return side;
  }
};
}  // namespace

TEST_CASE("capturing a call that other ranks do not capture fails by the deadline, and with the world") {
  for (const bool dies : {false, true}) {
    const auto errors = suite::run_threads(2, [&](GroupFactory& f) {
      CapturingPair p(f, dies ? std::chrono::seconds(60) : std::chrono::milliseconds(300));
      p.sum_once();
      if (p.host->rank() == 0) p.engine.make(kept(p.engine, *p.lane, p.sum, p.t.data, nullptr), 0, {}, true);
      if (dies) fail(Exit::kInternal, "rank 1 has had enough");
      p.host->barrier();
    });
    INFO(errors[0]);
    const char* expected = dies ? "rank 1 has had enough"
                                : "the pair: rank 0 waited 300 ms to capture all_reduce(sum, f32 x 1), which other";
    CHECK(errors[0].find(expected) != std::string::npos);
    CHECK(control().comms == 0);
  }
}

TEST_CASE("an all-to-all of equal parts can be captured, one of unequal parts is made outside of graphs") {
  for (const std::string& e : suite::run_threads(2, [](GroupFactory& f) {
         CapturingPair p(f, std::chrono::seconds(60));
         p.sum_once();
         const float rank = static_cast<float>(p.host->rank());
         float send[4] = {10 * rank, 10 * rank + 1, 10 * rank + 2, 10 * rank + 3}, recv[4] = {};
         const CommCall call{CommOp::kAllToAll, ReduceOp::kSum, DType::kF32, 4, 0, 0};
         p.engine.make(
             kept(p.engine, *p.lane, call, reinterpret_cast<std::byte*>(send), reinterpret_cast<std::byte*>(recv)), 0,
             {}, true);
         p.host->barrier();
         for (int i = 0; i < 4; ++i)
           GT_CHECK(recv[i] == static_cast<float>(10 * (i / 2) + i % 2) + 2 * rank, "element ", i, " is ", recv[i]);
         p.engine.close({}, true);
         p.engine.remove(*p.lane);
       }))
    CHECK(e == "");
  for (const std::string& e : errors_of(3, suite::all_to_alls_equal_the_serial_reference, {.captures = true}))
    CHECK(e == "");
  CHECK(control().comms == 0);
}

TEST_CASE("a missing rank is reported as a hang with the call and the others' last calls") {
  NcclOptions o;
  o.deadline = std::chrono::milliseconds(300);
  const auto errors = errors_of(
      2,
      [](GroupFactory& f) {
        const auto g = pair_of(f);
        sum_once(*g);
        if (g->rank() == 0) return sum_once(*g);
        f.make(std::vector<int>{0, 1});  // the host's transport: throws once the world has ended
      },
      o);
  INFO(errors[0]);
  CHECK(errors[0].find("the pair: rank 0 waited 300 ms in all_reduce(sum, f32 x 100) #1") != std::string::npos);
  CHECK(errors[0].find("rank 1: last call in this group: all_reduce(sum, f32 x 100), 1 collectives") !=
        std::string::npos);
  CHECK(errors[1] != "");
}

TEST_CASE("calls that differ between ranks are an error that names both, over NCCL") {
  const auto errors = errors_of(2, [](GroupFactory& f) {
    const auto g = pair_of(f);
    suite::Block x(g->rank() == 0 ? 8 : 9, DType::kF32);
    g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
  });
  CHECK(errors[0] + errors[1] != "");
  CHECK((errors[0] + errors[1]).find("called all_reduce(sum, f32 x 9)") != std::string::npos);
}

TEST_CASE("parts of an all-to-all that differ are an error that names both ranks, before NCCL moves them") {
  const int64_t calls = control().calls;
  const auto errors = errors_of(3, [](GroupFactory& f) {
    if (const std::string e = suite::parts_that_differ(f); !e.empty()) fail(Exit::kInternal, e);
  });
  for (const int rank : {0, 1})
    CHECK_THAT(errors[rank], Catch::Contains("rank 0 sends 5 elements to rank 1, which expects 6"));
  CHECK(errors[2] != "");  // agrees with both, and waits for them
  CHECK(control().calls - calls <= 1);
  CHECK(control().comms == 0);
}

TEST_CASE("an exchange of four bytes tests whether the library works in this world") {
  std::atomic<int> good{0};
  for (const std::string& e : suite::run_threads(3, [&](GroupFactory& f) {
         NcclFactory nccl(f, fake_api(), plain_device(), 0, raw, {});
         good += nccl.probe(std::chrono::seconds(20)).empty();
       }))
    CHECK(e == "");
  CHECK(good == 3);
  control().refuse_init = true;
  for (const std::string& e : suite::run_threads(3, [&](GroupFactory& f) {
         NcclFactory nccl(f, fake_api(), plain_device(), 0, raw, {});
         const std::string why = nccl.probe(std::chrono::seconds(20));
         GT_CHECK(why.find("ncclCommInitRankConfig: NCCL 2.32.3") != std::string::npos, why);
       }))
    CHECK(e == "");
  control().refuse_init = false;
  CHECK(control().comms == 0);
}

TEST_CASE("NCCL variables are set as defaults and never override the user's") {
  for (const char* v : {"NCCL_ALGO", "NCCL_MAX_CTAS", "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE",
                        "NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_LAUNCH_RACE_FATAL"})
    unsetenv(v);
  nccl::set_environment({true, 1});
  CHECK(std::string(std::getenv("NCCL_ALGO")) == "Ring");
  CHECK(std::string(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) == "1");
  CHECK(std::string(std::getenv("NCCL_LAUNCH_RACE_FATAL")) == "0");
  CHECK(std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") == nullptr);
  nccl::set_environment({true, 4});
  CHECK(std::string(std::getenv("NCCL_MULTI_RANK_GPU_ENABLE")) == "1");
  CHECK(std::string(std::getenv("NCCL_NVLS_ENABLE")) == "0");
  CHECK(std::string(std::getenv("NCCL_MAX_CTAS")) == "4");
  for (const char* v : {"NCCL_MAX_CTAS", "NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_LAUNCH_RACE_FATAL"}) setenv(v, "2", 1);
  nccl::set_environment({true, 8});
  for (const char* v : {"NCCL_MAX_CTAS", "NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_LAUNCH_RACE_FATAL"}) {
    CHECK(std::string(std::getenv(v)) == "2");
    unsetenv(v);
  }
}
