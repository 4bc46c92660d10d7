// ckpt verify, diff and prune below the command line: every kind of damage is reported, differences are found whatever
// the layouts, and nothing needed is deleted.
#include "checkpoint/verify.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "checkpoint/diff.h"
#include "checkpoint/store/retention.h"
#include "checkpoint/store/steps.h"
#include "kernels/core/hash/sha256.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;

std::string step_of(const TempDir& dir, int64_t step) { return dir.path + "/" + step_name(step); }

std::vector<Finding> findings(const std::string& step) {
  Vfs vfs;
  return verify_step(vfs, step).findings;
}

void flip(const std::string& path, size_t at, char mask = 1) {
  std::string bytes = slurp(path);
  bytes.at(at) = static_cast<char>(bytes[at] ^ mask);
  spill(path, bytes);
}

// Saves one view of a whole tensor with these values.
void save_values(const std::string& dir, int64_t step, std::vector<float> values, TrainState state) {
  state.step = step;
  const auto errors = run_ranks({}, [&](int, const Mesh& mesh) {
    const ShardView v{.name = "master/w",
                      .data = {reinterpret_cast<std::byte*>(values.data()), {6}, DType::kF32, {}},
                      .full = {2, 3},
                      .local = {2, 3}};
    save_checkpoint(dir, state, std::span(&v, 1), {}, {.retention = {.keep = 0}}, mesh, host_device(), {});
  });
  REQUIRE(errors[0] == "");
}

TEST_CASE("verify reads every file of a valid checkpoint and finds nothing") {
  const TempDir dir;
  save(dir.path, {2, 2, 2, 1}, 4);
  Vfs vfs;
  const VerifyReport r = verify_step(vfs, step_of(dir, 4), {.fresh = true, .deep = true});
  CHECK(r.findings.empty());
  CHECK(r.files == 8 * 2 + 2);
  CHECK(r.tensors == 20);
  int64_t bytes = 0;
  for (const auto& e : fs::directory_iterator(step_of(dir, 4))) bytes += static_cast<int64_t>(e.file_size());
  CHECK(r.bytes == bytes);
}

TEST_CASE("verify names the file of any changed byte, and in a shard its block, tensor and rows") {
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 4);
  for (const char* name : {"manifest.json", "rank-00000.idx", "rank-00000.h5", "config.json"}) {
    const std::string path = step_of(dir, 4) + "/" + name;
    const size_t size = slurp(path).size();
    for (size_t at = 0; at < size; at += 1 + size / 60) {
      flip(path, at);
      const auto found = findings(step_of(dir, 4));
      INFO(name << " byte " << at);
      REQUIRE(found.size() == 1);
      CHECK(found[0].file == name);
      flip(path, at);
    }
  }
  // Locates the last row of the first tensor in the file by its bytes.
  const std::string shard = step_of(dir, 4) + "/rank-00000.h5", bytes = slurp(shard);
  std::string row;
  for (int64_t k = 5 * 20; k < 5 * 21; ++k) {
    const float v = value_of("master/embed.weight", k, 4);
    row.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  const size_t at = bytes.find(row);
  REQUIRE(at != std::string::npos);
  flip(shard, at);
  const auto found = findings(step_of(dir, 4));
  REQUIRE(found.size() == 1);
  CHECK(found[0].begin == 0);
  CHECK(found[0].end == static_cast<int64_t>(bytes.size()));
  CHECK_THAT(found[0].tensors, Catch::Contains("master/embed.weight rows 0-20"));
  CHECK_THAT(to_string(found[0]), Catch::Contains("expected CRC32C") && Catch::Contains("found"));
}

TEST_CASE("verify finds missing, truncated, swapped and foreign files, all in one pass") {
  const TempDir dir;
  save(dir.path, {2, 1, 2, 1}, 4);
  save(dir.path, {2, 1, 2, 1}, 5);
  const std::string step = step_of(dir, 5);
  fs::remove(step + "/rank-00000.h5");
  fs::resize_file(step + "/rank-00001.h5", fs::file_size(step + "/rank-00001.h5") - 4096);
  fs::copy_file(step_of(dir, 4) + "/rank-00002.idx", step + "/rank-00002.idx", fs::copy_options::overwrite_existing);
  fs::copy_file(step_of(dir, 4) + "/rank-00003.h5", step + "/rank-00003.h5", fs::copy_options::overwrite_existing);
  std::string text;
  for (const Finding& f : findings(step)) text += to_string(f) + "\n";
  CHECK_THAT(text, Catch::Contains("rank-00000.h5: expected a file, found none") &&
                       Catch::Contains("rank-00001.h5: expected ") && Catch::Contains("rank-00002.idx: ") &&
                       Catch::Contains("rank-00003.h5, bytes 0 to "));
  fs::rename(step, step_of(dir, 6));
  CHECK_THAT(to_string(findings(step_of(dir, 6)).at(0)), Catch::Contains("holds step 5"));
}

TEST_CASE("verify distinguishes memory corruption before the write from damage on disk") {
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 4);
  const std::string manifest = step_of(dir, 4) + "/manifest.json", index = step_of(dir, 4) + "/rank-00000.idx";
  Manifest m = parse_manifest(slurp(manifest), manifest);
  ShardIndex x = decode_index(slurp(index), index, m.shapes());
  x.records[2].crc ^= 1;  // as left by a bit flip between snapshot and write
  spill(index, encode(x));
  m.files[0].idx_sha256 = sha256_hex(encode(x));
  spill(manifest, to_text(m));
  const auto found = findings(step_of(dir, 4));
  REQUIRE(found.size() == 1);
  CHECK(found[0].begin == x.records[2].offset);
  CHECK_THAT(found[0].found, Catch::Contains("changed before it was written"));
}

TEST_CASE("diff treats two layouts of one state as equal and finds a changed element") {
  const TempDir a, b;
  save(a.path, {2, 2, 2, 1}, 4);
  save(b.path, {1, 1, 1, 1}, 4);
  Vfs vfs;
  const DiffReport same = diff_steps(vfs, step_of(a, 4), step_of(b, 4), 0);
  CHECK(same.within);
  CHECK(same.compared == 20);
  CHECK(same.tensors.empty());
  save(b.path, {1, 1, 1, 1}, 5);
  const DiffReport other = diff_steps(vfs, step_of(a, 4), step_of(b, 5), 1e30);
  CHECK(other.tensors.size() == 20);
  CHECK_FALSE(other.within);  // tensors are within 1e30, the state belongs to another step
  CHECK(std::find(other.state.begin(), other.state.end(), "step: 4 | 5") != other.state.end());
}

TEST_CASE("diff reports magnitude, ULP distance and position") {
  const TempDir a, b;
  const float one = 1, next = std::nextafter(one, 2.f);
  save_values(a.path, 4, {0, -4, one, 3, 2, 1}, some_state(4));
  save_values(b.path, 4, {0, -4, next, 3, 2, 1.5f}, some_state(4));
  Vfs vfs;
  const DiffReport r = diff_steps(vfs, step_of(a, 4), step_of(b, 4), 0.1);
  REQUIRE(r.tensors.size() == 1);
  CHECK(r.tensors[0].first == 2);
  CHECK(r.tensors[0].different == 2);
  CHECK(r.tensors[0].max_abs == 0.5);
  CHECK(r.tensors[0].relative == 0.125);
  CHECK(r.tensors[0].max_ulp == 1u << 22);
  CHECK_FALSE(r.within);
  CHECK(diff_steps(vfs, step_of(a, 4), step_of(b, 4), 0.125).within);
  // Signed zeros differ bitwise only; run names and speeds are not differences.
  TrainState s = some_state(7);
  s.run_uuid = "another";
  s.elapsed_seconds = 5;
  save_values(a.path, 7, {0, 1, 1, 1, 1, 1}, some_state(7));
  save_values(b.path, 7, {-0.f, 1, 1, 1, 1, 1}, s);
  const DiffReport zeros = diff_steps(vfs, step_of(a, 7), step_of(b, 7), 0);
  CHECK(zeros.within);
  CHECK(zeros.tensors.at(0).max_ulp == 0);
}

std::string names(const std::vector<PrunePlan::Entry>& entries) {
  std::string out;
  for (const auto& e : entries) out += e.name + " ";
  return out;
}

TEST_CASE("retention keeps the newest, every n-th and the best, each with its reason") {
  const TempDir dir;
  const std::vector<Param> tiny{{"a.weight", {4}, ShardSpec::replicate()}};
  for (int64_t n = 1; n <= 9; ++n) save(dir.path, {1, 1, 1, 1}, n, tiny);  // best_step is n - 1 in each
  fs::create_directories(dir.path + "/.tmp-step-000000010-x");
  fs::create_directories(dir.path + "/step-000000007.corrupt-1");
  fs::create_directories(dir.path + "/step-000000009.abandoned-1");
  Vfs vfs;
  const PrunePlan plan = plan_prune(vfs, dir.path, {1, 4, true}, true);
  CHECK(names(plan.keep) == "step-000000009 step-000000008 step-000000004 ");
  CHECK(plan.keep[1].why == "best validation loss");
  CHECK(names(plan.remove) ==
        ".tmp-step-000000010-x step-000000007 step-000000006 step-000000005 step-000000003 step-000000002 "
        "step-000000001 step-000000007.corrupt-1 ");
  prune(vfs, dir.path, plan);
  std::string left;
  for (const auto& [n, path] : list_steps(dir.path)) left += cat(n, " ");
  CHECK(left == "9 8 4 ");
  CHECK(list_aside(dir.path).size() == 1);
  CHECK(list_attempts(dir.path).empty());
  CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, 9, "auto", tiny) == "");
}

TEST_CASE("nothing is deleted while the newest step is damaged") {
  const TempDir dir;
  for (int64_t n = 1; n <= 3; ++n) save(dir.path, {1, 1, 1, 1}, n);
  flip(step_of(dir, 3) + "/rank-00000.h5", 9000);
  Vfs vfs;
  try {
    prune(vfs, dir.path, plan_prune(vfs, dir.path, {1, 0, false}, true));
    FAIL("deleted behind a damaged step");
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kDamaged);
    CHECK_THAT(e.what(), Catch::Contains("nothing older was deleted"));
  }
  CHECK(list_steps(dir.path).size() == 3);
  CHECK(load_and_compare(dir.path, {2, 1, 1, 1}, 2) == "");  // the older one remains to fall back to
}

}  // namespace
}  // namespace gt::ckpt
