// Cache of token ids of words: direct-mapped, 16 MB, for one thread. Words of up to 64 bytes and 13 tokens.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace gt {

class WordCache {
 public:
  // Appends the ids of `word`: the cached ones, or those that encode(word, out) appends, which are cached. Requires:
  // these ids depend on the word alone.
  template <class Encode>
  void append(std::string_view word, std::vector<int32_t>* out, const Encode& encode) {
    if (word.size() > kWord) return encode(word, out);
    const uint64_t hash = hash_of(word);
    Entry& e = entries_[hash & (kEntries - 1)];
    if (e.holds(hash, word)) {
      ++hits_;
      out->insert(out->end(), e.ids, e.ids + e.count);
      return;
    }
    ++misses_;
    const size_t begin = out->size();
    encode(word, out);
    if (out->size() - begin <= kIds) e.keep(hash, word, out->data() + begin, out->size() - begin);
  }
  int64_t hits() const { return hits_; }
  int64_t misses() const { return misses_; }

 private:
  static constexpr size_t kWord = 64, kIds = 13, kEntries = size_t{1} << 17;
  struct Entry {  // 128 bytes: two cache lines
    uint64_t hash = 0;
    uint16_t length = 0, count = 0;
    char word[kWord];
    int32_t ids[kIds];
    bool holds(uint64_t h, std::string_view w) const;
    void keep(uint64_t h, std::string_view w, const int32_t* first, size_t n);
  };
  static_assert(sizeof(Entry) == 128);
  static uint64_t hash_of(std::string_view word);

  std::vector<Entry> entries_{kEntries};
  int64_t hits_ = 0, misses_ = 0;
};

// The same as WordCache::append; without a cache, nullptr, every word is encoded.
template <class Encode>
void append_ids(WordCache* cache, std::string_view word, std::vector<int32_t>* out, const Encode& encode) {
  if (cache == nullptr) return encode(word, out);
  cache->append(word, out, encode);
}

}  // namespace gt
