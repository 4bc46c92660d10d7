// Sliding-window attention in a Hugging Face config.json: window size, and the blocks that use it.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "model/families/family.h"

namespace gt {

// `sliding_window`; null: every block attends to the whole context. Absent: `standard`.
inline void sliding_window_key(HfKeys& k, TransformerConfig& c, int64_t standard) {
  const char* key = "sliding_window";
  if (!k.reading() && c.window == 0) return k.none(key);
  if (!k.reading() || k.presence(key) == HfKeys::Presence::kValue) return k.integer(key, c.window, 1, 1 << 20);
  c.window = k.presence(key) == HfKeys::Presence::kNull ? 0 : standard;
}

// `layer_types`, where it is given, lists the blocks that have the window: it has to be a pattern that the
// configuration can express. Written where `always`: families without it derive their patterns from other keys.
inline void layer_types_key(HfKeys& k, TransformerConfig& c, bool always = false) {
  constexpr const char *kKey = "layer_types", *kSliding = "sliding_attention", *kFull = "full_attention";
  std::vector<std::string> types;
  if (always && !k.reading())
    for (int64_t i = 0; i < c.layers; ++i) types.emplace_back(c.window_of(i) > 0 ? kSliding : kFull);
  k.words(kKey, types, {kFull, kSliding});
  if (!k.reading()) return;
  if (types.empty()) return;
  if (static_cast<int64_t>(types.size()) != c.layers)
    return k.problem(cat(kKey, ": ", types.size(), " entries, expected ", c.layers, ", one a layer"));
  const auto first = std::find(types.begin(), types.end(), kSliding) - types.begin();
  if (first == c.layers) {
    c.window = c.global_every = c.global_first = 0;
    return;
  }
  if (c.window == 0)
    return k.problem(cat(kKey, ": layer ", first, " is sliding_attention, but there is no sliding_window"));
  const auto fits = [&](int64_t global_first, int64_t global_every) {
    c.global_first = global_first, c.global_every = global_every;
    for (int64_t i = 0; i < c.layers; ++i)
      if ((c.window_of(i) > 0) != (types[static_cast<size_t>(i)] == kSliding)) return false;
    return true;
  };
  if (fits(c.global_first, c.global_every)) return;
  for (const int64_t global_first : {int64_t{0}, static_cast<int64_t>(first)})
    for (int64_t every = 0; every <= c.layers; ++every)
      if (fits(global_first, every)) return;
  k.problem(cat(
      kKey, ": expected the same number of sliding layers before each full one, or full ones and then sliding ones"));
}

// `layer_types` of families without windows: full_attention everywhere.
inline void full_layer_types_key(HfKeys& k) {
  std::vector<std::string> types;
  if (k.reading()) k.words("layer_types", types, {"full_attention"});
}

}  // namespace gt
