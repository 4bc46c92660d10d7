#include "kernels/core/hash/crc32c.h"

#include <string>

#include "tests/support/test.h"

namespace gt {
namespace {

std::string some_bytes(size_t n) {
  std::string data(n, '\0');
  for (size_t i = 0; i < n; ++i) data[i] = static_cast<char>(i * 2654435761u >> 11);
  return data;
}

}  // namespace

TEST_CASE("CRC-32C of known strings, in chunks") {
  CHECK(crc32c("123456789", 9) == 0xE3069283u);
  CHECK(crc32c("", 0) == 0);
  CHECK(crc32c(std::string(32, '\0').data(), 32) == 0x8A9136AAu);  // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xff').data(), 32) == 0x62A8AB43u);
  CHECK(crc32c("456789", 6, crc32c("123", 3)) == 0xE3069283u);
}

TEST_CASE("CRC-32C by table, by instruction and by folding") {
  const std::string data = some_bytes(20000);
  for (const size_t n : {0, 1, 7, 8, 9, 255, 511, 512, 513, 767, 768, 1023, 3071, 3072, 3073, 6145, 19999})
    for (const size_t offset : {0, 1}) {
      const char* p = data.data() + offset;
      const uint32_t expected = crc32c_table(p, n, 77);
      INFO(n << " bytes at " << offset);
      CHECK(crc32c(p, n, 77) == expected);
      if (has_crc32c_instruction()) CHECK(crc32c_hardware(p, n, 77) == expected);
      if (has_crc32c_folding()) CHECK(crc32c_folding(p, n, 77) == expected);
    }
}

TEST_CASE("CRC-32C of two chunks combined") {
  const std::string data = some_bytes(300000);
  for (const size_t n : {1, 2, 255, 4096, 262145, 300000})
    for (const size_t cut : {size_t{0}, n / 3, n - 1, n})
      CHECK(crc32c_join(crc32c(data.data(), cut), crc32c(data.data() + cut, n - cut), n - cut) ==
            crc32c(data.data(), n));
}

}  // namespace gt
