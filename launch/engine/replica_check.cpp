#include "launch/engine/replica_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "checkpoint/world.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/host.h"
#include "launch/ranks/agree.h"

namespace gt {
namespace {

uint64_t hash_text(const std::string& s) {
  uint64_t h = 0xcbf29ce484222325;
  for (const char c : s) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return h;
}

uint32_t crc_of(const Tensor& t, const DeviceApi& api, Stream stream, std::vector<std::byte>& host) {
  if (t.device.kind == DeviceKind::kCpu) return crc32c(t.data, static_cast<size_t>(t.bytes()));
  host.resize(static_cast<size_t>(t.bytes()));
  api.copy(host.data(), t.data, t.bytes(), stream);
  api.synchronize(stream);
  return crc32c(host.data(), host.size());
}

// Returns "2 (node07, pp0 dp1 tp0)" for these ranks; hosts by rank.
std::string ranks_text(const std::vector<int>& ranks, const std::vector<std::string>& hosts, const Mesh& mesh) {
  std::vector<std::string> out;
  for (const int r : ranks)
    out.push_back(fmt::format("{} ({}, {})", r, hosts[static_cast<size_t>(r)], mesh.shape().coordinates(r)));
  return fmt::format("{}", fmt::join(out, ", "));
}

[[noreturn]] void fail_everywhere(const Mesh& mesh, const std::string& text, int reporter) {
  throw AgreedError(text +
                        ". Likely a memory or processor fault; none of this was saved: resume on other hardware from "
                        "the newest checkpoint, whose replicas were equal",
                    Exit::kHardware, mesh.rank() == reporter);
}

std::vector<ReplicaClaim> claims_from(const std::string& bytes) {
  std::vector<ReplicaClaim> out(bytes.size() / sizeof(ReplicaClaim));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(ReplicaClaim));
  return out;
}

}  // namespace

std::vector<ReplicaClaim> replica_claims(const std::vector<ShardView>& views, const DeviceApi& api, Stream stream) {
  std::vector<ReplicaClaim> out;
  std::vector<std::byte> host;
  api.synchronize(stream);
  for (size_t k = 0; k < views.size(); ++k) {
    const ShardView& v = views[k];
    std::string slice;  // ranks with other coordinates on these axes hold other elements
    for (const AxisShard& a : v.shard.axes)
      if (a.splits()) slice += fmt::format("{}{} ", name_of(a.axis), v.at[a.axis].rank);
    // A copy in another dtype (at O1 a frozen tied head holds 16 bits of an f32 table) is no replica.
    const std::string key = fmt::format("{} {}{} {} {}", v.name, slice, v.begin, v.data.numel(), name_of(v.data.dtype));
    out.push_back({hash_text(key), v.data.numel(), crc_of(v.data, api, stream, host), static_cast<int32_t>(k)});
  }
  return out;
}

ReplicaVerdict compare_replicas(std::span<const std::vector<ReplicaClaim>> all) {
  std::map<uint64_t, std::vector<std::pair<int, uint32_t>>> holders;
  ReplicaVerdict v;
  for (size_t r = 0; r < all.size(); ++r)
    for (const ReplicaClaim& c : all[r]) holders[c.key].emplace_back(static_cast<int>(r), c.crc);
  for (const auto& claims : all)
    for (const ReplicaClaim& c : claims) {
      const auto& same = holders[c.key];
      v.held += c.elements;
      if (same.size() > 1) v.covered += c.elements;
      const auto votes = [&](uint32_t crc) {
        return static_cast<size_t>(
            std::count_if(same.begin(), same.end(), [&](const auto& h) { return h.second == crc; }));
      };
      if (!v.equal || votes(c.crc) == same.size()) continue;
      v.equal = false;
      v.key = c.key;
      v.holders = static_cast<int>(same.size());
      for (const auto& [rank, crc] : same) v.majority = v.majority || 2 * votes(crc) > same.size();
      for (const auto& [rank, crc] : same)
        if (!v.majority || 2 * votes(crc) <= same.size()) v.odd.push_back(rank);
    }
  return v;
}

std::string require_equal_replicas(const Engine& engine, const DeviceApi& api, Stream stream, int64_t step) {
  const Mesh& mesh = engine.mesh();
  const std::vector<ShardView> views = engine.checkpoint_views();
  const std::vector<ReplicaClaim> mine = replica_claims(views, api, stream);
  std::vector<std::vector<ReplicaClaim>> all;
  std::vector<std::string> hosts;
  for (const std::string& one : gather_bytes(
           mesh.world(),
           pack({{reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(ReplicaClaim)}, host_name()}))) {
    const auto parts = unpack(one);
    all.push_back(claims_from(parts[0]));
    hosts.push_back(parts[1]);
  }
  const ReplicaVerdict v = compare_replicas(all);
  if (v.equal && v.covered == 0) return "replicas: no weights or optimizer state have a second copy to compare";
  if (v.equal)
    return fmt::format("replicas are equal: {:.0f} % of weights and optimizer state have a second copy",
                       100 * static_cast<double>(v.covered) / static_cast<double>(v.held));
  std::string name;
  for (const ReplicaClaim& c : mine)
    if (c.key == v.key) name = views[static_cast<size_t>(c.view)].name;
  fail_everywhere(mesh,
                  fmt::format("step {}: {} is not the same on the {} ranks that hold it: {}{} differ{}", step, name,
                              v.holders, v.odd.size() == 1 ? "rank " : "ranks ", ranks_text(v.odd, hosts, mesh),
                              v.majority ? v.odd.size() == 1 ? "s from the others" : " from the others"
                                         : " from each other; which of them is correct is unknown"),
                  v.odd.front());
}

std::string first_wrong_rounding(const Engine& engine, const Backend& backend, Stream stream) {
  std::vector<std::byte> is, should;
  for (const TensorRange& r : engine.store().ranges()) {
    const Tensor value = r.rounded();
    if (!value || value.numel() == 0 || r.fake_quantized) continue;
    const Buffer scratch(value.bytes(), value.device, *backend.device);
    const Tensor rounded = scratch.tensor(value.shape, value.dtype);
    backend.ops->cast({.src = r.master, .dst = rounded}, stream);
    is.resize(static_cast<size_t>(value.bytes()));
    should.resize(is.size());
    backend.device->copy(is.data(), value.data, value.bytes(), stream);
    backend.device->copy(should.data(), rounded.data, value.bytes(), stream);
    backend.device->synchronize(stream);
    const auto [a, b] = std::mismatch(is.begin(), is.end(), should.begin());
    if (a == is.end()) continue;
    return fmt::format("element {} of FSDP unit {}", r.at + (a - is.begin()) / size_of(value.dtype), r.unit);
  }
  return "";
}

std::vector<uint32_t> gradient_crcs(const Engine& engine, const DeviceApi& api, Stream stream) {
  std::vector<uint32_t> out;
  std::vector<std::byte> host;
  api.synchronize(stream);
  for (const ShardView& v : engine.store().grad_views()) out.push_back(crc_of(v.data, api, stream, host));
  return out;
}

void require_equal_gradients(const Engine& engine, const std::vector<uint32_t>& first,
                             const std::vector<uint32_t>& second, int64_t step) {
  const Mesh& mesh = engine.mesh();
  const auto [a, b] = std::mismatch(first.begin(), first.end(), second.begin(), second.end());
  const std::string name =
      a == first.end() ? "" : engine.store().grad_views()[static_cast<size_t>(a - first.begin())].name;
  std::vector<int> odd;
  std::vector<std::string> hosts;
  std::string tensor;
  for (const std::string& one : gather_bytes(mesh.world(), pack({name, host_name()}))) {
    const auto parts = unpack(one);
    if (!parts[0].empty()) odd.push_back(static_cast<int>(hosts.size()));
    if (tensor.empty()) tensor = parts[0];
    hosts.push_back(parts[1]);
  }
  if (odd.empty()) return;
  fail_everywhere(mesh,
                  fmt::format("step {} run twice gave different gradients: {} and possibly others differ on {}{}", step,
                              tensor, odd.size() == 1 ? "rank " : "ranks ", ranks_text(odd, hosts, mesh)),
                  odd.front());
}

}  // namespace gt
