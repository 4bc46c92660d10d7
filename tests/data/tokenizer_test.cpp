#include "data/tokenizer/tokenizer.h"

#include <sentencepiece_trainer.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "data/prepare/text_source.h"
#include "data/tokenizer/model_trial.h"
#include "data/tokenizer/model_walk.h"
#include "data/tokenizer/sentence_piece.h"
#include "data/tokenizer/tokenizer_train.h"
#include "data/tokenizer/utf8.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {
TokenizerReport train(const TempDir& dir, const std::string& type, const std::vector<std::string>& special = {}) {
  write_file(dir / "text.txt", made_up_text(3000));
  TokenizerTrainOptions o;
  o.inputs = {dir / "text.txt"};
  o.output = dir / (type + ".model");
  o.vocab = 420;
  o.type = type;
  o.special = special;
  return tokenizer_train(o);
}
std::string random_utf8(std::mt19937& r, size_t characters) {
  std::string s;
  for (size_t i = 0; i < characters; ++i) {
    const uint32_t kind = r() % 8;
    uint32_t c = kind < 4    ? r() % 128
                 : kind == 4 ? 0x20
                 : kind == 5 ? 0x80 + r() % 0x700
                 : kind == 6 ? 0x2500 + r() % 0x200
                             : 0x10000 + r() % 0x10000;
    if (c < 0x80)
      s += static_cast<char>(c);
    else if (c < 0x800)
      (s += static_cast<char>(0xC0 | c >> 6)) += static_cast<char>(0x80 | (c & 63));
    else if (c < 0x10000)
      ((s += static_cast<char>(0xE0 | c >> 12)) += static_cast<char>(0x80 | (c >> 6 & 63))) +=
          static_cast<char>(0x80 | (c & 63));
    else
      (((s += static_cast<char>(0xF0 | c >> 18)) += static_cast<char>(0x80 | (c >> 12 & 63))) +=
       static_cast<char>(0x80 | (c >> 6 & 63))) += static_cast<char>(0x80 | (c & 63));
  }
  return s;
}
void gzip(const std::string& path, const std::string& text) {
  gzFile f = gzopen(path.c_str(), "wb");
  REQUIRE(gzwrite(f, text.data(), static_cast<unsigned>(text.size())) == static_cast<int>(text.size()));
  gzclose(f);
}
}  // namespace

TEST_CASE("valid UTF-8 is distinguished from invalid, and bad bytes are replaced one by one") {
  for (const char* good : {"", "abc", "\xC3\xA9", "\xE6\x97\xA5", "\xF0\x9F\x98\x80", "\xED\x9F\xBF",
                           "\xF4\x8F\xBF\xBF", "12345678\xC3\xA9"})
    CHECK(utf8_valid_prefix(good) == std::strlen(good));
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE6\x97", "\xFF"}) {
    std::string out;
    const std::string text = std::string("ok ") + bad;
    CHECK(utf8_valid_prefix(text) == 3);
    CHECK(append_valid_utf8(text + "!", &out) == static_cast<int64_t>(std::strlen(bad)));
    CHECK(utf8_valid_prefix(out) == out.size());
    CHECK(out.back() == '!');
  }
  CHECK(utf8_cut("a\xE6\x97\xA5z", 3) == 1);
  CHECK(utf8_cut("a\xE6\x97\xA5z", 4) == 4);
}

TEST_CASE("text of any kind round-trips exactly, with both kinds of model, with and without the cache") {
  for (const char* type : {"bpe", "unigram"}) {
    TempDir dir;
    const TokenizerReport report = train(dir, type, {"<pad,ding>", "a \"b\""});
    CHECK(report.pieces == 420);
    CHECK(report.longest.size() == 10);
    const Tokenizer t = Tokenizer::load(dir / (std::string(type) + ".model"));
    CHECK(t.vocab() == 420);
    CHECK((t.unk() == 0 && t.bos() == 1 && t.eos() == 2 && t.pad() == 3 && t.eod() == 4));
    CHECK(
        (t.piece(4) == "<|endoftext|>" && t.piece(5) == "\n" && t.piece(6) == "<pad,ding>" && t.piece(7) == "a \"b\""));
    CHECK(t.id_of("<pad,ding>") == 6);
    CHECK(t.id_of("not a piece") == -1);
    CHECK(t.lossless());
    CHECK(t.line_cuts() == LineCuts::kEveryLine);
    CHECK_FALSE(t.sentence_piece()->cuts_at_blanks());  // a special symbol has a blank inside
    std::mt19937 r(4);
    std::vector<std::string> texts = {"",
                                      " ",
                                      "\n",
                                      "\n\n\n",
                                      "a\nb\n",
                                      "  two   blanks    ",
                                      "\ttab\tand\t\ttabs",
                                      "line\r\nline\r\n",
                                      std::string("nul\0 nul\0", 9),
                                      "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xAE",
                                      "\xF0\x9F\x98\x80\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD emoji",
                                      "a\xE2\x96\x81 \xE2\x96\x81\xE2\x96\x81z",
                                      "<0x41></s><s><unk><pad>",
                                      "x<|endoftext|>y",
                                      "<pad,ding> a \"b\" a \"",
                                      "0123456789 12 3",
                                      std::string(20000, 'x'),
                                      "\xEF\xBB\xBF"
                                      "bom",
                                      made_up_text(40, 77)};
    std::string long_line = made_up_text(14000, 5).substr(0, type == std::string("bpe") ? 1 << 20 : 100000);
    std::replace(long_line.begin(), long_line.end(), '\n', ' ');
    texts.push_back(long_line);
    for (int i = 0; i < 20; ++i) texts.push_back(random_utf8(r, 1 + r() % 300));
    Encoder encoder(t);
    for (const std::string& text : texts) {
      const auto ids = t.encode(text);
      CHECK((t.decode(ids) == text));
      int64_t bytes =
          text.find("<|endoftext|>") == std::string::npos ? 0 : 13;  // ends a document, is not part of its text
      for (const int32_t id : ids) bytes += t.text_bytes(id);
      CHECK(bytes == static_cast<int64_t>(text.size()));
      std::vector<int32_t> cached{-5};
      encoder.encode(text, &cached);
      CHECK((std::vector<int32_t>(cached.begin() + 1, cached.end()) == ids));
    }
    expect_error(Exit::kUsage, {"decode", "token 420", "0 to 419"}, [&] { t.decode(std::vector<int32_t>{420}); });
    expect_error(Exit::kUsage, {"token -1"}, [&] { t.piece(-1); });
  }
}

TEST_CASE("the word cache returns the ids of the library and is used") {
  for (const char* type : {"bpe", "unigram"}) {
    TempDir dir;
    train(dir, type);
    const Tokenizer t = Tokenizer::load(dir / (std::string(type) + ".model"));
    CHECK(t.sentence_piece()->cuts_at_blanks());
    std::array<int, 3> wrong{};
    std::vector<std::thread> threads;
    for (size_t k = 0; k < 3; ++k)
      threads.emplace_back([&, k] {  // one processor, three encoders
        Encoder e(t);
        std::mt19937 r(static_cast<uint32_t>(k));
        for (int i = 0; i < 150; ++i) {
          const std::string text = i % 3 == 0 ? random_utf8(r, 200) : made_up_text(5, static_cast<uint32_t>(i));
          std::vector<int32_t> ids;
          e.encode(text, &ids);
          wrong[k] += ids != t.encode(text);
        }
        wrong[k] += e.hits() < 1000;
      });
    for (auto& th : threads) th.join();
    CHECK((wrong == std::array<int, 3>{}));
  }
}

TEST_CASE("training depends on its inputs and its seed, not on threads, and writes what it reports") {
  TempDir dir;
  const std::string text = made_up_text(4000);
  const size_t middle = text.find('\n', text.size() / 2) + 1;
  write_file(dir / "in/a.txt", text.substr(0, middle));
  gzip(dir / "in/b.txt.gz", text.substr(middle));
  TokenizerTrainOptions o;
  o.inputs = {dir / "in"};
  o.vocab = 400;
  o.sample_mb = 0.1;
  std::string models[3];
  for (int i = 0; i < 3; ++i) {
    o.output = dir / ("m" + std::to_string(i));
    o.threads = i == 1 ? 3 : 1;
    if (i == 2) o.inputs = {dir / "in/*.txt", dir / "in/b.txt.gz"};  // the same paths in the same order
    const TokenizerReport r = tokenizer_train(o);
    CHECK(r.unseen);
    CHECK(r.train_bytes <= 100'000);
    CHECK(r.train_bytes > 90'000);
    CHECK(r.bytes_read == static_cast<int64_t>(text.size()));
    CHECK(r.lines_read == 4000);
    CHECK(r.bytes_per_token > 1.3);
    CHECK(r.fallback_percent == 0);
    CHECK(r.peak_memory > 1 << 20);
    models[i] = read_file(o.output + ".model");
  }
  CHECK((models[0] == models[1] && models[0] == models[2]));
  CHECK(read_file(dir / "m0.vocab").find("<|endoftext|>\t4\n\\n\t5\n") != std::string::npos);
  CHECK(read_file(dir / "m0.meta.json").find("bytes_per_token") != std::string::npos);
  o.seed = 5;
  o.output = dir / "other.model";
  tokenizer_train(o);
  CHECK(read_file(dir / "other.model") != models[0]);
}

TEST_CASE("the sample stays within the budget, truncates long lines and is independent of the read size") {
  TempDir dir;
  write_file(dir / "a.txt", made_up_text(2000) + std::string(10000, 'x') + " end");
  const LineSample s = sample_lines({dir / "a.txt"}, 0.05, 3);
  int64_t bytes = 0;
  for (const auto& l : s.train) {
    CHECK(l.text.size() <= 4096);
    bytes += static_cast<int64_t>(l.text.size()) + 1;
  }
  CHECK((bytes <= 50'000 && bytes > 45'000));
  CHECK(!s.unseen.empty());
  const LineSample larger = sample_lines({dir / "a.txt"}, 0.09, 3);  // a larger budget keeps what the smaller one kept
  size_t found = 0;
  for (const auto& l : s.train)
    for (const auto& m : larger.train) found += l.line == m.line && l.part == m.part && l.text == m.text;
  CHECK(found == s.train.size());
  const LineSample all = sample_lines({dir / "a.txt"}, 50, 3);
  CHECK(all.unseen.empty());
  std::string again;
  for (const auto& l : all.train) again += l.text + (l.text.size() == 4096 ? "" : "\n");
  CHECK(again == read_file(dir / "a.txt") + "\n");
}

TEST_CASE("a tokenizer is trained on the text of JSON lines, never on their syntax") {
  TempDir dir;
  const std::string text = made_up_text(600);
  std::string json, other;
  std::istringstream lines(text);
  for (std::string line, pair; std::getline(lines, line);) {
    json += "{\"id\": NaN, \"text\": \"" + line + "\\n\\u00e9 \\ud83d\\ude00\"}\n";
    other += "{\"body\": \"" + line + "\", \"text\": \"wrong wrong wrong\"}\n";
  }
  write_file(dir / "a.jsonl", json);
  write_file(dir / "by-content.txt", json);
  write_file(dir / "b.jsonl", other);
  gzip(dir / "c.jsonl.gz", json);
  for (const char* name : {"a.jsonl", "by-content.txt", "c.jsonl.gz"}) {
    const LineSample s = sample_lines({dir / name}, 50, 3);
    REQUIRE(s.train.size() == 1200);
    std::string again;
    for (size_t k = 0; k < s.train.size(); k += 2) {
      again += s.train[k].text + "\n";
      CHECK(s.train[k + 1].text == "\xC3\xA9 \xF0\x9F\x98\x80");
    }
    CHECK(again == text);
  }
  // The same model as of the text itself.
  write_file(dir / "text.txt", text);
  TokenizerTrainOptions o;
  o.vocab = 400;
  o.inputs = {dir / "text.txt"};
  o.output = dir / "of-text.model";
  tokenizer_train(o);
  o.inputs = {dir / "b.jsonl"};
  o.output = dir / "of-json.model";
  o.json_key = "body";
  tokenizer_train(o);
  CHECK(read_file(dir / "of-json.vocab") == read_file(dir / "of-text.vocab"));
  o.json_key = "title";
  expect_error(Exit::kUsage, {"b.jsonl line 1 byte 0", "no key \"title\""}, [&] { tokenizer_train(o); });
  write_file(dir / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"\n");
  o.inputs = {dir / "bad.jsonl"};
  o.json_key = "text";
  expect_error(Exit::kUsage, {"bad.jsonl line 2", "broken JSON", "mend the line"}, [&] { tokenizer_train(o); });
}

TEST_CASE("bad options and inputs of the training are reported") {
  TempDir dir;
  write_file(dir / "a.txt", made_up_text(50));
  write_file(dir / "empty.txt", "");
  TokenizerTrainOptions good;
  good.inputs = {dir / "a.txt"};
  good.output = dir / "m";
  good.vocab = 300;
  const auto with = [&](auto change) {
    TokenizerTrainOptions o = good;
    change(o);
    tokenizer_train(o);
  };
  using O = TokenizerTrainOptions;
  expect_error(Exit::kUsage, {"--vocab", "263", "found 200"}, [&] { with([](O& o) { o.vocab = 200; }); });
  expect_error(Exit::kUsage, {"--type", "word"}, [&] { with([](O& o) { o.type = "word"; }); });
  expect_error(Exit::kUsage, {"--sample-mb"}, [&] { with([](O& o) { o.sample_mb = 0; }); });
  expect_error(Exit::kUsage, {"--coverage"}, [&] { with([](O& o) { o.coverage = 2; }); });
  expect_error(Exit::kUsage, {"--special"}, [&] { with([](O& o) { o.special = {"\n"}; }); });
  expect_error(Exit::kUsage, {"--output"}, [&] { with([](O& o) { o.output = ""; }); });
  expect_error(Exit::kUsage, {"gone*.txt", "pattern"}, [&] { with([&](O& o) { o.inputs = {dir / "gone*.txt"}; }); });
  expect_error(Exit::kUsage, {"no text"}, [&] { with([&](O& o) { o.inputs = {dir / "empty.txt"}; }); });
  expect_error(Exit::kUsage, {"100000 pieces", "smaller --vocab"}, [&] { with([](O& o) { o.vocab = 100000; }); });
  write_file(dir / "cut.gz", "");
  gzip(dir / "whole.gz", made_up_text(3000));
  const std::string whole = read_file(dir / "whole.gz");
  write_file(dir / "cut.gz", whole.substr(0, whole.size() / 2));
  expect_error(Exit::kIo, {"cut.gz", "ends too early"}, [&] { with([&](O& o) { o.inputs = {dir / "cut.gz"}; }); });
}

TEST_CASE("a hostile model is refused with its offset, in this process or in a child") {
  TempDir dir;
  train(dir, "unigram");
  const std::string good = read_file(dir / "unigram.model");
  const auto refuse = [&](const std::string& bytes, const std::vector<std::string>& parts) {
    write_file(dir / "bad.model", bytes);
    auto all = parts;
    all.push_back("bad.model");
    expect_error(Exit::kUsage, all, [&] { Tokenizer::load(dir / "bad.model"); });
  };
  refuse("", {"empty file"});
  refuse("just some text", {"byte 2", "it is a text that begins with \"just some text\""});
  refuse("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 499723\n",
         {"byte 1", "found 6; it is a Git LFS pointer, not the file itself: run git lfs pull"});
  refuse(good.substr(0, good.size() / 2), {"not a tokenizer model"});
  refuse(std::string((16 << 20) + 1, 'x'), {"16777216"});
  const auto varint = [](size_t n) {
    std::string s;
    for (; n > 127; n >>= 7) s += static_cast<char>(n | 128);
    return s + static_cast<char>(n);
  };
  for (size_t n : {size_t{16385}, size_t{500'000}}) {  // the library overflows its stack on the second
    const std::string inner = "\x0A" + varint(n) + std::string(n, 'p');
    refuse("\x0A" + varint(inner.size()) + inner + good, {"at most 16384 bytes", "found " + std::to_string(n)});
  }
  refuse(good + good, {"one training"});
  refuse(std::string("\x0A\x05\x0A\x03"
                     "abc",
                     7),
         {"unk"});  // one token, and nothing else that a model needs
  write_file(dir / "bad.model", good.substr(0, 100));
  expect_error(Exit::kUsage, {"bad.model"}, [&] { Tokenizer::load(dir / "bad.model"); });
  CHECK(walk_model(good, "good").byte_pieces == 256);
  std::mt19937 r(9);
  for (int i = 0; i < 3000; ++i) {  // the walk never reads out of bounds and throws nothing else
    std::string broken = good;
    for (uint32_t n = 1 + r() % 5; n > 0; --n) broken[r() % broken.size()] = static_cast<char>(r());
    try {
      walk_model(broken, "broken");
    } catch (const Error& e) { REQUIRE(e.code() == Exit::kUsage); }
  }
}

namespace {

// Encodes a protobuf bytes field.
std::string proto_field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  size_t n = bytes.size();
  for (; n > 127; n >>= 7) out += static_cast<char>(n | 128);
  return out + static_cast<char>(n) + bytes;
}

// A normalizer section whose trie has this root: precompiled_charsmap of sentencepiece#1269.
std::string with_trie(uint32_t root, const std::string& replacements = std::string(1, '\0')) {
  std::vector<uint32_t> units(256, 0x80000000u);
  units[0] = root;
  std::string map("\0\4\0\0", 4);
  map.append(reinterpret_cast<const char*>(units.data()), 1024);
  return proto_field(3, proto_field(1, "x") + proto_field(2, map + replacements));
}

// A model of tokens only, to which a normalizer section can be added.
std::string bare_model() {
  const std::string score("\x15\x00\x00\x80\xbf", 5);
  return proto_field(1, proto_field(1, "<unk>") + score + std::string("\x18\x02", 2)) +
         proto_field(1, proto_field(1, "a") + score);
}

}  // namespace

TEST_CASE(
    "a model with an out-of-bounds normalization trie is refused by name, at the cost of a child process at most") {
  const uint32_t far = 0x3FFFFFu << 10 | 1u << 9, leaf = 1u << 8;
  for (const std::string& section : {with_trie(far), with_trie(leaf)}) {
    const std::string model = bare_model() + section;
    expect_error(Exit::kUsage, {"hostile.model", "sentencepiece#1269"},
                 [&] { Tokenizer::from_bytes(model, "hostile.model"); });
  }
  expect_error(Exit::kUsage, {"zero byte"}, [&] { walk_model(bare_model() + with_trie(0, "abc"), "m"); });
  CHECK(!walk_model(bare_model() + with_trie(0), "m").identity);  // a trie without any rule
  // A model that the walk does not cover: the library alone.
  expect_error(Exit::kUsage, {"hostile.model", "crashes the SentencePiece library (signal "},
               [&] { try_model_in_child(bare_model() + with_trie(far), "1", "hostile.model"); });
  expect_error(Exit::kUsage, {"crashes the SentencePiece library"},  // not cached as harmless
               [&] { try_model_in_child(bare_model() + with_trie(far), "1", "hostile.model"); });
  try_model_in_child(bare_model() + with_trie(0), "2", "good.model");
}

TEST_CASE("models with the library's own normalization rules are accepted") {
  TempDir dir;
  write_file(dir / "a.txt", made_up_text(300));
  for (const char* rule : {"nmt_nfkc", "nfkc_cf", "identity"}) {
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        std::string("--input=") + (dir / "a.txt") + " --model_prefix=" + (dir / rule) +
        " --vocab_size=300 --hard_vocab_limit=false --minloglevel=2 --normalization_rule_name=" + rule);
    REQUIRE(status.ok());
    const Tokenizer t = Tokenizer::load(dir / (std::string(rule) + ".model"));
    CHECK(t.encode("\xEF\xBC\xA1 a").size() > 1);  // a fullwidth A
  }
}

TEST_CASE("a bare tokenizer.model begins texts with BOS where the folder's config.json names a family that does") {
  TempDir dir;
  train(dir, "bpe");
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      std::string("--input=") + (dir / "text.txt") + " --model_prefix=" + (dir / "theirs") +
      " --vocab_size=420 --model_type=bpe --byte_fallback=true --minloglevel=2");
  REQUIRE(status.ok());
  const std::string text = "a  line of text", theirs = read_file(dir / "theirs.model");
  const auto folder = [&](const std::string& name, const std::string& model, const std::string& family) {
    write_file(dir / name + "/tokenizer.model", model);
    if (!family.empty()) write_file(dir / name + "/config.json", R"({"model_type": ")" + family + "\"}");
    return Tokenizer::load(dir / name);
  };
  write_file(dir / "class/tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  const Tokenizer by_class = folder("class", theirs, "");
  for (const char* family : {"llama", "mistral", "mixtral"}) {
    INFO(family);
    const Tokenizer t = folder(family, theirs, family);
    CHECK(t.before_text() == std::vector<int32_t>{1});
    CHECK(t.before_text() == by_class.before_text());
    CHECK(t.encode(text) == by_class.encode(text));
    CHECK((t.sha256() == by_class.sha256() && t.sha256() == tokenizer_identity(tokenizer_files(dir / family))));
    CHECK(t.undecided_bos().empty());
    CHECK(tokenizer_files(dir / family).at(1).name == std::string("tokenizer_config.json"));  // checkpoints keep it
  }
  for (const char* family : {"", "gpt2", "unheard"}) {
    INFO(family);
    const Tokenizer t = folder(cat("of-", family), theirs, family);
    CHECK(t.before_text().empty());
    CHECK(t.undecided_bos().find("whether texts begin with <s> (1)") != std::string::npos);
    CHECK(t.undecided_bos().find("--no-bos") != std::string::npos);
  }
  write_file(dir / "broken/config.json", "{");
  CHECK(folder("broken", theirs, "").before_text().empty());
  // Models of tokenizer_train stay as they are.
  const Tokenizer own = folder("own", read_file(dir / "bpe.model"), "llama");
  CHECK((own.before_text().empty() && own.undecided_bos().empty() && own.sentence_piece() != nullptr));
}

TEST_CASE("tokens that a folder adds to a SentencePiece model are read, or refused where ids would differ") {
  TempDir dir;
  train(dir, "bpe");
  const std::string folder = dir / "hf", model = read_file(dir / "bpe.model");
  write_file(folder + "/tokenizer.model", model);
  const Tokenizer plain = Tokenizer::load(folder);
  CHECK(plain.sentence_piece() != nullptr);
  CHECK(plain.before_text().empty());
  const std::vector<int32_t> a = plain.encode("a line"), b = plain.encode(" b\n");
  const auto with = [&](std::vector<int32_t> first, const std::vector<int32_t>& more) {
    first.insert(first.end(), more.begin(), more.end());
    return first;
  };
  write_file(folder + "/added_tokens.json", R"({"<|im_start|>": 420, "<|im_end|>": 421})");
  for (const std::string& path : {folder, folder + "/tokenizer.model"}) {
    const Tokenizer t = Tokenizer::load(path);
    CHECK(t.vocab() == 422);
    CHECK(t.encode("a line<|im_start|> b\n") == with(with(a, {420}), b));
    CHECK(t.decode(t.encode("a line<|im_start|> b\n")) == "a line<|im_start|> b\n");
    CHECK((t.id_of("<|im_end|>") == 421 && t.piece(421) == "<|im_end|>" && t.kind(421) == PieceKind::kUserDefined));
    CHECK((t.text_bytes(421) == 10 && t.eod() == plain.eod() && t.bos() == plain.bos() && t.lossless()));
    CHECK(t.sha256() != plain.sha256());  // other ids
    CHECK(t.sha256() == tokenizer_identity(tokenizer_files(path)));
  }
  // The same from memory, in any order.
  std::vector<TokenizerFile> files{{"added_tokens.json", "x", R"({"<|im_start|>": 420, "<|im_end|>": 421})"},
                                   {"tokenizer.model", "y", model}};
  CHECK(Tokenizer::from_files(files).sha256() == Tokenizer::load(folder).sha256());
  expect_error(Exit::kUsage, {"x", "found neither"}, [&] { Tokenizer::from_files({files[0]}); });
  // A model under another name stands alone.
  write_file(folder + "/mine.model", model);
  CHECK(Tokenizer::load(folder + "/mine.model").vocab() == 420);

  const auto refused = [&](const char* name, const std::string& text, const std::vector<std::string>& errors) {
    INFO(name << ' ' << text.substr(0, 200));
    const std::string before = std::filesystem::exists(folder + "/" + name) ? read_file(folder + "/" + name) : "";
    write_file(folder + "/" + name, text);
    expect_error(Exit::kUsage, errors, [&] { Tokenizer::load(folder); });
    std::filesystem::remove(folder + "/" + name);
    if (!before.empty()) write_file(folder + "/" + name, before);
  };
  const std::string zero(1, '\0');
  refused("added_tokens.json", R"({"<x>": 421})", {"<x>", "has id 421", "expected 420"});
  refused("added_tokens.json", R"({"<x>": "420"})", {"<x>", "expected an id"});
  refused("added_tokens.json", R"({"\n": 420})", {"has id 420", "expected 5, its id in the model"});
  refused("added_tokens.json", R"({"": 420})", {"1 to 1024 bytes"});
  refused("added_tokens.json", "[", {"added_tokens.json", ":1:2: expected a value"});
  refused("added_tokens.json", "{}" + zero, {"added_tokens.json", ":1:3: expected the end of the text, found byte 0"});
  refused("special_tokens_map.json", R"({"pad_token": "[PAD]"})", {"[PAD]", "transformers would add it"});
  refused("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "<a>"}}})", {"expected an id"});
  refused("tokenizer_config.json", R"({"added_tokens_decoder": {"420": {}}})", {"no content"});
  refused("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "legacy": 1})", {"legacy"});
  std::string json = R"({"added_tokens": [{"id": 420, "content": "<|im_start|>", "special": true}], "model": )"
                     R"({"type": "BPE", "vocab": {)";
  for (int32_t id = 0; id < 420; ++id)
    json += (id > 0 ? "," : "") + nlohmann::json(plain.piece(id)).dump() + ":" + std::to_string(id);
  const std::string end = R"(}, "merges": []}, "normalizer": {"type": "Lowercase"}})";
  refused("tokenizer.json", json + end, {"Lowercase", "not supported"});
  std::string other = json + end;
  const std::string from = nlohmann::json(plain.piece(300)).dump() + ":300";
  other.replace(other.find(from), from.size(), "\"zzzz\":300");
  refused("tokenizer.json", other, {"id 300", "zzzz", plain.piece(300), "different tokenizers"});

  // A model of Llama's kind, by its class: BOS before a text, a blank before each text between added tokens.
  std::filesystem::remove(folder + "/added_tokens.json");
  write_file(
      folder + "/tokenizer_config.json",
      R"({"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {"420": {"content": "<|im_start|>", "special": true}}})");
  const Tokenizer t = Tokenizer::load(folder);
  CHECK((t.before_text() == std::vector<int32_t>{1} && t.after_text().empty() && t.empty_text() == 1));
  CHECK(t.encode("a line<|im_start|>b</s>") ==
        with(with(plain.encode(" a line"), {420}), with(plain.encode(" b"), {2})));
  CHECK(t.decode(t.encode("a line")) == "a line");
  CHECK(t.names_of(t.before_text()) == "<s> (1)");
}

TEST_CASE("lines are read in bounded parts, from plain and compressed files, and reading resumes in the middle") {
  TempDir dir;
  const std::string text = "one\n\ntwo\r\n" + std::string(70'000, 'y') + "\nlast";
  write_file(dir / "a.txt", text);
  gzip(dir / "a.gz", text);
  for (const char* name : {"a.txt", "a.gz"}) {
    LineReader reader(dir / name, 1000);
    LineReader::Line line;
    std::string all;
    int64_t starts = 0;
    while (reader.next(&line)) {
      CHECK(line.text.size() <= 1000);
      CHECK(line.begin == static_cast<int64_t>(all.size()));
      starts += line.first;
      all += line.text;
    }
    CHECK(all == text);
    CHECK(starts == 5);
    LineReader later(dir / name, 1000);
    later.skip_to(5, 2);
    REQUIRE(later.next(&line));
    CHECK(line.text == "two\r\n");
    CHECK((line.number == 2 && line.begin == 5));
    LineReader beyond(dir / name, 1000);
    if (std::string(name) == "a.gz")
      expect_error(Exit::kIo, {"the input changed"}, [&] { beyond.skip_to(1 << 20, 2); });
  }
}
