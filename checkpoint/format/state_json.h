// Trainer state as manifest JSON. Floats are C99 hex strings, so they round-trip bitwise.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/checkpoint.h"

namespace gt {

nlohmann::ordered_json to_json(const TrainState&);
// Unknown keys go to `carry`. Throws nlohmann's exceptions or Error when a key is absent or has the wrong type.
TrainState state_from(const nlohmann::ordered_json&);

// Integers beyond 2^53 are strings: JSON readers of other languages store numbers as doubles.
nlohmann::ordered_json integer_json(uint64_t);
uint64_t integer_from(const nlohmann::ordered_json&, const char* key);

}  // namespace gt
