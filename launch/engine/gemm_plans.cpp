#include "launch/engine/gemm_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "checkpoint/world.h"
#include "kernels/core/files.h"
#include "launch/engine/gemm_shapes.h"

namespace gt {
namespace fs = std::filesystem;
namespace {

std::string bytes_of(const std::vector<GemmShape>& kinds) {
  return {reinterpret_cast<const char*>(kinds.data()), kinds.size() * sizeof(GemmShape)};
}

// Merges the shapes of all ranks without duplicates, in byte order.
std::vector<GemmShape> together(const std::vector<std::string>& lists) {
  std::set<GemmShape> all;
  for (const std::string& list : lists)
    for (size_t at = 0; at + sizeof(GemmShape) <= list.size(); at += sizeof(GemmShape)) {
      GemmShape k;
      std::memcpy(&k, list.data() + at, sizeof k);
      all.insert(k);
    }
  return {all.begin(), all.end()};
}

// Writes to a temporary file and renames it. On failure the run continues without its copy.
void write(const std::string& path, const std::string& text) {
  std::error_code ec;
  const std::string aside = path + ".new";
  std::ofstream out(aside);
  out << text;
  out.close();
  if (out.good()) fs::rename(aside, path, ec);
  if (!out.good() || ec)
    fmt::print(stderr, "warning: {}: cannot write; a resumed run may use other algorithms\n", path);
}

int64_t entries(const std::string& table) { return std::count(table.begin(), table.end(), '|'); }

// Times all shapes on the first rank of its GPU type and returns the table.
std::string time_all(const std::vector<GemmShape>& kinds, const Backend& backend, Stream stream,
                     const std::string& own) {
  const std::string kept = own.empty() ? "" : read_if_there(own);
  const std::string why = backend.take_gemm_plans(kept.empty() ? backend.gemm_plans() : kept, false);
  if (!why.empty()) fmt::print(stderr, "warning: {} is not used: {}\n", own, why);
  const int64_t before = entries(backend.gemm_plans());
  const auto begin = std::chrono::steady_clock::now();
  run_gemms(kinds, backend, stream);
  std::string table = backend.gemm_plans();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (entries(table) > before)
    fmt::print(stderr, "device.gemm_tune: {} GEMM shapes timed in {:.1f} s\n", entries(table) - before, seconds);
  if (!own.empty() && table != kept) write(own, table);
  return table;
}

}  // namespace

void settle_gemm_plans(const Config& c, const EngineOptions& options, const Mesh& mesh, const Backend& backend,
                       int device, Stream stream, const std::string& run_folder) {
  if (c.device.gemm_tune != GemmTune::kAuto || backend.take_gemm_plans == nullptr) return;
  ProcessGroup& world = mesh.world();
  // Replicas and the ranks of a TP group run the same GEMM shapes.
  const bool is_rank0 = mesh.coord(Axis::kDp) == 0 && mesh.coord(Axis::kTp) == 0;
  const std::vector<GemmShape> kinds = together(
      gather_bytes(world, is_rank0 ? bytes_of(gemm_shapes(options, mesh.shape(), mesh.rank())) : std::string()));
  const std::string mine = backend.gemm_identity(device);
  const std::vector<std::string> identities = gather_bytes(world, mine);
  std::set<std::string> settled;
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string& type = identities[static_cast<size_t>(rank)];
    if (!settled.insert(type).second) continue;
    const std::string own = run_folder.empty() ? "" : fmt::format("{}/gemm-plans-{}.txt", run_folder, settled.size());
    std::string table;
    if (rank == world.rank()) table = time_all(kinds, backend, stream, own);
    table = broadcast_bytes(world, table, rank);
    if (type == mine) backend.take_gemm_plans(table, true);
  }
}

}  // namespace gt
