#include "data/tokens/token_store.h"

#include <xxhash.h>

#include <algorithm>

#include "data/tokens/llmc_tokens.h"
#include "data/tokens/mapped_file.h"
#include "data/tokens/token_file.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

template <class T>
uint64_t gather(const uint8_t* p, std::span<int32_t> out) {
  uint64_t top = 0;
  if constexpr (sizeof(T) <= 4) {  // a 32-bit maximum vectorizes; the sign bit marks negative ids
    uint32_t m = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const auto v = static_cast<int32_t>(load_at<T>(p + i * sizeof(T)));
      out[i] = v;
      m = std::max(m, static_cast<uint32_t>(v));
    }
    top = m > 0x7FFFFFFFu ? ~uint64_t{0} : m;
  } else {
    for (size_t i = 0; i < out.size(); ++i) {
      const auto v = load_at<T>(p + i * sizeof(T));
      out[i] = static_cast<int32_t>(v);
      top = std::max(top, static_cast<uint64_t>(v));
    }
  }
  return top;
}

}  // namespace

int64_t width_of(TokenType t) {
  switch (t) {
    case TokenType::kU8: return 1;
    case TokenType::kI16:
    case TokenType::kU16: return 2;
    case TokenType::kI32: return 4;
    case TokenType::kI64: return 8;
  }
  fail(Exit::kInternal, "token type ", static_cast<int>(t));
}

const char* name_of(TokenType t) {
  switch (t) {
    case TokenType::kU8: return "u8";
    case TokenType::kI16: return "i16";
    case TokenType::kI32: return "i32";
    case TokenType::kI64: return "i64";
    case TokenType::kU16: return "u16";
  }
  return "?";
}

TokenType token_type_for(int64_t pieces) { return pieces < 65500 ? TokenType::kU16 : TokenType::kI32; }

std::string Fingerprint::text() const { return cat(bin_bytes, ' ', idx_sha256, ' ', ends_xxh3); }

namespace {

// Hashes at most 32 runs of 256 elements that read(sequence, begin, span) copies, spread over all sequences.
template <class T, class Read>
uint64_t hash_runs(const TokenStore& tokens, Read read) {
  constexpr int64_t kSamples = 32, kLength = 256;
  uint64_t hash = 0;
  T run[kLength];
  for (int64_t i = 0; i < kSamples && tokens.sequences() > 0; ++i) {
    const int64_t sequence = (tokens.sequences() - 1) * i / (kSamples - 1), length = tokens.length(sequence);
    const int64_t count = std::min(length, kLength), begin = (length - count) * i / (kSamples - 1);
    read(sequence, begin, std::span(run, static_cast<size_t>(count)));
    hash = XXH3_64bits_withSeed(run, static_cast<size_t>(count) * sizeof run[0], hash);
  }
  return hash;
}

}  // namespace

uint64_t sample_hash(const TokenStore& tokens) {
  return hash_runs<int32_t>(tokens, [&](int64_t s, int64_t at, std::span<int32_t> out) { tokens.read(s, at, out); });
}

uint64_t mask_hash(const TokenStore& tokens) {
  return hash_runs<uint8_t>(tokens,
                            [&](int64_t s, int64_t at, std::span<uint8_t> out) { tokens.read_mask(s, at, out); });
}

uint64_t gather_tokens(const uint8_t* p, TokenType type, std::span<int32_t> out) {
  switch (type) {
    case TokenType::kU8: return gather<uint8_t>(p, out);
    case TokenType::kI16: return gather<int16_t>(p, out);
    case TokenType::kU16: return gather<uint16_t>(p, out);
    case TokenType::kI32: return gather<int32_t>(p, out);
    case TokenType::kI64: return gather<int64_t>(p, out);
  }
  return 0;
}

std::unique_ptr<TokenStore> open_tokens(const std::string& path, const TokenFileOptions& options) {
  if (names_llmc_tokens(path)) return std::make_unique<LlmcTokens>(path);
  return std::make_unique<TokenFile>(TokenFile::open(path, options));
}

}  // namespace gt
