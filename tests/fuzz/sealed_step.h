// A small checkpoint whose seal and hashes are right, whatever is put into it: what a foreigner would send.
#pragma once
#include <map>
#include <string>

#include "checkpoint/manifest.h"

namespace gt::fuzz {

// A committed step of a model of one block in a folder of the memory file system, which goes with the process.
class SealedStep {
 public:
  SealedStep();
  const std::string& path() const { return path_; }
  Manifest manifest;                       // as it was written; changes count when seal() is called
  std::map<std::string, std::string> aux;  // name -> bytes: config.json

  // Writes aux files and manifest, the hashes made new.
  void seal();

 private:
  std::string path_;
};

}  // namespace gt::fuzz
