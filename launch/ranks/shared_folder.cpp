#include "launch/ranks/shared_folder.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include "checkpoint/world.h"
#include "kernels/core/files.h"
#include "kernels/core/host.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/run_file.h"

namespace gt {
namespace {

// Retries, because network file systems may show another machine's write with a delay.
bool finds(const std::string& path, const std::string& word) {
  for (int tries = 0; tries < 20; ++tries) {
    if (read_if_there(path) == word + "\n") return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

}  // namespace

void require_shared_folder(ProcessGroup& world, const std::string& dir) {
  if (world.size() == 1) return;
  std::string word = shared_uuid(world);
  const std::string path = dir + "/.seen";
  std::error_code ec;
  agree(world, [&] {
    if (world.rank() != 0) return;
    std::filesystem::create_directories(dir, ec);
    GT_REQUIRE(!std::filesystem::is_symlink(path, ec), Exit::kUsage, path,
               ": is a symbolic link, and nothing is written through one; remove it");
    try {
      write_run_file(path, word + "\n");
    } catch (const Error&) { word.clear(); }  // each save will report the reason
  });
  word = broadcast_bytes(world, word, 0);
  if (word.empty()) return;
  const std::string blind = finds(path, word) ? "" : cat(world.rank(), " (", host_name(), ")");
  std::string who;
  for (const std::string& rank : gather_bytes(world, blind))
    if (!rank.empty()) who += cat(who.empty() ? "" : ", ", rank);
  if (world.rank() == 0) std::filesystem::remove(path, ec);
  agree(world, [&] {
    GT_REQUIRE(who.empty(), Exit::kUsage, "checkpoint.dir ", dir, ": a file written by rank 0 (", host_name(),
               ") is not visible to rank ", who,
               "; all ranks need one shared folder, on a network file system if there are several machines");
  });
}

}  // namespace gt
