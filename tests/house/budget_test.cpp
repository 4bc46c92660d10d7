// Sizes of the product stay within budget.txt: lines of each folder, headers, lines of the longest file. Options and
// subcommands: tests/launch/commands/budget_test.cpp.
#include "tests/support/budget.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "tests/support/test.h"

namespace fs = std::filesystem;
using namespace gt;

namespace {

const char* const kTrainer = "lines without kernels and launch/tools";  // what a reader of a training run may meet
const std::set<std::string> kSources{".h", ".cpp", ".cu", ".cuh"};

// Folders of the product; of launch/ each folder on its own, of launch/tools/ each tool.
std::string folder_of(const std::string& file) {
  size_t end = file.find('/');
  for (const char* inner : {"launch/", "launch/tools/"})
    if (const size_t next = file.find('/', end + 1); file.rfind(inner, 0) == 0 && next != std::string::npos) end = next;
  return file.substr(0, end);
}

int64_t lines_of(const fs::path& path) {
  std::ifstream in(path);
  int64_t n = 0;
  for (std::string line; std::getline(in, line);) ++n;
  return n;
}

Budget measure() {
  constexpr int64_t kShort = 25;
  Budget now{{"headers", 0},
             {"headers of at most 25 lines", 0},
             {"lines of the longest file", 0},
             {"lines", 0},
             {kTrainer, 0}};
  for (const char* top : {"autograd", "checkpoint", "data", "kernels", "launch", "model", "optim", "parallel"})
    for (const auto& e : fs::recursive_directory_iterator(fs::path(source_dir()) / top)) {
      if (!kSources.count(e.path().extension().string())) continue;
      const int64_t lines = lines_of(e.path());
      const std::string folder = folder_of(fs::relative(e.path(), source_dir()).string());
      now["lines of " + folder] += lines;
      now["lines"] += lines;
      if (folder != "kernels" && folder.rfind("launch/tools/", 0) != 0) now[kTrainer] += lines;
      now["lines of the longest file"] = std::max(now["lines of the longest file"], lines);
      now["headers"] += e.path().extension() == ".h";
      now["headers of at most 25 lines"] += e.path().extension() == ".h" && lines <= kShort;
    }
  return now;
}

}  // namespace

TEST_CASE("sizes of the product stay within budget.txt") {
  const Budget budget = read_budget(), now = measure();
  CHECK(now.at("headers") > 300);
  std::string off;
  for (const auto& [name, value] : now) off += off_budget(budget, name, value);
  INFO(off);
  CHECK(off.empty());
  for (const auto& [name, value] : budget)
    if (name.rfind("lines", 0) == 0 || name.rfind("headers", 0) == 0) {
      INFO("tests/house/budget.txt: remove the line \"" << name << "\": there is nothing of that name");
      CHECK(now.count(name) == 1);
    }
}

TEST_CASE("a size above its budget, or far below it, is answered with the line to paste") {
  std::istringstream in("# comment\nlines of model 1000\noptions 10\n");
  const Budget budget = read_budget(in);
  CHECK(budget == Budget{{"lines of model", 1000}, {"options", 10}});
  CHECK(off_budget(budget, "lines of model", 1000) == "");
  CHECK(off_budget(budget, "lines of model", 990) == "");
  CHECK_THAT(off_budget(budget, "lines of model", 1001), Catch::EndsWith("\nlines of model 1001\n"));
  CHECK_THAT(off_budget(budget, "lines of model", 900), Catch::EndsWith("\nlines of model 900\n"));
  CHECK_THAT(off_budget(budget, "options", 11), Catch::EndsWith("\noptions 11\n"));
  CHECK_THAT(off_budget(budget, "lines of new", 3),
             Catch::Contains("no budget") && Catch::EndsWith("\nlines of new 3\n"));
}
