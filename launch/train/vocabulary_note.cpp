#include "launch/train/vocabulary_note.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_meta.h"
#include "kernels/core/check.h"

namespace gt {

std::string vocabulary_note(const Config& c) {
  int64_t pieces = 0;
  std::string source = c.data.tokenizer;
  try {
    if (!source.empty()) pieces = Tokenizer::load(source).vocab();
    for (const DataSource& s : c.data.train)
      if (const auto meta = c.data.tokenizer.empty() ? read_token_meta(token_prefix(s.path)) : std::nullopt)
        if (meta->vocab > pieces) pieces = meta->vocab, source = s.path;
  } catch (const Error&) { return ""; }                               // reported where the data is opened
  const int64_t spare = std::max<int64_t>(1024, c.model.vocab / 10);  // padding, and a few pieces to come
  if (pieces == 0 || pieces + spare >= c.model.vocab) return "";
  return fmt::format(
      "model.vocab {}, but {} has {} pieces: {} rows of the embedding are never used; --model.vocab {} "
      "suffices",
      c.model.vocab, source, pieces, c.model.vocab - pieces, pieces);
}

}  // namespace gt
