#include "launch/ranks/start/bundle.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "launch/ranks/start/own_process.h"

namespace gt {
namespace fs = std::filesystem;

std::string bundle_folder() {
  std::error_code ec;
  const fs::path folder = fs::path(own_program()).parent_path().parent_path();
  return fs::exists(folder / "share/gpttrain/bundle.txt", ec) ? folder.string() : "";
}

std::string find_program(const std::string& name) {
  const std::string bundle = bundle_folder();
  if (!bundle.empty() && access((bundle + "/bin/" + name).c_str(), X_OK) == 0) return bundle + "/bin/" + name;
  const char* path = std::getenv("PATH");
  std::istringstream in(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(in, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

void use_bundled_mpi() {
  const std::string folder = bundle_folder();
  if (folder.empty()) return;
  setenv("OPAL_PREFIX", folder.c_str(), 1);
  setenv("OPAL_SYSCONFDIR", (folder + "/etc/openmpi").c_str(), 1);
  setenv("PMIX_PREFIX", (folder + "/lib/pmix2").c_str(), 1);
}

}  // namespace gt
