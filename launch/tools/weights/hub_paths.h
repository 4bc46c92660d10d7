// Models of the Hugging Face hub on this machine: messages for those who give a model's name, or the cache's folder,
// where a folder with its files is expected.
#pragma once
#include <string>

namespace gt {

// Returns the folder with the files of a model, where `folder` is that of all its revisions in the hub's cache; "": it
// is none.
std::string snapshot_in(const std::string& folder);

// Returns what to do with a folder without config.json, as the end of a sentence: "; give …".
std::string without_config(const std::string& folder);

// Returns what to do where `from` is no folder or file of this machine. A name such as "org/model" is looked up in the
// hub's cache. As the end of a sentence.
std::string how_to_get(const std::string& from);

}  // namespace gt
