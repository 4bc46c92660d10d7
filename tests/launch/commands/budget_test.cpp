// The set of training options and of subcommands: tests/house/options.txt and budget.txt.
#include "tests/support/budget.h"

#include <set>

#include "launch/commands/subcommands.h"
#include "launch/config/config.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("the options of training are those of tests/house/options.txt, and their number is within budget") {
  Config config;
  std::set<std::string> listed, here;
  std::ifstream in(source_dir() + "/tests/house/options.txt");
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') listed.insert(line);
  for (const Option& o : list_options(config)) here.insert(o.key());
  std::string off;
  for (const std::string& key : here)
    if (!listed.count(key))
      off += cat("tests/house/options.txt lacks the line ", key, ": which option leaves, or why?\n");
  for (const std::string& key : listed)
    if (!here.count(key))
      off += cat("tests/house/options.txt has ", key,
                 ", which is no option: docs/releases.md has what a key that leaves "
                 "takes\n");
  off += off_budget(read_budget(), "options", static_cast<int64_t>(here.size()));
  INFO(off);
  CHECK(off.empty());
}

TEST_CASE("the number of subcommands is within budget") {
  const std::string off = off_budget(read_budget(), "subcommands", static_cast<int64_t>(subcommands().size()));
  INFO(off);
  CHECK(off.empty());
}
