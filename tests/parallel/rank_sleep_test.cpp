// Sleeping ranks: who is woken, and that a sleep is announced before the last check.
#include "parallel/comm/messages/rank_sleep.h"

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

using namespace gt;

namespace {

// World ranks 3, 4 and 5 share this machine; this one is 4.
struct Transport final : MessageTransport {
  explicit Transport(bool wakes) : wakes_(wakes) {}
  std::string_view name() const override { return "test"; }
  int rank() const override { return 4; }
  int size() const override { return 8; }
  const std::vector<int>& local_ranks() const override { return here_; }
  int largest_tag() const override { return 0; }
  std::unique_ptr<MessageSet> make_set() override { return nullptr; }
  Channels split(std::span<const int>) override { return {}; }
  std::unique_ptr<MessageChannel> split_machine() override { return nullptr; }
  void open_notes() override {}
  void leave(int, const Note&) override {}
  bool next_note(int&, Note&) override { return false; }
  void pause(int us) override { pauses.push_back(us); }
  bool can_wake() const override { return wakes_; }
  void wake(int to) override { woken.push_back(to); }
  [[noreturn]] void abort(int code) override { std::_Exit(code); }
  std::vector<int> pauses, woken;

 private:
  bool wakes_;
  std::vector<int> here_{3, 4, 5};
};

struct Machine {
  BoardHead head;
  std::vector<RankPages> pages{3};
  CommBoard board{&head, pages.data(), 3};
  std::atomic<uint32_t>& asleep(int local) { return pages[static_cast<size_t>(local)].rank.asleep; }
};

}  // namespace

TEST_CASE("ranks that sleep are woken once, and no others") {
  Machine m;
  Transport transport(true);
  RankSleep sleep(transport, m.board, 1, true);
  const std::vector<int> group{3, 4, 5};
  sleep.wake_others(group);
  CHECK(transport.woken.empty());  // nobody sleeps
  m.asleep(0) = m.asleep(1) = m.asleep(2) = 1;
  sleep.wake_others(std::vector<int>{4, 5});
  CHECK(transport.woken == std::vector<int>{5});
  sleep.wake_others(group);
  CHECK(transport.woken == std::vector<int>{5, 3});
  CHECK(m.asleep(1) == 1);  // its own
}

TEST_CASE("a rank announces its sleep before its last check") {
  Machine m;
  Transport transport(true);
  RankSleep sleep(transport, m.board, 1, true);
  bool announced = false;
  sleep.sleep(7, [&] {
    announced = m.asleep(1) == 1;
    return true;
  });
  CHECK((announced && transport.pauses.empty()));
  sleep.sleep(7, [] { return false; });
  CHECK(transport.pauses.size() == 1);
  CHECK(m.asleep(1) == 0);
}

TEST_CASE("pauses that nobody can end are short and grow") {
  Machine m;
  for (const bool shared : {false, true}) {
    Transport transport(!shared);  // a board that is not shared, or a transport without wake-ups
    RankSleep sleep(transport, m.board, 1, shared);
    CHECK_FALSE(sleep.wakes());
    for (const int round : {0, 800, 1'000'000}) sleep.sleep(round, [] { return true; });
    CHECK(transport.pauses == std::vector<int>{20, 120, 500});
    m.asleep(0) = 1;
    sleep.wake_others(std::vector<int>{3});
    CHECK(transport.woken.empty());
    m.asleep(0) = 0;
  }
}
