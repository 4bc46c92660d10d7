#include "data/tokenizer/word_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace gt {

uint64_t WordCache::hash_of(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }

bool WordCache::Entry::holds(uint64_t h, std::string_view w) const {
  return hash == h && length == w.size() && count > 0 && std::memcmp(word, w.data(), w.size()) == 0;
}

void WordCache::Entry::keep(uint64_t h, std::string_view w, const int32_t* first, size_t n) {
  hash = h;
  length = static_cast<uint16_t>(w.size());
  count = static_cast<uint16_t>(n);
  std::memcpy(word, w.data(), w.size());
  std::copy(first, first + n, ids);
}

}  // namespace gt
