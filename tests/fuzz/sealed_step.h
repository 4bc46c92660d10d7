// A small checkpoint with valid seal and hashes, whatever its contents: what an attacker would send.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "checkpoint/format/manifest.h"

namespace gt::fuzz {

// A committed step of a one-block model with all weights equal, in a memory-backed folder that is removed with the
// process.
class SealedStep {
 public:
  explicit SealedStep(int vocab = 300, float weight = 0.01f);
  const std::string& path() const { return path_; }
  Manifest manifest;                       // as written; seal() applies changes
  std::map<std::string, std::string> aux;  // name -> bytes: config.json
  std::string index;                       // of the single shard

  // Writes aux files, index and manifest with recomputed hashes.
  void seal();

 private:
  std::string path_;
};

// Return an index with repaired checksums, and a sealed manifest.
std::string repaired_index(std::string_view input);
std::string sealed_manifest(std::string_view body);

}  // namespace gt::fuzz
