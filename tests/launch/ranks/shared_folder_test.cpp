// Ranks without a shared folder are detected at the start and named.
#include "launch/ranks/shared_folder.h"

#include <filesystem>

#include "tests/launch/process.h"
#include "tests/launch/ranks/agreed_errors.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// Returns each rank's error if rank k uses dirs[k].
std::vector<std::string> errors_of(const std::vector<std::string>& dirs) {
  return agreed_errors(static_cast<int>(dirs.size()), [&](ProcessGroup& world, int rank) {
    require_shared_folder(world, dirs[static_cast<size_t>(rank)]);
  });
}

}  // namespace

TEST_CASE("ranks that share one folder agree, and leave nothing in it") {
  TempDir dir;
  CHECK(errors_of({dir / "new", dir / "new", dir / "new"}) == std::vector<std::string>(3));
  CHECK(std::filesystem::is_empty(dir / "new"));
  CHECK(errors_of({dir / "other"}) == std::vector<std::string>(1));  // one rank: nothing to compare
}

TEST_CASE("ranks on machines that do not share the folder are named before the first step, exit code 2") {
  TempDir dir;
  const auto errors = errors_of({dir / "a", dir / "a", dir / "b", dir / "a", dir / "c"});
  for (const std::string& e : errors) {
    INFO(e);
    CHECK(e.substr(0, 1) == "2");
    CHECK(e.find("is not visible to rank 2 (") != std::string::npos);
    CHECK(e.find("), 4 (") != std::string::npos);
  }
  CHECK(errors[0].find("reports") != std::string::npos);
  CHECK(std::filesystem::is_empty(dir / "a"));
}

TEST_CASE("a folder that cannot be created is left to the saves to report") {
  TempDir dir;
  write_file(dir / "file", "x");
  CHECK(errors_of({dir / "file/below", dir / "file/below"}) == std::vector<std::string>(2));
}
