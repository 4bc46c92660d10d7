// The tokenizer that a checkpoint keeps beside the weights: the bytes of its files as they were read.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/token_meta.h"
#include "data/tokenizer.h"

namespace gt {

// The files of the tokenizer at `path` (data.tokenizer, --tokenizer), to be kept in a checkpoint under their usual
// names. Empty for an empty path. Throws as tokenizer_files.
std::vector<AuxFile> tokenizer_aux(const std::string& path);

// SHA-256 of the file that decides on ids. Throws as tokenizer_files.
std::string tokenizer_sha256(const std::string& path);

// What the checkpoint step keeps, or none. Throws as Tokenizer::from_bytes.
std::optional<Tokenizer> kept_tokenizer(const std::string& step_dir);
std::optional<DeclaredTokenizer> kept_tokenizer_claim(const std::string& step_dir);

}  // namespace gt
