// The trainer's state as the JSON of a manifest. Floats are C99 hex strings, so that they come back bit for bit.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/checkpoint.h"

namespace gt {

nlohmann::ordered_json to_json(const TrainState&);
// Unknown keys go to `carry`. Throws nlohmann's exceptions or Error where a key is absent or of another type.
TrainState state_from(const nlohmann::ordered_json&);

// Integers beyond 2^53 are strings: readers in other languages hold numbers as doubles.
nlohmann::ordered_json integer_json(uint64_t);
uint64_t integer_from(const nlohmann::ordered_json&, const char* key);

}  // namespace gt
