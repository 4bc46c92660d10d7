// Log-likelihoods of choices on any layout: one sequence a microbatch, whose length is that of the longest sequence of
// its step.
#pragma once
#include <span>
#include <vector>

#include "launch/tools/eval/choice_tasks.h"
#include "launch/tools/weights/loaded_model.h"

namespace gt {

struct ChoiceScore {
  double loglikelihood = 0;  // nats, of the choice's tokens given all before them
  bool greedy = false;       // each token of the choice has the largest logit
};

// Changes the layout's batch to single sequences of any length. Call before load_model.
void use_single_sequences(ModelSource&);

// Collective. Returns the score of each sequence, equal on every rank. Requires: equal sequences on every rank, and a
// model whose source went through use_single_sequences.
std::vector<ChoiceScore> score_choices(LoadedModel&, std::span<const ChoiceTokens>);

}  // namespace gt
