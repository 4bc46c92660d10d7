#include "parallel/pipeline/action_times.h"

namespace gt {

void ActionTimes::reserve(size_t computed, size_t moved) {
  computed_.reserve(computed), computed_at_.reserve(computed), order_.reserve(computed);
  moved_.reserve(moved), moved_at_.reserve(moved);
}

void ActionTimes::begin_run() {
  computed_.clear(), computed_at_.clear(), order_.clear();
  moved_.clear(), moved_at_.clear();
  clock_.restart();
  clock_.mark();
}

void ActionTimes::computed(std::span<const Action> actions, size_t begin, ActionTime entry) {
  entry.action = actions.front(), entry.last = actions.back().act;
  computed_.push_back(entry);
  computed_at_.push_back({begin, clock_.mark(), false});
  for (const Action& a : actions) order_.push_back(a);
}

void ActionTimes::moved(const Action& a, size_t begin, int64_t bytes, bool waited) {
  moved_.push_back({a, a.act, 0, 0, bytes});
  moved_at_.push_back({begin, clock_.mark(), waited});
}

double ActionTimes::set_times(ActionTime& t, const Marks& at) const {
  t.begin = clock_.at(at.begin) - started_, t.end = clock_.at(at.end) - started_;
  return t.end - t.begin;
}

void ActionTimes::settle() {
  started_ = clock_.at(0);
  busy_ = wait_ = 0;
  for (size_t i = 0; i < computed_.size(); ++i) busy_ += set_times(computed_[i], computed_at_[i]);
  for (size_t i = 0; i < moved_.size(); ++i)
    if (const double took = set_times(moved_[i], moved_at_[i]); moved_at_[i].waited) wait_ += took;
}

}  // namespace gt
