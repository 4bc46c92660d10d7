// Machine-readable contents of a step. The human-readable form is inspect_checkpoint() of checkpoint.h.
#pragma once
#include <string>

#include "checkpoint/checkpoint.h"

namespace gt {

// Returns one JSON object with layout, writer, the whole state and the tensors, followed by a newline. Throws like
// inspect_checkpoint().
std::string inspect_json(const std::string& step_dir, const InspectOptions&);

}  // namespace gt
