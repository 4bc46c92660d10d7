#include "launch/commands/inputs.h"

#include "data/prepare/text_source.h"
#include "kernels/core/check.h"

namespace gt {

void require_inputs(const std::vector<std::string>& names) {
  const std::vector<TextInput> inputs = expand_inputs(names);
  for (const TextInput& i : inputs)
    if (i.path == "-" || i.size > 0) return;
  fail(Exit::kUsage, "--input: expected text, found ", inputs[0].path, ", which is empty",
       inputs.size() > 1 ? cat(" like the other ", inputs.size() - 1) : std::string());
}

std::string input_name(const std::string& path) { return path == "-" ? "standard input" : path; }

}  // namespace gt
