#include "data/prepare/text_stream.h"

#include "data/tokenizer/tokenizer_train.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

TEST_CASE("streamed text is the decoding of all ids, for any ids") {
  const TempDir dir;
  write_file(dir / "text.txt", made_up_text(2000));
  for (const char* type : {"bpe", "unigram"}) {
    TokenizerTrainOptions o;
    o.inputs = {dir / "text.txt"};
    o.output = dir / (std::string(type) + ".model");
    o.vocab = 420;
    o.type = type;
    tokenizer_train(o);
    const Tokenizer t = Tokenizer::load(o.output);
    const auto check = [&](const std::vector<int32_t>& ids) {
      TextStream stream(t);
      std::string text;
      for (const int32_t id : ids) text += stream.push(id);
      text += stream.finish();
      CHECK(text == t.decode(ids));
    };
    check({});
    check(t.encode(made_up_text(200)));
    const std::string spelled = "a \xE2\x82\xAC\xE4\xB8\xAD\xF0\x9F\x98\x80 b \xC3\xA9";
    check(t.encode(spelled));
    // A character encoded as bytes is emitted with its last byte, not before.
    TextStream stream(t);
    std::string text;
    for (const int32_t id : t.encode(spelled)) {
      const std::string piece = stream.push(id);
      CHECK(piece.find("\xEF\xBF\xBD") == std::string::npos);
      text += piece;
    }
    CHECK(text == spelled);
    // Any bytes, including incomplete characters.
    std::mt19937 random(7);
    std::vector<int32_t> bytes;
    for (int32_t id = 0; id < t.vocab(); ++id)
      if (t.is_byte(id)) bytes.push_back(id);
    REQUIRE(bytes.size() == 256);
    for (int k = 0; k < 40; ++k) {
      std::vector<int32_t> ids;
      for (int i = 0; i < 60; ++i)
        ids.push_back(random() % 2 == 0 ? bytes[128 + random() % 128]
                                        : static_cast<int32_t>(random() % static_cast<uint32_t>(t.vocab())));
      check(ids);
    }
  }
}
