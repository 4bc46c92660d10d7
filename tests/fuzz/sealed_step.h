// A small checkpoint whose seal and hashes are right, whatever is put into it: what a foreigner would send.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "checkpoint/manifest.h"

namespace gt::fuzz {

// A committed step of a model of one block, its weights all alike, in a folder of the memory file system, which goes
// with the process.
class SealedStep {
 public:
  explicit SealedStep(int vocab = 300, float weight = 0.01f);
  const std::string& path() const { return path_; }
  Manifest manifest;                       // as it was written; changes count when seal() is called
  std::map<std::string, std::string> aux;  // name -> bytes: config.json
  std::string index;                       // of the one shard

  // Writes aux files, index and manifest, the hashes made new.
  void seal();

 private:
  std::string path_;
};

// The same bytes with right checksums, and a manifest's body with its seal.
std::string repaired_index(std::string_view input);
std::string sealed_manifest(std::string_view body);

}  // namespace gt::fuzz
