// The Dockerfiles cannot be built where tests run, so the files, presets, targets, packages and stages that they name
// are checked instead.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  INFO(path.string());
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns the instructions, continued lines joined, comments dropped.
std::vector<std::string> instructions(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  bool open = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (open)
      out.back() += line;
    else
      out.push_back(line);
    open = out.back().back() == '\\';
    if (open) out.back().pop_back();
  }
  return out;
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

std::vector<std::string> found(const std::string& text, const std::string& pattern) {
  std::vector<std::string> out;
  const std::regex r(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), r), end; it != end; ++it) out.push_back((*it)[1]);
  return out;
}

}  // namespace

TEST_CASE("everything that the Dockerfiles name exists: files, presets, targets, stages, their user") {
  const fs::path root = gt::source_dir();
  const std::string presets = text_of(root / "CMakePresets.json");
  std::string cmake = text_of(root / "launch/CMakeLists.txt") + text_of(root / "kernels/cuda/CMakeLists.txt");
  for (const char* name : {"Dockerfile.cpu", "Dockerfile.cuda"}) {
    INFO(name);
    const std::string text = text_of(root / "launch" / name);
    CHECK(text.find(std::string("-f launch/") + name) != std::string::npos);
    CHECK_FALSE(text_of(root / "launch" / (std::string(name) + ".dockerignore")).empty());
    std::set<std::string> stages;
    int copied = 0;
    for (const std::string& line : instructions(text)) {
      INFO(line);
      const std::vector<std::string> w = words(line);
      CHECK(std::regex_match(w[0], std::regex("FROM|ARG|WORKDIR|COPY|RUN|USER|ENV|ENTRYPOINT|CMD")));
      if (w[0] == "FROM") {
        const bool debian = w[1].rfind("debian:12", 0) == 0, argument = w[1] == "${CUDA_IMAGE}";
        CHECK((debian || argument));
        if (w.size() == 4) stages.insert(w[3]);
      }
      if (w[0] != "COPY") continue;
      if (w[1].rfind("--from=", 0) == 0) {
        CHECK(stages.count(w[1].substr(7)) == 1);
        continue;
      }
      for (size_t i = 1; i + 1 < w.size(); ++i, ++copied) CHECK(fs::exists(root / w[i]));
    }
    CHECK(copied >= 3);
    for (const std::string& script : found(text, "RUN \\./([\\w/.]+\\.sh)")) {
      CHECK(fs::exists(root / script));
      CHECK((fs::status(root / script).permissions() & fs::perms::owner_exec) != fs::perms::none);
    }
    for (const std::string& preset : found(text, "--preset (\\w+)"))
      CHECK(presets.find("\"name\": \"" + preset + "\"") != std::string::npos);
    for (const std::string& target : found(text, "--target ([\\w ]+)"))
      for (const std::string& t : words(target)) CHECK(cmake.find(t) != std::string::npos);
  }
}

TEST_CASE("both images install the libraries that setup.sh builds against") {
  const fs::path root = gt::source_dir();
  const std::string setup = text_of(root / "launch/setup.sh");
  // Runtime libraries and the packages of their headers.
  const std::pair<const char*, const char*> libraries[] = {
      {"libdnnl2", "libdnnl-dev"},      {"libfmt9", "libfmt-dev"},
      {"libhdf5-103-1", "libhdf5-dev"}, {"libsentencepiece0", "libsentencepiece-dev"},
      {"libpcre2-8-0", "libpcre2-dev"}, {"libutf8proc2", "libutf8proc-dev"},
      {"libxxhash0", "libxxhash-dev"},  {"zlib1g", "zlib1g-dev"},
      {"openmpi-bin", "openmpi-bin"}};
  for (const char* name : {"Dockerfile.cpu", "Dockerfile.cuda"})
    for (const auto& [runtime, headers] : libraries) {
      INFO(name << ' ' << runtime);
      CHECK(text_of(root / "launch" / name).find(std::string(" ") + runtime) != std::string::npos);
      CHECK(setup.find(headers) != std::string::npos);
    }
}
