// Whether the model has many more rows than the tokenizer has pieces.
#pragma once
#include <string>

#include "launch/config/config.h"

namespace gt {

// A line for the start block if far fewer pieces are used than model.vocab has rows: by data.tokenizer, else by the
// token files' own description. "": they fit, or their number is unknown. Reads files.
std::string vocabulary_note(const Config&);

}  // namespace gt
