#include "launch/config/tokenizer_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/store/steps.h"
#include "kernels/core/text.h"

namespace gt {
namespace fs = std::filesystem;
namespace {

// The tokenizer in the newest checkpoint that the run would resume from; "": none.
std::string tokenizer_of_checkpoint(const Config& c) {
  try {
    const auto steps = list_steps(c.checkpoint_dir());
    std::error_code ec;
    for (const char* name : {"/tokenizer.model", "/tokenizer.json"})
      if (!steps.empty() && fs::is_regular_file(steps.front().second + name, ec)) return steps.front().second + name;
  } catch (const Error&) {  // unreadable: as if there were none
  }
  return "";
}

// Pieces that a file of text is large enough for, at most those of the model.
int64_t vocabulary_for(const Config& c, const std::string& path) {
  constexpr int64_t kBytesPerPiece = 100, kLeast = 400;
  std::error_code ec;
  const auto size = static_cast<int64_t>(fs::file_size(path, ec));
  return ec ? c.model.vocab : std::min(c.model.vocab, std::max(kLeast, size / kBytesPerPiece / 100 * 100));
}

}  // namespace

std::string tokenizer_advice(const Config& c, const std::string& path) {
  if (const std::string kept = tokenizer_of_checkpoint(c); !kept.empty())
    return "add that of the checkpoint, --data.tokenizer " + shell_word(kept);
  const std::string model = fs::path(path).stem().string() + ".model", word = shell_word(model);
  std::error_code ec;
  if (fs::exists(model, ec)) return "add --data.tokenizer " + word;
  const int64_t vocab = vocabulary_for(c, path);
  return fmt::format("gpttrain tokenizer train --input {} --vocab {} --output {}, then add --data.tokenizer {}{}",
                     shell_word(path), vocab, word, word,
                     vocab < c.model.vocab ? fmt::format(" --model.vocab {}", vocab) : "");
}

}  // namespace gt
