// Tokenizer stored in a checkpoint next to the weights: the bytes of its files (tokenizer_files).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_meta.h"

namespace gt {

// Returns the files of the tokenizer at `path` (data.tokenizer, --tokenizer) for a checkpoint, under their usual names.
// Empty for an empty path. Throws as tokenizer_files.
std::vector<AuxFile> tokenizer_aux(const std::string& path);

// Returns Tokenizer::sha256 of the tokenizer at `path`. Throws as Tokenizer::load.
std::string tokenizer_sha256(const std::string& path);

// Returns the tokenizer stored in the checkpoint step, if any. Throws as Tokenizer::from_files.
std::optional<Tokenizer> kept_tokenizer(const std::string& step_dir);
// Returns the tokenizer at `given` or, if that is empty, the one stored in the checkpoint step. Throws kUsage naming
// `flag` if there is none, or if it has more than `vocab` pieces, those of the model.
Tokenizer model_tokenizer(const std::string& given, const char* flag, const std::string& step_dir, int64_t vocab);
std::optional<DeclaredTokenizer> kept_tokenizer_claim(const std::string& step_dir);

}  // namespace gt
