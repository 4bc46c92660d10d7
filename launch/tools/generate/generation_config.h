// generation_config.json of the Hugging Face folder that a model began from.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "launch/tools/generate/subcommands.h"

namespace gt {

struct FolderGeneration {
  std::vector<int64_t> ends;  // ids that end a text besides those of the tokenizer
  std::string note;           // the options that it set, and its keys without an option here; "": neither
};

// Sets the options of `args` that `text`, the file's contents ("": none), defines and that the command line `words`
// does not: temperature (0 where do_sample is false), top-k and top-p where do_sample is true, max-tokens, stop.
// transformers ignores them where do_sample is missing and is greedy; then those of `args` stay. Values out of range
// and broken files set nothing.
FolderGeneration take_generation_config(const std::string& text, const std::vector<std::string>& words,
                                        GenerateArgs* args);

}  // namespace gt
