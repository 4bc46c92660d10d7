// Interoperability of shards: libhdf5 must find every tensor where the index has it, and nothing else.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>

#include "checkpoint/format/h5_gate.h"
#include "checkpoint/format/h5_make.h"
#include "checkpoint/format/index_file.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/skeleton.h"
#include "checkpoint/store/steps.h"
#include "checkpoint/verify.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/hash/sha256.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

std::vector<Finding> findings_of(const std::string& step, bool deep) {
  Vfs vfs;
  return verify_step(vfs, step, {.deep = deep}).findings;
}

// Recomputes every checksum and hash after `change` to the bytes of the first shard.
void reseal(const std::string& step, const std::function<void(std::string&)>& change) {
  std::string shard = slurp(step + "/rank-00000.h5");
  change(shard);
  spill(step + "/rank-00000.h5", shard);
  Manifest m = parse_manifest(slurp(step + "/manifest.json"), step);
  ShardIndex x = decode_index(slurp(step + "/rank-00000.idx"), step, m.shapes());
  for (size_t b = 0; b < x.blocks.size(); ++b) {
    const size_t at = b << kBlockBits;
    x.blocks[b] = crc32c(shard.data() + at, std::min(shard.size() - at, size_t{1} << kBlockBits));
  }
  const std::string index = encode(x);
  spill(step + "/rank-00000.idx", index);
  m.files[0].idx_sha256 = sha256_hex(index);
  m.files[0].bytes = static_cast<int64_t>(shard.size());
  spill(step + "/manifest.json", to_text(m));
}

// Writes the metadata that libhdf5 would produce for the shard with other rectangles.
void put_metadata(std::string& shard, const std::string& step,
                  const std::function<void(std::vector<DataSet>&)>& change) {
  const Manifest m = parse_manifest(slurp(step + "/manifest.json"), step);
  const ShardIndex x = decode_index(slurp(step + "/rank-00000.idx"), step, m.shapes());
  std::vector<DataSet> sets;
  for (const SliceRecord& r : x.records) {
    const std::string& name = m.tensors[r.tensor].name;
    if (sets.empty() || sets.back().name != name) sets.push_back({name, r.dtype, m.tensors[r.tensor].shape, {}});
    sets.back().boxes.push_back(r.box);
  }
  change(sets);
  const Skeleton s = make_skeleton(sets, ShardHead{m.step, to_string(m.uuid), layout_json(m), 0, 0}, "/tmp");
  REQUIRE(s.file_bytes == static_cast<int64_t>(shard.size()));
  for (const auto& [at, bytes] : s.metadata) shard.replace(static_cast<size_t>(at), bytes.size(), bytes);
}

TEST_CASE("libhdf5 reads every rectangle of every layout at the index's offset") {
  for (const Layout& l : {Layout{1, 1, 1, 0}, Layout{2, 1, 3, 1}, Layout{4, 1, 2, 2}}) {
    const TempDir dir;
    save(dir.path, l, 4);
    for (const Finding& f : findings_of(dir.path + "/step-000000004", true)) FAIL_CHECK(to_string(f));
  }
}

// In a process that can map one more MiB: 0 where the lack is an error, after which the same call succeeds with memory.
int code_without_memory() {
  Box box;
  box.ndim = 1, box.extent[0] = 4;
  Shape global;
  global.rank = 1, global.dim[0] = 4;
  std::vector<DataSet> sets;
  for (int k = 1000; k < 5000; ++k) sets.push_back({cat("a/", k), DType::kF32, global, {box}});
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (1 << 20));
  setrlimit(RLIMIT_AS, &limit);
  for (void* volatile block = &limit; block != nullptr;) block = std::malloc(1 << 20);  // what earlier cases freed
  try {
    make_skeleton(sets, ShardHead{}, "/tmp");
    return 2;
  } catch (const std::bad_alloc&) {}
  limit.rlim_cur = before;
  setrlimit(RLIMIT_AS, &limit);
  return make_skeleton(sets, ShardHead{}, "/tmp").offsets.size() == sets.size() ? 0 : 3;
}

TEST_CASE("a lack of memory for libhdf5, which would end the process, is an error") {
  if (kSanitized) return;  // they map terabytes
  const pid_t child = fork();
  if (child == 0) _exit(code_without_memory());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  INFO("status " << status);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("libhdf5's scratch file loses its name before anything is laid out in it") {
  for (const std::string dir : {"/dev/shm", "/tmp"}) {
    const H5Session session;
    const H5TempFile temp(dir);
    CHECK(std::filesystem::exists(temp.path()));
    H5Id file = temp.create(H5P_DEFAULT, H5P_DEFAULT);
    CHECK_FALSE(std::filesystem::exists(temp.path()));  // a kill from here on leaves nothing
    h5_text(file, "format", "here");
    file.close("closing");
    CHECK(lseek(temp.fd(), 0, SEEK_END) > 0);
  }
}

TEST_CASE("deep verification finds a shard with valid checksums and inconsistent HDF5 metadata") {
  const TempDir dir;
  save(dir.path, {1, 1, 2, 1}, 4);
  const std::string step = dir.path + "/step-000000004", good = slurp(step + "/rank-00000.h5");
  const auto again = [&](const std::function<void(std::vector<DataSet>&)>& change) {
    reseal(step, [&](std::string& shard) {
      shard = good;
      put_metadata(shard, step, change);
    });
    CHECK(findings_of(step, false).empty());
    return findings_of(step, true);
  };
  CHECK(again([](auto&) {}).empty());
  std::vector<Finding> f = again([](auto& sets) { ++sets[0].boxes[0].at[0]; });
  REQUIRE(f.size() == 1);
  CHECK_THAT(to_string(f[0]), Catch::Contains("rank-00000.h5") && Catch::Contains("rects [1 0"));
  f = again([](auto& sets) { sets[2].global.dim[0] += 5; });
  REQUIRE(f.size() == 1);
  CHECK_THAT(to_string(f[0]), Catch::Contains("global_shape"));
  f = again([](auto& sets) { sets[1].name.back() = 'X'; });
  REQUIRE(f.size() == 2);                 // one missing, one unexpected
  reseal(step, [&](std::string& shard) {  // one bit of an object header, below HDF5's own checksum
    shard = good;
    char& byte = shard.at(shard.find("OHDR", shard.find("OHDR") + 4) + 8);
    byte = static_cast<char>(byte ^ 1);
  });
  CHECK(findings_of(step, false).empty());
  CHECK_FALSE(findings_of(step, true).empty());
}

TEST_CASE("a shard can carry its SHA-256, and be read back from disk before the commit") {
  const TempDir dir;
  const auto errors = run_ranks({2, 1, 2, 1}, [&](int r, const Mesh& mesh) {
    Rank rank(odd_model(), {2, 1, 2, 1}, r);
    rank.fill(1);
    save_checkpoint(dir.path, some_state(1), rank.views, {},
                    {.zero_stage = 1, .how = {.readback = true, .hash = ShardHash::kSha256}}, mesh, host_device(), {});
  });
  for (const auto& e : errors) CHECK(e == "");
  const std::string step = dir.path + "/step-000000001";
  const Manifest m = parse_manifest(slurp(step + "/manifest.json"), step);
  REQUIRE(m.files.size() == 4);
  for (const ShardFile& f : m.files) CHECK(f.sha256 == sha256_hex(slurp(step + "/" + f.name)));
  CHECK(findings_of(step, true).empty());
  reseal(step, [](std::string& shard) { shard.back() = static_cast<char>(shard.back() ^ 1); });
  const std::vector<Finding> f = findings_of(step, false);  // checksums were recomputed, the hash was not
  bool named = false;
  for (const Finding& x : f) named = named || x.expected.rfind("SHA-256", 0) == 0;
  CHECK(named);
}

}  // namespace
}  // namespace gt::ckpt
