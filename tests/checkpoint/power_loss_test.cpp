// Power failures during a save. Whatever subset of unsynced bytes and names reached the disk: acknowledged steps load;
// others are either complete or set aside.
#include <random>
#include <set>

#include "checkpoint/save.h"
#include "tests/checkpoint/power_model.h"
#include "tests/checkpoint/support.h"
#include "tests/support/goal.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

std::vector<Param> small_model() {
  return {{"a.weight", {40, 60}, ShardSpec::split(0)}, {"b.weight", {50}, ShardSpec::replicate()}};
}

// Saves steps 2 to 4 beside step 1, which retention deletes afterwards. Returns the number of calls made when each was
// acknowledged.
std::vector<size_t> record_saves(RecordingVfs& vfs, const std::string& dir, bool by_marker) {
  const Layout l{2, 1, 1, 1};
  std::vector<size_t> acknowledged{0};
  for (const int64_t step : {2, 3, 4}) {
    const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
      Rank rank(small_model(), l, r);
      rank.fill(static_cast<uint32_t>(step));
      SaveOptions options{.zero_stage = l.zero, .retention = {.keep = 1}};
      options.how.commit = by_marker ? CommitBy::kMarker : CommitBy::kRename;
      save_checkpoint(vfs, dir, some_state(step), rank.views, {{.name = "config.json", .path = "", .text = "{}"}},
                      options, mesh, host_device(), {});
    });
    for (const std::string& e : errors) REQUIRE(e == "");
    acknowledged.push_back(vfs.calls().size());
  }
  return acknowledged;
}

// "" when the folder loads as required: this step, or the next one if it is being saved.
std::string wrong(const PowerModel::Image& image, int64_t step) {
  const TempDir dir;
  materialise(image, dir.path);
  const auto load = [&](int64_t s) { return load_and_compare(dir.path, {1, 1, 1, 1}, s, "auto", small_model()); };
  if (image.count(cat("step-00000000", step + 1, "/")) == 0) return load(step);
  const std::string newer = load(step + 1);
  if (newer.empty()) return "";
  const std::string older = load(step);
  return older.empty() ? "" : cat("step ", step + 1, ": ", newer, "; step ", step, ": ", older);
}

size_t digest(const PowerModel::Image& image, int64_t step) {
  size_t sum = static_cast<size_t>(step);
  for (const auto& [path, bytes] : image)
    for (const std::string_view text : {std::string_view(path), std::string_view(bytes)})
      sum = sum * 0x9E3779B97F4A7C15u + std::hash<std::string_view>()(text);
  return sum;
}

class Search {
 public:
  explicit Search(uint64_t seed) : random_(seed) {}

  // Checks each state once.
  void check(const PowerModel& disk, const std::string& when, int64_t step, const std::function<bool(int)>& keep,
             const std::function<bool(int64_t)>& tear) {
    const auto image = disk.after_outage(keep, tear);
    if (!checked_.insert(digest(image, step)).second) return;
    const std::string problem = wrong(image, step);
    INFO("power lost " << when << ", step " << step << " acknowledged: " << problem);
    REQUIRE(problem.empty());
  }

  // None of the pending changes, all, all but one, one alone.
  void corners(const PowerModel& disk, const std::string& when, int64_t step) {
    const auto whole = [](int64_t) { return false; };
    check(
        disk, when, step, [](int) { return false; }, whole);
    check(
        disk, when, step, [](int) { return true; }, whole);
    for (int k = 0; k < disk.pending(); ++k) {
      check(
          disk, when, step, [&](int i) { return i != k; }, whole);
      check(
          disk, when, step, [&](int i) { return i == k; }, whole);
    }
  }

  // A random subset of the pending changes; writes truncated at a sector or with holes.
  void any(const PowerModel& disk, const std::string& when, int64_t step) {
    const bool holes = random_() % 2;
    const auto cut = static_cast<int64_t>(random_() % 96);
    check(
        disk, when, step, [&](int) { return random_() % 4 != 0; },
        [&](int64_t sector) { return holes ? random_() % 8 == 0 : sector >= cut; });
  }
  size_t states() const { return checked_.size(); }

 private:
  std::mt19937_64 random_;
  std::set<size_t> checked_;
};

size_t lose_power_everywhere(bool by_marker, size_t goal) {
  const TempDir dir;
  save(dir.path, {2, 1, 1, 1}, 1, small_model());
  const PowerModel before(dir.path);
  RecordingVfs vfs;
  const std::vector<size_t> acknowledged = record_saves(vfs, dir.path, by_marker);
  const auto& calls = vfs.calls();
  Search search(goal_seed());
  for (int round = 0; search.states() < goal; ++round) {
    REQUIRE(round < 20000);
    PowerModel disk = before;
    int64_t step = 1;
    for (size_t k = 0; k <= calls.size(); ++k) {
      if (k > 0) disk.apply(calls[k - 1]);
      while (step < 4 && k >= acknowledged[static_cast<size_t>(step)]) ++step;
      const std::string when = cat("after call ", k, " of ", calls.size());
      if (round == 0)
        search.corners(disk, when, step);
      else if (disk.pending() > 0)
        search.any(disk, when, step);
    }
  }
  return search.states();
}

}  // namespace

TEST_CASE("whatever subset of a save a power loss leaves on disk, the acknowledged step loads", "[R03]") {
  const auto goal = static_cast<size_t>(goal_size(kSanitized ? 100 : 1000, 5000));
  const size_t renamed = lose_power_everywhere(false, goal), marked = lose_power_everywhere(true, goal);
  CHECK(renamed >= goal);
  CHECK(marked >= goal);
  print_figure("R03", cat(renamed + marked, " states of a disk after an outage: each loaded what was acknowledged"));
}

}  // namespace gt::ckpt
