// Pages: READMEs of folders, widths of documents, the version.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace fs = std::filesystem;

namespace {

struct Page {
  int lines = 0, words = 0, columns = 0;  // columns: of the longest line, in characters
};

Page measure(const fs::path& path) {
  std::ifstream in(path);
  INFO(path);
  REQUIRE(in.good());
  Page page;
  for (std::string line; std::getline(in, line); ++page.lines) {
    page.columns = std::max(page.columns, static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) {
                              return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not a continuation of UTF-8
                            })));
    std::istringstream words(line);
    for (std::string word; words >> word;) page.words += word != "|" && word != "*";
  }
  return page;
}

}  // namespace

TEST_CASE("every top folder has a one-screen README") {
  for (const char* folder :
       {"kernels", "autograd", "parallel", "model", "optim", "data", "checkpoint", "launch", "tests", "configs"}) {
    INFO(folder);
    const Page page = measure(fs::path(gt::source_dir()) / folder / "README.md");
    CHECK(page.lines >= 5);
    CHECK(page.lines <= 60);
    CHECK(page.words <= 500);
    CHECK(page.columns <= 120);
  }
}

TEST_CASE("pages can be read in a terminal") {
  const fs::path root = gt::source_dir();
  const Page readme = measure(root / "README.md");
  CHECK(readme.lines <= 120);
  CHECK(readme.columns <= 140);
  CHECK(measure(root / "CONTRIBUTING.md").columns <= 120);
  CHECK(measure(root / "CHANGELOG.md").columns <= 120);
  CHECK(measure(root / "SECURITY.md").columns <= 320);  // rows of a table
  int pages = 0;
  for (const auto& entry : fs::directory_iterator(root / "docs")) {
    if (entry.path().extension() != ".md") continue;
    INFO(entry.path());
    CHECK(measure(entry.path()).columns <= 160);  // rows of tables
    ++pages;
  }
  CHECK(pages >= 10);
}

namespace {

std::string read_page(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Headers named in backticks: `engine.h`, `start/spawn.h`.
std::vector<std::string> headers_in(const std::string& text) {
  static const std::regex kHeader("`([\\w/]+\\.h)`");
  std::vector<std::string> out;
  for (std::sregex_iterator it(text.begin(), text.end(), kHeader), end; it != end; ++it) out.push_back((*it)[1]);
  return out;
}

// What a folder's README lacks of: what comes in, what goes out, three headers to read first that exist. "": nothing.
std::string lacks(const std::string& text, const fs::path& folder) {
  for (const char* part : {"**In**: ", "**Out**:", "\nRead first: "})
    if (text.find(part) == std::string::npos) return part;
  const size_t first = text.find("\nRead first: ");
  if (headers_in(text.substr(first, text.find("\n\n", first) - first)).size() != 3)
    return "three headers to read first";
  for (const std::string& header : headers_in(text))
    if (!fs::exists(folder / header) && !fs::exists(fs::path(gt::source_dir()) / header)) return header;
  return "";
}

}  // namespace

TEST_CASE("the folders inside launch, data, checkpoint and comm have READMEs of one form") {
  int checked = 0;
  const fs::path root = gt::source_dir();
  std::vector<fs::path> folders{root / "parallel/comm"};
  for (const char* top : {"launch", "data", "checkpoint"})
    for (const auto& e : fs::directory_iterator(root / top))
      if (e.is_directory()) folders.push_back(e.path());
  for (const char* tool : {"plan", "verify"}) folders.push_back(root / "launch/tools" / tool);
  for (const fs::path& folder : folders) {
    INFO(folder);
    const Page page = measure(folder / "README.md");
    CHECK(page.lines <= 25);
    CHECK(page.columns <= 120);
    CHECK(lacks(read_page(folder / "README.md"), folder) == "");
    ++checked;
  }
  CHECK(checked >= 20);
}

TEST_CASE("a README without what comes in, three headers, or with a header that is gone is found") {
  const fs::path folder = fs::path(gt::source_dir()) / "launch/engine";
  const std::string good =
      "# x\n\n**In**: a. **Out**: b.\n\nRead first: `engine.h`, `inject.h` (c), `logical.h`.\n\nd\n";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  CHECK(lacks(good, folder) == "");
  CHECK(lacks(with("**In**: ", ""), folder) == "**In**: ");
  CHECK(lacks(with("Read first", "See"), folder) == "\nRead first: ");
  CHECK(lacks(with(", `logical.h`", ""), folder) == "three headers to read first");
  CHECK(lacks(with("`inject.h`", "`gone.h`"), folder) == "gone.h");
  CHECK(lacks(with("d\n", "`optim/gone.h`\n"), folder) == "optim/gone.h");
  CHECK(lacks(with("d\n", "`kernels/ops.h`\n"), folder) == "");
}

TEST_CASE("functions and files that docs/job.md names exist") {
  static const std::regex kName("`([\\w:/.]+)`");
  const fs::path root = gt::source_dir();
  std::string sources;
  for (const char* top : {"launch", "checkpoint", "parallel"})
    for (const auto& e : fs::recursive_directory_iterator(root / top))
      if (e.path().extension() == ".h" || e.path().extension() == ".cpp") sources += read_page(e.path());
  const std::string page = read_page(root / "docs/job.md");
  int checked = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), kName), end; it != end; ++it, ++checked) {
    const std::string name = (*it)[1];
    INFO(name);
    if (name.find('/') != std::string::npos)
      CHECK(
          (fs::exists(root / name) || fs::exists(root / "launch" / name) || fs::exists(root / "launch/ranks" / name)));
    else
      CHECK(sources.find(name.substr(name.rfind(':') + 1)) != std::string::npos);
  }
  CHECK(checked > 60);
}

TEST_CASE("the newest version of the changelog is the program's") {
  const fs::path root = gt::source_dir();
  const std::string cmake = read_page(root / "CMakeLists.txt"), changes = read_page(root / "CHANGELOG.md");
  std::smatch program, newest;
  REQUIRE(std::regex_search(cmake, program, std::regex("project\\(gpttrain VERSION ([\\d.]+)")));
  REQUIRE(std::regex_search(changes, newest, std::regex("\n## (\\d+\\.\\d+\\.\\d+) \\(\\d{4}-\\d\\d-\\d\\d\\)\n")));
  CHECK(newest[1] == program[1]);
  CHECK(changes.find("\n## Unreleased\n") < static_cast<size_t>(newest.position(0)) + 1);
  const std::string release = changes.substr(static_cast<size_t>(newest.position(0)));
  size_t at = 0;
  for (const char* group : {"Added", "Changed", "Removed", "Fixed", "Faster"}) {
    at = release.find(std::string("\n### ") + group + "\n", at);
    INFO(group);
    CHECK(at != std::string::npos);
  }
}
