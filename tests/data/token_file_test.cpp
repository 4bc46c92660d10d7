#include "data/tokens/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/tokens/token_check.h"
#include "data/tokens/token_meta.h"
#include "kernels/core/hash/sha256.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {
std::string hex_of(const std::string& path) {
  const std::string s = read_file(path);
  return to_hex(reinterpret_cast<const uint8_t*>(s.data()), s.size());
}
template <class T>
void patch(const std::string& path, size_t at, T value) {
  std::string s = read_file(path);
  std::memcpy(s.data() + at, &value, sizeof value);
  write_file(path, s);
}
}  // namespace

TEST_CASE("the pair of files has the published bytes") {
  TempDir dir;
  write_fixture(dir / "f");
  CHECK(hex_of(dir / "f.idx") ==
        "4d4d49444944580000"
        "0100000000000000"
        "08"
        "0300000000000000"
        "0400000000000000"
        "05000000"
        "03000000"
        "07000000"
        "0000000000000000"
        "0a00000000000000"
        "1000000000000000"
        "0000000000000000"
        "0100000000000000"
        "0200000000000000"
        "0300000000000000");
  CHECK(hex_of(dir / "f.bin") ==
        "0a000b000c000d000e00"
        "140015001600"
        "1e001f0020002100220023002400");
}

TEST_CASE("all readable widths give the same tokens, by prefix or by either name") {
  for (TokenType type : {TokenType::kU8, TokenType::kI16, TokenType::kI32, TokenType::kI64, TokenType::kU16}) {
    TempDir dir;
    write_fixture(dir / "f", type);
    for (const char* suffix : {"", ".bin", ".idx"}) {
      const TokenFile f = TokenFile::open(dir / "f" + suffix);
      CHECK(f.type() == type);
      CHECK(f.sequences() == 3);
      CHECK(f.documents() == 3);
      CHECK(f.tokens() == 15);
      std::vector<int32_t> out(5);
      CHECK(f.read(2, 2, out) == 36);
      CHECK(out == std::vector<int32_t>{32, 33, 34, 35, 36});
      CHECK(f.document_of(1) == 1);
    }
  }
  CHECK(token_type_for(65499) == TokenType::kU16);
  CHECK(token_type_for(65500) == TokenType::kI32);
}

TEST_CASE("negative and huge ids count as out of range") {
  TempDir dir;
  write_fixture(dir / "a", TokenType::kI32);
  patch<int32_t>(dir / "a.bin", 4, -1);
  std::vector<int32_t> out(5);
  CHECK(TokenFile::open(dir / "a").read(0, 0, out) > uint64_t{1} << 40);
  write_fixture(dir / "b", TokenType::kI64);
  patch<int64_t>(dir / "b.bin", 8, (int64_t{1} << 32) + 11);
  CHECK(TokenFile::open(dir / "b").read(0, 0, out) == (uint64_t{1} << 32) + 11);
}

TEST_CASE("every broken rule of the format is reported with file, byte, expected and found") {
  struct Case {
    const char* name;
    void (*damage)(const std::string& prefix);
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {"short header",
       [](const std::string& p) { write_file(p + ".idx", "MMIDIDX"); },
       {".idx byte 7", "header of 34 bytes"}},
      {"empty index", [](const std::string& p) { write_file(p + ".idx", ""); }, {".idx byte 0", "34 bytes"}},
      {"magic",
       [](const std::string& p) { patch<char>(p + ".idx", 0, 'X'); },
       {".idx byte 0", "magic", "584d494449445800"}},
      {"version",
       [](const std::string& p) { patch<uint64_t>(p + ".idx", 9, 2); },
       {".idx byte 9", "version 1, found 2"}},
      {"dtype unknown", [](const std::string& p) { patch<uint8_t>(p + ".idx", 17, 77); }, {".idx byte 17", "found 77"}},
      {"dtype i8", [](const std::string& p) { patch<uint8_t>(p + ".idx", 17, 2); }, {".idx byte 17", "found 2 (i8)"}},
      {"dtype f64", [](const std::string& p) { patch<uint8_t>(p + ".idx", 17, 6); }, {".idx byte 17", "found 6 (f64)"}},
      {"dtype f32", [](const std::string& p) { patch<uint8_t>(p + ".idx", 17, 7); }, {".idx byte 17", "found 7 (f32)"}},
      {"sequences overflow",
       [](const std::string& p) { patch<uint64_t>(p + ".idx", 18, ~uint64_t{0} / 8); },
       {".idx byte 18", "2^64"}},
      {"sequences",
       [](const std::string& p) { patch<uint64_t>(p + ".idx", 18, 2); },
       {".idx byte 18", "need 90 bytes, found 102"}},
      {"tail",
       [](const std::string& p) { write_file(p + ".idx", read_file(p + ".idx") + "x"); },
       {".idx byte 18", "102 bytes, found 103"}},
      {"first document",
       [](const std::string& p) { patch<int64_t>(p + ".idx", 70, 1); },
       {".idx byte 70", "expected 0 first, found 1"}},
      {"last document",
       [](const std::string& p) { patch<int64_t>(p + ".idx", 94, 2); },
       {".idx byte 94", "expected 3", "found 2"}},
      {"falling document",
       [](const std::string& p) { patch<int64_t>(p + ".idx", 86, -5); },
       {".idx byte 86", "at least 1", "found -5"}},
      {"length",
       [](const std::string& p) { patch<int32_t>(p + ".idx", 38, -3); },
       {".idx byte 38", "sequence 1", "found -3"}},
      {"first position",
       [](const std::string& p) { patch<int64_t>(p + ".idx", 46, -2); },
       {".idx byte 46", "sequence 0", "found -2"}},
      {"falling position",
       [](const std::string& p) { patch<int64_t>(p + ".idx", 62, 4); },
       {".idx byte 62", "expected 16 (the end of the sequence before)", "found 4"}},
      {"position beyond the end before",
       [](const std::string& p) { patch<int64_t>(p + ".idx", 54, 12); },
       {".idx byte 54", "sequence 1: expected 10", "found 12"}},
      {"a length raised",
       [](const std::string& p) { patch<int32_t>(p + ".idx", 34, 6); },
       {".idx byte 54", "sequence 1: expected 12", "found 10"}},
      {"far position",
       [](const std::string& p) { patch<int64_t>(p + ".idx", 62, INT64_MAX - 2); },
       {".idx byte 62", "sequence 2: expected 16"}},
      {"truncated bin",
       [](const std::string& p) { std::filesystem::resize_file(p + ".bin", 27); },
       {".bin: truncated", "sequence 2", "byte 27", "3 bytes are missing"}},
      {"odd bin",
       [](const std::string& p) { write_file(p + ".bin", read_file(p + ".bin") + "x"); },
       {".bin byte 31", "multiple of 2"}},
      {"no tokens",
       [](const std::string& p) {
         write_documents(p, {{}, {}});
       },
       {".idx", "at least 1 token", "found 0"}},
      {"no entries",
       [](const std::string& p) {
         patch<uint64_t>(p + ".idx", 18, 0);
         patch<uint64_t>(p + ".idx", 26, 0);
         std::filesystem::resize_file(p + ".idx", 34);
       },
       {".idx byte 26", "found 0"}},
      {"no idx",
       [](const std::string& p) { std::filesystem::remove(p + ".idx"); },
       {".idx: missing beside", "gpttrain data prepare"}},
      {"no bin",
       [](const std::string& p) { std::filesystem::remove(p + ".bin"); },
       {".bin: missing beside", "gpttrain data prepare"}},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    TempDir dir;
    write_fixture(dir / "f");
    c.damage(dir / "f");
    expect_error(Exit::kUsage, c.parts, [&] { TokenFile::open(dir / "f"); });
  }
}

TEST_CASE("another file passed as a token file is identified, with the command that prepares it") {
  TempDir dir;
  write_file(dir / "book.txt", "Once upon a time\n");
  write_file(dir / "lines.jsonl", "{\"text\": 1}\n");
  expect_error(Exit::kUsage, {"book.txt", "text that begins \"Once upon a time", "gpttrain data prepare --input"},
               [&] { TokenFile::open(dir / "book.txt"); });
  expect_error(Exit::kUsage, {"lines.jsonl", "JSON"}, [&] { TokenFile::open(dir / "lines.jsonl"); });
  expect_error(Exit::kUsage, {"found a folder"}, [&] { TokenFile::open(dir.path()); });
  expect_error(Exit::kUsage, {"nothing: no such file", "gpttrain data prepare"},
               [&] { TokenFile::open(dir / "nothing"); });
}

TEST_CASE("a table of modes is ignored with a warning") {
  TempDir dir;
  write_fixture(dir / "f");
  write_file(dir / "f.idx", read_file(dir / "f.idx") + std::string(3, '\0'));
  std::vector<std::string> warnings;
  CHECK(TokenFile::open(dir / "f", {"", [&](const std::string& w) { warnings.push_back(w); }}).tokens() == 15);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("modes") != std::string::npos);
}

TEST_CASE("random damage results in an error or a readable file, never anything else") {
  TempDir dir;
  write_fixture(dir / "f");
  const std::string idx = read_file(dir / "f.idx"), bin = read_file(dir / "f.bin");
  std::mt19937 r(11);
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string broken = idx;
    for (uint32_t n = 1 + r() % 4; n > 0; --n)
      broken[r() % broken.size()] = static_cast<char>(r() % 4 == 0 ? 255 : r());
    if (r() % 5 == 0) broken.resize(r() % (broken.size() + 1));
    write_file(dir / "f.idx", broken);
    try {
      const TokenFile f = TokenFile::open(dir / "f");
      for (int64_t s = 0; s < f.sequences(); ++s) {
        std::vector<int32_t> out(static_cast<size_t>(f.length(s)));
        f.read(s, 0, out);
        f.document_of(s);
      }
    } catch (const Error& e) {
      ++refused;
      REQUIRE(e.code() == Exit::kUsage);
    }
  }
  CHECK(refused > 250);
}

TEST_CASE("fingerprints depend on the content and are cached until a file changes") {
  TempDir dir;
  write_fixture(dir / "f");
  const TokenFileOptions cached{dir / "cache", {}};
  const Fingerprint a = TokenFile::open(dir / "f").fingerprint();
  CHECK(TokenFile::open(dir / "f", cached).fingerprint() == a);
  CHECK(TokenFile::open(dir / "f", cached).fingerprint() == a);  // from the cache
  CHECK(a.idx_sha256 == sha256_file_hex(dir / "f.idx"));
  CHECK(a.bin_bytes == 30);
  std::filesystem::last_write_time(dir / "f.bin",
                                   std::filesystem::last_write_time(dir / "f.bin") - std::chrono::hours(1));
  patch<uint16_t>(dir / "f.bin", 0, 99);
  CHECK_FALSE(TokenFile::open(dir / "f", cached).fingerprint() == a);
}

namespace {
// Writes into the file and gives it the modification time that it had.
template <class T>
void patch_in_secret(const std::string& path, size_t at, T value) {
  struct stat s {};
  REQUIRE(::stat(path.c_str(), &s) == 0);
  const int fd = ::open(path.c_str(), O_WRONLY);
  REQUIRE(::pwrite(fd, &value, sizeof value, static_cast<off_t>(at)) == sizeof value);
  ::close(fd);
  const timespec times[2] = {s.st_atim, s.st_mtim};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  struct stat now {};
  REQUIRE(::stat(path.c_str(), &now) == 0);
  REQUIRE(
      (now.st_size == s.st_size && now.st_mtim.tv_sec == s.st_mtim.tv_sec && now.st_mtim.tv_nsec == s.st_mtim.tv_nsec));
}
}  // namespace

TEST_CASE("a cached verdict does not survive a change that keeps size and time, whatever the size of the index") {
  TempDir dir;
  for (const int64_t rehash : {int64_t{1} << 20, int64_t{0}}) {
    INFO("an index of up to " << rehash << " bytes is checked each time");
    const TokenFileOptions cached{.cache_dir = dir / "cache", .warn = {}, .rehash_bytes = rehash};
    write_fixture(dir / "f");
    const Fingerprint before = TokenFile::open(dir / "f", cached).fingerprint();
    CHECK(std::filesystem::exists(dir / "cache") == (rehash == 0));
    usleep(20000);                                   // more than a tick of the file system's clock
    patch_in_secret<int32_t>(dir / "f.idx", 34, 6);  // one token more in the first sequence
    expect_error(Exit::kUsage, {".idx byte 54"}, [&] { TokenFile::open(dir / "f", cached); });
    usleep(20000);
    patch_in_secret<int32_t>(dir / "f.idx", 34, 5);
    CHECK(TokenFile::open(dir / "f", cached).fingerprint() == before);
    usleep(20000);
    patch_in_secret<uint64_t>(dir / "f.idx", 54, ~uint64_t{0} / 3);
    expect_error(Exit::kUsage, {".idx byte 54"}, [&] { TokenFile::open(dir / "f", cached); });
  }
}

TEST_CASE("a verdict in the cache that others can have written, or with values no file has, is not believed") {
  TempDir dir;
  write_fixture(dir / "f");
  const TokenFileOptions cached{.cache_dir = dir / "cache", .warn = {}, .rehash_bytes = 0};
  const Fingerprint right = TokenFile::open(dir / "f", cached).fingerprint();
  const MappedFile idx(dir / "f.idx"), bin(dir / "f.bin");
  const std::string file = CheckCache(dir / "cache", idx, bin).file(), text = read_file(file);
  int64_t tokens = 0;
  std::string hash, why;
  const auto loads = [&] { return CheckCache(dir / "cache", idx, bin).load(&tokens, &hash, &why); };
  REQUIRE(loads());
  CHECK((tokens == 15 && hash == right.idx_sha256));
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"\"tokens\":15", "\"tokens\":31"},
                                 {"\"tokens\":15", "\"tokens\":-1"},
                                 {right.idx_sha256, "x" + right.idx_sha256.substr(1)},
                                 {right.idx_sha256, ""}}) {
    std::string bad = text;
    bad.replace(bad.find(from), from.size(), to);
    write_file(file, bad);
    CHECK_FALSE(loads());
    CHECK(TokenFile::open(dir / "f", cached).fingerprint() == right);
  }
  write_file(file, text);
  REQUIRE(loads());
  std::filesystem::permissions(file, std::filesystem::perms::group_write, std::filesystem::perm_options::add);
  CHECK_FALSE(loads());
  CHECK(why.find("its group may write it") != std::string::npos);
}

TEST_CASE("an index that changes while it is read is an error, never a read outside of the files") {
  TempDir dir;
  write_fixture(dir / "f");
  const TokenFile f = TokenFile::open(dir / "f");
  std::vector<int32_t> out(3);
  for (const int64_t position : {int64_t{-2}, int64_t{26}, INT64_MAX - 1, INT64_MIN}) {
    patch_in_secret<int64_t>(dir / "f.idx", 54, position);
    expect_error(Exit::kIo, {".idx: tokens 0 to 3 of sequence 1", "the file changed"}, [&] { f.read(1, 0, out); });
    f.will_need(1, 0, 3);
  }
  patch_in_secret<int64_t>(dir / "f.idx", 78, INT64_MAX);
  expect_error(Exit::kIo, {".idx byte 78: document 1", "the file changed"}, [&] { f.document_begin(1); });
}

TEST_CASE("the metadata of a token file round-trips, and invalid metadata is an error") {
  TempDir dir;
  TokenMeta m{.tokenizer_sha256 = "ab",
              .version = "1",
              .vocab = 300,
              .eod = 4,
              .options = "{\"eod\":true}",
              .inputs = {"x", "y"},
              .documents = 3,
              .tokens = 15,
              .bytes = 40,
              .bin_xxh3_128 = "cd",
              .idx_xxh3_128 = "ef"};
  CHECK_FALSE(read_token_meta(dir / "f").has_value());
  write_token_meta(dir / "f.meta.json", m);
  const auto back = read_token_meta(dir / "f");
  REQUIRE(back.has_value());
  CHECK(to_json(*back) == to_json(m));
  write_file(dir / "f.meta.json", "{\"vocab\": \"many\"");
  expect_error(Exit::kUsage, {"f.meta.json"}, [&] { read_token_meta(dir / "f"); });
}
