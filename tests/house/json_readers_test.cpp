// JSON has one reader (kernels/core/json.h). Only the lines of a corpus, which are repaired while they are read, are
// still read by nlohmann's parser.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace fs = std::filesystem;

namespace {

bool reads_json(const std::string& text) {
  for (const char* call : {"json::parse(", "Json::parse(", "sax_parse(", "json::accept(", "Json::accept("})
    if (text.find(call) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("no file has a JSON parser of its own") {
  const std::set<std::string> kOthers{"data/prepare/json_line.cpp", "data/prepare/chat_line.cpp"};
  std::set<std::string> found;
  for (const char* folder : {"kernels", "autograd", "parallel", "model", "optim", "data", "checkpoint", "launch"})
    for (const auto& e : fs::recursive_directory_iterator(fs::path(gt::source_dir()) / folder)) {
      const std::string kind = e.path().extension().string();
      if (kind != ".h" && kind != ".cpp") continue;
      std::ifstream in(e.path());
      const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
      if (reads_json(text)) found.insert(fs::relative(e.path(), gt::source_dir()).string());
    }
  CHECK(found == kOthers);
  CHECK(reads_json("const auto j = nlohmann::json::parse(text);"));
  CHECK_FALSE(reads_json("const auto j = parse_json<Json>(text, path);"));
}
