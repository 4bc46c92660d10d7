// What a step holds, for programs. The text for people is inspect_checkpoint() of checkpoint.h.
#pragma once
#include <string>

#include "checkpoint/checkpoint.h"

namespace gt {

// One JSON object with layout, writer, the whole state and the tensors, and a line feed. Throws as
// inspect_checkpoint().
std::string inspect_json(const std::string& step_dir, const InspectOptions&);

}  // namespace gt
