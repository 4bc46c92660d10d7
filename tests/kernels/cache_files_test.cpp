// Which files a cache believes: those that this user alone can have written.
#include "kernels/core/cache_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;
namespace fs = std::filesystem;

namespace {

struct Folder {
  std::string path = (fs::temp_directory_path() / "gpttrain-own-XXXXXX").string();
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() {
    std::error_code ec;
    fs::remove_all(path, ec);
  }
  std::string operator/(const std::string& name) const { return path + "/" + name; }
};

void put(const std::string& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
}

std::string refusal(const std::string& path) {
  std::string problem;
  CHECK(read_cached(path, 100, &problem).empty());
  return problem;
}

struct Variable {
  explicit Variable(const char* name) : name_(name) {
    if (const char* v = std::getenv(name)) was_ = v, set_ = true;
  }
  ~Variable() { set_ ? ::setenv(name_, was_.c_str(), 1) : ::unsetenv(name_); }
  const char* name_;
  std::string was_;
  bool set_ = false;
};

}  // namespace

TEST_CASE("files of a cache that another user can have written are refused with the reason") {
  const Folder f;
  std::string problem = "?";
  CHECK(read_cached(f / "none", 100, &problem).empty());
  CHECK(problem.empty());
  put(f / "good", "text", 0644);
  CHECK(read_cached(f / "good", 100, &problem) == "text");
  CHECK(problem.empty());
  put(f / "large", std::string(101, 'x'), 0600);
  CHECK_THAT(refusal(f / "large"), Catch::Contains("more than 100 bytes"));
  put(f / "group", "text", 0664);
  CHECK_THAT(refusal(f / "group"),
             Catch::Contains("its group may write it (mode 664)") && Catch::Contains("chmod go-w"));
  CHECK(open_own(f / "group").by_others);
  CHECK_FALSE(open_own(f / "good").by_others);
  CHECK(keeps_owners(f.path));  // so the mode is the file's, not the file system's
  CHECK(fs::exists(f / "group"));
  CHECK(std::distance(fs::directory_iterator(f.path), {}) == 3);  // nothing is left behind
  put(f / "all", "text", 0666);
  CHECK_THAT(refusal(f / "all"), Catch::Contains("others may write it"));
  fs::create_symlink(f / "good", f / "link");
  CHECK_THAT(refusal(f / "link"), Catch::Contains("symbolic link"));
  REQUIRE(::mkfifo((f / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(refusal(f / "pipe"), Catch::Contains("no regular file"));
  fs::create_directory(f / "folder");
  CHECK_THAT(refusal(f / "folder"), Catch::Contains("no regular file"));
  if (::geteuid() == 0) {  // only root can make files of others
    put(f / "other", "text", 0600);
    REQUIRE(::chown((f / "other").c_str(), 12345, 12345) == 0);
    CHECK_THAT(refusal(f / "other"), Catch::Contains("belongs to user 12345"));
  }
}

TEST_CASE("folders of a cache that others may write are refused, for reading and for writing") {
  const Folder f;
  const std::string file = f / "cache/index/x";
  CHECK(write_cached(file, "one").empty());
  CHECK(read_cached(file, 100) == "one");
  CHECK(write_cached(file, "two").empty());
  CHECK(read_cached(file, 100) == "two");
  struct stat s {};
  REQUIRE(::stat(file.c_str(), &s) == 0);
  CHECK((s.st_mode & 0777) == 0600);
  REQUIRE(::stat((f / "cache/index").c_str(), &s) == 0);
  CHECK((s.st_mode & 0777) == 0700);
  CHECK(std::distance(fs::directory_iterator(f / "cache/index"), {}) == 1);  // no temporary file is left

  for (const auto& [folder, mode, reason] :
       {std::tuple("cache/index", 0775, "its group may write it"), std::tuple("cache/index", 0707, "others may write"),
        std::tuple("cache", 0777, "everybody may rename it")}) {
    REQUIRE(::chmod((f / folder).c_str(), static_cast<mode_t>(mode)) == 0);
    CHECK_THAT(refusal(file), Catch::Contains(reason));
    CHECK_THAT(write_cached(file, "three"), Catch::Contains(reason));
    REQUIRE(::chmod((f / folder).c_str(), 0700) == 0);
    CHECK(read_cached(file, 100) == "two");
  }
  REQUIRE(::chmod((f / "cache").c_str(), 01777) == 0);  // as /tmp
  CHECK(read_cached(file, 100) == "two");
  if (::geteuid() == 0) {
    REQUIRE(::chown((f / "cache/index").c_str(), 12345, 12345) == 0);
    CHECK_THAT(refusal(file), Catch::Contains("belongs to user 12345"));
  }
}

TEST_CASE("a cache folder that cannot be made is refused with the system's reason") {
  if (!fs::is_directory("/sys")) GT_SKIP("no /sys");
  const std::string why = write_cached("/sys/gpttrain/index/x", "one");  // nobody may make folders there
  CHECK_THAT(why, Catch::StartsWith("/sys/gpttrain: cannot be made: "));
  CHECK_THAT(why, !Catch::Contains("No such file"));
}

TEST_CASE("without a home of one's own there is no cache folder") {
  const Variable home("HOME"), xdg("XDG_CACHE_HOME");
  ::setenv("HOME", "/home/me", 1);
  ::unsetenv("XDG_CACHE_HOME");
  CHECK(cache_folder() == "/home/me/.cache/gpttrain");
  ::setenv("XDG_CACHE_HOME", "/scratch/me", 1);
  CHECK(cache_folder() == "/scratch/me/gpttrain");
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("HOME");
  CHECK(cache_folder().empty());
}
