#include "paths.h"

namespace gt {

std::string source_dir() { return GPT_SOURCE_DIR; }
std::string binary_dir() { return GPT_BINARY_DIR; }

}  // namespace gt
