// Tokenizers of a tokenizer.json of any kind, against figures of Hugging Face's library (tokenizers 0.23.3).
// tests/launch/models/tokenizer_kinds_test.cpp compares many texts.
#include <ctime>

#include "data/bpe/tokenizer_json.h"
#include "data/hf/characters.h"
#include "data/hf/normalizer.h"
#include "data/hf/token_decoder.h"
#include "data/hf/word_splitter.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/hash/base64.h"
#include "tests/data/byte_level_json.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {

using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;
const std::string kBlank = "\xE2\x96\x81";

std::string normalized(const Json& j, const std::string& text, bool* moved = nullptr) {
  const nlohmann::json parsed = j;
  std::string buffer;
  bool unused = false;
  return std::string(TextNormalizer(&parsed, "n").apply(text, &buffer, moved != nullptr ? moved : &unused));
}

Words words(const Json& j, const std::string& text, bool first = true) {
  const nlohmann::json parsed = j;
  Words out;
  WordSplitter(&parsed, "p", false).for_each_word(text, first, [&](std::string_view w) { out.emplace_back(w); });
  return out;
}

Json type(const char* name) { return {{"type", name}}; }
Json split(const char* pattern, const char* behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", invert}};
}
Json metaspace(const char* scheme, bool splits) {
  return {{"type", "Metaspace"}, {"replacement", kBlank}, {"prepend_scheme", scheme}, {"split", splits}};
}
Json bert_normalizer(bool lower) {
  return {{"type", "BertNormalizer"},
          {"clean_text", true},
          {"handle_chinese_chars", true},
          {"strip_accents", nullptr},
          {"lowercase", lower}};
}

// A tokenizer.json of BERT's kind.
Json bert_json() {
  Json vocab = Json::object();
  for (const char* piece : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "un", "##aff", "##able", "work", "##s",
                            ",", "##\xE6\x97\xA5", "\xE6\x97\xA5", "e", "'", "s", "."})
    vocab[piece] = vocab.size();
  Json added = Json::array();
  for (const char* piece : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
    added.push_back({{"id", vocab[piece]}, {"content", piece}, {"special", true}, {"normalized", false}});
  const auto token = [](const char* piece, int id) { return Json{{"id", piece}, {"ids", {id}}, {"tokens", {piece}}}; };
  const auto special = [](const char* piece) { return Json{{"SpecialToken", {{"id", piece}, {"type_id", 0}}}}; };
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", bert_normalizer(true)},
          {"pre_tokenizer", type("BertPreTokenizer")},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {special("[CLS]"), {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, special("[SEP]")}},
            {"pair", Json::array()},
            {"special_tokens", {{"[CLS]", token("[CLS]", 2)}, {"[SEP]", token("[SEP]", 3)}}}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", vocab}}}};
}

Json unigram_json() {
  const std::pair<std::string, double> pieces[] = {{"<unk>", 0.0}, {"<s>", 0.0},  {kBlank, -2.0},
                                                   {"a", -3.0},    {"b", -3.5},   {"ab", -5.0},
                                                   {"aab", -9.0},  {"==", -20.0}, {kBlank + "ab", -6.25}};
  Json vocab = Json::array();
  for (const auto& [piece, score] : pieces) vocab.push_back(Json::array({piece, score}));
  return {{"added_tokens", Json::array()},
          {"pre_tokenizer", metaspace("always", true)},
          {"decoder", metaspace("always", true)},
          {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"byte_fallback", false}, {"vocab", vocab}}}};
}

Tokenizer made(const Json& j, const std::string& config = "") {
  return Tokenizer::from_bytes(j.dump(), "tokenizer.json", config);
}

}  // namespace

TEST_CASE("normalizers of a tokenizer.json change text as Hugging Face's library does") {
  CHECK(normalized(type("NFKC"), "\xEF\xAC\x81\xC2\xBD") ==
        "fi1\xE2\x81\x84"
        "2");
  CHECK(normalized(type("NFKD"), "\xC3\xA9\xEF\xBC\xA1") ==
        "e\xCC\x81"
        "A");
  CHECK(normalized(type("NFKC"), "\xE3\x8B\xBF") == "\xE3\x8B\xBF");  // U+32FF is newer than Unicode 9
  CHECK(normalized(type("NFD"), "\xC3\xA9") == "e\xCC\x81");
  CHECK(normalized(type("Lowercase"), "\xC4\xB0\xCE\xA3") == "i\xCC\x87\xCF\x83");  // no final sigma
  CHECK(normalized(type("StripAccents"), "e\xCC\x81\xC3\xA9") == "e\xC3\xA9");
  CHECK(normalized({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}, " a\xC2\xA0\n") == " a");
  CHECK(normalized({{"type", "Prepend"}, {"prepend", "x"}}, "") == "");
  CHECK(normalized({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "_"}}, "a  b   c") == "a_b_c");
  CHECK(normalized(bert_normalizer(true), "\xC3\x89t\xC3\xA9\x01\t\xE6\x97\xA5x\xEF\xBF\xBD") == "ete  \xE6\x97\xA5 x");
  CHECK(normalized(bert_normalizer(false), "\xC3\x89\xE0\xA3\xA2") == "\xC3\x89\xE0\xA3\xA2");  // U+08E2: Cf since 9
  bool moved = false;
  normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}, " a", &moved);
  CHECK(moved);
  normalized(type("NFD"), "\xC3\xA9", &moved);
  CHECK_FALSE(moved);
}

TEST_CASE("pre-tokenizers of a tokenizer.json split text as Hugging Face's library does") {
  CHECK(words(split("[,.]", "Isolated"), "a,,b.") == Words{"a", ",", ",", "b", "."});
  CHECK(words(split("[,.]", "Removed"), "a,,b.") == Words{"a", "b"});
  CHECK(words(split("[,.]", "Contiguous"), "a,,b.") == Words{"a", ",,", "b", "."});
  CHECK(words(split("[,.]", "MergedWithPrevious"), "a,,b.") == Words{"a,", ",", "b."});
  CHECK(words(split("[,.]", "MergedWithNext"), "a,,b.") == Words{"a", ",", ",b", "."});
  CHECK(words(split("[,.]", "Removed", true), "a,,b.") == Words{",", ",", "."});
  CHECK(words({{"type", "Punctuation"}}, "a+b\xE2\x80\xA6\xE2\xB9\x83") ==
        Words{"a", "+", "b", "\xE2\x80\xA6", "\xE2\xB9\x83"});  // U+2E43 is punctuation since Unicode 9: text
  CHECK(words(type("Whitespace"), "a_1 -- \xC3\xA9,b") == Words{"a_1", "--", "\xC3\xA9", ",", "b"});
  CHECK(words(type("WhitespaceSplit"), " a\xC2\xA0 b\n") == Words{"a", "b"});
  CHECK(words(type("BertPreTokenizer"), "don't stop") == Words{"don", "'", "t", "stop"});
  CHECK(words({{"type", "Digits"}, {"individual_digits", false}}, "a12b") == Words{"a", "12", "b"});
  CHECK(words(metaspace("always", true), "a b ") == Words{kBlank + "a", kBlank + "b", kBlank});
  CHECK(words(metaspace("first", false), "a b", false) == Words{"a" + kBlank + "b"});
  CHECK(words(metaspace("first", false), "a b", true) == Words{kBlank + "a" + kBlank + "b"});
  CHECK(words({{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}}, "a b") == Words{"\xC4\xA0"
                                                                                                         "a\xC4\xA0"
                                                                                                         "b"});
  const Json both{{"type", "Sequence"}, {"pretokenizers", {type("WhitespaceSplit"), metaspace("first", true)}}};
  CHECK(words(both, "a b") == Words{kBlank + "a", "b"});
  CHECK(words(both, " a b") == Words{"a", "b"});  // the first word does not begin the text
}

TEST_CASE("WordPiece covers words with the longest pieces, and decodes them with blanks between words") {
  const Tokenizer t = made(bert_json());
  CHECK(t.encode("The unaffable, works") == Ids{5, 6, 7, 8, 11, 9, 10});
  CHECK(t.encode("unaffabl work" + std::string(101, 's')) == Ids{1, 1});
  CHECK(t.encode("\xC3\x89 the[MASK]the \xE6\x97\xA5\xE6\x97\xA5") == Ids{14, 5, 4, 5, 13, 13});
  CHECK(t.decode(Ids{2, 5, 6, 7, 8, 11, 9, 10, 17, 3}) == "[CLS] the unaffable, works. [SEP]");
  CHECK((t.before_text() == Ids{2} && t.after_text() == Ids{3} && t.unk() == 1));
  CHECK((t.bos() == 2 && t.eos() == 3));
  CHECK((t.text_bytes(5) == 4 && t.text_bytes(7) == 3));
  CHECK(t.kind(4) == PieceKind::kUserDefined);
  Json older = bert_json();
  older["model"].erase("type");
  CHECK(made(older).encode("works") == Ids{9, 10});
}

TEST_CASE("Unigram adds scores from the left, and joins unknown characters") {
  const Tokenizer t = made(unigram_json());
  CHECK(t.encode("ab") == Ids{8});
  CHECK(t.encode("aab xyz b") == Ids{2, 3, 5, 2, 0, 2, 4});
  CHECK(t.decode(Ids{8, 2, 6}) == "ab aab");
  Json bytes = unigram_json();
  bytes["model"]["byte_fallback"] = true;
  for (int b = 0; b < 256; ++b)
    bytes["model"]["vocab"].push_back(Json::array({byte_piece(static_cast<uint8_t>(b)), -30.0}));
  CHECK(made(bytes).encode("xy") == Ids{2, 9 + 'x', 9 + 'y'});
}

TEST_CASE("settings of a tokenizer.json that are not understood are refused by name") {
  struct Case {
    const char* at;
    Json value;
    std::vector<std::string> errors;
  };
  const Json long_text = std::string(2000, 'x');
  const Case cases[] = {
      {"/model/unk_token", "[NONE]", {"unk_token", "[NONE]"}},
      {"/model/max_input_chars_per_word", -1, {"max_input_chars_per_word", "-1"}},
      {"/model/unheard_of", 1, {"unheard_of"}},
      {"/normalizer", type("Unheard"), {"normalizer", "Unheard"}},
      {"/normalizer/unheard_of", true, {"unheard_of"}},
      {"/normalizer", {{"type", "Prepend"}, {"prepend", long_text}}, {"prepend", "2000"}},
      {"/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}, {"charsmap", "at least 8 bytes"}},
      {"/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "!"}}, {"charsmap", "base64"}},
      {"/pre_tokenizer", type("UnicodeScripts"), {"pre_tokenizer", "UnicodeScripts"}},
      {"/pre_tokenizer", metaspace("second", true), {"prepend_scheme", "second"}},
      {"/pre_tokenizer", split("a", "Both"), {"behavior", "Both"}},
      {"/decoder", type("CTC"), {"decoder", "CTC"}},
      {"/decoder", {{"type", "Strip"}, {"content", "ab"}, {"start", 1}}, {"content", "2 bytes"}},
  };
  for (const Case& c : cases) {
    Json j = bert_json();
    j[Json::json_pointer(c.at)] = c.value;
    INFO(c.at << ' ' << c.value.dump().substr(0, 80));
    expect_error(Exit::kUsage, c.errors, [&] { made(j); });
  }
  Json first = bert_json();
  first["normalizer"] = {{"type", "Prepend"}, {"prepend", "x"}};
  first["pre_tokenizer"] = metaspace("first", true);
  expect_error(Exit::kUsage, {"prepend_scheme", "first"}, [&] { made(first); });
  Json gone = bert_json();
  gone["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  gone["added_tokens"].push_back({{"id", 18}, {"content", "  "}, {"special", false}, {"normalized", true}});
  expect_error(Exit::kUsage, {"added_tokens", "nothing"}, [&] { made(gone); });
  Json no_unk = unigram_json();
  no_unk["model"]["unk_id"] = nullptr;
  expect_error(Exit::kUsage, {"unk_id"}, [&] { made(no_unk); });
  Json score = unigram_json();
  score["model"]["vocab"][2][1] = "high";
  expect_error(Exit::kUsage, {"vocab[2]", "score"}, [&] { made(score); });
}

TEST_CASE("a tokenizer_config.json that makes transformers change the normalizer or the pre-tokenizer is refused") {
  const Json bert = bert_json();
  CHECK(made(bert, R"({"tokenizer_class": "BertTokenizer"})").encode("The") == Ids{5});
  CHECK(made(bert, R"({"do_lower_case": true, "strip_accents": null})").encode("The") == Ids{5});
  expect_error(Exit::kUsage, {"do_lower_case"}, [&] { made(bert, R"({"do_lower_case": false})"); });
  expect_error(Exit::kUsage, {"tokenize_chinese_chars"}, [&] { made(bert, R"({"tokenize_chinese_chars": false})"); });
  expect_error(Exit::kUsage, {"strip_accents"}, [&] { made(bert, R"({"strip_accents": false})"); });
  Json cased = bert;
  cased["normalizer"] = bert_normalizer(false);
  expect_error(Exit::kUsage, {"do_lower_case", "default"},
               [&] { made(cased, R"({"tokenizer_class": "BertTokenizer"})"); });
  Json roberta = byte_level_json();
  roberta["pre_tokenizer"]["add_prefix_space"] = true;
  CHECK(made(roberta, R"({"add_prefix_space": true})").encode("the") == made(roberta).encode(" the"));
  expect_error(Exit::kUsage, {"add_prefix_space"}, [&] { made(roberta, R"({"add_prefix_space": false})"); });
  expect_error(Exit::kUsage, {"add_prefix_space"},
               [&] { made(roberta, R"({"tokenizer_class": "RobertaTokenizer"})"); });
}

TEST_CASE("hostile steps of a tokenizer.json end with an error in time: text that grows, pieces that are slow") {
  Json grows = bert_json();
  Json steps = Json::array();
  for (int k = 0; k < 16; ++k)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}});
  grows["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const std::clock_t begin = std::clock();  // CPU time, on a busy machine too
  expect_error(Exit::kUsage, {"normalizer", "longer"}, [&] { made(grows).encode(std::string(10'000, 'a')); });
  CHECK(std::clock() - begin < 5 * CLOCKS_PER_SEC);
  Json slow = bert_json();
  slow["model"]["max_input_chars_per_word"] = 1 << 30;
  slow["model"]["vocab"][std::string(16'000, 'a') + "b"] = 18;
  slow["model"]["vocab"]["a"] = 19;
  slow["model"]["vocab"]["##a"] = 20;
  expect_error(Exit::kUsage, {"tokenizer.json", "too slow"}, [&] { made(slow).encode(std::string(1'000'000, 'a')); });
  CHECK(std::clock() - begin < 30 * CLOCKS_PER_SEC);
}

TEST_CASE("vocab.txt is read as a WordPiece with the settings of tokenizer_config.json") {
  TempDir dir;
  const std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\n##s\n";
  write_file(dir / "vocab.txt", vocab);
  for (const std::string& path : {dir.path(), dir / "vocab.txt"}) {
    const Tokenizer t = Tokenizer::load(path);
    CHECK(t.encode("The [MASK] thes") == Ids{5, 4, 5, 7});
    CHECK((t.vocab() == 8 && t.unk() == 1 && t.before_text() == Ids{2} && t.after_text() == Ids{3}));
  }
  CHECK(tokenizer_paths(dir.path()) == std::vector<std::string>{dir / "vocab.txt"});
  write_file(dir / "tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer", "do_lower_case": false})");
  CHECK(Tokenizer::load(dir.path()).encode("The") == Ids{6});
  const auto refused = [&](const std::string& text, const std::vector<std::string>& errors) {
    write_file(dir / "vocab.txt", text);
    expect_error(Exit::kUsage, errors, [&] { Tokenizer::load(dir.path()); });
  };
  refused("[PAD]\na\n", {"vocab.txt", "[UNK]"});
  refused(vocab + "the\n", {"line 9", "twice"});
  refused(vocab + "\nx\n", {"line 9", "empty line"});
  refused(vocab + "\xFF\n", {"UTF-8"});
  write_file(dir / "tokenizer_config.json", R"({"tokenizer_class": "BertJapaneseTokenizer"})");
  refused(vocab, {"tokenizer_class", "BertJapaneseTokenizer"});
}

TEST_CASE("tekken.json is read as a BPE of bytes behind its special tokens") {
  TempDir dir;
  Json vocab = Json::array();
  const auto add = [&](const std::string& bytes) {
    vocab.push_back({{"rank", vocab.size()}, {"token_bytes", encode_base64(bytes)}, {"token_str", nullptr}});
  };
  for (int b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
  for (const char* token : {"th", "the", " the", "padding"}) add(token);
  const Json special = Json::array({{{"rank", 0}, {"token_str", "<unk>"}, {"is_control", true}},
                                    {{"rank", 1}, {"token_str", "<s>"}, {"is_control", true}},
                                    {{"rank", 2}, {"token_str", "</s>"}, {"is_control", true}}});
  const Json whole{{"config",
                    {{"pattern", R"(\s?\p{L}+|\s+|[^\s\p{L}])"},
                     {"default_vocab_size", 264},
                     {"default_num_special_tokens", 5},
                     {"version", "v3"}}},
                   {"vocab", vocab},
                   {"special_tokens", special}};
  write_file(dir / "tekken.json", whole.dump());
  for (const std::string& path : {dir.path(), dir / "tekken.json"}) {
    const Tokenizer t = Tokenizer::load(path);
    CHECK(t.encode("the the</s>x") == Ids{5 + 257, 5 + 258, 2, 5 + 'x'});
    CHECK((t.vocab() == 264 && t.piece(4) == "<SPECIAL_4>" && t.bos() == 1 && t.eos() == 2));
    CHECK((t.before_text() == Ids{1} && t.after_text().empty() && t.decode(Ids{262, 263}) == "the the"));
  }
  const auto refused = [&](const char* at, const Json& value, const std::vector<std::string>& errors) {
    Json j = whole;
    j[Json::json_pointer(at)] = value;
    write_file(dir / "tekken.json", j.dump());
    INFO(at);
    expect_error(Exit::kUsage, errors, [&] { Tokenizer::load(dir.path()); });
  };
  refused("/vocab/3/rank", 4, {"vocab[3].rank", "expected 3"});
  refused("/vocab/3/token_bytes", "!", {"vocab[3].token_bytes"});
  refused("/vocab/3/token_bytes", "AA==", {"vocab[3]", "new token"});
  refused("/config/default_vocab_size", 10'000, {"at least", "9995"});
  refused("/config/default_num_special_tokens", 2, {"rank", "0 to 1"});
  refused("/config/pattern", "(?<=a)b", {"pre_tokenizer", "(?<="});
  refused("/special_tokens/1/rank", 0, {"rank 0 occurs twice"});
}
