// What `data inspect` prints: facts of a token file, documents and samples as text, the order of samples as CSV. Text
// out; command lines are the caller's.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>

#include "data/dataset.h"
#include "data/token_store.h"
#include "data/tokenizer.h"

namespace gt {

// Header, documents, tokens, type, length histogram (powers of two), longest document, fingerprint, meta.json, the
// verdict of the format's rules. Never throws for a broken file: the verdict says what is broken. Returns whether the
// file is good.
bool inspect_file(const std::string& path, std::ostream& out);

// Document i: its first 256 ids, or all with `full`, and their text when a tokenizer is given. kUsage when there is no
// such document.
void inspect_document(const TokenStore& file, int64_t document, bool full, const Tokenizer* tokenizer,
                      std::ostream& out);

// Sample n of a dataset: where it begins, its seq + 1 ids, and their text when a tokenizer is given.
void inspect_sample(const Dataset& dataset, int64_t sample, const Tokenizer* tokenizer, std::ostream& out);

// CSV "sample,dataset,sequence,offset" of the samples [first, first + count): offset in tokens of the sequence.
void inspect_order(const Dataset& dataset, int64_t first, int64_t count, std::ostream& out);

}  // namespace gt
