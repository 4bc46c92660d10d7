// Shards are plain HDF5: third-party readers get every value.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "tests/checkpoint/support.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;

std::string output_of(const std::string& command) {
  std::string out;
  FILE* p = ::popen((command + " 2>&1").c_str(), "r");
  GT_CHECK(p != nullptr, command);
  char text[4096];
  while (const size_t n = std::fread(text, 1, sizeof text, p)) out.append(text, n);
  ::pclose(p);
  return out;
}

void expect(const std::string& dir, std::string name, int64_t count, int64_t step, bool bf16) {
  std::string bytes;
  for (int64_t k = 0; k < count; ++k) {
    float v = value_of(name, k, static_cast<uint32_t>(step));
    if (bf16) {
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof bits);
      bits &= 0xffff0000u;
      std::memcpy(&v, &bits, sizeof v);
    }
    bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  for (size_t at; (at = name.find('/')) != std::string::npos;) name.replace(at, 1, "__");
  spill(dir + "/" + name + ".f32", bytes);
}

TEST_CASE("h5py reads every tensor of every shard, bfloat16 included") {
  const std::string python = source_dir() + "/build/readers/bin/python";
  if (!fs::exists(python)) { GT_SKIP("no " + python + "; make it with tests/readers/setup.sh"); }
  const TempDir dir, expected;
  const Layout layout{2, 2, 2, 1};
  const auto errors = run_ranks(layout, [&](int r, const Mesh& mesh) {
    Rank rank(odd_model(), layout, r);
    rank.fill(5);
    // A tensor of 2-byte floats, whole, on the last rank.
    std::vector<uint16_t> bf16(3 * 4);
    for (size_t k = 0; k < bf16.size(); ++k) {
      const float v = value_of("model/half.weight", static_cast<int64_t>(k), 5);
      std::memcpy(&bf16[k], reinterpret_cast<const char*>(&v) + 2, 2);
    }
    ShardView v{.name = "model/half.weight",
                .data = {reinterpret_cast<std::byte*>(bf16.data()), {12}, DType::kBF16, {}},
                .full = {3, 4},
                .local = {3, 4}};
    if (r == layout.world() - 1) rank.views.push_back(v);
    save_checkpoint(dir.path, some_state(5), rank.views, {},
                    {.zero_stage = 1, .retention = {.keep = 0}, .how = {.part_bytes = 60000, .index_h5 = true}}, mesh,
                    host_device(), {});
  });
  for (const auto& e : errors) REQUIRE(e == "");
  for (const Param& p : odd_model())
    for (const char* group : {"master/", "optim/exp_avg/"})
      expect(expected.path, group + p.name, p.full.numel(), 5, false);
  expect(expected.path, "model/half.weight", 12, 5, true);
  const std::string out = output_of(python + " " + source_dir() + "/tests/checkpoint/read_h5.py " + dir.path +
                                    "/step-000000005 " + expected.path);
  CHECK_THAT(out, Catch::StartsWith("OK 21 tensors in "));
  const std::string whole = output_of("cd / && " + python + " " + source_dir() + "/tests/checkpoint/read_index_h5.py " +
                                      dir.path + "/step-000000005 " + expected.path);
  CHECK(whole == "OK 21 tensors, 10 of them also as model/\n");
}

}  // namespace
}  // namespace gt::ckpt
