// The memory through which ranks of a machine pass messages: order, space, and what a receiver refuses.
#include "parallel/comm/messages/message_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "tests/support/test.h"

using namespace gt;

namespace {

struct Sent {
  uint64_t at;
  std::vector<std::byte> data;
};

}  // namespace

TEST_CASE("message ring: messages of all sizes arrive in order and the space is used again") {
  Fd fd;
  MessageRing sender = MessageRing::create(100'000, fd);
  REQUIRE(sender);
  MessageRing receiver = MessageRing::open(fd);
  REQUIRE((receiver && receiver.capacity() == sender.capacity() && sender.capacity() >= 100'000));
  std::mt19937 random(7);
  std::deque<Sent> flying;
  int64_t put = 0, full = 0, wrong = 0;
  const auto take = [&] {
    const Sent& s = flying.front();
    const auto bytes = static_cast<int64_t>(s.data.size());
    const std::byte* found = receiver.find(s.at, bytes);
    wrong += found == nullptr || std::memcmp(found, s.data.data(), s.data.size()) != 0;
    receiver.free(s.at, bytes);
    flying.pop_front();
  };
  for (int i = 0; i < 20'000; ++i) {
    Sent s{0, std::vector<std::byte>(1 + random() % (i % 50 == 0 ? 102'400 : 30'000))};
    for (std::byte& b : s.data) b = static_cast<std::byte>(random());
    const auto at = sender.put(s.data.data(), static_cast<int64_t>(s.data.size()));
    if (!at) {
      ++full;
      REQUIRE(!flying.empty());  // an empty ring takes any message that fits at all
      take();
      continue;
    }
    s.at = *at, ++put;
    flying.push_back(std::move(s));
    while (!flying.empty() && random() % 3 == 0) take();
  }
  while (!flying.empty()) take();
  CHECK(wrong == 0);
  CHECK((put > 5'000 && full > 1'000));
}

TEST_CASE("message ring: a sender that is always caught up with touches the same memory again") {
  Fd fd;
  MessageRing sender = MessageRing::create(1 << 20, fd), receiver = MessageRing::open(fd);
  const std::vector<std::byte> data(1000);
  const std::byte* first = nullptr;
  for (int i = 0; i < 5; ++i) {
    const auto at = sender.put(data.data(), 1000);
    REQUIRE(at);
    const std::byte* found = receiver.find(*at, 1000);
    if (first == nullptr) first = found;
    CHECK(found == first);
    receiver.free(*at, 1000);
  }
}

TEST_CASE("message ring: nothing outside the memory is read, whatever the sender claims") {
  Fd fd;
  const MessageRing sender = MessageRing::create(8192, fd), receiver = MessageRing::open(fd);
  CHECK(receiver.find(0, 8192) != nullptr);
  CHECK(receiver.find(8192, 8192) == receiver.find(0, 8192));
  CHECK(receiver.find(1, 8192) == nullptr);
  CHECK(receiver.find(UINT64_MAX - 1, 8) == nullptr);
  CHECK(receiver.find(0, 8193) == nullptr);
  CHECK(receiver.find(0, INT64_MAX) == nullptr);
  CHECK(receiver.find(0, -1) == nullptr);
  CHECK(MessageRing().find(0, 1) == nullptr);
  CHECK(!MessageRing::open(Fd()));
  CHECK(!MessageRing::open(Fd(open("/dev/null", O_RDWR | O_CLOEXEC))));
  Fd shrinks(memfd_create("test", MFD_CLOEXEC));  // its owner could cut it under the reader
  REQUIRE(ftruncate(shrinks.get(), 1 << 20) == 0);
  CHECK(!MessageRing::open(shrinks));
  CHECK(ftruncate(fd.get(), 4096) != 0);
}
