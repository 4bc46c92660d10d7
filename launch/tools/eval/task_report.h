// Results of multiple-choice tasks, as text and JSON.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "launch/tools/eval/choice_scores.h"

namespace gt {

class TaskReport {
 public:
  // `sequences`, `scores`: of the questions' choices, in order. All outlive the report.
  TaskReport(std::span<const ChoiceQuestion>, std::span<const ChoiceTokens> sequences,
             std::span<const ChoiceScore> scores);

  std::string text() const;  // a line for each task
  // One object: tasks with accuracies and standard errors, then every question with its log-likelihoods.
  // `begins`: tokens before each context; "": none.
  std::string json(const std::string& checkpoint, const std::string& begins) const;

 private:
  struct Choice {
    int64_t best = 0;       // largest log-likelihood; the first of equal ones
    int64_t best_norm = 0;  // largest log-likelihood per character
    size_t first = 0;       // of its sequences
    size_t task = 0;
  };
  struct Task {
    std::string name;
    std::vector<double> hits, hits_norm;  // 1 or 0 for each question
  };
  std::span<const ChoiceQuestion> questions_;
  std::span<const ChoiceTokens> sequences_;
  std::span<const ChoiceScore> scores_;
  std::vector<Choice> choices_;  // by question
  std::vector<Task> tasks_;      // in order of appearance
};

}  // namespace gt
