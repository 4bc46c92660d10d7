#include "data/tokens/inspect.h"

#include <sstream>

#include "data/tokens/token_meta.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

TEST_CASE("inspect prints the properties of a token file and its verdict") {
  TempDir dir;
  write_fixture(dir / "f");
  std::ostringstream out;
  CHECK(inspect_file(dir / "f.bin", out));
  for (const char* part : {"type         u16 (code 8, 2 bytes)", "documents    3", "tokens       15",
                           "document 2: 7 tokens", "2 -            3: 1, 20.0 %", "4 -            7: 2, 80.0 %",
                           "largest id   36", "fingerprint  30 ", "verdict      good"}) {
    INFO(out.str() << "\nexpected: " << part);
    CHECK(out.str().find(part) != std::string::npos);
  }
  write_token_meta(dir / "f.meta.json", {.tokenizer_sha256 = "aa", .vocab = 36, .documents = 3, .tokens = 15});
  std::ostringstream beyond;
  CHECK_FALSE(inspect_file(dir / "f", beyond));  // id 36 in a vocabulary of 36
  CHECK(beyond.str().find("verdict      bad") != std::string::npos);
  std::filesystem::resize_file(dir / "f.bin", 20);
  std::ostringstream bad;
  CHECK_FALSE(inspect_file(dir / "f", bad));
  CHECK(bad.str().find("verdict      bad: ") != std::string::npos);
  CHECK(bad.str().find("10 bytes are missing") != std::string::npos);
}

TEST_CASE("inspect prints documents, samples and the order") {
  TempDir dir;
  write_fixture(dir / "f");
  std::ostringstream document, sample, order;
  const TokenFile f = TokenFile::open(dir / "f");
  inspect_document(f, 1, true, nullptr, document);
  CHECK(document.str() == "document 1: 3 tokens\n20 21 22\n");
  expect_error(Exit::kUsage, {"--doc 3", "0 to 2"}, [&] { inspect_document(f, 3, true, nullptr, document); });
  DatasetOptions o;
  o.sources = {{dir / "f", 0}};
  o.whole = true;
  o.seq = 4;
  const auto d = open_dataset(o);
  inspect_sample(*d, 0, nullptr, sample);
  CHECK(sample.str() == "sample 0: dataset 0, sequence 0, offset 4\n14 20 21 22 30\n");
  inspect_order(*d, 0, 4, order);
  CHECK(order.str() == "sample,dataset,sequence,offset\n0,0,0,4\n1,0,2,0\n2,0,0,0\n3,0,2,4\n");
}
