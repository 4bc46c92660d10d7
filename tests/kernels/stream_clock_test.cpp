// Completion times of work on a stream: by the host's clock, and by the clock of an asynchronous device.
#include "kernels/core/stream_clock.h"

#include "kernels/backend.h"
#include "kernels/core/host.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// A device whose clock is set by the test and differs from the host's; counts created events.
double device_seconds;
int alive, made;

const DeviceApi& slow_device() {
  static const DeviceApi api = [] {
    DeviceApi a = *cpu_backend().device;
    a.make_timer = [](int) -> Event { return ++alive, ++made, new double(-1); };
    a.destroy_event = [](Event e) { --alive, delete static_cast<double*>(e); };
    a.record = [](Event e, Stream) { *static_cast<double*>(e) = device_seconds; };
    a.seconds_between = [](Event from, Event to) { return *static_cast<double*>(to) - *static_cast<double*>(from); };
    return a;
  }();
  return api;
}

}  // namespace

TEST_CASE("on a synchronous backend marks are host times") {
  StreamClock clock(*cpu_backend().device, {});
  CHECK_FALSE(clock.asynchronous());
  const double before = now();
  CHECK(clock.mark() == 0);
  CHECK(clock.mark() == 1);
  CHECK(before <= clock.at(0));
  CHECK(clock.at(0) <= clock.at(1));
  CHECK(clock.at(1) <= now());
  clock.anchor(1, 17);  // has no effect here
  CHECK(clock.at(0) >= before);
  clock.restart();
  CHECK(clock.mark() == 0);
  CHECK_THROWS_AS(clock.at(1), Error);
}

TEST_CASE("marks on a device have the distances of its clock and are aligned with the host at one mark") {
  alive = made = 0;
  {
    StreamClock clock(slow_device(), {}), other(slow_device(), {});
    CHECK(clock.asynchronous());
    for (int series = 0; series < 3; ++series) {
      clock.restart(), other.restart();
      for (const double at : {100., 100.25, 103.}) device_seconds = at, clock.mark();
      device_seconds = 102;
      other.mark();
      device_seconds = 110;
      other.mark();
      clock.anchor(1, 5000);
      CHECK(clock.at(0) == 4999.75);
      CHECK(clock.at(1) == 5000);
      CHECK(clock.at(2) == 5002.75);
      other.anchor(clock);
      CHECK(other.at(0) == 5001.75);
      CHECK(other.at(1) == 5009.75);
    }
    CHECK(made == 5);  // created once for all series
  }
  CHECK(alive == 0);
}

TEST_CASE("marks that are missing and clocks that cannot be compared are refused") {
  StreamClock host(*cpu_backend().device, {}), device(slow_device(), {});
  CHECK_THROWS_WITH(device.anchor(0, 1), Catch::Contains("mark 0 of 0"));
  host.mark(), device.mark();
  CHECK_THROWS_WITH(device.anchor(host), Catch::Contains("different devices"));
}
