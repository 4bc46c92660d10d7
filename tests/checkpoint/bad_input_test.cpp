// Wrong paths, folders and models: message and exit code, identical on every rank.
#include <fcntl.h>

#include <filesystem>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "kernels/core/hash/sha256.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;

template <class Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const Error& e) { return cat(static_cast<int>(e.code()), ": ", e.what()); }
  return "no error";
}

// The error of a load, checked to be identical on every rank.
std::string load_refusal(const std::string& dir, const std::string& which,
                         const std::vector<Param>& model = odd_model(),
                         std::vector<std::string> groups = {"master", "optim/exp_avg"}) {
  Vfs vfs;
  const Layout l{2, 1, 1, 1};
  std::vector<std::string> texts(2);
  const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
    Rank rank(model, l, r, groups);
    texts[static_cast<size_t>(r)] =
        refusal([&] { load_checkpoint(vfs, dir, which, rank.views, mesh, host_device(), {}); });
  });
  for (const auto& e : errors) CHECK(e == "");  // no rank was torn down
  CHECK(texts[0] == texts[1]);
  return texts[0];
}

// Replaces text in a step's manifest and reseals it.
void forge(const std::string& step, const std::string& from, const std::string& to) {
  std::string text = slurp(step + "/manifest.json");
  text.resize(text.size() - 78);
  const size_t at = text.find(from);
  GT_CHECK(at != std::string::npos, from);
  text.replace(at, from.size(), to);
  spill(step + "/manifest.json", text + ",\"sha256\":\"" + sha256_hex(text) + "\"}\n");
}

TEST_CASE("a path that is no checkpoint is refused with an alternative") {
  const TempDir dir;
  CHECK_THAT(refusal([&] { resolve_step(dir.path + "/none"); }),
             Catch::StartsWith("2:") && Catch::Contains("does not exist") && Catch::Contains("run directory"));
  spill(dir.path + "/file", "x");
  CHECK_THAT(refusal([&] { resolve_step(dir.path + "/file"); }),
             Catch::StartsWith("2:") && Catch::Contains("is not a folder"));
  CHECK_THAT(refusal([&] { resolve_step(dir.path); }),
             Catch::StartsWith("2:") && Catch::Contains("holds no checkpoint"));
  fs::create_directory(dir.path + "/step-000000003");
  CHECK_THAT(refusal([&] { resolve_step(dir.path + "/step-000000003"); }),
             Catch::StartsWith("65:") && Catch::Contains("no manifest.json"));
  CHECK_THAT(refusal([&] { resolve_step(dir.path); }),
             Catch::StartsWith("65:") && Catch::Contains("no good checkpoint") && Catch::Contains("step-000000003"));
  CHECK_THAT(refusal([&] { list_checkpoints(dir.path + "/none"); }),
             Catch::StartsWith("2:") && Catch::Contains("no such folder"));
  CHECK_THAT(refusal([&] { list_checkpoints(dir.path + "/file"); }), Catch::StartsWith("2:"));
  CHECK_THAT(refusal([&] { inspect_checkpoint(dir.path + "/none", {}); }), Catch::StartsWith("2:"));
}

TEST_CASE("a run directory, its checkpoints folder and a step resolve to the newest valid step") {
  const TempDir run;
  const std::string dir = run.path + "/checkpoints";
  save(dir, {1, 1, 1, 1}, 1);
  save(dir, {1, 1, 1, 1}, 2);
  const std::string newest = dir + "/step-000000002";
  CHECK(resolve_step(run.path) == newest);
  CHECK(resolve_step(run.path + "//") == newest);
  CHECK(resolve_step(dir + "/") == newest);
  CHECK(resolve_step(dir + "/step-000000001") == dir + "/step-000000001");
  fs::remove(newest + "/rank-00000.h5");
  CHECK(resolve_step(run.path) == dir + "/step-000000001");
  CHECK(list_checkpoints(dir)[1].status.substr(0, 7) == "corrupt");
  CHECK(fs::exists(newest));  // read-only: renames nothing
}

TEST_CASE("a checkpoint of another model lists every missing, extra and differing tensor") {
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 1);
  auto model = odd_model();
  model[0].full = {23, 5};                // differs
  model[5].name = "layers.0.norm.scale";  // missing, and norm.weight is extra
  model[6].full = {8, 15};                // another number of dimensions
  const std::string text = load_refusal(dir.path, "auto", model);
  CHECK_THAT(text, Catch::StartsWith("2:") && Catch::Contains("8 differences"));
  for (const char* line :
       {"differs: master/embed.weight: checkpoint f32 [21, 5], model f32 [23, 5]",
        "differs: optim/exp_avg/embed.weight", "missing in the checkpoint: master/layers.0.norm.scale f32 [11]",
        "missing in the checkpoint: optim/exp_avg/layers.0.norm.scale",
        "only in the checkpoint: master/layers.0.norm.weight",
        "only in the checkpoint: optim/exp_avg/layers.0.norm.weight",
        "differs: master/layers.1.cube.weight: checkpoint f32 [8, 3, 5], model f32 [8, 15]"})
    CHECK_THAT(text, Catch::Contains(line));
  CHECK(fs::exists(dir.path + "/step-000000001"));  // it is not damaged: nothing was renamed
}

TEST_CASE("resuming never drops optimizer state silently") {
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 1);
  CHECK_THAT(load_refusal(dir.path, "auto", odd_model(), {"master"}),
             Catch::StartsWith("2:") && Catch::Contains("only in the checkpoint: optim/exp_avg/"));
  CHECK_THAT(load_refusal(dir.path, "auto", odd_model(), {"master", "optim/exp_avg", "optim/exp_avg_sq"}),
             Catch::StartsWith("2:") && Catch::Contains("missing in the checkpoint: optim/exp_avg_sq/"));
}

TEST_CASE("a non-float dtype is a difference, another float dtype contradicts the shard's index") {
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 1);
  const std::string step = dir.path + "/step-000000001", f32 = "\"name\":\"master/embed.weight\",\"dtype\":\"f32\"";
  forge(step, f32, "\"name\":\"master/embed.weight\",\"dtype\":\"i32\"");
  CHECK_THAT(load_refusal(dir.path, "auto"),
             Catch::StartsWith("2:") && Catch::Contains("checkpoint i32 [21, 5], model f32 [21, 5]"));
  forge(step, "\"name\":\"master/embed.weight\",\"dtype\":\"i32\"",
        "\"name\":\"master/embed.weight\",\"dtype\":\"bf16\"");
  CHECK_THAT(load_refusal(dir.path, "auto"),
             Catch::StartsWith("65:") && Catch::Contains("rank-00000.idx: dtype at byte 132 is 0, expected 1"));
}

TEST_CASE("an invalid or missing step number is refused with the existing ones") {
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 1);
  save(dir.path, {1, 1, 1, 1}, 2);
  CHECK_THAT(load_refusal(dir.path, "99"),
             Catch::StartsWith("2:") && Catch::Contains("no step 99") && Catch::Contains("2, 1"));
  for (const char* which : {"7x", "-1", "newest", "", "99999999999999999999"})
    CHECK_THAT(load_refusal(dir.path, which),
               Catch::StartsWith("2:") && Catch::Contains("neither auto, never nor a step number"));
  CHECK_THAT(load_refusal(dir.path + "/none", "5"), Catch::StartsWith("2:") && Catch::Contains("it has none"));
  CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, 2) == "");  // nothing was set aside
}

TEST_CASE("a newer format is refused by name, neither reported as damage nor skipped") {
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 1);
  save(dir.path, {1, 1, 1, 1}, 2);
  forge(dir.path + "/step-000000002", "\"version\":[1,0]", "\"version\":[3,1]");
  CHECK_THAT(load_refusal(dir.path, "auto"),
             Catch::StartsWith("2:") && Catch::Contains("format 3.1") && Catch::Contains("up to 1.x"));
  CHECK_THAT(refusal([&] { resolve_step(dir.path); }), Catch::StartsWith("2:") && Catch::Contains("format 3.1"));
  CHECK(fs::exists(dir.path + "/step-000000002"));
}

TEST_CASE("damaged steps are set aside one by one, and a run without a valid one does not start from scratch") {
  const TempDir dir;
  for (int64_t step : {1, 2, 3}) save(dir.path, {2, 1, 1, 1}, step);
  const auto shard = [&](int step) { return cat(dir.path, "/step-00000000", step, "/rank-00001.h5"); };
  fs::resize_file(shard(3), 100);
  std::string bytes = slurp(shard(2));
  bytes[bytes.size() / 2] ^= 1;
  spill(shard(2), bytes);
  CHECK(load_and_compare(dir.path, {2, 1, 1, 1}, 1) == "");
  fs::remove(shard(1));
  const std::string text = load_refusal(dir.path, "auto");
  CHECK_THAT(text, Catch::StartsWith("65:") && Catch::Contains("no step can be loaded") &&
                       Catch::Contains("rank-00001.h5: is missing"));
  int aside = 0;
  for (const auto& c : list_checkpoints(dir.path)) aside += c.status == "corrupt";
  CHECK(aside == 3);
  // The next start must not treat the folder as empty.
  CHECK_THAT(load_refusal(dir.path, "auto"), Catch::StartsWith("65:") &&
                                                 Catch::Contains("only steps that were found damaged") &&
                                                 Catch::Contains("step-000000003.corrupt-"));
}

TEST_CASE("a damaged step requested by number is an error and is not moved") {
  const TempDir dir;
  for (int64_t step : {1, 2}) save(dir.path, {2, 1, 1, 1}, step);
  fs::resize_file(dir.path + "/step-000000002/rank-00000.idx", 60);
  CHECK_THAT(load_refusal(dir.path, "2"), Catch::StartsWith("65:") && Catch::Contains("rank-00000.idx"));
  CHECK(fs::exists(dir.path + "/step-000000002"));
}

// A file system on which some paths cannot be opened, and nothing can be created.
struct NoAccess : Vfs {
  explicit NoAccess(std::string p, int e = EACCES) : part(std::move(p)), error(e) {}
  int open(const std::string& p, int flags, int mode) override {
    return p.find(part) != std::string::npos ? -error : Vfs::open(p, flags, mode);
  }
  int mkdir(const std::string& p, int mode) override {
    return p.find(part) != std::string::npos ? -error : Vfs::mkdir(p, mode);
  }
  std::string part;
  int error;
};

std::string load_refusal_with(Vfs& vfs, const std::string& dir, int64_t* step = nullptr) {
  return refusal([&] {
    const auto errors = run_ranks({1, 1, 1, 1}, [&](int r, const Mesh& mesh) {
      Rank rank(odd_model(), {1, 1, 1, 1}, r);
      const auto report = load_checkpoint(vfs, dir, "auto", rank.views, mesh, host_device(), {});
      if (step) *step = report->state.step;
      if (!report->warnings.empty()) throw Error("warned: " + report->warnings[0], Exit::kOk);
    });
    if (!errors[0].empty())
      throw Error(errors[0].substr(errors[0].find(": ") + 2), static_cast<Exit>(std::stoi(errors[0])));
  });
}

TEST_CASE("an unreadable step is left alone and the older one is loaded, with a warning") {
  const TempDir dir;
  for (int64_t step : {1, 2}) save(dir.path, {1, 1, 1, 1}, step);
  int64_t step = 0;
  for (const char* file :
       {"step-000000002/rank-00000.h5", "step-000000002/manifest.json", "step-000000002/config.json"}) {
    NoAccess vfs(file);
    CHECK_THAT(load_refusal_with(vfs, dir.path, &step),
               Catch::StartsWith("0: warned:") && Catch::Contains("Permission denied"));
    CHECK(step == 1);
    CHECK(fs::exists(dir.path + "/step-000000002"));
  }
  NoAccess all("rank-00000", EIO);
  CHECK_THAT(load_refusal_with(all, dir.path), Catch::StartsWith("74:") && Catch::Contains("Input/output error"));
  CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, 2) == "");
}

TEST_CASE("a transient read error is retried once") {
  struct Blink : Vfs {
    int64_t pread(int fd, void* d, int64_t n, int64_t o) override {
      return n > 10000 && ++big == 1 ? -EIO : Vfs::pread(fd, d, n, o);
    }
    int big = 0;
  } vfs;
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 1);
  int64_t step = 0;
  CHECK(load_refusal_with(vfs, dir.path, &step) == "no error");
  CHECK(step == 1);
  CHECK(vfs.big == 2);
}

TEST_CASE("an unwritable folder is an I/O error on every rank") {
  const TempDir dir;
  for (int error : {EROFS, EACCES}) {
    NoAccess vfs("/checkpoints", error);
    std::vector<std::string> texts(2);
    run_ranks({1, 1, 2, 1}, [&](int r, const Mesh& mesh) {
      Rank rank(odd_model(), {1, 1, 2, 1}, r);
      texts[static_cast<size_t>(r)] = refusal([&] {
        save_checkpoint(vfs, dir.path + "/checkpoints", some_state(1), rank.views, {}, {.zero_stage = 1}, mesh,
                        host_device(), {});
      });
    });
    CHECK(texts[0] == texts[1]);
    CHECK_THAT(texts[0],
               Catch::StartsWith("74:") && Catch::Contains("creation of folder " + dir.path + "/checkpoints"));
  }
  spill(dir.path + "/file", "x");
  CHECK_THAT(load_refusal(dir.path + "/file", "auto"), Catch::StartsWith("74:") && Catch::Contains("Not a directory"));
}

TEST_CASE("views with gaps or overlaps are never committed") {
  const TempDir dir;
  for (int wrong : {0, 1, 2}) {
    const auto errors = run_ranks({1, 1, 2, 1}, [&](int r, const Mesh& mesh) {
      Rank rank(odd_model(), {1, 1, 2, 1}, r);
      if (wrong == 0 && r == 0) rank.views.back().save = false;
      if (wrong == 1 && r == 1) rank.views.push_back(rank.views[0]);
      for (ShardView& v : rank.views)  // a whole tensor that no rank stores
        if (wrong == 2 && v.name == "master/embed.weight") v.save = false;
      save_checkpoint(dir.path, some_state(1), rank.views, {}, {.zero_stage = 1}, mesh, host_device(), {});
    });
    for (const auto& e : errors)
      CHECK_THAT(e, Catch::StartsWith("70:") && Catch::Contains(wrong == 0   ? "elements of"
                                                                : wrong == 1 ? "overlap"
                                                                             : "0 of 105"));
    CHECK(fs::is_empty(dir.path));
  }
}

TEST_CASE("a missing aux file aborts the attempt and is named") {
  const TempDir dir;
  const auto errors = run_ranks({1, 1, 1, 1}, [&](int r, const Mesh& mesh) {
    Rank rank(odd_model(), {1, 1, 1, 1}, r);
    save_checkpoint(dir.path, some_state(1), rank.views,
                    {{.name = "tokenizer.model", .path = dir.path + "/gone.model", .text = ""}}, {.zero_stage = 1},
                    mesh, host_device(), {});
  });
  CHECK_THAT(errors[0], Catch::StartsWith("74:") && Catch::Contains("gone.model") && Catch::Contains("No such file"));
  CHECK(fs::is_empty(dir.path));
}

TEST_CASE("a modified aux file is detected when it is read") {
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 1);
  spill(dir.path + "/step-000000001/config.json", "{\"model\":[]}\n");
  CHECK_THAT(refusal([&] { read_aux(dir.path + "/step-000000001", "config.json"); }),
             Catch::StartsWith("65:") && Catch::Contains("config.json"));
}

TEST_CASE("inspect reports an unknown tensor by name") {
  const TempDir dir;
  save(dir.path, {1, 1, 1, 1}, 1);
  CHECK_THAT(refusal([&] { inspect_checkpoint(dir.path + "/step-000000001", {.tensor = "master/none"}); }),
             Catch::StartsWith("2:") && Catch::Contains("no tensor master/none"));
}

}  // namespace
}  // namespace gt::ckpt
