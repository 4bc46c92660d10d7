#include "launch/config/config_curriculum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gt {
namespace {

std::vector<int64_t> whole(const std::vector<double>& list) {
  std::vector<int64_t> out;
  for (const double x : list) out.push_back(static_cast<int64_t>(x));
  return out;
}

bool all_whole(const std::vector<double>& list) {
  return std::all_of(list.begin(), list.end(), [](double x) { return x == std::floor(x) && x >= 1 && x < 1e15; });
}

void check_lists(const DataConfig& d, const RuleContext& r) {
  for (const auto& [key, list] :
       {std::pair{"data.curriculum_lengths", &d.curriculum_lengths}, {"data.curriculum_until", &d.curriculum_until}})
    if (!all_whole(*list)) return r.bad(key, "expected whole numbers from 1 on", "write them as 8,16,32");
  if (d.curriculum_until.empty() || d.curriculum_lengths.size() != d.curriculum_until.size() + 1)
    return r.bad("data.curriculum_lengths",
                 fmt::format("{} lengths and {} last steps", d.curriculum_lengths.size(), d.curriculum_until.size()),
                 "give one length more than data.curriculum_until has steps, and at least two");
  if (!std::is_sorted(d.curriculum_until.begin(), d.curriculum_until.end(), std::less_equal<>()))
    r.bad("data.curriculum_until", "the steps are not ascending", "give each length a later last step");
}

void check_ramp(DataConfig& d, const RuleContext& r) {
  if (d.curriculum_min < d.curriculum_step)
    r.bad("data.curriculum_min",
          fmt::format("{} is less than curriculum_step {}: rounded down it would be 0 tokens", d.curriculum_min,
                      d.curriculum_step),
          fmt::format("use {} or more", d.curriculum_step));
  if (d.curriculum_min > d.curriculum_max)
    r.bad("data.curriculum_min", fmt::format("{} is more than curriculum_max {}", d.curriculum_min, d.curriculum_max),
          "curriculum_min must not exceed curriculum_max");
}

}  // namespace

void check_curriculum(Config& c, const RuleContext& r) {
  DataConfig& d = c.data;
  if (d.curriculum == "none") {
    for (const char* name : {"min", "max", "steps", "step", "root", "lengths", "until"})
      if (const std::string key = std::string("data.curriculum_") + name; !r.where(key).empty())
        r.notes.push_back(key + " has no effect: data.curriculum is none");
    return;
  }
  if (!r.known("model.seq") || !r.known("train.steps") || !r.known("parallel.tp")) return;
  if (d.curriculum_max == 0) d.curriculum_max = c.model.seq;
  if (d.curriculum_steps == 0) d.curriculum_steps = c.train.steps;
  const bool discrete = d.curriculum == "fixed_discrete";
  bool wrong = false;
  const RuleContext watched{r.where, r.known,
                            [&](const std::string& key, std::string reason, std::string fix) {
                              wrong = true;
                              r.bad(key, std::move(reason), std::move(fix));
                            },
                            r.notes};
  if (discrete)
    check_lists(d, watched);
  else
    check_ramp(d, watched);
  if (wrong) return;
  const char* key = discrete ? "data.curriculum_lengths" : "data.curriculum_max";
  const std::vector<int64_t> lengths = curriculum_of(c).all_lengths();
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (longest > c.model.seq)
    return r.bad(key, fmt::format("{} tokens are more than model.seq {}", longest, c.model.seq),
                 fmt::format("at most {}", c.model.seq));
  for (const int64_t length : lengths) {
    if (c.sequence_parallel() && length % c.parallel.tp != 0)
      return r.bad(
          discrete ? key : "data.curriculum_step",
          fmt::format("a length of {} tokens is not divisible by tp {}, which sequence parallelism needs", length,
                      c.parallel.tp),
          fmt::format("use multiples of {} for all lengths, or --parallel.sequence_parallel false", c.parallel.tp));
  }
}

Curriculum curriculum_of(const Config& c) {
  const DataConfig& d = c.data;
  Curriculum out;
  if (d.curriculum == "none") return out;
  if (d.curriculum == "fixed_discrete") {
    out.kind = Curriculum::Kind::kDiscrete;
    out.lengths = whole(d.curriculum_lengths);
    out.until = whole(d.curriculum_until);
    return out;
  }
  out.kind = Curriculum::Kind::kRoot;
  out.min = d.curriculum_min;
  out.max = d.curriculum_max;
  out.total = d.curriculum_steps;
  out.multiple = d.curriculum_step;
  out.root = d.curriculum == "fixed_root" ? d.curriculum_root : 1;
  return out;
}

}  // namespace gt
