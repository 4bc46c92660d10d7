#include <cmath>

#include "data/tokenizer/model_walk.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  ModelInfo m;
  if (refused([&] { m = walk_model(input, "fuzz.model"); })) return;
  GT_CHECK(m.pieces >= 1 && m.longest_piece >= 1 && m.type >= 1 && m.type <= 4 && m.byte_pieces <= m.pieces);
  // The library behind the walker: first in a child process, then, if that survived, here. Not for every input: a child
  // is slow.
  static int tried = 0;
  if (++tried > 20 && tried % 100 != 0) return;
  refused([&] {
    const Tokenizer t = Tokenizer::from_bytes(std::string(input), "fuzz.model");
    const std::vector<int32_t> ids = t.encode("the quick\nbrown \xEF\xBC\xA1 fox \xFF\x01");
    GT_CHECK(t.vocab() == m.pieces);
    t.decode(ids);
  });
}

// Encodes a protobuf bytes field.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

// Accepted by the library: no byte fallback, which would require all 256 byte pieces.
std::string small_model() {
  std::string pieces;
  float score = 0;
  const auto piece = [&](const std::string& text, char type) {
    pieces += field(
        1, field(1, text) + "\x15" + std::string(reinterpret_cast<const char*>(&score), 4) + std::string{'\x18', type});
    score -= 1;
  };
  piece("<unk>", 2);
  piece("</s>", 3);
  piece("<|endoftext|>", 4);
  for (const char* text : {"\xE2\x96\x81", "t", "h", "e", "th", "the", "\xE2\x96\x81the"}) piece(text, 1);
  return pieces + field(2, std::string("\x18\x02", 2)) + field(3, field(1, "identity"));
}

std::vector<std::string> seeds() {
  const std::string score("\x15\x00\x00\x80\xbf", 5);
  const std::string pieces = field(1, field(1, "<unk>") + score + std::string("\x18\x02", 2)) +
                             field(1, field(1, "\xE2\x96\x81the") + score) +
                             field(1, field(1, "<0x0A>") + score + std::string("\x18\x06", 2));
  return {pieces + field(2, std::string("\x18\x02\x98\x02\x01", 5)) + field(3, field(1, "identity") + field(2, "")),
          pieces + field(2, std::string("\x18\x01", 2)), pieces, small_model()};
}

}  // namespace

Target tokenizer_model() {
  return {"tokenizer_model",
          run,
          seeds,
          {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x18\x02", std::string("\x0a\x00", 2)},
          100000};
}

}  // namespace gt::fuzz
