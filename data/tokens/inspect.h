// Output of `data inspect`: facts of a token file, documents and samples as text, the sample order as CSV.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>

#include "data/samples/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_store.h"

namespace gt {

// Prints header, documents, tokens, dtype, length histogram (powers of two), longest document, fingerprint, meta.json
// and the result of the format check. Never throws for a broken file; reports what is broken. Returns whether it is
// valid.
bool inspect_file(const std::string& path, std::ostream& out);

// Prints document i: its first 256 ids, or all with `full`, and their text if a tokenizer is given. kUsage when there
// is no such document.
void inspect_document(const TokenStore& file, int64_t document, bool full, const Tokenizer* tokenizer,
                      std::ostream& out);

// Prints sample n of a dataset: where it begins, its seq + 1 ids, and their text if a tokenizer is given.
void inspect_sample(const Dataset& dataset, int64_t sample, const Tokenizer* tokenizer, std::ostream& out);

// Prints CSV "sample,dataset,sequence,offset" of samples [first, first + count): offset in tokens of the sequence.
void inspect_order(const Dataset& dataset, int64_t first, int64_t count, std::ostream& out);

}  // namespace gt
