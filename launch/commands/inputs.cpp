#include "launch/commands/inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/prepare/text_source.h"
#include "kernels/core/check.h"
#include "kernels/core/text.h"

namespace gt {

void require_inputs(const std::vector<std::string>& names) {
  LeftOut left_out;
  const std::vector<TextInput> inputs = expand_inputs(names, &left_out);
  const bool any = std::any_of(inputs.begin(), inputs.end(), [](auto& i) { return i.path == "-" || i.size > 0; });
  GT_REQUIRE(any, Exit::kUsage, "--input: expected text, found ", inputs[0].path, ", which is empty",
             inputs.size() > 1 ? cat(" like the other ", inputs.size() - 1) : std::string());
  if (left_out.total() > 0) fmt::print(stderr, "note: --input: {}\n", printable(left_out.text()));
}

std::string input_name(const std::string& path) { return path == "-" ? "standard input" : path; }

}  // namespace gt
