// What is not text is refused by its content, with the command that unpacks or converts it, wherever text is read.
#include "data/prepare/text_content.h"

#include <zlib.h>

#include "data/prepare/prepare.h"
#include "data/prepare/text_source.h"
#include "data/tokenizer/tokenizer_train.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;
using namespace std::string_literals;

namespace {

struct Content {
  std::string bytes, what, advice;
};

std::string in_gzip(const std::string& path, const std::string& content) {
  gzFile f = gzopen(path.c_str(), "wb");
  gzwrite(f, content.data(), static_cast<unsigned>(content.size()));
  gzclose(f);
  return read_file(path);
}

// The text in code units of `width` bytes.
std::string wide(const std::string& text, size_t width, bool little, const std::string& mark = "") {
  std::string out = mark;
  for (const char c : text) {
    std::string unit(width, '\0');
    unit[little ? 0 : width - 1] = c;
    out += unit;
  }
  return out;
}

std::string noise(size_t n) {
  std::mt19937 r(5);
  std::string s(n, '\0');
  for (char& c : s) c = static_cast<char>(r());
  return s;
}

std::string old_tar() {
  std::string header(512, '\0');
  header.replace(0, 5, "a.txt");
  header.replace(100, 8, "0000644\0"s);
  header.replace(124, 12, "00000000004\0"s);
  int sum = 8 * ' ';
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char digits[8];
  std::snprintf(digits, sizeof digits, "%06o", static_cast<unsigned>(sum));
  header.replace(148, 6, digits, 6);
  header[155] = ' ';
  return header + "text" + std::string(508, '\0');
}

const std::string kText = "You may convey covered works to others for the sole purpose.\n";

std::vector<Content> contents() {
  std::string tar = old_tar();
  tar.replace(257, 5, "ustar");
  std::string latin, cyrillic;
  for (int k = 0; k < 40; ++k)
    latin += "caf\xE9 na\xEFve fa\xE7on de parler, d\xE9j\xE0 vu\n",
        cyrillic += "\xF0\xD2\xC9\xD7\xC5\xD4 \xCD\xC9\xD2\n";
  return {{"\x28\xB5\x2F\xFD\x04\x58" + noise(90), "zstd", "zstd -d @"},
          {"\x50\x2A\x4D\x18\x04\0\0\0"s + noise(90), "zstd", "zstd -d @"},
          {"\xFD\x37zXZ\0\0\4"s + noise(90), "xz data", "xz -dk @"},
          {"BZh91AY&SY" + noise(90), "bzip2", "bunzip2 -k @"},
          {"\x04\x22\x4D\x18" + noise(90), "lz4", "lz4 -d @"},
          {"\x5D\0\0\x80\0"s + noise(90), "lzma", "xz"},
          {"LZIP\1\x0C" + noise(90), "lzip", "lzip -dk @"},
          {"\x1F\x9D\x90" + noise(90), "compress", "gzip -dk @"},
          {"PK\3\4\x14\0\0\0\x08\0"s + noise(90), "a zip archive", "unzip @"},
          {"PK\3\4\x14\0\0\0\x08\0 word/document.xml"s + noise(90), "Office document", "pandoc"},
          {"PK\3\4\x0A\0\0\0\0\0 mimetypeapplication/epub+zip"s + noise(90), "e-book", "pandoc"},
          {"PK\3\4\x14\0\0\0\0\0 arr_0.npy"s + noise(90), "numpy archive", "PREFIX.bin"},
          {"7z\xBC\xAF\x27\x1C\0\4"s + noise(90), "7z archive", "7z x @"},
          {"Rar!\x1A\x07\1\0"s + noise(90), "rar archive", "unrar x @"},
          {tar, "tar archive", "tar xf @"},
          {old_tar(), "tar archive", "tar xf @"},
          {"PAR1\x15\4\x15" + noise(90), "parquet", "read_parquet('@')"},
          {"ARROW1\0\0"s + noise(90), "arrow", "read_feather('@')"},
          {"\xFF\xFF\xFF\xFF\x10\1\0\0\x10\0\0\0"s + noise(90), "arrow stream", "Dataset.from_file('@')"},
          {"SQLite format 3\0\x10\0"s + noise(90), "SQLite", "sqlite3 @"},
          {"\x93NUMPY\1\0v\0{'descr'"s, "numpy array", "PREFIX.bin"},
          {"\x80\4\x95\x10\0\0\0\0\0\0\0]"s, "pickle", "JSON lines"},
          {"\x89HDF\r\n\x1A\n" + noise(90), "HDF5", "h5dump"},
          {"%PDF-1.7\n% comment\n1 0 obj\n", "PDF", "pdftotext @"},
          {"{\\rtf1\\ansi text}", "RTF", "pandoc"},
          {"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1" + noise(90), "old Office", "libreoffice"},
          {"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n", "Git LFS pointer", "git lfs pull"},
          {"\x89PNG\r\n\x1A\n" + noise(90), "PNG", "leave it out"},
          {"\xFF\xD8\xFF\xE0" + noise(90), "JPEG", "leave it out"},
          {"\x7F"
           "ELF\2\1\1" +
               noise(90),
           "a program", "leave it out"},
          {"MMIDIDX\0\0\1"s + noise(90), "index of token files", "data.train"},
          {wide(kText, 2, true, "\xFF\xFE"), "UTF-16", "iconv -f UTF-16 -t UTF-8 @"},
          {wide(kText, 2, false, "\xFE\xFF"), "UTF-16", "iconv -f UTF-16 -t UTF-8 @"},
          {wide(kText, 4, true, "\xFF\xFE\0\0"s), "UTF-32", "iconv -f UTF-32"},
          {wide(kText, 2, true), "UTF-16", "UTF-16LE"},
          {wide(kText, 2, false), "UTF-16", "UTF-16BE"},
          {wide(kText, 4, true), "UTF-32", "UTF-32LE"},
          {wide(kText, 4, false), "UTF-32", "UTF-32BE"},
          {latin, "not UTF-8", "iconv -f WINDOWS-1252 -t UTF-8 @"},
          {cyrillic, "not UTF-8", "KOI8-R"},
          {noise(4000), "", ""},
          {std::string("GIF\0\0", 5), "zero bytes", "give text"},
          {std::string(3000, '\0'), "zero bytes", "give text"}};
}

}  // namespace

TEST_CASE("what is not text is named with what converts it, also in gzip") {
  TempDir dir;
  for (Content c : contents()) {
    write_file(dir / "X", c.bytes);
    if (const size_t at = c.advice.find('@'); at != std::string::npos) c.advice.replace(at, 1, dir / "X");
    INFO(c.what << ", " << c.advice);
    expect_error(Exit::kUsage, {dir / "X: expected text, found ", c.what, c.advice},
                 [&] { LineReader(dir / "X", 1000); });
    write_file(dir / "X.gz", in_gzip(dir / "packed", c.bytes));
    expect_error(Exit::kUsage, {dir / "X.gz: expected text, found ", c.what, " in gzip data; "},
                 [&] { LineReader(dir / "X.gz", 1000); });
  }
  in_gzip(dir / "once.gz", kText);
  in_gzip(dir / "twice.gz", read_file(dir / "once.gz"));
  CHECK_NOTHROW(LineReader(dir / "once.gz", 1000));
  expect_error(Exit::kUsage, {"twice.gz", "gzip data in gzip data", "gzip -dc"},
               [&] { LineReader(dir / "twice.gz", 1000); });
}

TEST_CASE("what is in gzip is unpacked before it is converted, by commands that run") {
  TempDir dir;
  in_gzip(dir / "a.gz", wide(kText, 2, true));
  expect_error(Exit::kUsage,
               {"gzip -dc " + (dir / "a.gz") + " > " + (dir / "a") + "; then convert it: iconv -f UTF-16LE -t UTF-8 " +
                (dir / "a") + " > " + (dir / "a.utf8")},
               [&] { LineReader(dir / "a.gz", 1000); });
  REQUIRE(std::system(
              ("cd " + dir.path() + " && gzip -dc a.gz > a && iconv -f UTF-16LE -t UTF-8 a > a.utf8").c_str()) == 0);
  CHECK(read_file(dir / "a.utf8") == kText);
}

TEST_CASE("a text of another encoding, or with invalid bytes, is read after the advice") {
  TempDir dir;
  std::string latin, mixed;
  for (int k = 0; k < 50; ++k) latin += "d\xE9j\xE0 vu, na\xEFve\n", mixed += "caf\xC3\xA9 \xFF\xFE\x80 end\n";
  write_file(dir / "latin", latin);
  write_file(dir / "mixed", mixed);
  for (const char* name : {"latin", "mixed"})
    expect_error(Exit::kUsage, {"not UTF-8", "iconv -c -f UTF-8 -t UTF-8 " + (dir / name)},
                 [&] { LineReader(dir / name, 99); });
  const std::string in = "cd " + dir.path() + " && iconv ";
  REQUIRE(std::system((in + "-f WINDOWS-1252 -t UTF-8 latin > latin.utf8").c_str()) == 0);
  (void)!std::system((in + "-c -f UTF-8 -t UTF-8 mixed > mixed.utf8").c_str());  // it ends with 1 after leaving out
  LineReader reader(dir / "latin.utf8", 99);
  LineReader::Line line;
  REQUIRE(reader.next(&line));
  CHECK(line.text == "d\xC3\xA9j\xC3\xA0 vu, na\xC3\xAFve\n");
  LineReader other(dir / "mixed.utf8", 99);
  REQUIRE(other.next(&line));
  CHECK(line.text == "caf\xC3\xA9  end\n");
}

TEST_CASE("text with a few odd bytes, of any script, or that begins like a magic, is text") {
  const std::vector<std::string> texts{"",
                                       "a",
                                       "\n",
                                       kText,
                                       "\xEF\xBB\xBF" + kText,
                                       kText + "\xFF\xC3",
                                       kText + "a\0b"s + kText,
                                       "PAR1 is a parking lot\n",
                                       "ID3 is a decision tree\n",
                                       "ORC\nsong\n",
                                       "GGUF\n",
                                       "BZhuman\n",
                                       "PKZIP\n",
                                       "RIFF raff\n",
                                       "070701 is a date\n",
                                       "<html><body>text</body></html>\n",
                                       "a\tb\x1B[31mred\x1B[0m\f\v\b\r\n",
                                       "Rar!\n",
                                       "7z x\n",
                                       "\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82\n",
                                       "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\n",
                                       "\xF0\x9F\x98\x80\xF0\x9F\x98\x80\n",
                                       kText + kText + kText + "caf\xE9 d\xE9j"};
  for (const std::string& text : texts) {
    INFO(text.substr(0, 40));
    const NotText found = not_text(text, "X");
    CHECK(found.what.empty());
  }
}

TEST_CASE("every reader of text refuses what is not text, before it writes anything") {
  TempDir dir;
  write_file(dir / "a.txt", made_up_text(300));
  TokenizerTrainOptions t;
  t.inputs = {dir / "a.txt"};
  t.output = dir / "tok.model";
  t.vocab = 400;
  tokenizer_train(t);
  write_file(dir / "b.txt", "%PDF-1.4\nstream\n");
  t.inputs.push_back(dir / "b.txt");
  t.output = dir / "none.model";
  expect_error(Exit::kUsage, {"b.txt", "PDF", "pdftotext"}, [&] { tokenizer_train(t); });
  PrepareOptions o;
  o.inputs = t.inputs;
  o.tokenizer = dir / "tok.model";
  o.output = dir / "out";
  expect_error(Exit::kUsage, {"b.txt", "PDF", "pdftotext"}, [&] { prepare_data(o); });
  for (const auto& e : std::filesystem::directory_iterator(dir.path()))
    CHECK(e.path().filename().string().find("out") == std::string::npos);
  CHECK_FALSE(std::filesystem::exists(dir / "none.model"));

  // Text first, then something else.
  write_file(dir / "late.txt", made_up_text(3000) + noise(100'000) + "\n");
  o.inputs = {dir / "late.txt"};
  expect_error(Exit::kUsage, {"late.txt from byte ", "found binary data", "control characters"},
               [&] { prepare_data(o); });
}

TEST_CASE("bytes after gzip data that are none are refused, members one after another are read") {
  TempDir dir;
  const std::string one = in_gzip(dir / "one.gz", made_up_text(3000, 1)), two = in_gzip(dir / "two.gz", "the end\n");
  const auto read = [&](const std::string& bytes) {
    write_file(dir / "a.gz", bytes);
    LineReader r(dir / "a.gz", 1 << 20);
    std::string text;
    for (LineReader::Line line; r.next(&line);) text += line.text;
    CHECK(r.disk_position() == static_cast<int64_t>(bytes.size()));
    return text;
  };
  CHECK(read(one) == made_up_text(3000, 1));
  CHECK(read(one + two + one) == made_up_text(3000, 1) + "the end\n" + made_up_text(3000, 1));
  for (const std::string& garbage : {"plain text\n"s, "x"s, "\x1F"s, std::string(300, '\0'), "\x1F\x8C"s + one})
    for (const std::string& before : {one, two, two + two})
      expect_error(Exit::kUsage, {cat("a.gz byte ", before.size()), "found other bytes after gzip data"},
                   [&] { read(before + garbage); });
  expect_error(Exit::kIo, {"ends too early"}, [&] { read(one.substr(0, one.size() - 3)); });
  expect_error(Exit::kIo, {"ends too early"}, [&] { read(one + two.substr(0, 5)); });
  std::string damaged = one;
  damaged[damaged.size() / 2] ^= 0x55;
  CHECK_THROWS_AS(read(damaged), Error);
}

TEST_CASE("a file of newlines alone is empty to every reader of text") {
  TempDir dir;
  write_file(dir / "a.txt", made_up_text(300));
  write_file(dir / "n.txt", "\n\r\n\n"), write_file(dir / "many.txt", std::string(40'000, '\n'));
  write_file(dir / "late.txt", "\n\n" + made_up_text(2));
  TokenizerTrainOptions t;
  t.inputs = {dir / "n.txt", dir / "many.txt"};
  t.output = dir / "tok.model";
  t.vocab = 400;
  expect_error(Exit::kUsage, {"the inputs have no text"}, [&] { tokenizer_train(t); });
  t.inputs = {dir / "a.txt"};
  tokenizer_train(t);
  PrepareOptions o;
  o.inputs = {dir / "n.txt", dir / "many.txt"};
  o.tokenizer = dir / "tok.model";
  o.output = dir / "out";
  expect_error(Exit::kUsage, {"the inputs have no text (2 empty"}, [&] { prepare_data(o); });
  o.inputs.push_back(dir / "late.txt"), o.force = true;
  const PrepareResult r = prepare_data(o);
  CHECK((r.documents == 1 && r.dropped == 2));
  CHECK(r.text_bytes == static_cast<int64_t>(read_file(dir / "late.txt").size()));  // its first newlines stay
}
