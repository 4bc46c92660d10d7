#include "data/tokens/llmc_tokens.h"

#include "data/tokens/token_file.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  static const ScratchFile file("shard.bin");
  file.put(input);
  std::unique_ptr<LlmcTokens> t;
  if (refused([&] { t = std::make_unique<LlmcTokens>(file.path()); })) return;
  GT_CHECK(names_llmc_tokens(file.path()) && t->sequences() == 1 && t->unchanged());
  std::vector<int32_t> ids(static_cast<size_t>(t->length(0)));
  const uint64_t top = t->read(0, 0, ids);
  uint64_t largest = 0;
  for (const int32_t id : ids) largest = id < 0 ? ~uint64_t{0} : std::max(largest, static_cast<uint64_t>(id));
  GT_CHECK(largest == top && t->tokens() == static_cast<int64_t>(ids.size()));
  t->will_need(0, 0, t->length(0));
  GT_CHECK(open_tokens(file.path())->fingerprint() == t->fingerprint());
}

std::string made(int32_t magic, int32_t version, TokenType type) {
  const std::vector<int32_t> ids{1, 2, 65535, 4, 5};
  std::string s;
  for (const int32_t v : {magic, version, static_cast<int32_t>(ids.size())})
    s += number_bytes(static_cast<uint64_t>(v), 4);
  s.resize(1024 + ids.size() * static_cast<size_t>(width_of(type)));
  pack_tokens(ids, type, reinterpret_cast<uint8_t*>(s.data()) + 1024);
  return s;
}

std::vector<std::string> seeds() { return {made(20240520, 1, TokenType::kU16), made(20240801, 7, TokenType::kI32)}; }

}  // namespace

Target llmc_tokens() {
  return {"llmc_tokens",
          run,
          seeds,
          {number_bytes(20240520, 4), number_bytes(20240801, 4), number_bytes(0x7fffffff, 4), number_bytes(0, 4)},
          4000};
}

}  // namespace gt::fuzz
