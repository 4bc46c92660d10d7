// Every layout loads what any other layout wrote, bitwise identically.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "checkpoint/step_reader.h"
#include "checkpoint/weights/weights.h"
#include "kernels/core/hash/sha256.h"
#include "tests/checkpoint/support.h"
#include "tests/support/layouts.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

std::string text(const Layout& l) { return cat("tp", l.tp, " pp", l.pp, " dp", l.dp, " zero", l.zero); }

// The 50 power-of-two layouts, and some others.
std::vector<Layout> all_layouts() {
  std::vector<Layout> out{{1, 1, 3, 1}, {1, 3, 1, 0}, {2, 1, 3, 2}, {1, 1, 5, 0}};
  for (const EightRanks& l : layouts_of_eight()) out.push_back({l.tp, l.pp, l.dp, l.zero});
  return out;
}

// Exports the weights of a step to one HDF5 file, tensor by tensor; returns its hash.
std::string export_hash(const std::string& step, const std::string& to) {
  Vfs vfs;
  StepReader reader(vfs, step);
  std::vector<OutTensor> out;
  for (const TensorEntry& t : reader.manifest().tensors)
    if (t.name.rfind("master/", 0) == 0)
      out.push_back({t.name.substr(7), {t.shape.dim.begin(), t.shape.dim.begin() + t.shape.rank}, DType::kF32});
  write_h5(vfs, to, out, {}, [&](size_t k, int64_t first, int64_t count) {
    return reader.read(*reader.find("master/" + out[k].name), first, count);
  });
  return sha256_hex(slurp(to));
}

TEST_CASE("int8 weights are read with their scales, and scales that are not an f32 vector are refused") {
  std::vector<int8_t> codes{1, -2, 3, 127, 0, -127};
  std::vector<float> scales{0.5f, 2};
  const auto view = [](const char* name, auto& data, Shape full, DType dtype) {
    const auto n = static_cast<int64_t>(data.size());
    return ShardView{
        .name = name, .data = {reinterpret_cast<std::byte*>(data.data()), {n}, dtype, {}}, .full = full, .local = full};
  };
  const ShardView weight = view("master/w", codes, {2, 3}, DType::kI8);
  const auto saved = [&](const std::vector<ShardView>& views, const TempDir& dir) {
    const auto errors = run_ranks({}, [&](int, const Mesh& mesh) {
      save_checkpoint(dir.path, some_state(1), views, {}, {.zero_stage = 0}, mesh, host_device(), {});
    });
    REQUIRE(errors[0] == "");
    return dir.path + "/step-000000001";
  };
  Vfs vfs;
  {
    const TempDir dir;
    StepReader reader(vfs, saved({weight, view("scale/w", scales, {2}, DType::kF32)}, dir));
    CHECK(reader.read(*reader.find("master/w")) == std::vector<float>{0.5f, -1, 1.5f, 254, 0, -254});
    CHECK(reader.read(*reader.find("master/w"), 2, 2) == std::vector<float>{1.5f, 254});
  }
  std::vector<int8_t> own(2, 1);  // scales that refer to themselves
  for (const std::vector<ShardView>& views : {std::vector{weight},
                                              {weight, view("scale/w", own, {2, 1}, DType::kI8)},
                                              {weight, view("scale/w", scales, {2, 1}, DType::kF32)}}) {
    const TempDir dir;
    StepReader reader(vfs, saved(views, dir));
    CHECK_THROWS_WITH(reader.read(*reader.find("master/w")),
                      Catch::Contains("master/w is i8 [2, 3]; expected scale/w"));
  }
}

// Every layout writes; each is read by a few others, or by all with GPT_TEST_PAIRS=all (nightly.sh).
TEST_CASE("any layout reads what any other wrote, bitwise, and its export has one SHA-256", "[R08][R26]") {
  const bool all = std::getenv("GPT_TEST_PAIRS") != nullptr && std::string(std::getenv("GPT_TEST_PAIRS")) == "all";
  const std::vector<Layout> layouts = all_layouts();
  const TempDir out;
  std::set<std::string> hashes;
  int pairs = 0, good = 0;
  for (size_t k = 0; k < layouts.size(); ++k) {
    const TempDir dir;
    save(dir.path, layouts[k], 7);
    hashes.insert(export_hash(dir.path + "/step-000000007", out.path + "/w.h5"));
    for (size_t n = 0; n < layouts.size(); n += all ? 1 : 17) {
      const Layout& to = layouts[(n + (all ? 0 : k)) % layouts.size()];
      const std::string difference = load_and_compare(dir.path, to, 7);
      INFO(text(layouts[k]) << " -> " << text(to));
      CHECK(difference == "");
      ++pairs;
      good += difference.empty();
    }
  }
  CHECK(hashes.size() == 1);
  std::printf("reshard: %d of %d pairs bitwise, %zu SHA-256 over the exports of %zu layouts\n", good, pairs,
              hashes.size(), layouts.size());
}

TEST_CASE("any float dtype is read into any other: 16-bit widened, f32 rounded to nearest even") {
  const TempDir dir;
  const std::vector<float> wide{1, -2.5f, 1 + 0x1p-8f, 1 + 0x1.8p-7f, 3e-3f, -65504, 0, 0.1f, 1 + 0x1p-11f};
  const auto n = static_cast<int64_t>(wide.size());
  const auto bytes_of = [&](DType t) {
    std::vector<uint16_t> out;
    for (const float x : wide) out.push_back(t == DType::kBF16 ? bf16_from(x) : f16_from(x));
    return out;
  };
  std::vector<float> f32 = wide;
  std::vector<uint16_t> bf16 = bytes_of(DType::kBF16), f16 = bytes_of(DType::kF16);
  const auto view = [&](const char* name, void* data, DType t) {
    return ShardView{.name = name, .data = {static_cast<std::byte*>(data), {n}, t, {}}, .full = {n}, .local = {n}};
  };
  const auto errors = run_ranks({1, 1, 1, 1}, [&](int, const Mesh& mesh) {
    const std::vector<ShardView> saved{view("master/a", f32.data(), DType::kF32),
                                       view("master/b", bf16.data(), DType::kBF16),
                                       view("master/c", f16.data(), DType::kF16)};
    save_checkpoint(dir.path, some_state(1), saved, {}, {}, mesh, host_device(), {});
    std::vector<uint16_t> a(wide.size()), c(wide.size());
    std::vector<float> b(wide.size());
    const std::vector<ShardView> into{view("master/a", a.data(), DType::kBF16), view("master/b", b.data(), DType::kF32),
                                      view("master/c", c.data(), DType::kBF16)};
    GT_CHECK(load_checkpoint(dir.path, "auto", into, mesh, host_device(), {}));
    for (size_t i = 0; i < wide.size(); ++i) {
      GT_CHECK(a[i] == bf16_from(wide[i]), "f32 as bf16, element ", i);
      GT_CHECK(b[i] == f32_from_bf16(bf16[i]), "bf16 as f32, element ", i);
      GT_CHECK(c[i] == bf16_from(f32_from_f16(f16[i])), "f16 as bf16, element ", i);
    }
  });
  for (const auto& e : errors) CHECK(e == "");
  bf16[4] = 0x7f80;  // infinity
  const auto refused = run_ranks({1, 1, 1, 1}, [&](int, const Mesh& mesh) {
    const std::vector<ShardView> saved{view("master/b", bf16.data(), DType::kBF16)};
    save_checkpoint(dir.path, some_state(2), saved, {}, {}, mesh, host_device(), {});
  });
  CHECK_THAT(refused[0], Catch::Contains("master/b: element 4 of a rectangle") && Catch::Contains("not finite"));
}

TEST_CASE("the same layout, state and values produce identical shard bytes") {
  const TempDir a, b;
  save(a.path, {2, 1, 2, 1}, 3);
  save(b.path, {2, 1, 2, 1}, 3);
  for (const char* file : {"rank-00000.h5", "rank-00001.h5", "rank-00002.idx", "rank-00003.idx"})
    CHECK(slurp(a.path + "/step-000000003/" + file) == slurp(b.path + "/step-000000003/" + file));
}

TEST_CASE("a load reports state, path and configuration") {
  const TempDir dir;
  save(dir.path, {1, 1, 2, 1}, 4);
  const auto errors = run_ranks({2, 1, 1, 1}, [&](int r, const Mesh& mesh) {
    Rank rank(odd_model(), {2, 1, 1, 1}, r);
    const auto report = load_checkpoint(dir.path, "auto", rank.views, mesh, host_device(), {});
    GT_CHECK(report && report->path == dir.path + "/step-000000004" && report->config_json == "{\"model\":{}}\n" &&
             report->warnings.empty());
    GT_CHECK(report->state.lr_value == 0.1 + 0.2 && report->state.seed == 0xfedcba9876543210u &&
             report->state.data_json == some_state(4).data_json);
  });
  for (const auto& e : errors) CHECK(e == "");
  CHECK(read_state(dir.path + "/step-000000004").consumed_samples == 32);
  CHECK(read_aux(dir.path + "/step-000000004/", "config.json") == "{\"model\":{}}\n");
  CHECK(read_aux(dir.path + "/step-000000004", "tokenizer.model").empty());
  CHECK(slurp(dir.path + "/latest").substr(0, 15) == "step-000000004 ");
}

TEST_CASE("no folder and an empty folder mean no checkpoint, not an error") {
  const TempDir dir;
  const auto errors = run_ranks({2, 1, 1, 1}, [&](int r, const Mesh& mesh) {
    Rank rank(odd_model(), {2, 1, 1, 1}, r);
    GT_CHECK(!load_checkpoint(dir.path, "auto", rank.views, mesh, host_device(), {}));
    GT_CHECK(!load_checkpoint(dir.path + "/none", "auto", rank.views, mesh, host_device(), {}));
  });
  for (const auto& e : errors) CHECK(e == "");
}

TEST_CASE("weights alone are read from a full checkpoint") {
  const TempDir dir;
  save(dir.path, {2, 2, 1, 1}, 5);
  const auto errors = run_ranks({1, 1, 1, 1}, [&](int r, const Mesh& mesh) {
    Rank rank(odd_model(), {1, 1, 1, 1}, r, {"master"});
    rank.poison();
    load_step(dir.path + "/step-000000005", rank.views, mesh, host_device(), {});
    GT_CHECK(rank.difference(5).empty(), rank.difference(5));
  });
  CHECK(errors[0] == "");
}

TEST_CASE("a second copy of a tensor on the same rank is read and never written") {
  const TempDir dir;
  const auto errors = run_ranks({1, 1, 1, 1}, [&](int r, const Mesh& mesh) {
    Rank a(odd_model(), {1, 1, 1, 1}, r, {"master"}), b(odd_model(), {1, 1, 1, 1}, r, {"master"});
    a.fill(6);
    std::vector<ShardView> views = a.views;
    for (ShardView v : b.views)
      if (v.name == "master/embed.weight") {
        v.save = false;
        views.push_back(v);
      }
    REQUIRE(views.size() == a.views.size() + 1);
    save_checkpoint(dir.path, some_state(6), views, {}, {.retention = {.keep = 0}}, mesh, host_device(), {});
    a.poison();
    GT_CHECK(load_checkpoint(dir.path, "auto", views, mesh, host_device(), {}));
    GT_CHECK(a.difference(6).empty(), a.difference(6));
    const auto& copy = views.back();
    GT_CHECK(std::equal(copy.data.as<float>(), copy.data.as<float>() + copy.data.numel(),
                        std::find_if(views.begin(), views.end(), [](const ShardView& v) {
                          return v.name == "master/embed.weight";
                        })->data.as<float>()));
  });
  CHECK(errors[0] == "");
}

// A device whose copies happen only on synchronize(): a missing wait reads nothing.
struct LazyDevice {
  struct Copy {
    void* dst;
    const void* src;
    int64_t bytes;
  };
  static std::vector<Copy>& queue() {
    thread_local std::vector<Copy> q;
    return q;
  }
  static void drain() {
    for (const Copy& c : queue())
      if (c.src)
        std::memcpy(c.dst, c.src, static_cast<size_t>(c.bytes));
      else
        std::memset(c.dst, 0, static_cast<size_t>(c.bytes));
    queue().clear();
  }
  static DeviceApi api() {
    DeviceApi a = host_device();
    a.copy = [](void* dst, const void* src, int64_t n, Stream) { queue().push_back({dst, src, n}); };
    a.zero = [](void* dst, int64_t n, Stream) { queue().push_back({dst, nullptr, n}); };
    a.synchronize = [](Stream) { drain(); };
    return a;
  }
};

TEST_CASE("device tensors are copied by the device, and every copy is awaited") {
  const TempDir dir;
  const Stream stream{{DeviceKind::kCuda, 0}, nullptr};
  const auto errors = run_ranks({2, 1, 2, 1}, [&](int r, const Mesh& mesh) {
    const DeviceApi api = LazyDevice::api();
    Rank rank(odd_model(), {2, 1, 2, 1}, r);
    rank.fill(7);
    for (ShardView& v : rank.views) v.data.device = stream.device;
    save_checkpoint(dir.path, some_state(7), rank.views, {}, {.zero_stage = 1, .retention = {.keep = 0}}, mesh, api,
                    stream);
    rank.poison();
    load_checkpoint(dir.path, "auto", rank.views, mesh, api, stream);
    GT_CHECK(LazyDevice::queue().empty(), "copies left");
    GT_CHECK(rank.difference(7).empty(), rank.difference(7));
  });
  for (const auto& e : errors) CHECK(e == "");
  CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, 7) == "");
}

TEST_CASE("only the newest steps are kept, and steps of an abandoned branch are set aside") {
  const TempDir dir;
  const auto names = [&] {
    std::string out;
    for (const auto& c : list_checkpoints(dir.path)) out += cat(c.step, ":", c.status, " ");
    return out;
  };
  for (int64_t step : {1, 2, 3, 4}) save(dir.path, {1, 1, 2, 1}, step, odd_model(), 2);
  CHECK(names() == "3:ok 4:ok ");
  for (int64_t step : {5, 6}) save(dir.path, {1, 1, 2, 1}, step, odd_model(), 0);
  CHECK(names() == "3:ok 4:ok 5:ok 6:ok ");
  CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, 4, "4") == "");
  CHECK(names() == "3:ok 4:ok 5:abandoned 6:abandoned ");
  CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, 4) == "");
  // Another run starts over in the same folder: its step 2 has a lower number but is the current one.
  save(dir.path, {1, 1, 1, 1}, 2, odd_model(), 2);
  CHECK(names() == "2:ok 5:abandoned 6:abandoned ");
  save(dir.path, {1, 1, 1, 1}, 2, odd_model(), 2);  // again: the old step 2 is set aside
  CHECK(load_and_compare(dir.path, {1, 1, 2, 1}, 2) == "");
}

TEST_CASE("the checkpoints folder may be a link to another disk, and a relative path") {
  const TempDir dir;
  std::filesystem::create_directory(dir.path + "/scratch");
  std::filesystem::create_directory_symlink(dir.path + "/scratch", dir.path + "/checkpoints");
  save(dir.path + "/checkpoints", {1, 1, 2, 1}, 1);
  CHECK(load_and_compare(dir.path + "/checkpoints", {1, 1, 1, 1}, 1) == "");
  CHECK(load_and_compare(dir.path + "/scratch/", {1, 1, 1, 1}, 1) == "");
  CHECK(load_and_compare(std::filesystem::relative(dir.path + "/scratch").string(), {1, 1, 1, 1}, 1) == "");
}

TEST_CASE("inspect shows layout, state, tensors and their statistics") {
  const TempDir dir;
  save(dir.path, {2, 1, 2, 1}, 9);
  const std::string text = inspect_checkpoint(dir.path + "/step-000000009", {});
  for (const char* part : {"step 9", "tp2 pp1 dp2 zero1", "4 shards", "adamw", "cosine",
                           "layers.0.attn.qkv.weight  f32 [24, 7] in 3 blocks", "20 tensors"})
    CHECK_THAT(text, Catch::Contains(part));
  double low = 1e30, high = -1e30;
  for (int64_t k = 0; k < 11; ++k) {
    low = std::min<double>(low, value_of("master/layers.0.norm.weight", k, 9));
    high = std::max<double>(high, value_of("master/layers.0.norm.weight", k, 9));
  }
  char expected[80];
  std::snprintf(expected, sizeof expected, "min %.6g max %.6g", low, high);
  const std::string one =
      inspect_checkpoint(dir.path + "/step-000000009", {.tensor = "master/layers.0.norm.weight", .stats = true});
  CHECK_THAT(one,
             Catch::Contains(expected) && Catch::Contains("non-finite 0") && Catch::Contains("1 tensors, 11 elements"));
}

}  // namespace
}  // namespace gt::ckpt
