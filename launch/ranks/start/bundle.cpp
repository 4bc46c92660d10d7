#include "launch/ranks/start/bundle.h"

#include <cstdlib>
#include <filesystem>

#include "launch/ranks/start/own_process.h"

namespace gt {
namespace fs = std::filesystem;

std::string bundle_folder() {
  std::error_code ec;
  const fs::path folder = fs::path(own_program()).parent_path().parent_path();
  return fs::exists(folder / "share/gpttrain/bundle.txt", ec) ? folder.string() : "";
}

void use_bundled_mpi() {
  const std::string folder = bundle_folder();
  if (folder.empty()) return;
  setenv("OPAL_PREFIX", folder.c_str(), 1);
  setenv("OPAL_SYSCONFDIR", (folder + "/etc/openmpi").c_str(), 1);
  setenv("PMIX_PREFIX", (folder + "/lib/pmix2").c_str(), 1);
}

}  // namespace gt
