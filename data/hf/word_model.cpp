#include "data/hf/word_model.h"

#include "kernels/core/check.h"

namespace gt {

std::unordered_map<std::string_view, int32_t> model_ids(const TokenizerJson& t) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (const int32_t id : t.model_ids) ids.emplace(t.pieces[static_cast<size_t>(id)], id);
  return ids;
}

std::unique_ptr<const WordModel> make_word_model(const TokenizerJson& t, const std::string& name) {
  switch (t.model) {
    case HfModel::kBpe: return make_character_bpe(t, name);
    case HfModel::kWordPiece: return make_word_piece(t, name);
    case HfModel::kUnigram: return make_unigram_model(t, name);
  }
  GT_CHECK(false, "a model without a name");
  return nullptr;
}

}  // namespace gt
