// Budgets of the repository (tests/house/budget.txt): sizes that only an edit of that file changes.
#pragma once
#include <cstdint>
#include <fstream>
#include <map>
#include <string>

#include "kernels/core/check.h"
#include "tests/support/paths.h"

namespace gt {

using Budget = std::map<std::string, int64_t>;

// Lines "name with blanks VALUE"; # begins a comment.
inline Budget read_budget(std::istream& in) {
  Budget out;
  for (std::string line; std::getline(in, line);) {
    const size_t blank = line.rfind(' ');
    if (line.empty() || line[0] == '#' || blank == std::string::npos) continue;
    out[line.substr(0, blank)] = std::stoll(line.substr(blank + 1));
  }
  return out;
}

inline Budget read_budget() {
  std::ifstream in(source_dir() + "/tests/house/budget.txt");
  return read_budget(in);
}

// What to do where `now` is above a budget, or so far below (2 % and 5) that the budget no longer holds anything; "":
// nothing.
inline std::string off_budget(const Budget& budget, const std::string& name, int64_t now) {
  const auto it = budget.find(name);
  const std::string paste = cat("\nin tests/house/budget.txt:\n", name, " ", now, "\n");
  if (it == budget.end()) return cat("no budget for ", name, "; add the line", paste);
  if (now > it->second)
    return cat(name, ": ", now, ", the budget is ", it->second,
               "; make it smaller elsewhere, or give the reason in the commit and change the line", paste);
  if (it->second - now > it->second / 50 + 5)
    return cat(name, ": ", now, " of a budget of ", it->second, "; keep what was gained: change the line", paste);
  return "";
}

}  // namespace gt
