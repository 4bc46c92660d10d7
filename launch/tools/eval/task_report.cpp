#include "launch/tools/eval/task_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/core/text.h"
#include "launch/observe/sinks/progress.h"
#include "launch/tools/eval/standard_error.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

double mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.) / static_cast<double>(std::max<size_t>(1, x.size()));
}

double error(const std::vector<double>& x) { return ratio_standard_error(x, std::vector<double>(x.size(), 1)); }

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(); }

std::string with_error(const std::vector<double>& x) {
  const double e = error(x);
  return fmt::format("{:.4f}{}", mean(x), std::isnan(e) ? "" : fmt::format(" +- {:.4f}", e));
}

}  // namespace

TaskReport::TaskReport(std::span<const ChoiceQuestion> questions, std::span<const ChoiceTokens> sequences,
                       std::span<const ChoiceScore> scores)
    : questions_(questions), sequences_(sequences), scores_(scores) {
  std::map<std::string, size_t> known;
  size_t at = 0;
  for (const ChoiceQuestion& q : questions) {
    const auto [it, added] = known.try_emplace(q.task, tasks_.size());
    if (added) tasks_.push_back({q.task, {}, {}});
    Choice c{.first = at, .task = it->second};
    const auto score = [&](int64_t k) { return scores[at + static_cast<size_t>(k)].loglikelihood; };
    const auto per_character = [&](int64_t k) {
      return score(k) / static_cast<double>(characters(q.choices[static_cast<size_t>(k)]));
    };
    for (int64_t k = 1; k < static_cast<int64_t>(q.choices.size()); ++k) {
      if (score(k) > score(c.best)) c.best = k;
      if (per_character(k) > per_character(c.best_norm)) c.best_norm = k;
    }
    Task& task = tasks_[c.task];
    task.hits.push_back(c.best == q.answer ? 1 : 0);
    task.hits_norm.push_back(c.best_norm == q.answer ? 1 : 0);
    at += q.choices.size();
    choices_.push_back(c);
  }
}

std::string TaskReport::text() const {
  std::string out;
  for (const Task& t : tasks_)
    out += fmt::format("{}: accuracy {}  length-normalized {}  ({} questions)\n", printable(t.name), with_error(t.hits),
                       with_error(t.hits_norm), format_thousands(static_cast<int64_t>(t.hits.size())));
  return out;
}

std::string TaskReport::json(const std::string& checkpoint, const std::string& begins) const {
  Json tasks = Json::array(), questions = Json::array();
  for (const Task& t : tasks_)
    tasks.push_back({{"task", t.name},
                     {"questions", t.hits.size()},
                     {"acc", mean(t.hits)},
                     {"acc_stderr", number(error(t.hits))},
                     {"acc_norm", mean(t.hits_norm)},
                     {"acc_norm_stderr", number(error(t.hits_norm))}});
  for (size_t i = 0; i < questions_.size(); ++i) {
    const ChoiceQuestion& q = questions_[i];
    const Choice& c = choices_[i];
    Json scores = Json::array(), tokens = Json::array(), greedy = Json::array(), sizes = Json::array();
    for (size_t k = 0; k < q.choices.size(); ++k) {
      scores.push_back(number(scores_[c.first + k].loglikelihood));
      greedy.push_back(scores_[c.first + k].greedy);
      tokens.push_back(sequences_[c.first + k].scored);
      sizes.push_back(characters(q.choices[k]));
    }
    questions.push_back({{"task", q.task},
                         {"line", q.where},
                         {"id", q.id.empty() ? Json() : Json(q.id)},
                         {"answer", q.answer},
                         {"chosen", c.best},
                         {"chosen_norm", c.best_norm},
                         {"loglikelihood", scores},
                         {"tokens", tokens},
                         {"characters", sizes},
                         {"greedy", greedy}});
  }
  const Json all{{"checkpoint", checkpoint},
                 {"contexts_begin_with", begins.empty() ? Json() : Json(begins)},
                 {"tasks", tasks},
                 {"questions", questions}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace gt
