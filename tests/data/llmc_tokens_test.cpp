// llm.c's token files: both headers, shard patterns, every rule of the format, and the resulting samples.
#include "data/tokens/llmc_tokens.h"

#include <sstream>

#include "data/samples/cursor.h"
#include "data/samples/dataset.h"
#include "data/tokens/inspect.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {

using Numbers = std::vector<int32_t>;

std::string llmc_file(Numbers header, const Numbers& ids, TokenType type = TokenType::kU16) {
  header.resize(256);
  std::string out(reinterpret_cast<const char*>(header.data()), 1024);
  std::string packed(ids.size() * static_cast<size_t>(width_of(type)), '\0');
  pack_tokens(ids, type, reinterpret_cast<uint8_t*>(packed.data()));
  return out + packed;
}
std::string u16_file(const Numbers& ids) { return llmc_file({20240520, 1, static_cast<int32_t>(ids.size())}, ids); }
std::string u32_file(const Numbers& ids) {
  return llmc_file({20240801, 7, static_cast<int32_t>(ids.size())}, ids, TokenType::kI32);
}

Numbers all_of(const TokenStore& t) {
  Numbers out;
  for (int64_t s = 0; s < t.sequences(); ++s) {
    const size_t at = out.size();
    out.resize(at + static_cast<size_t>(t.length(s)));
    t.read(s, 0, std::span(out).subspan(at));
  }
  return out;
}

DatasetOptions options_for(const std::string& path, int64_t seq) {
  DatasetOptions o;
  o.sources = {{path, 0}};
  o.whole = true;
  o.seq = seq;
  o.vocab = 100;
  return o;
}

}  // namespace

TEST_CASE("llm.c's token files are read with both headers, by name, without .bin, and as a pattern in name order") {
  TempDir dir;
  write_file(dir / "b_000002.bin", u16_file({7, 8, 9}));
  write_file(dir / "b_000001.bin", u16_file({1, 65535, 3, 4}));
  write_file(dir / "wide.bin", u32_file({5, 128255, 6}));
  for (const char* name : {"wide", "wide.bin"}) {
    REQUIRE(names_llmc_tokens(dir / name));
    const auto t = open_tokens(dir / name);
    CHECK(t->prefix() == dir / "wide");
    CHECK(all_of(*t) == Numbers{5, 128255, 6});
    CHECK(t->width() == 4);
  }
  const auto t = open_tokens(dir / "b_*.bin");
  CHECK(all_of(*t) == Numbers{1, 65535, 3, 4, 7, 8, 9});
  CHECK((t->tokens() == 7 && t->sequences() == 2 && t->documents() == 2 && t->width() == 2));
  CHECK(t->locate(1, 2) == dir / "b_000002.bin" + ": token 2 (byte 1028)");
  Numbers part(2);
  CHECK(t->read(0, 1, part) == 65535);
  CHECK(t->unchanged());
  std::filesystem::resize_file(dir / "b_000002.bin", 1028);
  CHECK_FALSE(t->unchanged());
  write_fixture(dir / "pair");  // .bin and .idx are still recognized as a pair
  CHECK_FALSE(names_llmc_tokens(dir / "pair"));
  CHECK_FALSE(names_llmc_tokens(dir / "nothing"));
}

TEST_CASE("every rule of llm.c's token files has its error: file, byte, expected, found") {
  TempDir dir;
  const struct {
    std::string bytes;
    std::vector<std::string> parts;
  } cases[] = {
      {u16_file({1, 2}).substr(0, 1000), {"byte 1000", "1024 bytes", "end of the file"}},
      {llmc_file({20240521, 1, 2}, {1, 2}), {"byte 0", "20240520 (u16) or 20240801 (u32), found 20240521"}},
      {llmc_file({20240326, 3, 2}, {1, 2}), {"byte 0", "that of a model: gpttrain import --from"}},
      {llmc_file({20240520, 7, 2}, {1, 2}), {"byte 4", "expected version 1 (u16 tokens), found 7"}},
      {llmc_file({20240801, 1, 1}, {1, 2}), {"byte 4", "expected version 7 (u32 tokens), found 1"}},
      {llmc_file({20240520, 1, 0}, {}), {"byte 8", "at least 1 token, found 0"}},
      {llmc_file({20240520, 1, -2}, {1, 2}), {"byte 8", "at least 1 token, found -2"}},
      {llmc_file({20240520, 1, 3}, {1, 2}), {"byte 8", "3 u16 tokens need 1030 bytes, found 1028; copy"}},
      {llmc_file({20240520, 1, 1}, {1, 2}), {"byte 8", "1 u16 tokens need 1026 bytes, found 1028"}},
      {llmc_file({20240801, 7, 2147483647}, {1, 2}), {"2147483647 u32 tokens need 8589935612 bytes, found 1028"}},
  };
  for (const auto& c : cases) {
    write_file(dir / "x.bin", c.bytes);
    std::vector<std::string> parts = c.parts;
    parts.push_back(dir / "x.bin");
    expect_error(Exit::kUsage, parts, [&] { LlmcTokens t(dir / "x.bin"); });
  }
  write_file(dir / "a.bin", u16_file({1, 2}));
  write_file(dir / "w.bin", u32_file({1, 2}));
  expect_error(Exit::kUsage, {dir / "w.bin", "expected u16 tokens as in " + dir / "a.bin", "found u32", dir / "x.bin"},
               [&] { open_tokens(dir / "*.bin"); });  // both problems at once
  expect_error(Exit::kUsage, {"no file matches this pattern"}, [&] { open_tokens(dir / "no*.bin"); });
  write_file(dir / "lone.bin", "no header");
  expect_error(Exit::kUsage, {".idx: missing beside", "20240520 or 20240801"}, [&] { open_tokens(dir / "lone"); });
}

TEST_CASE("samples of llm.c's shards: sequential, by epoch, with a vocabulary check, and resumable by cursor") {
  TempDir dir;
  write_file(dir / "s_1.bin", u16_file({10, 11, 12, 13, 14}));
  write_file(dir / "s_2.bin", u16_file({20, 21, 22, 23}));
  auto o = options_for(dir / "s_*.bin", 4);
  o.order = SampleOrder::kSequential;
  const auto d = open_dataset(o);
  Numbers s(5);
  d->fetch(1, s);
  CHECK(s == Numbers{14, 20, 21, 22, 23});
  o.order = SampleOrder::kEpoch;
  const auto shuffled = open_dataset(o);
  CHECK(shuffled->size() == 2);
  shuffled->fetch(5, s);
  o.vocab = 23;
  o.order = SampleOrder::kSequential;
  const auto narrow = open_dataset(o);
  narrow->fetch(0, s);
  expect_error(Exit::kIo, {dir / "s_2.bin", "token 3 (byte 1030): token 23, expected 0 to 22"},
               [&] { narrow->fetch(1, s); });
  o.whole = false;
  o.part = 1;
  expect_error(Exit::kUsage, {"valid needs at least 1 of 2 documents"}, [&] { open_dataset(o); });

  const DataCursor before = d->cursor(1);
  CHECK(differences(before, d->cursor(1)).empty());
  o = options_for(dir / "s_*.bin", 4);
  o.order = SampleOrder::kSequential;
  for (const Numbers& other : {Numbers{20, 21, 22, 24}, Numbers{20, 21, 22, 23, 24}}) {  // token, length
    write_file(dir / "s_2.bin", u16_file(other));
    const auto changed = differences(before, open_dataset(o)->cursor(1));
    REQUIRE_FALSE(changed.empty());
    CHECK_THAT(changed.back(), Catch::Contains("of headers and ends"));
  }
}

TEST_CASE("inspect reads llm.c's token files") {
  TempDir dir;
  write_file(dir / "s_1.bin", u16_file({10, 11, 12, 13, 14}));
  write_file(dir / "s_2.bin", u16_file({20, 21}));
  std::ostringstream out;
  CHECK(inspect_file(dir / "s_*.bin", out));
  for (const char* part : {"format       llm.c's .bin, 2 files of u16 tokens", "type         u16", "documents    2",
                           "tokens       7", "document 0: 5 tokens", "largest id   21", "verdict      good"}) {
    INFO(out.str() << "\nexpected: " << part);
    CHECK(out.str().find(part) != std::string::npos);
  }
  std::ostringstream document, bad;
  inspect_document(*open_tokens(dir / "s_*.bin"), 1, true, nullptr, document);
  CHECK(document.str() == "document 1: 2 tokens\n20 21\n");
  std::filesystem::resize_file(dir / "s_2.bin", 1026);
  CHECK_FALSE(inspect_file(dir / "s_*.bin", bad));
  CHECK(bad.str().find("verdict      bad: ") != std::string::npos);
}
