// Logical tensors by name and how far two sets of them are apart.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gt {

using Logical = std::map<std::string, std::vector<float>>;  // name -> flattened logical tensor

// ||a - b|| / ||b|| over one tensor; infinity when sizes differ or something is not finite.
double relative_error(const std::vector<float>& a, const std::vector<float>& b);
// The worst tensor and its error; names missing on either side count as infinite.
std::pair<std::string, double> worst_error(const Logical& a, const Logical& b);

}  // namespace gt
