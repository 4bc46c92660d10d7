// Matches the tensors of a foreign file to the weights of the model that it describes.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/tools/weights/model_weights.h"
#include "launch/tools/weights/origin.h"

namespace gt {

// Returns a tensor's name without the prefix of its container, as layers.7.attn.qkv.weight.
std::string bare_name(const std::string& name, const Origin&);

// Position of a weight in the file; int8 weights have separate scales.
struct WeightPosition {
  size_t values = 0;
  std::optional<size_t> scale;
};

struct TensorMatch {
  std::vector<std::vector<WeightPosition>> positions;  // by weight and block; none: begins at its initial values
  std::multimap<size_t, size_t> copies;                // weight -> tensors that hold it once more
  size_t tensors = 0;                                  // of the file, without saved buffers
};

// Throws kDamaged listing every tensor that is missing, unknown or of another shape, or naming a prefix that all names
// have too much. `where`: the source, for messages.
TensorMatch match_tensors(Origin&, const std::vector<ModelWeight>&, const std::string& where);

}  // namespace gt
