#include "data/hf/tekken.h"
#include "data/hf/word_piece_vocab.h"
#include "data/tokenizer/tokenizer.h"
#include "kernels/core/hash/base64.h"
#include "tests/data/byte_level_json.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

using test::Json;

// Stands for the first 256 tokens of a tekken.json, the bytes.
constexpr std::string_view kShort = R"("@")";

std::string with_bytes(std::string_view input) {
  static const std::string bytes = [] {
    std::string out;
    for (int b = 0; b < 256; ++b)
      out += cat(b > 0 ? "," : "", R"({"rank":)", b, R"(,"token_bytes":")",
                 encode_base64(std::string(1, static_cast<char>(b))), "\"}");
    return out;
  }();
  std::string text(input);
  if (const size_t at = text.find(kShort); at != std::string::npos) text.replace(at, kShort.size(), bytes);
  return text;
}

// A tekken.json if it begins with a brace; else a vocab.txt, then, behind a zero byte, its tokenizer_config.json.
void run(std::string_view input) {
  refused([&] {
    std::string json, config;
    if (input.starts_with('{')) {
      TiktokenFiles files = convert_tekken(with_bytes(input), "tekken.json");
      json = std::move(files.tokenizer_json), config = std::move(files.tokenizer_config_json);
    } else {
      const size_t end = std::min(input.find('\0'), input.size());
      config = input.substr(std::min(end + 1, input.size()));
      json = word_piece_json(input.substr(0, end), config, "vocab.txt");
    }
    const Tokenizer t = Tokenizer::from_bytes(json, "t.json", config);
    const std::vector<int32_t> ids = t.encode("The thing's \xC3\x89<s>[MASK] aaa\xFF");
    for (const int32_t id : ids) GT_CHECK(id >= 0 && id < t.vocab());
    t.decode(ids);
  });
}

std::vector<std::string> seeds() {
  const std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##ing\nth\na\n##a\n";
  const std::string tekken =
      R"({"config":{"pattern":"\\p{L}+|\\s+|[^\\s\\p{L}]","default_vocab_size":261,"default_num_special_tokens":3},)"
      R"("vocab":["@",{"rank":256,"token_bytes":"dGg=","token_str":"th"},{"rank":257,"token_bytes":"dGhl"}],)"
      R"("special_tokens":[{"rank":0,"token_str":"<unk>","is_control":true},{"rank":1,"token_str":"<s>"}]})";
  return {vocab, vocab + std::string(1, '\0') + R"({"tokenizer_class": "BertTokenizer", "do_lower_case": false})",
          tekken};
}

}  // namespace

Target older_vocabularies() {
  return {"older_vocabularies",
          run,
          seeds,
          {"[UNK]", "[CLS]", "\n", "##", "\"do_lower_case\":true", "\"cls_token\":\"the\"", "\"rank\":0", "256", "-1",
           "18446744073709551615", "\"token_bytes\":\"\"", "null", "{}", "[]"},
          3000};
}

}  // namespace gt::fuzz
