// Logical tensors by name: distances between them, and writing them into the views of a rank.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "parallel/zero/shard_view.h"

namespace gt {

using Logical = std::map<std::string, std::vector<float>>;  // name -> flattened logical tensor

struct TensorDistance {
  double relative = 0;  // ||a - b|| / ||b||; infinity if sizes differ or a value is not finite
  double ulp = 0;       // largest |a - b| in units in the last place of the element of b with the largest magnitude
  double cosine = 1;    // of the angle between them
  double length = 1;    // ||a|| / ||b||
};
TensorDistance distance(const std::vector<float>& a, const std::vector<float>& b);

double relative_error(const std::vector<float>& a, const std::vector<float>& b);
// Returns the tensor with the largest error, and that error; names missing on either side count as infinite.
std::pair<std::string, double> worst_error(const Logical& a, const Logical& b);

// Writes logical tensors (by parameter name) into the memory of the views; vocabulary padding becomes 0.
void write_views(const std::vector<ShardView>& views, const Logical& from, const Backend&, Stream);

// Maps "master/layers.0.norm1.weight" to "layers.0.norm1.weight", "optim/exp_avg/layers…" to "exp_avg/layers…"; scales
// of int8 weights ("scale/…") keep their name.
std::string logical_name(const std::string& view_name);

}  // namespace gt
