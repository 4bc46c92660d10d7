#include "data/prepare/prepare.h"

#include <zlib.h>

#include <sstream>

#include "data/prepare/json_line.h"
#include "data/prepare/prepare_chunks.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_train.h"
#include "data/tokens/token_meta.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {

// A folder with a tokenizer of 400 tokens.
struct PrepareFixture : TempDir {
  PrepareFixture() {
    write_file(*this / "train.txt", made_up_text(1500));
    TokenizerTrainOptions o;
    o.inputs = {*this / "train.txt"};
    o.output = *this / "tok.model";
    o.vocab = 400;
    tokenizer_train(o);
  }
  PrepareOptions options(const std::string& input, const std::string& output) const {
    PrepareOptions o;
    o.inputs = {*this / input};
    o.tokenizer = *this / "tok.model";
    o.output = *this / output;
    o.chunk_bytes = 3000;
    return o;
  }
  // Every document of a token file as text, with <|endoftext|> included.
  std::vector<std::string> texts(const std::string& prefix) const {
    const Tokenizer t = Tokenizer::load(*this / "tok.model");
    const TokenFile f = TokenFile::open(*this / prefix);
    std::vector<std::string> out;
    for (int64_t s = 0; s < f.sequences(); ++s) {
      std::vector<int32_t> ids(static_cast<size_t>(f.length(s)));
      f.read(s, 0, ids);
      out.push_back(t.decode(ids));
    }
    return out;
  }
};
const std::string kEnd = "<|endoftext|>";

std::string json_lines(size_t count) {
  std::istringstream lines(made_up_text(count, 21));
  std::string out, line;
  for (size_t i = 0; std::getline(lines, line); ++i)
    out += "{\"id\": " + std::to_string(i) +
           ", \"meta\": {\"text\": \"wrong\", \"a\": [1, {\"text\": 2}]}, \"text\": \"" + line +
           "\\n\\u00e9\\ud83d\\ude00\\t\\\"\"}\n";
  return out;
}
}  // namespace

TEST_CASE("text is split into documents by file, by line and by blank line, and decodes to itself") {
  const PrepareFixture w;
  const std::string a = made_up_text(200, 5), b = "first\r\nsecond line\n\n \n\nthird\n\n\nlast without end";
  write_file(w / "in/a.txt", a);
  write_file(w / "in/b.txt", "\xEF\xBB\xBF" + b);
  write_file(w / "in/c.txt", "");
  auto o = w.options("in", "file");
  o.inputs = {w / "in"};
  const PrepareResult r = prepare_data(o);
  CHECK(w.texts("file") == std::vector<std::string>{a + kEnd, b + kEnd});
  CHECK((r.documents == 2 && r.dropped == 1 && r.bad == 0 && r.replaced == 0 && r.type == "u16" && !r.resumed));
  CHECK(r.longest == TokenFile::open(w / "file").length(0));
  CHECK(to_text(r).find("documents         2") == 0);

  o.inputs = {w / "in/b.txt"};
  o.output = w / "line";
  o.split_docs = SplitDocs::kLine;
  o.eod = false;
  const PrepareResult lines = prepare_data(o);
  CHECK(w.texts("line") == std::vector<std::string>{"first", "second line", " ", "third", "last without end"});
  CHECK(lines.dropped == 4);

  o.output = w / "blank";
  o.split_docs = SplitDocs::kBlankLine;
  prepare_data(o);
  CHECK(w.texts("blank") == std::vector<std::string>{"first\r\nsecond line\n", " \n", "third\n", "last without end"});

  write_file(w / "in/d.txt", "one 50 %\n%\r\n%\ntwo\nlines\n%\n");
  o.inputs = {w / "in/d.txt"};
  o.output = w / "sep";
  o.split_docs = SplitDocs::kSeparator;
  expect_error(Exit::kUsage, {"--separator"}, [&] { prepare_data(o); });
  o.separator = "%";
  prepare_data(o);
  CHECK(w.texts("sep") == std::vector<std::string>{"one 50 %\n", "two\nlines\n"});

  const auto meta = read_token_meta(w / "file");
  REQUIRE(meta.has_value());
  CHECK((meta->documents == 2 && meta->vocab == 400 && meta->eod == 4 && meta->tokens == r.tokens));
  CHECK(meta->tokenizer_sha256 == Tokenizer::load(w / "tok.model").sha256());
  CHECK(meta->bin_xxh3_128 == xxh3_128_file(w / "file.bin"));
  CHECK(meta->idx_xxh3_128 == xxh3_128_file(w / "file.idx"));
  for (const char* part : {".bin.part", ".len.part", ".idx.part", ".progress.json"})
    CHECK_FALSE(std::filesystem::exists(w / "file" + part));
}

TEST_CASE("JSON lines yield the value of their key, plain and compressed, whatever else the object holds") {
  const PrepareFixture w;
  const std::string text = json_lines(300) + "\n  \n";
  write_file(w / "a.jsonl", text);
  gzFile f = gzopen((w / "b.jsonl.gz").c_str(), "wb");
  gzwrite(f, text.data(), static_cast<unsigned>(text.size()));
  gzclose(f);
  auto o = w.options("a.jsonl", "a");
  o.check_cache = true;
  CHECK(prepare_data(o).documents == 300);
  std::istringstream lines(made_up_text(300, 21));
  std::vector<std::string> expected;
  for (std::string line; std::getline(lines, line);) expected.push_back(line + "\n\xC3\xA9\xF0\x9F\x98\x80\t\"" + kEnd);
  CHECK(w.texts("a") == expected);
  o = w.options("b.jsonl.gz", "b");
  prepare_data(o);
  CHECK((read_file(w / "b.bin") == read_file(w / "a.bin") && read_file(w / "b.idx") == read_file(w / "a.idx")));
}

TEST_CASE("the output bytes depend on neither threads nor chunk size") {
  const PrepareFixture w;
  write_file(w / "in/a.txt", made_up_text(800, 5));
  write_file(w / "in/b.jsonl", json_lines(200));
  write_file(w / "in/c.txt",
             std::string("a\xFF\xE6\x97 b\n") + made_up_text(300, 8) + std::string(9000, 'z') + "\nend");
  std::string bin, idx;
  for (const auto& [threads, chunk, memory] :
       {std::tuple(1, 0, 512), std::tuple(3, 1000, 512), std::tuple(2, 70'000, 200), std::tuple(4, 5, 300)}) {
    auto o = w.options("in", "out" + std::to_string(threads));
    o.threads = threads;
    o.chunk_bytes = chunk;
    o.memory_mb = memory;
    const PrepareResult r = prepare_data(o);
    CHECK(r.replaced == 3);
    if (bin.empty()) {
      bin = read_file(o.output + ".bin");
      idx = read_file(o.output + ".idx");
    }
    CHECK(read_file(o.output + ".bin") == bin);
    CHECK(read_file(o.output + ".idx") == idx);
  }
  CHECK(w.texts("out1").back().substr(0, 13) == "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD b\n");
}

TEST_CASE("killed at any chunk and restarted, the files are identical") {
  const PrepareFixture w;
  write_file(w / "in/a.txt", made_up_text(300, 5));
  write_file(w / "in/b.jsonl", json_lines(100));
  const auto whole = w.options("in", "whole");
  const PrepareResult expected = prepare_data(whole);
  for (const double journal_seconds : {0.0, 1000.0}) {  // a journal after every chunk; no journal before the kill
    for (int first : {1, 2, 5, 9}) {
      auto o = w.options("in", "part");
      o.journal_seconds = journal_seconds;
      o.threads = 2;
      int kills = 0;
      PrepareResult got;
      for (int at = first;; ++at) {
        o.test_kill_after_chunks = kills < 6 ? at : -1;
        try {
          got = prepare_data(o);
          break;
        } catch (const Error& e) {
          REQUIRE(e.code() == Exit::kInterrupted);
          CHECK_FALSE(std::filesystem::exists(w / "part.idx"));
          std::ofstream(w / "part.bin.part", std::ios::app) << "bytes after the journal";
          ++kills;
        }
      }
      CHECK(kills > 0);
      CHECK(got.resumed == (journal_seconds == 0.0));
      CHECK((got.documents == expected.documents && got.tokens == expected.tokens &&
             got.text_bytes == expected.text_bytes && got.longest == expected.longest));
      CHECK(read_file(w / "part.bin") == read_file(w / "whole.bin"));
      CHECK(read_file(w / "part.idx") == read_file(w / "whole.idx"));
      for (const char* s : {".bin", ".idx", ".meta.json"}) std::filesystem::remove(w / "part" + s);
    }
  }
}

TEST_CASE("a stop exits cleanly with the resume command, and other options in its folder are refused") {
  const PrepareFixture w;
  write_file(w / "a.txt", made_up_text(300, 5));
  std::atomic<bool> stop{true};
  auto o = w.options("a.txt", "out");
  o.stop = &stop;
  expect_error(Exit::kInterrupted, {"interrupted after", "continue from here"}, [&] { prepare_data(o); });
  auto other = o;
  other.split_docs = SplitDocs::kLine;
  other.eod = false;
  expect_error(Exit::kUsage,
               {"out.progress.json", "split_docs: it had \"file\", this call has \"line\"", "eod", "--force"},
               [&] { prepare_data(other); });
  write_file(w / "a.txt", made_up_text(301, 5));
  expect_error(Exit::kUsage, {"a.txt: changed on disk", "--force"}, [&] { prepare_data(o); });
  stop = false;
  o.force = true;
  CHECK_FALSE(prepare_data(o).resumed);
  o.force = false;
  expect_error(Exit::kUsage, {"exists already", "--force"}, [&] { prepare_data(o); });
}

TEST_CASE("a kill between the final renames is repaired by the next call") {
  const PrepareFixture w;
  write_file(w / "a.txt", made_up_text(100, 5));
  auto o = w.options("a.txt", "out");
  std::string journal, spool;
  prepare_data(o, [&](const PrepareProgress& p) {  // the last report precedes the renames
    CHECK(p.input_done == p.input_bytes);
    journal = read_file(w / "out.progress.json");
    spool = read_file(w / "out.len.part");
  });
  const std::string bin = read_file(w / "out.bin"), idx = read_file(w / "out.idx");
  std::filesystem::remove(w / "out.idx");
  write_file(w / "out.progress.json", journal);
  write_file(w / "out.len.part", spool);
  CHECK(prepare_data(o).resumed);
  CHECK((read_file(w / "out.bin") == bin && read_file(w / "out.idx") == idx));
}

TEST_CASE("a list of objects and an object over several lines are known by their beginnings") {
  const std::string long_text = "{\n \"text\": \"" + std::string(70'000, 'x');
  for (const std::string& text :
       {std::string("{\n \"text\": \"a\"\n}\n"), std::string("{\"a\": NaN,\n \"b\": [1,\n 2]}\n{\n"), long_text,
        std::string("\n{\r\n\"a\" : {\n"), std::string("{\"a\": [{\n\"b\": \"\\ud800\"}]}\nmore")})
    CHECK(is_json_lines("a.txt", text));
  for (const char* text : {"{\n  x = 1;\n}\n", "{\n\"a\" said she\n}\n", "{\"a\": 1} and text\n", "{\"a\": one,\n",
                           "{\n\"a\": 1;\n}\n", "{\n", "{", "{\n\"a", "{\"a\"\n\"b\": 1}\n"})
    CHECK_FALSE(is_json_lines("a.txt", text));
  for (const char* text : {"[\n {\"text\": \"a\"}\n]\n", " [{\"text\" : 1}]"}) CHECK(is_json_lines("a.txt", text));
  for (const char* text :
       {"", "[1] Smith, A.\n", "[{", "[{\"", "[{\"a\"", "[\"a\"]\n", "[{\"a\" said\n", "{ braces }\n", "[{x}]"})
    CHECK_FALSE(is_json_lines("a.txt", text));
  std::string got, why;
  for (const char* line : {"{\n", "{\r\n", " { ", "{\"a\": 1,\n", "{\"a\": [\n"}) {
    CHECK_FALSE(json_text(line, "text", &got, &why));
    CHECK_THAT(why, Catch::Contains("an object over several lines?"));
  }
}

TEST_CASE("bad input names file, line and byte, or is skipped and counted") {
  const PrepareFixture w;
  struct Case {
    std::string line, why;
  };
  const std::vector<Case> cases = {{"{\"text\": \"a\"", "broken JSON"},
                                   {"{\"other\": \"a\"}", "no key \"text\""},
                                   {"{\"text\": 3}", "\"text\": expected a string, found a number"},
                                   {"{\"text\": NaN}", "\"text\": expected a string, found NaN"},
                                   {"{\"a\": NaN, \"text\": -Infinity}", "expected a string, found -Infinity"},
                                   {"{\"text\": 1e999}", "\"text\": expected a string, found a number"},
                                   {"{\"text\": [\"a\"]}", "expected a string, found a list"},
                                   {"{\"text\": null}", "expected a string, found null"},
                                   {"{\"text\": Nan}", "broken JSON at byte"},
                                   {std::string("{\"text\": \"a\"}\0x", 15), "a zero byte"},
                                   {"{\"score\": NaN, \"text\" \"a\"}", "broken JSON at byte 2"},
                                   {"[1]", "jq -c '.[]'"},
                                   {"[", "jq -c '.[]'"},
                                   {"{", "jq -c ."},
                                   {"{\"content\": \"a\"}", "--json-key content"},
                                   {"{\"messages\": []}", "--format chat reads it"},
                                   {"{\"conversations\": [{\"from\": \"human\"}]}", "ShareGPT"},
                                   {"{\"instruction\": \"a\", \"output\": \"b\"}", "--format instruct"},
                                   {"{\"prompt\": \"a\", \"completion\": \"b\"}", "response: .completion"},
                                   {"\"text\"", "found a string"},
                                   {"7", "expected an object"},
                                   {"{\"text\": {\"text\": \"a\"}}", "expected a string, found an object"}};
  for (const Case& c : cases) {
    write_file(w / "a.jsonl", "{\"text\": \"good\"}\n" + c.line + "\n{\"text\": \"\"}\n{\"text\": \"more\"}\n");
    auto o = w.options("a.jsonl", "out");
    o.force = true;
    expect_error(Exit::kUsage, {"a.jsonl line 2 byte 17", c.why}, [&] { prepare_data(o); });
    o.on_bad = OnBad::kSkip;
    const PrepareResult r = prepare_data(o);
    CHECK((r.documents == 2 && r.bad == 1 && r.dropped == 1));
    CHECK(w.texts("out") == std::vector<std::string>{"good" + kEnd, "more" + kEnd});
  }
  write_file(w / "b.txt", "fine\nbad \xC3( here\n");
  auto o = w.options("b.txt", "strict");
  o.strict_utf8 = true;
  expect_error(Exit::kUsage, {"b.txt line 1 byte 0", "invalid UTF-8, byte 195 at 9"}, [&] { prepare_data(o); });
  write_file(w / "long.txt", "short\n" + std::string((1 << 20) + 1, 'x') + "\nend\n");
  o = w.options("long.txt", "long");
  o.max_doc_mb = 1;
  expect_error(Exit::kUsage, {"long.txt line 2 byte 6", "--max-doc-mb 1"}, [&] { prepare_data(o); });
  o.on_bad = OnBad::kSkip;
  o.force = true;
  CHECK(prepare_data(o).bad == 1);
  CHECK(w.texts("long") == std::vector<std::string>{"short\nend\n" + kEnd});
}

TEST_CASE("values of other keys do not matter: NaN, Infinity, huge numbers, lone surrogates") {
  const PrepareFixture w;
  const std::string values[] = {"NaN",
                                "Infinity",
                                "-Infinity",
                                "1e999",
                                "-1e999",
                                "[NaN, {\"a\": NaN}]",
                                "\"\\udc00\"",
                                "\"a NaN, \\\" NaN\"",
                                std::string(400, '9')};
  std::string lines;
  for (const std::string& v : values) lines += "{\"score\": " + v + ", \"text\": \"NaN of 'x'\", \"more\":" + v + "}\n";
  write_file(w / "a.jsonl", lines + "{\"text\": \"half \\ud83d, whole \\ud83d\\ude00\"}\n");
  const PrepareResult r = prepare_data(w.options("a.jsonl", "out"));
  std::vector<std::string> expected(std::size(values), "NaN of 'x'" + kEnd);
  expected.push_back("half \xEF\xBF\xBD, whole \xF0\x9F\x98\x80" + kEnd);
  CHECK(w.texts("out") == expected);
  CHECK((r.bad == 0 && r.replaced == 3));  // two in a value of another key
  write_file(w / "b.jsonl", "{\"text\": \"one\"}\n{\"score\": NaN, \"text\": NaN}\n{\"text\": \"two\", \"s\": NaN}\n");
  auto o = w.options("b.jsonl", "skip");
  o.on_bad = OnBad::kSkip;
  CHECK(prepare_data(o).bad == 1);  // a bad line loses itself only
  CHECK(w.texts("skip") == std::vector<std::string>{"one" + kEnd, "two" + kEnd});
}

TEST_CASE("JSON lines are read as what they are without their name, a mixed folder each file by its own") {
  const PrepareFixture w;
  const std::string json = json_lines(40), text = "plain text\n{\"not\": \"a line of JSON\"}\n";
  write_file(w / "named.jsonl", json);
  prepare_data(w.options("named.jsonl", "named"));
  for (const char* name : {"data.txt", "part-00000"}) {
    write_file(w / name, "\n" + json);
    prepare_data(w.options(name, "by-content"));
    CHECK(read_file(w / "by-content.bin") == read_file(w / "named.bin"));
    std::filesystem::remove(w / "by-content.bin"), std::filesystem::remove(w / "by-content.idx");
  }
  auto o = w.options("data.txt", "as-text");
  o.format = TextFormat::kText;
  prepare_data(o);
  CHECK(w.texts("as-text") == std::vector<std::string>{"\n" + json + kEnd});

  write_file(w / "mixed/a.jsonl", json);
  write_file(w / "mixed/b.txt", text);
  write_file(w / "mixed/c.txt", "{\"one\": 1}\nand text\n");  // one object is no rule
  o = w.options("mixed", "mixed-out");
  prepare_data(o);
  const auto all = w.texts("mixed-out");
  REQUIRE(all.size() == 42);
  CHECK(all[0] == w.texts("named")[0]);
  CHECK(all[40] == text + kEnd);
  write_file(w / "d.txt", "{\n \"text\": \"a\"\n}\n");
  expect_error(Exit::kUsage, {"d.txt line 1", "an object over several lines?", "jq -c ."},
               [&] { prepare_data(w.options("d.txt", "d")); });
  o = w.options("d.txt", "d-text");
  o.format = TextFormat::kText;
  CHECK(prepare_data(o).documents == 1);
}

TEST_CASE("files of a folder that nobody means are left out and counted, others are refused or read") {
  const PrepareFixture w;
  write_file(w / "in/a.txt", "one\n");
  write_file(w / "in/.hidden.txt", "x\n");
  write_file(w / "in/.git/objects/ab", "x\n");
  write_file(w / "in/__pycache__/m.pyc", "x\n");
  write_file(w / "in/_SUCCESS", "");
  write_file(w / "in/b.txt~", "x\n");
  LeftOut left;
  prepare_data([&] {
    auto o = w.options("in", "in/out");  // beside the text
    return o;
  }());
  std::filesystem::copy_file(w / "tok.model", w / "in/tok.model");
  std::filesystem::copy_file(w / "tok.vocab", w / "in/tok.vocab");
  const auto inputs = expand_inputs({w / "in"}, &left);
  REQUIRE(inputs.size() == 1);
  CHECK(inputs[0].path == w / "in/a.txt");
  CHECK((left.hidden == 2 && left.other == 3 && left.outputs == 5));
  CHECK(left.text().find("10 files or folders left out: 2 hidden, 5 of token files or tokenizers, 3 marks") == 0);
  CHECK(expand_inputs({w / "in/.hidden.txt"}).size() == 1);  // named: meant
  std::filesystem::create_directory(w / "empty");
  write_file(w / "empty/.x", "x");
  expect_error(Exit::kUsage, {"no files of text", "1 hidden"}, [&] { expand_inputs({w / "empty"}); });
  write_file(w / "in/c.txt", "\x28\xB5\x2F\xFD\1\2\3");
  expect_error(Exit::kUsage, {"in/c.txt", "zstd"}, [&] { prepare_data(w.options("in", "other")); });
}

TEST_CASE("bad options of the preparation are reported") {
  const PrepareFixture w;
  write_file(w / "a.txt", "text\n");
  write_file(w / "empty.txt", "");
  const auto with = [&](auto change) {
    auto o = w.options("a.txt", "out");
    change(o);
    prepare_data(o);
  };
  using O = PrepareOptions;
  expect_error(Exit::kUsage, {"--threads", "found 0"}, [&] { with([](O& o) { o.threads = 0; }); });
  expect_error(Exit::kUsage, {"--memory-mb", "found 10"}, [&] { with([](O& o) { o.memory_mb = 10; }); });
  expect_error(Exit::kUsage, {"--max-doc-mb"}, [&] { with([](O& o) { o.max_doc_mb = 0; }); });
  expect_error(Exit::kUsage, {"--json-key"}, [&] { with([](O& o) { o.json_key = ""; }); });
  expect_error(Exit::kUsage, {"--output"}, [&] { with([](O& o) { o.output = ""; }); });
  expect_error(Exit::kUsage, {"gone.model: cannot be read"}, [&] { with([](O& o) { o.tokenizer = "gone.model"; }); });
  expect_error(Exit::kUsage, {"gone: no such file"}, [&] { with([](O& o) { o.inputs = {"gone"}; }); });
  expect_error(Exit::kUsage, {"no text", "1 empty"}, [&] { with([&](O& o) { o.inputs = {w / "empty.txt"}; }); });
  expect_error(Exit::kUsage, {"--format", "auto, jsonl, text", "\"csv\""}, [] { text_format_from("csv"); });
  expect_error(Exit::kUsage, {"--split-docs", "blank-line"}, [] { split_docs_from("page"); });
  expect_error(Exit::kUsage, {"--on-bad"}, [] { on_bad_from("ignore"); });
}

TEST_CASE("random damage to JSON lines results in an error or a text, never anything else") {
  std::mt19937 r(2);
  const std::string good = json_lines(1);
  int read = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string line = good, text, why;
    for (uint32_t n = 1 + r() % 3; n > 0; --n) line[r() % line.size()] = "{}[]\",:\\ntu0\x80\n"[r() % 14];
    if (json_text(line, "text", &text, &why))
      ++read;
    else
      CHECK(!why.empty());
  }
  CHECK(read > 500);
}
