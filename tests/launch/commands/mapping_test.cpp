// Every command of docs/mapping.md runs unchanged; those that train, as a dry run.
#include <regex>

#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("every command of docs/mapping.md runs") {
  TempDir dir;
  const std::string page = read_file(source_dir() + "/docs/mapping.md");
  const std::string config = "--config " + source_dir() + "/configs/tiny.json";
  static const std::regex kCommand("`gpttrain ([^`…]+)`");
  static const std::regex kConfig("(^| )C( |$)");
  int n = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), kCommand), last; it != last; ++it, ++n) {
    std::string words = (*it)[1];
    const bool trains = words[0] == 'C' || words.rfind("launch ", 0) == 0;
    const std::string rest = words.rfind("launch ", 0) == 0 ? words.substr(7) : words;
    words = std::regex_replace(trains ? rest : words, kConfig, "$1" + config + "$2");
    const Outcome r =
        gpttrain((trains ? "train " : "") + words + (trains ? " --dry-run --device.kind cpu" : ""), dir.path());
    INFO("gpttrain " << words << "\n" << r.out);
    CHECK(r.code == 0);
  }
  CHECK(n > 50);
}
