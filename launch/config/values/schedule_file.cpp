#include "launch/config/values/schedule_file.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "parallel/pipeline/check_schedule.h"
#include "parallel/pipeline/simulate.h"

namespace gt {
namespace {

constexpr const char* kPrefix = "file:";
constexpr size_t kPrefixSize = 5;
constexpr int64_t kMostBytes = int64_t{16} << 20;

}  // namespace

bool is_schedule_file(const std::string& name) { return name.rfind(kPrefix, 0) == 0; }

PipelineSchedule read_schedule_file(const std::string& name, bool tied) {
  const std::string path = name.substr(kPrefixSize);
  try {
    PipelineSchedule s = parse_schedule(read_whole_file(path, kMostBytes));
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

void require_fits(const PipelineSchedule& s, int64_t p, int64_t v, int64_t m, bool tied) {
  GT_REQUIRE(!is_forward_only(s), Exit::kUsage, s.name,
             ": has no backward actions (B, or I and W), so it cannot train");
  const bool adds_tied = std::any_of(s.program.begin(), s.program.end(), [](const Program& program) {
    return std::any_of(program.begin(), program.end(), [](Action a) { return a.act == Act::kReduceTied; });
  });
  GT_REQUIRE(tied || !adds_tied, Exit::kUsage, s.name,
             ": adds the gradients of tied weights (T), but model.tied is false; leave T out");
  std::string differ, fit;
  const auto compare = [&](const char* what, const char* key, int64_t found, int64_t expected) {
    if (found == expected) return;
    differ += cat(differ.empty() ? "" : ", ", found, " ", what, " where ", key, " is ", expected);
    fit += cat(fit.empty() ? "" : ", ", key, " ", found);
  };
  compare("pipeline ranks (lines)", "parallel.pp", s.ranks, p);
  compare("chunks per rank", "parallel.vpp", s.stages / s.ranks, v);
  compare("microbatches", "train.grad_accum", s.microbatches, m);
  GT_REQUIRE(differ.empty(), Exit::kUsage, s.name, ": has ", differ, "; it fits ", fit);
}

}  // namespace gt
