// A trial of a SentencePiece model in a child process, which has little to lose: the library crashes on models that
// were made for it (github.com/google/sentencepiece, 1263 and 1269), and then a child dies instead of the program.
#pragma once
#include <string>

namespace gt {

// Loads the model, encodes and decodes some text in a child with limited memory and time. Throws kUsage naming `name`
// when the child dies or does not come to an end within `seconds`; kIo when there can be no child. What this process
// has tried before, by its SHA-256, is not tried again. Thread-safe. Costs about one more load: 10 ms at 8,000 pieces.
// Requires: walk_model() accepted the bytes.
void require_harmless_model(const std::string& model, const std::string& sha256, const std::string& name,
                            double seconds = 10);

}  // namespace gt
