// Copies of the state in the machines' memory: whatever machine is lost, the newest step of which every rank's copy
// exists comes back bitwise; nothing else does.
#include "checkpoint/store/peer_copies.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>

#include "checkpoint/format/state_json.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

constexpr const char* kJob = "0123456789abcdef";

// Machines with consecutive ranks, each with a folder for its memory.
class Cluster {
 public:
  Cluster(Layout layout, int machines) : layout_(layout), per_machine_(layout.world() / machines) {
    for (int m = 0; m < machines; ++m) add_machine();
  }
  void add_machine() {
    memory_.push_back(cat(dir_.path, "/machine-", memory_.size()));
    fs::create_directory(memory_.back());
  }
  // The machine is lost; one that was never used takes its place.
  void replace(int machine) {
    add_machine();
    fs::remove_all(memory(machine));
    memory_[static_cast<size_t>(machine)] = memory_.back();
    memory_.pop_back();
  }
  const std::string& memory(int machine) const { return memory_[static_cast<size_t>(machine)]; }
  std::string file(int machine, int owner, int slot) const {
    return cat(peer_copies_folder(memory(machine), kJob), "/rank-", owner, ".", slot);
  }
  const Layout& layout() const { return layout_; }

  using Body = std::function<void(PeerCopies&, Rank&, const Mesh&)>;
  // One attempt of the job: runs body on every rank; returns its errors in one text.
  std::string attempt(int64_t number, const Body& body, PeerCopyOptions o = {.restores = true}) const {
    o.job = kJob, o.attempt = number;
    std::string text;
    for (const std::string& e : run_ranks(layout_, [&](int r, const Mesh&mesh) {
           PeerCopyOptions mine = o;
           mine.folder = memory(r / per_machine_);
           Rank rank(odd_model(), layout_, r);
           rank.poison();
           PeerCopies copies(mine, mesh, host_device(), {}, rank.views);
           body(copies, rank, mesh);
         }))
      text += e;
    return text;
  }
  // An attempt that keeps these steps.
  void keep(int64_t number, std::vector<int64_t> steps, bool restores = true) const {
    const auto run = [&](PeerCopies& copies, Rank& rank, const Mesh&) {
      if (restores) copies.restore(-1, rank.views);
      for (const int64_t step : steps) {
        rank.fill(static_cast<uint32_t>(step));
        copies.keep(some_state(step), rank.views);
      }
    };
    const std::string errors = attempt(number, run, {.restores = restores});
    GT_CHECK(errors.empty(), errors);
  }
  // Step that a new attempt restores, after comparing every value and the state; -1: none.
  int64_t restored(int64_t newer_than = -1) const {
    std::mutex lock;
    std::vector<int64_t> steps;
    const std::string errors = attempt(99, [&](PeerCopies& copies, Rank& rank, const Mesh& mesh) {
      const auto found = copies.restore(mesh.rank() == 0 ? newer_than : 12345, rank.views);
      const int64_t step = found ? found->state.step : -1;
      if (found) {
        const std::string d = rank.difference(static_cast<uint32_t>(step));
        GT_CHECK(d.empty(), d);
        GT_CHECK(to_json(found->state) == to_json(some_state(step)), "state");
      }
      const std::lock_guard guard(lock);
      steps.push_back(step);
    });
    INFO(errors);
    CHECK(errors.empty());
    for (const int64_t s : steps) CHECK(s == steps[0]);
    return steps.empty() ? -2 : steps[0];
  }

 private:
  TempDir dir_;
  Layout layout_;
  int per_machine_;
  std::vector<std::string> memory_;
};

void write_byte(const std::string& path, int64_t at, char value) {
  const int fd = open(path.c_str(), O_RDWR);
  GT_CHECK(fd >= 0 && pwrite(fd, &value, 1, at) == 1, path);
  close(fd);
}
// An interrupted write: the image is not complete.
void interrupt(const std::string& path) { write_byte(path, offsetof(ImageHeader, complete), 0); }

TEST_CASE("peer copies: the last step comes back after any one machine is lost") {
  const Layout layouts[] = {{.tp = 2, .pp = 1, .dp = 2, .zero = 1}, {.tp = 1, .pp = 2, .dp = 3, .zero = 3}};
  for (const Layout& layout : layouts)
    for (const int machines : {2, layout.world()})
      for (int lost = -1; lost < machines; ++lost) {
        Cluster cluster(layout, machines);
        cluster.keep(1, {5, 6, 7}, false);
        if (lost >= 0) cluster.replace(lost);
        INFO("machines " << machines << ", lost " << lost);
        CHECK(cluster.restored() == 7);
        CHECK(cluster.restored(7) == -1);
      }
}

TEST_CASE("peer copies: two lost neighbours need two peers") {
  for (const int peers : {1, 2}) {
    Cluster cluster({.tp = 1, .pp = 1, .dp = 4, .zero = 2}, 4);
    const auto keep = [](PeerCopies& copies, Rank& rank, const Mesh&) {
      rank.fill(3);
      copies.keep(some_state(3), rank.views);
    };
    CHECK(cluster.attempt(1, keep, {.peers = peers}) == "");
    cluster.replace(1);
    cluster.replace(2);
    CHECK(cluster.restored() == (peers == 2 ? 3 : -1));
  }
}

TEST_CASE("peer copies: an interrupted copy leaves the one before") {
  Cluster cluster({.tp = 2, .pp = 1, .dp = 2, .zero = 1}, 2);
  cluster.keep(1, {5, 6}, false);  // slots 0 and 1
  interrupt(cluster.file(0, 1, 1));
  CHECK(cluster.restored() == 6);  // from the other machine, which repairs it
  interrupt(cluster.file(0, 1, 1));
  interrupt(cluster.file(1, 1, 1));
  CHECK(cluster.restored() == 5);

  cluster.keep(2, {6}, true);  // continues from step 5, in the other slot
  interrupt(cluster.file(0, 1, 1));
  interrupt(cluster.file(1, 1, 1));
  CHECK(cluster.restored() == 5);
}

TEST_CASE("peer copies: those of a machine that was cut off do not mix with later ones") {
  Cluster cluster({.tp = 1, .pp = 1, .dp = 2, .zero = 1}, 2);
  cluster.keep(1, {5, 6}, false);
  const std::string cut_off = cluster.memory(1), aside = cut_off + ".aside";
  fs::copy(cut_off, aside, fs::copy_options::recursive);
  cluster.replace(1);
  cluster.keep(2, {7, 8, 9});
  fs::remove_all(cluster.memory(1));
  fs::copy(aside, cluster.memory(1), fs::copy_options::recursive);  // the old machine is back
  CHECK(cluster.restored() == 9);
  fs::remove_all(cluster.memory(0));
  fs::create_directory(cluster.memory(0));
  CHECK(cluster.restored() == 6);  // the only complete set: of the machine that was cut off
}

TEST_CASE("peer copies: of a later step before a rollback are older than those after it") {
  Cluster cluster({.tp = 1, .pp = 1, .dp = 2, .zero = 1}, 2);
  cluster.keep(1, {50, 51, 20}, false);
  CHECK(cluster.restored() == 20);
}

TEST_CASE("peer copies: nothing is restored for another layout or job, or on request") {
  Cluster cluster({.tp = 1, .pp = 1, .dp = 4, .zero = 1}, 2);
  cluster.keep(1, {5}, false);
  const std::string folder = peer_copies_folder(cluster.memory(0), kJob);
  const Layout other{.tp = 2, .pp = 1, .dp = 2, .zero = 1};
  const auto nothing = [&](const PeerCopyOptions& options) {
    return [&, options](int r, const Mesh& mesh) {
      PeerCopyOptions mine = options;
      mine.folder = cluster.memory(r / 2), mine.attempt = 2, mine.restores = true;
      Rank rank(odd_model(), {.tp = mesh.size(Axis::kTp), .pp = 1, .dp = mesh.size(Axis::kDp), .zero = 1}, r);
      PeerCopies copies(mine, mesh, host_device(), {}, rank.views);
      GT_CHECK(!copies.restore(-1, rank.views), "restored");
    };
  };
  for (const std::string& e : run_ranks(cluster.layout(), nothing({.job = "fedcba9876543210"}))) CHECK(e == "");
  for (const std::string& e : run_ranks(other, nothing({.job = kJob}))) CHECK(e == "");

  cluster.keep(1, {5}, false);
  CHECK(cluster.attempt(2, [](PeerCopies&, Rank&, const Mesh&) {}, {.restores = false}) == "");
  CHECK(cluster.restored() == -1);
}

TEST_CASE("peer copies: a damaged copy is refused") {
  Cluster cluster({.tp = 1, .pp = 1, .dp = 2, .zero = 1}, 2);
  cluster.keep(1, {5}, false);
  write_byte(cluster.file(0, 0, 0), static_cast<int64_t>(fs::file_size(cluster.file(0, 0, 0))) - 7, 'x');
  const std::string errors =
      cluster.attempt(2, [](PeerCopies& copies, Rank& rank, const Mesh&) { copies.restore(-1, rank.views); });
  CHECK_THAT(errors, Contains("65: rank 0") && Contains("the copy of rank 0's step 5 in memory is damaged"));
}

TEST_CASE("peer copies: a machine without free memory, and a folder of somebody else, are refused by name") {
  Cluster cluster({.tp = 1, .pp = 1, .dp = 2, .zero = 1}, 2);
  const auto nothing = [](PeerCopies&, Rank&, const Mesh&) {};
  CHECK_THAT(cluster.attempt(1, nothing, {.memory_free = 1000}),
             Contains("2: rank 0") && Contains("bytes of this machine's memory, but 1000 are free"));
  const std::string folder = peer_copies_folder(cluster.memory(1), kJob);
  fs::remove_all(folder);
  fs::create_directory(cluster.memory(1) + "/elsewhere");
  fs::create_symlink(cluster.memory(1) + "/elsewhere", folder);
  CHECK_THAT(cluster.attempt(1, nothing), Contains("2: rank 1") && Contains("not a folder of this user alone"));
}

TEST_CASE("peer copies: files that a machine no longer keeps are deleted, and all at the end") {
  Cluster cluster({.tp = 1, .pp = 1, .dp = 4, .zero = 1}, 4);
  cluster.keep(1, {5}, false);
  Cluster pair({.tp = 1, .pp = 1, .dp = 4, .zero = 1}, 2);
  for (const int machine : {0, 1})  // a copy of rank 9, from a larger attempt
    fs::create_directories(peer_copies_folder(pair.memory(machine), kJob)),
        fs::permissions(peer_copies_folder(pair.memory(machine), kJob), fs::perms::owner_all);
  spill(pair.file(0, 9, 0), "old");
  pair.keep(1, {5, 6});
  CHECK(!fs::exists(pair.file(0, 9, 0)));
  CHECK(fs::exists(pair.file(0, 3, 0)));
  CHECK(pair.attempt(2, [](PeerCopies& c, Rank&, const Mesh& mesh) { mesh.world().barrier(), c.discard(); }) == "");
  for (const int machine : {0, 1}) CHECK(fs::is_empty(pair.memory(machine)));
}

TEST_CASE("peer copies: only folders that no rank has held for an hour are swept") {
  const TempDir dir;
  const auto make = [&](const std::string& job, int age_hours) {
    const std::string folder = peer_copies_folder(dir.path, job);
    fs::create_directory(folder);
    spill(folder + "/lock", "");
    fs::last_write_time(folder + "/lock", fs::file_time_type::clock::now() - std::chrono::hours(age_hours));
    return folder;
  };
  const std::string recent = make("aa", 0), old = make("bb", 2);
  sweep_peer_copies(dir.path);
  CHECK(fs::exists(recent));
  CHECK(!fs::exists(old));
}

}  // namespace
}  // namespace gt::ckpt
