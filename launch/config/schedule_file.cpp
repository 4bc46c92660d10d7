#include "launch/config/schedule_file.h"

#include <algorithm>
#include <fstream>

#include "kernels/core/check.h"
#include "parallel/pipeline/check_schedule.h"
#include "parallel/pipeline/simulate.h"

namespace gt {
namespace {

constexpr const char* kPrefix = "file:";
constexpr size_t kPrefixSize = 5;
constexpr size_t kMostBytes = size_t{16} << 20;

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  GT_REQUIRE(in, Exit::kUsage, path, ": cannot be read; expected a text file, one line a rank");
  std::string text, block(size_t{64} << 10, '\0');
  while (text.size() <= kMostBytes && in.read(block.data(), static_cast<std::streamsize>(block.size())).gcount() > 0)
    text.append(block, 0, static_cast<size_t>(in.gcount()));
  GT_REQUIRE(in.eof() && text.size() <= kMostBytes, Exit::kUsage, path,
             ": more than 16 MiB, or not a file; a schedule is one line a rank");
  return text;
}

}  // namespace

bool is_schedule_file(const std::string& name) { return name.rfind(kPrefix, 0) == 0; }

Schedule read_schedule_file(const std::string& name, bool tied) {
  const std::string path = name.substr(kPrefixSize);
  try {
    Schedule s = parse_schedule(text_of(path));
    s.name = name;
    complete_schedule(s, tied);
    simulate(s);
    return s;
  } catch (const Error& e) {
    const std::string what = e.what();
    if (what.find(path) != std::string::npos) throw;
    throw Error(path + ": " + what, e.code());
  }
}

void require_fits(const Schedule& s, int64_t p, int64_t v, int64_t m, bool tied) {
  GT_REQUIRE(!is_forward_only(s), Exit::kUsage, s.name,
             ": has no backward actions (B, or I and W): nothing would be learned");
  const bool adds_tied = std::any_of(s.program.begin(), s.program.end(), [](const Program& program) {
    return std::any_of(program.begin(), program.end(), [](Action a) { return a.act == Act::kReduceTied; });
  });
  GT_REQUIRE(tied || !adds_tied, Exit::kUsage, s.name,
             ": adds the gradients of tied weights (T), but model.tied is false; leave T out");
  std::string differ, fit;
  const auto compare = [&](const char* what, const char* key, int64_t found, int64_t wanted) {
    if (found == wanted) return;
    differ += cat(differ.empty() ? "" : ", ", found, " ", what, " where ", key, " is ", wanted);
    fit += cat(fit.empty() ? "" : ", ", key, " ", found);
  };
  compare("pipeline ranks (lines)", "parallel.pp", s.ranks, p);
  compare("chunks a rank", "parallel.vpp", s.stages / s.ranks, v);
  compare("microbatches", "train.grad_accum", s.microbatches, m);
  GT_REQUIRE(differ.empty(), Exit::kUsage, s.name, ": has ", differ, "; it fits ", fit);
}

}  // namespace gt
