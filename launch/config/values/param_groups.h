// Parameter groups of a config: optim.groups and optim.no_decay applied to the parameters of a model.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "model/model_spec.h"
#include "optim/param_group.h"

namespace gt {

// Throws kUsage if `pattern` is not a regular expression, or too long to be compiled safely.
void require_regex(const std::string& pattern);

// Parses "REGEX key=value …" with the keys lr_scale, weight_decay, betas (two numbers separated by /) and rule. Throws
// kUsage naming the error and the most similar key.
ParamGroup parse_param_group(const std::string& text);

// Disables weight decay for parameters whose logical name (for a tied copy, the owner's) matches one of the regular
// expressions. This is the default for groups that do not set their own.
void mark_no_decay(std::span<const UnitSpec> units, const std::vector<std::string>& patterns);

// Throws kUsage if a pattern of either matches no parameter of the model, naming the most similar one, or if earlier
// groups take every match of a group.
void require_patterns_found(const OptimConfig&, const ModelSpec&);

}  // namespace gt
