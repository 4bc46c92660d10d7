// Input: two bytes for the size of the .bin; then the .idx.
#include "data/tokens/token_file.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  static const ScratchFile idx("tokens.idx"), bin("tokens.bin");
  if (input.size() < 2) return;
  const size_t size = static_cast<uint8_t>(input[0]) | static_cast<size_t>(static_cast<uint8_t>(input[1])) << 8;
  bin.put(std::string(size, '\x01'));
  idx.put(input.substr(2));
  TokenFile f;
  if (refused([&] { f = TokenFile::open(idx.path()); })) return;
  int64_t tokens = 0;
  std::vector<int32_t> out;
  for (int64_t s = 0; s < f.sequences(); ++s) {
    out.resize(static_cast<size_t>(f.length(s)));
    f.read(s, 0, out);
    tokens += f.length(s);
    GT_CHECK(f.position(s) + f.length(s) * f.width() <= f.bin().size());
    f.will_need(s, 0, f.length(s));
    GT_CHECK(f.document_of(s) >= 0 && f.document_of(s) <= f.documents());
  }
  GT_CHECK(!f.fingerprint().text().empty() && name_of(f.type())[0] != '?');
  GT_CHECK(TokenFile::open(token_prefix(idx.path())).tokens() == f.tokens());
  GT_CHECK(tokens == f.tokens() && tokens * f.width() <= f.bin().size());  // sequences neither overlap nor leave gaps
}

std::string made(TokenType type) {
  const ScratchFile idx("seed.idx"), bin("seed.bin");
  TokenFileWriter w(bin.path().substr(0, bin.path().size() - 4), type);
  for (const std::vector<int32_t>& d : {std::vector<int32_t>{1, 2, 3}, {4}, {5, 6, 7, 8, 9}}) w.add(d);
  w.finish();
  Vfs vfs;
  const size_t size = read_file(vfs, bin.path(), 1 << 20).size();
  return number_bytes(size, 2) + read_file(vfs, idx.path(), 1 << 20);
}

std::vector<std::string> seeds() {
  return {made(TokenType::kU16), made(TokenType::kI32), made(TokenType::kU8), made(TokenType::kI64),
          made(TokenType::kI16)};
}

}  // namespace

Target token_index() {
  return {"token_index",
          run,
          seeds,
          {"MMIDIDX", number_bytes(~0ull, 8), number_bytes(1ull << 61, 8), number_bytes(3, 8)},
          4000};
}

}  // namespace gt::fuzz
