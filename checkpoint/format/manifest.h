// manifest.json: the contents of a checkpoint and the trainer state. Its last line is a SHA-256 of everything before.
// Converts from and to text; opens no files.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/index_file.h"

namespace gt {

constexpr int64_t kManifestLimit = int64_t{256} << 20;  // bytes
// List length limit: a model of 1024 layers has 37,000 tensors including optimizer state.
constexpr size_t kMostEntries = 65536;

struct ShardFile {
  std::string name;  // rank-00000.h5; its index is rank-00000.idx
  int64_t bytes = 0, idx_bytes = 0;
  std::string idx_sha256;
  std::string sha256;  // of the .h5; empty: not computed
  std::string idx_name() const { return name.substr(0, name.size() - 3) + ".idx"; }
};

struct AuxEntry {
  std::string name;
  int64_t bytes = 0;
  std::string sha256;
};

struct TensorEntry : TensorShape {
  int blocks = 1;                          // fused blocks along the split dimension: 3 for fused Q, K, V
  std::vector<std::pair<int, int>> files;  // runs [first, last] of indices into Manifest::files
};

struct Manifest {
  int major = 1, minor = 0;
  Uuid uuid{};
  int64_t step = 0;
  std::string created;                              // UTC
  std::string version, git, compiler, isa, device;  // writer build and device
  MeshShape mesh;
  int vpp = 1, zero = 0;
  std::vector<ShardFile> files;
  std::vector<AuxEntry> aux;
  std::vector<TensorEntry> tensors;                       // sorted by name, unique
  std::vector<std::pair<std::string, std::string>> ties;  // alias, stored name
  TrainState state;

  std::vector<TensorShape> shapes() const { return {tensors.begin(), tensors.end()}; }
  std::string layout() const;  // "tp2 pp4 dp2 zero1"
  int64_t bytes() const;       // of all files except the manifest
};

std::string layout_json(const Manifest&);

// Serializes with one top-level key per line; the last line holds the SHA-256 of all bytes before it.
std::string to_text(const Manifest&);
// Parses a manifest; checks the seal before anything else. kDamaged naming `where`; kUsage for a newer major version,
// naming both versions and the writer.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace gt
