// Loads a SentencePiece model in a child process first: the library crashes on crafted models
// (github.com/google/sentencepiece, 1263 and 1269), and then only the child dies.
#pragma once
#include <string>

namespace gt {

// Loads the model and encodes and decodes some text in a child with limited memory and time. Throws kUsage naming
// `name` when the child crashes or exceeds `seconds`; kIo when no child can be created. Models already tried by this
// process, by SHA-256, are not tried again. Thread-safe. Measured at 8,000 pieces: 5 ms, 18 ms on a busy machine (a
// load takes 1.4 ms), plus 70 ms per GB that this process has touched, since fork copies its page tables. Requires:
// walk_model() accepted the bytes.
void try_model_in_child(const std::string& model, const std::string& sha256, const std::string& name,
                        double seconds = 10);

}  // namespace gt
