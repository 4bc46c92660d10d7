// BERT's older folder form, vocab.txt: one WordPiece a line, its id the number of the line. It is converted to a
// tokenizer.json with the same ids, which is what checkpoints keep.
#pragma once
#include <string>
#include <string_view>

namespace gt {

// Returns the tokenizer.json of the contents of vocab.txt, read as transformers' BertTokenizer reads it: lower case and
// accents as `config`, the contents of tokenizer_config.json or empty, sets them (do_lower_case true if it does not),
// [CLS] before a text and [SEP] behind it. `where`: path of vocab.txt, for messages. Throws kUsage for a file that is
// no UTF-8, that has a piece twice or no [UNK], [CLS] or [SEP], and for a config of another class.
std::string word_piece_json(std::string_view vocab, const std::string& config, const std::string& where);

}  // namespace gt
