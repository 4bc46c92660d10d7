// What optim.groups and optim.no_decay of a config mean for the parameters of a model.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "model/model_spec.h"
#include "optim/param_group.h"

namespace gt {

// Throws kUsage where `pattern` is no regular expression, or too long to be compiled safely.
void require_regex(const std::string& pattern);

// "REGEX key=value …" with the keys lr_scale, weight_decay and betas (two numbers with a / between them). Throws kUsage
// with what is wrong with it, and the nearest key.
ParamGroup parse_param_group(const std::string& text);

// Takes the decay from parameters whose logical name (the owner's, for a tied copy) one of the regular expressions
// finds: the default of groups that do not give their own.
void mark_no_decay(std::span<const UnitSpec> scopes, const std::vector<std::string>& patterns);

// Throws kUsage where a pattern of either finds no parameter of the model, naming the nearest, or where the groups
// before one take all that it finds.
void require_patterns_found(const OptimConfig&, const ModelSpec&);

}  // namespace gt
