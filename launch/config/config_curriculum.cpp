#include "launch/config/config_curriculum.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace gt {
namespace {

void check_lists(const Curriculum& d, const RuleContext& r) {
  if (d.until.empty() || d.lengths.size() != d.until.size() + 1)
    return r.bad("data.curriculum_lengths",
                 fmt::format("{} lengths and {} last steps", d.lengths.size(), d.until.size()),
                 "give one length more than data.curriculum_until has steps, and at least two");
  if (!std::is_sorted(d.until.begin(), d.until.end(), std::less_equal<>()))
    r.bad("data.curriculum_until", "the steps are not ascending", "give each length a later last step");
}

void check_ramp(const Curriculum& d, const RuleContext& r) {
  if (d.min < d.step)
    r.bad("data.curriculum_min",
          fmt::format("{} is less than curriculum_step {}: rounded down it would be 0 tokens", d.min, d.step),
          fmt::format("use {} or more", d.step));
  if (d.min > d.max)
    r.bad("data.curriculum_min", fmt::format("{} is more than curriculum_max {}", d.min, d.max),
          "curriculum_min must not exceed curriculum_max");
}

}  // namespace

void check_curriculum(Config& c, const RuleContext& r) {
  Curriculum& d = c.data.curriculum;
  if (!d) {
    for (const char* name : {"min", "max", "steps", "step", "root", "lengths", "until"})
      if (const std::string key = std::string("data.curriculum_") + name; !r.where(key).empty())
        r.notes.push_back(key + " has no effect: data.curriculum is none");
    return;
  }
  if (!r.known("model.seq") || !r.known("train.steps") || !r.known("parallel.tp")) return;
  if (d.max == 0) d.max = c.model.seq;
  if (d.steps == 0) d.steps = c.train.steps;
  const bool discrete = d.type == CurriculumType::kFixedDiscrete;
  if (discrete && (!r.known("data.curriculum_lengths") || !r.known("data.curriculum_until"))) return;
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
  const std::vector<int64_t> lengths = d.all_lengths();
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

}  // namespace gt
