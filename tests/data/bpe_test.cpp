// Byte-level BPE of a tokenizer.json. tests/launch/models/tokenizer_json_test.cpp compares the ids with those of
// Hugging Face's library.
#include <chrono>
#include <map>

#include "data/bpe/bpe_merges.h"
#include "data/bpe/regex.h"
#include "data/hf/normal_form.h"
#include "data/prepare/prepare.h"
#include "data/prepare/text_stream.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_files.h"
#include "data/tokenizer/utf8.h"
#include "tests/data/byte_level_json.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {

using Ids = std::vector<int32_t>;

Tokenizer made(const Json& j, const std::string& config = "") {
  return Tokenizer::from_bytes(j.dump(), "tokenizer.json", config);
}

// Words with both kinds of line ends, blanks, digits, contractions, combining marks and several scripts.
std::string odd_text(std::mt19937& r, int parts) {
  const std::vector<std::string> all{"the",
                                     " the",
                                     "aa",
                                     "a",
                                     " ",
                                     "  ",
                                     "\n",
                                     "\r\n",
                                     "\n\n",
                                     "\t",
                                     "'s",
                                     "'LL",
                                     "12345",
                                     ".",
                                     "!!",
                                     "\xC3\xA9",
                                     "e\xCC\x81",
                                     "\xE4\xB8\xAD",
                                     "\xF0\x9F\x98\x80",
                                     "\xE2\x80\xA8",
                                     "/",
                                     "x\ny",
                                     ".\nz",
                                     "<|endoftext|>"};
  std::string text;
  for (int k = 0; k < parts; ++k) text += all[r() % all.size()];
  return text;
}

// By definition: repeatedly merges the pair of the lowest rank, the leftmost of equal ones.
Ids merged_slowly(Ids ids, const std::vector<BpeMerge>& merges) {
  for (;;) {
    size_t rank = merges.size(), at = 0;
    for (size_t k = 0; k + 1 < ids.size(); ++k)
      for (size_t m = 0; m < rank; ++m)
        if (merges[m].left == ids[k] && merges[m].right == ids[k + 1]) rank = m, at = k;
    if (rank == merges.size()) return ids;
    ids[at] = merges[rank].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

}  // namespace

TEST_CASE("merges of bytes: the lowest rank first, of equal ones the leftmost, as by definition") {
  std::mt19937 r(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<BpeMerge> merges;
    std::map<std::pair<int32_t, int32_t>, bool> pairs;
    for (int32_t k = 0; k < 12; ++k) {
      const int32_t left = static_cast<int32_t>(r() % (3 + merges.size())),
                    right = static_cast<int32_t>(r() % (3 + merges.size()));
      if (!std::exchange(pairs[{left, right}], true))
        merges.push_back({left, right, static_cast<int32_t>(3 + merges.size())});
    }
    Ids word(1 + r() % 40), out;
    for (int32_t& c : word) c = static_cast<int32_t>(r() % 3);
    const Ids expected = merged_slowly(word, merges);
    BpeMerges(merges).apply(&word, &out);
    CHECK(out == expected);
  }
}

TEST_CASE("a word of a million letters is merged in less than quadratic time") {
  const Tokenizer t = made(byte_level_json());
  const auto begin = std::chrono::steady_clock::now();
  CHECK(t.encode(std::string(1'000'000, 'a')).size() == 500'000);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));  // quadratic: hours
}

TEST_CASE("words, merges, added tokens and decoding back") {
  const Tokenizer t = made(byte_level_json());
  CHECK(t.vocab() == 261);
  CHECK((t.eod() == 260 && t.bos() == -1 && t.eos() == -1 && t.sentence_piece() == nullptr));
  CHECK(t.piece(258) == "\xC4\xA0the");
  CHECK(t.id_of("\xC4\xA0the") == 258);
  CHECK(t.encode("the the") == Ids{257, 258});
  CHECK(t.encode("the  the") == Ids{257, ' ', 258});
  CHECK(t.encode("the<|endoftext|>the<|endoftext").size() == 3 + 11);
  CHECK(t.encode("").empty());
  CHECK(t.kind(260) == PieceKind::kUserDefined);
  CHECK(t.lossless());
  std::mt19937 r(2);
  Encoder cached(t);
  constexpr int64_t kEndBytes = 13;  // <|endoftext|>, which some of the texts contain
  for (int k = 0; k < 500; ++k) {
    const std::string text = odd_text(r, 20);
    Ids ids;
    cached.encode(text, &ids);
    CHECK(ids == t.encode(text));
    CHECK(t.decode(ids) == text);
    int64_t bytes = 0;
    for (const int32_t id : ids) bytes += id == t.eod() ? kEndBytes : t.text_bytes(id);
    CHECK(bytes == static_cast<int64_t>(text.size()));
  }
  CHECK(t.text_bytes(t.eod()) == 0);  // the end of a document is not part of its text
  CHECK(cached.hits() > cached.misses());
  CHECK(t.decode(t.encode("a\xFF\xE4\xB8z")) == "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");  // each invalid byte
  expect_error(Exit::kUsage, {"token 261", "0 to 260"}, [&] { t.decode(Ids{261}); });
}

TEST_CASE(
    "ignore_merges keeps a word that is in the vocabulary, NFC runs before word splitting, the longest added token "
    "wins") {
  Json j = byte_level_json();
  j["model"]["vocab"]["abc"] = 260;
  j["added_tokens"][0]["id"] = 261;
  CHECK(made(j).encode("abc") == Ids{'a', 'b', 'c'});
  j["model"]["ignore_merges"] = true;
  CHECK(made(j).encode("abc") == Ids{260});
  CHECK(made(j).encode("abcd").size() == 4);
  j["normalizer"] = {{"type", "NFC"}};
  for (const char* more : {"<|endoftext|><|endoftext|>", "caf\x65\xCC\x81"}) {
    Json added = j["added_tokens"][0];
    added["id"] = 261 + j["added_tokens"].size();
    added["content"] = more;
    added["normalized"] = more[0] == 'c';
    added["special"] = false;
    j["added_tokens"].push_back(added);
  }
  const Tokenizer t = made(j);
  CHECK_FALSE(t.lossless());
  CHECK(t.encode("e\xCC\x81") == Ids{0xC3, 0xA9});
  CHECK(t.encode("<|endoftext|><|endoftext|><|endoftext|>") == Ids{262, 261});
  CHECK(t.encode("un caf\xC3\xA9.") == t.encode("un caf\x65\xCC\x81."));  // equal after NFC
  CHECK(t.encode("un caf\xC3\xA9.").size() == 5);
}

TEST_CASE("NFC equals that of Hugging Face's library") {
  std::string buffer;
  const auto nfc = [&](const std::string& s) { return std::string(to_normal_form(NormalForm::kC, s, &buffer)); };
  CHECK(nfc("plain\n\xC3\xA9") == "plain\n\xC3\xA9");
  CHECK(nfc("x\ne\xCC\x81\ny") == "x\n\xC3\xA9\ny");
  CHECK(nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8") == "\xEA\xB0\x81");    // Hangul
  CHECK(nfc("\xEA\xB0\x80\xE1\x86\xA7") == "\xEA\xB0\x80\xE1\x86\xA7");    // U+11A7 composes with nothing
  CHECK(nfc("a\xE0\xA0\x97\xE0\xBA\xBA") == "a\xE0\xA0\x97\xE0\xBA\xBA");  // U+0EBA: a mark since Unicode 12
  CHECK(nfc("a\xCC\x81\xCC\xB4") == "\xC3\xA1\xCC\xB4");                   // reordered, then composed
}

TEST_CASE("special tokens come from the template and tokenizer_config.json, which must not add any") {
  Json j = byte_level_json();
  const Json token{{"id", "<|endoftext|>"}, {"ids", {260}}, {"tokens", {"<|endoftext|>"}}};
  j["post_processor"] = {{"type", "TemplateProcessing"},
                         {"single", Json::array({Json{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                                                 Json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
                         {"pair", Json::array()},
                         {"special_tokens", {{"<|endoftext|>", token}}}};
  CHECK(made(j).bos() == 260);
  CHECK(made(j).encode("a") == Ids{'a'});  // encode() never prepends tokens
  CHECK((made(j).before_text() == Ids{260} && made(j).after_text().empty() && made(j).empty_text() == 260));
  CHECK(made(byte_level_json()).before_text().empty());
  CHECK(made(byte_level_json()).empty_text() == 260);  // <|endoftext|>
  // Classes with flags of their own replace the template; for others it holds.
  const std::string names = R"("bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "tokenizer_class": )";
  const auto before = [&](const std::string& config) { return made(j, "{" + names + config + "}").before_text(); };
  CHECK(before(R"("LlamaTokenizerFast")") == Ids{260});
  CHECK(before(R"("LlamaTokenizer", "add_bos_token": false)").empty());
  CHECK(before(R"("GPTNeoXTokenizerFast")").empty());
  CHECK(before(R"("PreTrainedTokenizerFast", "add_bos_token": false)") == Ids{260});
  expect_error(Exit::kUsage, {"add_bos_token", "no bos_token"},
               [&] { made(j, R"({"bos_token": null, "tokenizer_class": "GemmaTokenizer"})"); });
  expect_error(Exit::kUsage, {"add_eos_token", "a string"},
               [&] { made(j, "{" + names + R"("X", "add_eos_token": "yes"})"); });
  Json none = byte_level_json();
  // Flags of other classes have no effect in transformers, without a template either.
  for (const char* of : {"GPT2TokenizerFast", "Qwen2TokenizerFast", "PreTrainedTokenizerFast", "X"}) {
    const Tokenizer t = made(none, "{" + names + "\"" + of + R"(", "add_bos_token": true, "add_eos_token": true})");
    CHECK((t.before_text().empty() && t.after_text().empty()));
  }
  // What transformers 5 saves has the class without its flags: the template holds, also where it adds nothing.
  const std::string five = "{" + names + R"("LlamaTokenizer", "backend": "tokenizers")";
  CHECK(made(none, five + "}").before_text().empty());
  CHECK(made(j, five + "}").before_text() == Ids{260});
  CHECK(made(none, five + R"(, "add_bos_token": true})").before_text() == Ids{260});
  none["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"a", 97}}, {"sep", {"b", 98}}};
  CHECK((made(none).before_text() == Ids{97} && made(none).after_text() == Ids{98}));
  const Tokenizer t = made(j, R"({"eos_token": {"content": "<|endoftext|>"}, "pad_token": null})");
  CHECK((t.eos() == 260 && t.pad() == -1));
  for (const char* config :
       {R"({"eos_token": "<other>"})", R"({"added_tokens_decoder": {"5": {"content": "<|endoftext|>"}}})",
        R"({"add_prefix_space": true})", R"({"eos_token": 3})", R"({"x": 1e999})", "[", "[]"})
    expect_error(Exit::kUsage, {"tokenizer.json: tokenizer_config.json beside it"}, [&] { made(j, config); });
}

TEST_CASE("added tokens take white space and stand alone as Hugging Face's library has it") {
  Json j = byte_level_json();
  const auto add = [&](const char* text, const char* flag, bool normalized = false) {
    Json t = j["added_tokens"][0];
    t["id"] = 260 + j["added_tokens"].size();
    t["content"] = text, t["normalized"] = normalized, t["special"] = false;
    t[flag] = true;
    j["added_tokens"].push_back(t);
  };
  add("<l>", "lstrip");        // 261
  add("<r>", "rstrip");        // 262
  add("word", "single_word");  // 263
  add("words", "special");     // 264
  const Tokenizer t = made(j);
  CHECK(t.encode("x \n<l> y") == Ids{'x', 261, ' ', 'y'});
  CHECK(t.encode("x <r>\xE3\x80\x80\t y") == Ids{'x', ' ', 262, 'y'});
  CHECK(t.encode("<r> <l>") == Ids{262, 261});  // the blank between is taken once
  CHECK(t.encode("word") == Ids{263});
  CHECK(t.encode("-word.") == Ids{'-', 263, '.'});
  for (const char* text : {"word_", "\xC3\xA9word", "word1", "wordy"}) CHECK(t.encode(text).size() > 3);
  CHECK(t.encode("words") == Ids{264});  // the longest
  CHECK(t.line_cuts() == LineCuts::kNever);
  CHECK_FALSE(t.lossless());
}

TEST_CASE("streamed text: no character is split, and the parts join to the text of all tokens") {
  const Tokenizer t = made(byte_level_json({{"\xC3\xB0", "\xC5\x81"}}));  // bytes F0 9F, the start of most emoji
  std::mt19937 r(3);
  for (int round = 0; round < 300; ++round) {
    const std::string text = odd_text(r, 12);
    Ids ids = t.encode(text);
    if (round % 3 == 0)  // bytes in any order
      for (int32_t& id : ids) id = static_cast<int32_t>(0x70 + r() % (257 - 0x70));
    TextStream stream(t);
    std::string all;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      if (round % 3 != 0) CHECK(part.find("\xEF\xBF\xBD") == std::string::npos);
      CHECK(utf8_valid_prefix(part) == part.size());
      all += part;
    }
    all += stream.finish();
    CHECK(all == t.decode(ids));
  }
}

TEST_CASE("UTF-8: one U+FFFD per partial character, and the incomplete end of a text") {
  const auto lossy = [](const std::string& s) {
    std::string out;
    append_lossy_utf8(s, &out);
    return out;
  };
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(lossy("a\xF0\x9F\x98z") == "a" + bad + "z");
  CHECK(lossy("\xE4\xB8") == bad);
  CHECK(lossy("\xED\xA0\x80") == bad + bad + bad);  // a surrogate
  CHECK(lossy("\xFF\x80") == bad + bad);
  CHECK(utf8_open_suffix("a\xF0\x9F\x98") == 3);
  CHECK(utf8_open_suffix("\xF0\x9F\x98\x80") == 0);
  CHECK(utf8_open_suffix("\xE4") == 1);
  CHECK(utf8_open_suffix("\x98") == 0);
  CHECK(utf8_open_suffix("\xED\xA0") == 0);
  CHECK(begins_with_space("\xE3\x80\x80x"));
  CHECK((ends_with_space("x\xE2\x80\x8A") && ends_with_space("x\r") && !ends_with_space("x\xE2\x80\x8B")));
}

TEST_CASE("documents are split between plain lines, with the same tokens for any memory budget") {
  TempDir dir;
  std::mt19937 r(4);
  std::string text;
  for (int k = 0; k < 3000; ++k) text += odd_text(r, 6);
  write_file(dir / "text.txt", text);
  int kind = 0;
  for (const Json& steps : {byte_level_json()["pre_tokenizer"], split_and_bytes(kLlama3Pattern)}) {
    Json j = byte_level_json();
    j["pre_tokenizer"] = steps;
    if (kind == 1) j["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"a", 97}}, {"sep", {"b", 98}}};
    write_file(dir / "tokenizer.json", j.dump());
    const Tokenizer t = made(j);
    CHECK(t.line_cuts() == LineCuts::kPlainLines);
    Ids expected = t.before_text();  // once, however many parts a document has
    t.encode_append(text, &expected);
    expected.insert(expected.end(), t.after_text().begin(), t.after_text().end());
    expected.push_back(t.eod());
    for (const int64_t chunk : {64, 1000, 1 << 20}) {
      const std::string prefix = dir / cat("out", kind, "-", chunk);
      prepare_data(
          {.inputs = {dir / "text.txt"}, .tokenizer = dir / "tokenizer.json", .output = prefix, .chunk_bytes = chunk});
      const auto file = open_tokens(prefix);
      Ids found(static_cast<size_t>(file->tokens()));
      file->read(0, 0, found);
      CHECK(found == expected);
    }
    ++kind;
  }
  Json j = byte_level_json({{"1", "2"}, {"t", "h"}});
  j["pre_tokenizer"] = {{"type", "Sequence"},
                        {"pretokenizers", Json::array({Json{{"type", "Digits"}, {"individual_digits", true}},
                                                       byte_level_json()["pre_tokenizer"]})}};
  CHECK(made(j).line_cuts() == LineCuts::kPlainLines);
  CHECK(made(j).encode("th 12\n3") == Ids{257, ' ', '1', '2', '\n', '3'});
  j["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = false;
  CHECK(made(j).encode("12 12") == Ids{256, ' ', 256});
  j = byte_level_json();
  j["pre_tokenizer"] = split_and_bytes(R"(\s*[\r\n/]+|\p{L}+|[^\p{L}])");  // joins a newline and a slash
  CHECK(made(j).line_cuts() == LineCuts::kNever);
  write_file(dir / "long.txt", std::string(2 << 20, '\n'));
  write_file(dir / "tokenizer.json", byte_level_json().dump());
  expect_error(Exit::kUsage, {"long.txt", "--split-docs"}, [&] {
    prepare_data(
        {.inputs = {dir / "long.txt"}, .tokenizer = dir / "tokenizer.json", .output = dir / "long", .max_doc_mb = 1});
  });
}

TEST_CASE("patterns: equal in both engines, and unsupported ones refused by name") {
  const std::pair<const char*, const char*> same[] = {{R"(\s+(?!\S))", R"(\p{White_Space}+(?!\P{White_Space}))"},
                                                      {R"([^\r\n\p{L}\p{N}]?\p{L}+)", R"([^\r\n\p{L}\p{N}]?\p{L}+)"},
                                                      {R"((?i:'s|'t)|\d{1,3})", R"((?i:'s|'t)|\p{Nd}{1,3})"},
                                                      {R"('(?i:[sdmt]|ll))", R"('(?i:[sdmt]|ll))"},
                                                      {R"([^\s\]]++[\\/.]*?)", R"([^\p{White_Space}\]]++[\\/.]*?)"}};
  for (const auto& [from, to] : same) CHECK(pcre2_pattern(from, "x") == to);
  const char* const refused[] = {R"(\w+)",     R"(a.b)",   R"(^a)",         R"([a[bc]])", R"([a&&b])",  R"((?<=a)b)",
                                 R"((?<n>a))", R"(\p{L)",  R"(\p{Cn})",     R"(\h)",      R"(a{1,2}+)", R"(a{2}?)",
                                 R"(a**)",     R"(a{,3})", R"((?i:[a-z]))", R"((?i:\s))", R"(a{5000})", R"((a)",
                                 R"(a))",      R"([])",    R"([a)",         R"((*VERB))", R"(\)",       R"(a{2,1})"};
  for (const char* pattern : refused) {
    INFO(pattern);
    expect_error(Exit::kUsage, {"where"}, [&] { Regex(pattern, false, "where"); });
  }
  for (const char* pattern : {"a*", "a|", "(?=a)", "()"})
    expect_error(Exit::kUsage, {"empty text"}, [&] { Regex(pattern, false, "where"); });
  // Each search is within its limit, all of them are not.
  const std::pair<const char*, std::string> hostile[] = {
      {R"((?:[^q]|[^q][^q]){1,18}\t|[^\t])", std::string(100'000, 'a')},
      {R"((?:[^q]|[^q][^q]){1,18}\t|[^\t])", "b" + std::string(200, 'a')},
      {R"((?=[^q]*+z)a|[^q])", std::string(2'000'000, 'a')},              // few steps, each over the whole text
      {R"((?:[^q]|[^q][^q]){1,18}\t|[V\t])", std::string(100'000, 'a')},  // one search that finds nothing
      {R"((?=[^q]*+z)a)", std::string(300'000, 'a')},
  };
  for (const auto& [pattern, text] : hostile) {
    INFO(pattern);
    const Regex slow(pattern, false, "step 0", {.seconds = 0.05, .seconds_per_byte = 1e-6});
    size_t begin = 0, end = 0;
    expect_error(Exit::kUsage, {"step 0", pattern, "too slow", "us a byte"}, [&] {
      Regex::Finder finder(slow);
      for (size_t at = 0; finder.find(text, at, &begin, &end);) at = end;
    });
  }
  const Regex quick(R"(\p{L}+|\s+(?!\S)|\s+|[^\s\p{L}])", false, "x", {.seconds = 0.05, .seconds_per_byte = 1e-5});
  const std::string long_text = std::string(50'000, ' ') + std::string(50'000, 'a') + std::string(50'000, '1');
  size_t at = 0, begin = 0, end = 0;
  for (Regex::Finder finder(quick); finder.find(long_text, at, &begin, &end);) at = end;
  CHECK(at == long_text.size());
  // 2^n ways to fail: a limit ends it, with an error that names the position.
  const Regex slow("(?:a|aa|aaa)+(?:b|(?!a)c)", false, "step 0");
  expect_error(Exit::kUsage, {"step 0", "limit"},
               [&] { Regex::Finder(slow).find(std::string(200, 'a') + "!", 0, &begin, &end); });
}

TEST_CASE("unsupported entries of a tokenizer.json are refused by name") {
  struct Case {
    const char* at;  // JSON pointer
    Json value;      // null value of the type "discarded": removed
    std::vector<std::string> errors;
  };
  const Json vocab = byte_level_json()["model"]["vocab"];
  Json twice = vocab, hole = vocab, far = vocab, no_byte = vocab;
  twice["x1"] = 5;
  far["x1"] = 1 << 21;
  no_byte.erase("A");
  const Json split{{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Isolated"}, {"invert", false}};
  Json merged = split;
  merged["behavior"] = "MergedWithBoth";
  const Json bytes = byte_level_json()["pre_tokenizer"];
  const Case cases[] = {
      {"/model/type", "WordLevel", {"WordLevel", "expected BPE, WordPiece or Unigram"}},
      {"/model/dropout", 0.1, {"dropout", "0.1"}},
      {"/model/continuing_subword_prefix", "##", {"merge 0", "at least 2 bytes"}},
      {"/model/unheard_of", 1, {"unheard_of"}},
      {"/model/vocab", twice, {"id 5", "twice"}},
      {"/model/vocab", far, {"x1", "2097152"}},
      {"/model/vocab", no_byte, {"byte 65"}},
      {"/model/vocab", {{"a", -1}}, {"-1"}},
      {"/model/vocab", {{"a", "b"}}, {"model.vocab: expected ids", "a string"}},
      {"/model/merges", {"t h", "x y"}, {"merge 1", "xy"}},
      {"/model/merges", {"t h", "t h"}, {"merge 1", "earlier"}},
      {"/model/merges", {"t h e"}, {"merge 0"}},
      {"/model/merges", {{"t", "h", "e"}}, {"merge 0", "more"}},
      {"/model/merges", {1}, {"merges: expected pairs", "a number"}},
      {"/normalizer", {{"type", "Uppercase"}}, {"normalizer", "Uppercase"}},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFX"}}}}}, {"normalizers[0]", "NFX"}},
      {"/pre_tokenizer", {{"type", "UnicodeScripts"}}, {"pre_tokenizer", "UnicodeScripts"}},
      {"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {merged, bytes}}}, {"behavior", "MergedWithBoth"}},
      {"/pre_tokenizer/add_prefix_space", "yes", {"add_prefix_space", "a string"}},
      {"/decoder", {{"type", "CTC"}}, {"decoder", "CTC"}},
      {"/post_processor", {{"type", "BertProcessing"}}, {"post_processor", "\"cls\""}},
      {"/post_processor",
       {{"type", "RobertaProcessing"}, {"cls", {"<s>", 0}}, {"sep", {"</s>", 300}}},
       {"post_processor.sep", "300"}},
      {"/post_processor", {{"type", "Unheard"}}, {"post_processor", "Unheard"}},
      {"/added_tokens/0/id", 300, {"added_tokens[0]", "expected 260"}},
      {"/added_tokens/0/id", 1e9, {"added_tokens[0].id"}},
      {"/added_tokens/0/content", "", {"content"}},
      {"/added_tokens/0/content", "the", {"expected 257"}},
      {"/unheard_of", 1, {"unheard_of"}},
  };
  for (const Case& c : cases) {
    Json j = byte_level_json();
    j[Json::json_pointer(c.at)] = c.value;
    INFO(c.at << ' ' << c.value.dump().substr(0, 80));
    std::vector<std::string> errors = c.errors;
    errors.push_back("tokenizer.json");
    expect_error(Exit::kUsage, errors, [&] { made(j); });
  }
  const std::string good = byte_level_json().dump(), zero(1, '\0');
  for (const std::string& text :
       {good + zero, good + zero + "{}", good + "{}", good + "x", zero + good, good.substr(0, good.size() / 2),
        std::string("{}"), std::string("{\"model\":{}}"), "{\"model\":" + std::string(100000, '[') + "}",
        "{\"version\":1," + good.substr(1), std::string("{\"model\":{\"vocab\":{},\"vocab\":{}}}")})
    expect_error(Exit::kUsage, {"t.json"}, [&] { Tokenizer::from_bytes(text, "t.json"); });
}

TEST_CASE("vocab.json and merges.txt give the ids of the tokenizer.json that they stand for") {
  TempDir dir;
  Json j = byte_level_json();
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : j["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  const std::string vocab = j["model"]["vocab"].dump(), config = dir / "tokenizer_config.json";
  write_file(dir / "vocab.json", vocab);
  write_file(dir / "merges.txt", merges);
  const std::string text = "the other\n thing's 12 <|endoftext|>aaa caf\xC3\xA9";
  const Tokenizer whole = made(j);
  for (const std::string& path : {dir.path(), dir / "vocab.json"}) {
    const Tokenizer t = Tokenizer::load(path);
    CHECK(t.encode(text) == whole.encode(text));
    CHECK(t.vocab() == 261);  // <|endoftext|> is not in the vocabulary: added behind it
    CHECK((t.eos() == 260 && t.bos() == 260 && t.eod() == 260 && t.pad() == -1));
  }
  CHECK(tokenizer_paths(dir.path()) == std::vector<std::string>{dir / "vocab.json", dir / "merges.txt"});
  // In the vocabulary it keeps its id.
  Json named = j["model"]["vocab"];
  named["<|endoftext|>"] = 260;
  named["zz"] = 261;
  write_file(dir / "vocab.json", named.dump());
  CHECK(Tokenizer::load(dir.path()).eod() == 260);
  CHECK(Tokenizer::load(dir.path()).vocab() == 262);
  write_file(dir / "vocab.json", vocab);

  const auto refused = [&](const char* file, const std::string& content, const std::vector<std::string>& errors) {
    INFO(file << " " << content.substr(0, 60));
    const std::string before = std::filesystem::exists(dir / file) ? read_file(dir / file) : "";
    write_file(dir / file, content);
    expect_error(Exit::kUsage, errors, [&] { Tokenizer::load(dir.path()); });
    std::filesystem::remove(dir / file);
    if (!before.empty()) write_file(dir / file, before);
  };
  refused("merges.txt", merges.substr(merges.find('\n') + 1), {"merges.txt", "#version", "t h"});
  refused("merges.txt", merges.substr(0, merges.size() - 1), {"merges.txt", "newline", "transformers"});
  refused("merges.txt", merges + "q\n", {"vocab.json", "merge 4", "two pieces"});
  refused("merges.txt", merges + "q x\n", {"vocab.json", "\"qx\" is not a piece"});
  refused("merges.txt", merges + "\xFF x\n", {"merges.txt", "UTF-8"});
  refused("vocab.json", vocab.substr(0, vocab.size() / 2), {"vocab.json", "broken"});
  refused("vocab.json", "[]", {"vocab.json", "JSON object"});
  refused("vocab.json", vocab + ",\"merges\":[]", {"vocab.json", "broken"});
  refused("vocab.json", "{}", {"vocab.json", "expected pieces"});
  refused("added_tokens.json", R"({"<x>": 261})", {"added_tokens.json", "not read"});
  refused("special_tokens_map.json", R"({"pad_token": "[PAD]"})", {"[PAD]", "only <|endoftext|> is read as a token"});
  refused("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer"})", {"tokenizer_class", "Qwen2Tokenizer"});
  refused("tokenizer_config.json", R"({"add_prefix_space": true})", {"add_prefix_space"});
  write_file(config, R"({"tokenizer_class": "GPT2Tokenizer", "pad_token": "<|endoftext|>", "model_max_length": 1024})");
  CHECK(Tokenizer::load(dir.path()).pad() == 260);
}

TEST_CASE("a folder resolves to its tokenizer, a SentencePiece model before a tokenizer.json") {
  TempDir dir;
  write_file(dir / "tokenizer.json", byte_level_json().dump());
  CHECK(Tokenizer::load(dir.path()).vocab() == 261);
  CHECK(Tokenizer::load(dir.path()).eos() == -1);
  write_file(dir / "tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  CHECK(Tokenizer::load(dir / "tokenizer.json").eos() == 260);
  write_file(dir / "tokenizer.model", "no model");
  expect_error(Exit::kUsage, {"tokenizer.model"}, [&] { Tokenizer::load(dir.path()); });
  std::filesystem::create_directories(dir / "empty");
  expect_error(Exit::kUsage, {"empty", "tokenizer.json"}, [&] { Tokenizer::load(dir / "empty"); });
}
