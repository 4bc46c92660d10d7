#include "tests/checkpoint/support.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <sstream>
#include <thread>

#include "kernels/core/hash/crc32c.h"
#include "parallel/comm/threads/thread_group.h"
#include "parallel/zero/flat_layout.h"

namespace gt::ckpt {
namespace fs = std::filesystem;

std::vector<Param> odd_model() {
  return {{"embed.weight", {21, 5}, ShardSpec::split(0), true},
          {"layers.0.attn.qkv.weight", {24, 7}, ShardSpec::split(0, 3)},
          {"layers.0.attn.qkv.bias", {24}, ShardSpec::split(0, 3)},
          {"layers.0.grouped.weight", {24, 3}, ShardSpec::qkv(8, 2)},
          {"layers.0.attn.out.weight", {6, 8}, ShardSpec::split(1)},
          {"layers.0.norm.weight", {11}, ShardSpec::replicate()},
          {"layers.1.cube.weight", {8, 3, 5}, ShardSpec::split(0)},
          {"layers.1.mlp.fused.weight", {5, 24}, ShardSpec::split(1, 3)},
          {"layers.1.column.weight", {8, 1}, ShardSpec::split(0)},
          {"final_norm.weight", {1}, ShardSpec::replicate()}};
}

float value_of(const std::string& name, int64_t element, uint32_t version) {
  const uint32_t bits = crc32c(&element, sizeof element, crc32c(name.data(), name.size(), version));
  return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-24f;
}

Rank::Rank(const std::vector<Param>& model, const Layout& l, int rank, std::vector<std::string> groups) {
  const int tp_rank = rank % l.tp, dp_rank = rank / l.tp % l.dp, pp_rank = rank / l.tp / l.dp;
  std::vector<ShardView> local;  // of this stage, without data yet
  std::vector<int64_t> numels;
  for (size_t k = 0; k < model.size(); ++k) {
    if (static_cast<int>(k * static_cast<size_t>(l.pp) / model.size()) != pp_rank) continue;
    const Param& p = model[k];
    ShardView v;
    v.name = p.name;
    v.full = v.local = p.full;
    v.shard = p.shard;
    v.at = RankCoordinates({tp_rank, l.tp});
    if (p.padded) v.pad_rows = v.local.dim[0] = (p.full[0] + 7) / 8 * 8;
    for (int d = 0; d < v.local.rank; ++d)
      v.local.dim[static_cast<size_t>(d)] = local_extent(p.shard, d, v.local[d], v.at);
    local.push_back(v);
    numels.push_back(v.local.numel());
  }
  const FlatLayout flat = flat_layout(numels, l.dp, 8);
  for (const std::string& group : groups) {
    memory.emplace_back(static_cast<size_t>(flat.size));
    float* base = memory.back().data();
    for (int r = 0; r < l.dp; ++r)
      for (const FlatSegment& s : flat.segments[static_cast<size_t>(r)]) {
        if (l.zero > 0 && r != dp_rank) continue;
        ShardView v = local[static_cast<size_t>(s.tensor)];
        v.name = group + "/" + v.name;
        // Slices of a split tensor that several TP ranks hold are saved by the first of them.
        const AxisShard cut = v.shard.tp();
        const int copies = cut.copies(l.tp);
        const int64_t alone =
            copies > 1 ? unshared_extent(cut, v.full[0], l.tp) * v.local.numel() / v.local[0] : v.local.numel();
        for (const auto& [from, to, mine] :
             {std::tuple{s.begin, std::min(alone, s.begin + s.count), true},
              std::tuple{std::max(alone, s.begin), s.begin + s.count, tp_rank % copies == 0}}) {
          if (from >= to) continue;
          ShardView piece = v;
          piece.data = {reinterpret_cast<std::byte*>(base + s.at + from - s.begin), {to - from}, DType::kF32, {}};
          piece.begin = from;
          piece.save = v.save && mine && r == dp_rank;
          views.push_back(piece);
        }
      }
  }
  assign_over_tp(views);
}

void Rank::fill(uint32_t version) {
  for (const ShardView& v : views)
    for (int64_t k = 0; k < v.data.numel(); ++k) {
      const int64_t e = logical_offset(v, v.begin + k);
      v.data.as<float>()[k] = e < 0 ? 0.f : value_of(v.name, e, version);
    }
}

void Rank::poison() {
  for (const ShardView& v : views)
    std::fill_n(v.data.as<float>(), v.data.numel(), std::numeric_limits<float>::quiet_NaN());
}

std::string Rank::difference(uint32_t version) const {
  for (const ShardView& v : views)
    for (int64_t k = 0; k < v.data.numel(); ++k) {
      const int64_t e = logical_offset(v, v.begin + k);
      const float expected = e < 0 ? 0.f : value_of(v.name, e, version), found = v.data.as<float>()[k];
      if (std::memcmp(&expected, &found, sizeof expected) != 0)
        return cat(v.name, " element ", e, " (local ", v.begin + k, "): ", found, ", expected ", expected);
    }
  return "";
}

const DeviceApi& host_device() {
  static const DeviceApi api = [] {
    DeviceApi a;
    a.name = "host";
    a.copy = [](void* dst, const void* src, int64_t n, Stream) { std::memcpy(dst, src, static_cast<size_t>(n)); };
    a.alloc_host = [](int64_t n) { return std::malloc(static_cast<size_t>(n)); };
    a.free_host = [](void* p, int64_t) { std::free(p); };
    a.zero = [](void* dst, int64_t n, Stream) { std::memset(dst, 0, static_cast<size_t>(n)); };
    a.synchronize = [](Stream) {};
    a.describe = [](int) { return std::string("test memory"); };
    return a;
  }();
  return api;
}

std::vector<std::string> run_ranks(const Layout& l, const std::function<void(int, const Mesh&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(l.world()));
  ThreadWorld world(l.world(), std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (int r = 0; r < l.world(); ++r)
    threads.emplace_back([&, r] {
      auto& mine = errors[static_cast<size_t>(r)];
      try {
        const auto factory = world.factory(r);
        const Mesh mesh({.pp = l.pp, .dp = l.dp, .ep = l.ep, .tp = l.tp}, *factory);
        try {
          body(r, mesh);
        } catch (const Error& e) {
          mine = cat(static_cast<int>(e.code()), ": ", e.what());
          world.abort(r, e.what(), e.code());
        }
      } catch (const std::exception& e) {
        if (mine.empty()) mine = e.what();
        world.abort(r, e.what());
      }
    });
  for (auto& t : threads) t.join();
  return errors;
}

TrainState some_state(int64_t step) {
  TrainState s;
  s.step = step;
  s.consumed_samples = step * 8;
  s.consumed_tokens = step * 8 * 64;
  s.skipped_steps = 1;
  s.consecutive_skips = 1;
  s.scaler = {0x1p15, 3, 2};
  s.applied_steps = step - 1;
  s.schedule_steps = step + 1;
  s.run_uuid = "00112233445566778899aabbccddeeff";
  s.elapsed_seconds = 1.0 / 3;
  s.seed = 0xfedcba9876543210u;
  s.optim_type = "adamw";
  s.lr_type = "cosine";
  s.lr_value = 0.1 + 0.2;
  s.global_batch = 8;
  s.micro_batch = 2;
  s.best_loss = 2.0 / 7;
  s.best_step = step - 1;
  s.data_json = cat("{\"consumed_samples\":", step * 8,
                    ",\"skip_windows\":[[3,5]],\"data\":{\"seed\":1,\"order\":\"epoch\",\"weight\":0.1}}");
  s.anomaly_json = "{\"loss\":[\"0x1.8p+1\"],\"consecutive\":1}";
  s.carry = "{\"later\":{\"x\":[1,2]}}";
  return s;
}

TempDir::TempDir(bool on_disk) {
  const bool memory = !on_disk && ::access("/dev/shm", W_OK) == 0;
  path = cat(memory ? "/dev/shm" : fs::temp_directory_path().string(), "/gpttrain-test-ckpt-XXXXXX");
  GT_CHECK(::mkdtemp(path.data()) != nullptr, path);
}
TempDir::~TempDir() {
  std::error_code ec;
  for (fs::recursive_directory_iterator it(path, fs::directory_options::skip_permission_denied, ec), end; it != end;
       it.increment(ec))
    if (it->is_directory(ec)) fs::permissions(it->path(), fs::perms::owner_all, ec);
  fs::remove_all(path, ec);
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  GT_CHECK(in.good(), path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void spill(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  GT_CHECK(out.good(), path);
}

void save(const std::string& dir, const Layout& l, int64_t step, const std::vector<Param>& model, int keep) {
  const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
    Rank rank(model, l, r);
    rank.fill(static_cast<uint32_t>(step));
    save_checkpoint(dir, some_state(step), rank.views,
                    {{.name = "config.json", .path = "", .text = "{\"model\":{}}\n"}},
                    {.zero_stage = l.zero, .retention = {.keep = keep}}, mesh, host_device(), {});
  });
  for (const std::string& e : errors) GT_CHECK(e.empty(), e);
}

std::string load_and_compare(const std::string& dir, const Layout& l, int64_t step, const std::string& which,
                             const std::vector<Param>& model) {
  std::string text;
  std::mutex lock;
  const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
    Rank rank(model, l, r);
    rank.poison();
    const auto report = load_checkpoint(dir, which, rank.views, mesh, host_device(), {});
    GT_CHECK(report.has_value(), "no checkpoint");
    GT_CHECK(report->state.step == step, "loaded step ", report->state.step);
    const std::string d = rank.difference(static_cast<uint32_t>(step));
    const std::lock_guard guard(lock);
    if (!d.empty()) text += cat("rank ", r, ": ", d, "\n");
  });
  for (const std::string& e : errors)
    if (!e.empty()) text += e + "\n";
  return text;
}

}  // namespace gt::ckpt
