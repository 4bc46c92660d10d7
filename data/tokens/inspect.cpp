#include "data/tokens/inspect.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iomanip>
#include <vector>

#include "data/tokens/token_meta.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

void print_ids(std::span<const int32_t> ids, const Tokenizer* tokenizer, std::ostream& out) {
  for (size_t i = 0; i < ids.size(); ++i) out << (i ? " " : "") << ids[i];
  out << '\n';
  if (tokenizer == nullptr) return;
  for (int32_t id : ids)
    if (id < 0 || id >= tokenizer->vocab()) {
      out << "(not decodable: token " << id << " is outside of the tokenizer's " << tokenizer->vocab() << " pieces)\n";
      return;
    }
  out << tokenizer->decode(ids) << '\n';
}

int64_t document_tokens(const TokenStore& f, int64_t document) {
  int64_t n = 0;
  for (int64_t s = f.document_begin(document); s < f.document_begin(document + 1); ++s) n += f.length(s);
  return n;
}

void print_histogram(const TokenStore& f, std::ostream& out) {
  std::array<int64_t, 64> documents{}, tokens{};
  int64_t longest = -1, at = 0;
  for (int64_t d = 0; d < f.documents(); ++d) {
    const int64_t n = document_tokens(f, d);
    const auto bucket =
        static_cast<size_t>(std::bit_width(static_cast<uint64_t>(n)));  // 0: empty; b: [2^(b-1), 2^b - 1]
    ++documents[bucket];
    tokens[bucket] += n;
    if (n > longest) longest = n, at = d;
  }
  out << "longest      document " << at << ": " << longest
      << " tokens\nlengths      tokens of a document: documents, share of tokens\n";
  for (size_t b = 0; b < documents.size(); ++b) {
    if (documents[b] == 0) continue;
    const int64_t low = b == 0 ? 0 : int64_t{1} << (b - 1), high = b == 0 ? 0 : low * 2 - 1;
    const double share = 100.0 * static_cast<double>(tokens[b]) / static_cast<double>(f.tokens());
    out << "  " << std::setw(12) << low << " - " << std::setw(12) << high << ": " << documents[b] << ", " << std::fixed
        << std::setprecision(1) << share << " %\n";
  }
}

int64_t targets_of(const TokenStore& f) {
  std::vector<uint8_t> block(1 << 16);
  int64_t count = 0;
  for (int64_t s = 0; s < f.sequences(); ++s)
    for (int64_t at = 0, n = f.length(s); at < n; at += static_cast<int64_t>(block.size())) {
      const auto part = std::span(block).first(std::min(static_cast<size_t>(n - at), block.size()));
      f.read_mask(s, at, part);
      count += std::count(part.begin(), part.end(), 1);
    }
  return count;
}

}  // namespace

bool inspect_file(const std::string& path, std::ostream& out) {
  try {
    const auto store = open_tokens(path, {"", [&](const std::string& w) { out << "warning      " << w << '\n'; }});
    const TokenStore& f = *store;
    out << "prefix       " << f.prefix() << "\nformat       " << f.format() << "\ntype         " << name_of(f.type())
        << " (code " << static_cast<int>(f.type()) << ", " << f.width() << " bytes)\nsequences    " << f.sequences()
        << "\ndocuments    " << f.documents() << "\ntokens       " << f.tokens() << '\n';
    if (f.documents() > 0) print_histogram(f, out);
    std::vector<int32_t> block(1 << 16);
    uint64_t top = 0;
    for (int64_t s = 0; s < f.sequences(); ++s)
      for (int64_t at = 0, n = f.length(s); at < n; at += static_cast<int64_t>(block.size()))
        top = std::max(top, f.read(s, at,
                                   std::span(block).first(static_cast<size_t>(
                                       std::min<int64_t>(n - at, static_cast<int64_t>(block.size()))))));
    out << "largest id   " << (top >> 63 ? "negative ids are present" : std::to_string(top)) << "\nfingerprint  "
        << f.fingerprint().text() << '\n';
    if (f.masked()) out << "loss mask    " << targets_of(f) << " tokens carry loss\n";
    if (const auto m = read_token_meta(f.prefix())) {
      out << "tokenizer    SHA-256 " << m->tokenizer_sha256 << ", " << m->vocab << " pieces, end of document " << m->eod
          << "\nprepared     by gpttrain " << m->version << " from " << m->inputs.size()
          << (m->inputs.size() == 1 ? " input, " : " inputs, ") << m->bytes << " bytes of text\n";
      const bool fits =
          top < static_cast<uint64_t>(m->vocab) && m->tokens == f.tokens() && m->documents == f.documents();
      if (!fits)
        out << "verdict      bad: " << f.prefix() << ".meta.json describes " << m->documents << " documents, "
            << m->tokens << " tokens below " << m->vocab << '\n';
      if (!fits) return false;
    }
    out << "verdict      good\n";
    return true;
  } catch (const Error& e) {
    out << "verdict      bad: " << e.what() << '\n';
    return false;
  }
}

void inspect_document(const TokenStore& f, int64_t document, bool full, const Tokenizer* tokenizer, std::ostream& out) {
  GT_REQUIRE(document >= 0 && document < f.documents(), Exit::kUsage, f.prefix(), ": --doc ", document,
             ": expected 0 to ", f.documents() - 1);
  constexpr int64_t kScreenful = 256;  // tokens
  const int64_t all = document_tokens(f, document), shown = full ? all : std::min(all, kScreenful);
  std::vector<int32_t> ids(static_cast<size_t>(shown));
  int64_t at = 0;
  for (int64_t s = f.document_begin(document); at < shown; ++s) {
    const int64_t n = std::min(f.length(s), shown - at);
    f.read(s, 0, std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(n)));
    at += n;
  }
  out << "document " << document << ": " << all << " tokens\n";
  print_ids(ids, tokenizer, out);
  if (shown < all) out << "these are the first " << shown << " tokens; --full prints all " << all << '\n';
}

void inspect_sample(const Dataset& dataset, int64_t sample, const Tokenizer* tokenizer, std::ostream& out) {
  GT_REQUIRE(sample >= 0, Exit::kUsage, "--sample ", sample, ": expected 0 or more");
  std::vector<int32_t> ids(static_cast<size_t>(dataset.seq() + 1));
  dataset.fetch(sample, ids);
  const auto p = dataset.position_of(sample);
  out << "sample " << sample << ": dataset " << p.source << ", sequence " << p.sequence << ", offset " << p.offset
      << '\n';
  print_ids(ids, tokenizer, out);
}

void inspect_order(const Dataset& dataset, int64_t first, int64_t count, std::ostream& out) {
  GT_REQUIRE(first >= 0 && count >= 0, Exit::kUsage, "--samples ", count, ": expected 0 or more");
  out << "sample,dataset,sequence,offset\n";
  for (int64_t k = first; k < first + count; ++k) {
    const auto p = dataset.position_of(k);
    out << k << ',' << p.source << ',' << p.sequence << ',' << p.offset << '\n';
  }
}

}  // namespace gt
