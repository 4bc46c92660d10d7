// The shard index: bytes fixed by the specification, and what a reader rejects.
#include <cstring>

#include "checkpoint/format/index_file.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/hash/sha256.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

const std::vector<TensorShape> kTensors = {
    {"a", DType::kF32, {1}}, {"b", DType::kF32, {2}}, {"c", DType::kF32, {9, 3}}};

ShardIndex fixture() {
  std::string shard(8192, '\0');
  for (int i = 0; i < 4096; ++i) shard[static_cast<size_t>(i)] = static_cast<char>(i % 251);
  const float values[] = {1, 2, 3, 4, 5, 6};
  std::memcpy(shard.data() + 4096, values, sizeof values);
  ShardIndex x;
  x.uuid = uuid_from("00112233-4455-8677-8899-aabbccddeeff");
  x.step = 1000;
  x.rank = 3;
  x.file_bytes = 8192;
  SliceRecord r;
  r.tensor = 2;
  r.box = {{4, 0, 0, 0}, {2, 3, 1, 1}, 2};
  r.offset = 4096;
  r.bytes = sizeof values;
  r.crc = crc32c(values, sizeof values);
  x.records = {r};
  x.blocks = {crc32c(shard.data(), shard.size())};
  return x;
}

// Recomputes both checksums after a change, so that only the field itself is wrong.
std::string sealed(std::string b) {
  const uint32_t head = crc32c(b.data(), 124), tail = crc32c(b.data() + 128, b.size() - 132);
  std::memcpy(b.data() + 124, &head, 4);
  std::memcpy(b.data() + b.size() - 4, &tail, 4);
  return b;
}

template <class T>
std::string with(size_t at, T value) {
  std::string b = encode(fixture());
  std::memcpy(b.data() + at, &value, sizeof value);
  return sealed(b);
}

Exit code_of(const std::string& bytes) {
  try {
    decode_index(bytes, "x.idx", kTensors);
  } catch (const Error& e) { return e.code(); }
  return Exit::kOk;
}

TEST_CASE("an index has the bytes of the specification") {
  const std::string b = encode(fixture());
  REQUIRE(b.size() == 232);
  const auto* u = reinterpret_cast<const uint8_t*>(b.data());
  CHECK(to_hex(u + 124, 4) == "190a3a4c");
  CHECK(to_hex(u + 128 + 24, 4) == "b9045180");
  CHECK(to_hex(u + 224, 4) == "196d1632");
  CHECK(to_hex(u + 228, 4) == "d7072c6b");
  CHECK(sha256_hex(b) == "2d815c6bdeebdb9630b08a4aca969dc4f2d1c3204f5a1a7d222794ee06cac5b4");
}

TEST_CASE("an index is read back as written") {
  const ShardIndex x = decode_index(encode(fixture()), "x.idx", kTensors);
  CHECK(to_string(x.uuid) == "00112233-4455-8677-8899-aabbccddeeff");
  CHECK(x.step == 1000);
  CHECK(x.rank == 3);
  REQUIRE(x.records.size() == 1);
  CHECK(x.records[0].box == fixture().records[0].box);
  CHECK(x.records[0].crc == fixture().records[0].crc);
  CHECK(x.blocks == fixture().blocks);
}

TEST_CASE("every changed byte and every truncation of an index is detected") {
  const std::string good = encode(fixture());
  for (size_t k = 0; k < good.size(); ++k)
    for (int bit = 0; bit < 8; ++bit) {
      std::string b = good;
      b[k] = static_cast<char>(b[k] ^ (1 << bit));
      REQUIRE(code_of(b) == Exit::kDamaged);
    }
  for (size_t n = 0; n < good.size(); ++n) REQUIRE(code_of(good.substr(0, n)) == Exit::kDamaged);
  CHECK(code_of(good + '\0') == Exit::kDamaged);
}

TEST_CASE("invalid fields under valid checksums are refused one by one") {
  CHECK(code_of(with<uint16_t>(8, 2)) == Exit::kUsage);          // newer major
  CHECK(code_of(with<uint32_t>(12, 64)) == Exit::kDamaged);      // header size
  CHECK(code_of(with<int64_t>(48, 9000000)) == Exit::kDamaged);  // shard size contradicts the number of blocks
  CHECK(code_of(with<int64_t>(48, -1)) == Exit::kDamaged);
  CHECK(code_of(with<int64_t>(48, INT64_MAX)) == Exit::kDamaged);
  CHECK(code_of(with<uint8_t>(56, 2)) == Exit::kDamaged);          // kind of checksum
  CHECK(code_of(with<int64_t>(64, INT64_MAX)) == Exit::kDamaged);  // records
  CHECK(code_of(with<int64_t>(64, 0)) == Exit::kDamaged);
  CHECK(code_of(with<int64_t>(88, INT64_MAX / 2)) == Exit::kDamaged);
  CHECK(code_of(with<uint8_t>(110, 1)) == Exit::kDamaged);     // reserved
  CHECK(code_of(with<uint32_t>(128, 3)) == Exit::kDamaged);    // tensor
  CHECK(code_of(with<uint32_t>(128, 1)) == Exit::kDamaged);    // a tensor with another number of dimensions
  CHECK(code_of(with<uint8_t>(132, 1)) == Exit::kDamaged);     // dtype
  CHECK(code_of(with<int64_t>(136, 8190)) == Exit::kDamaged);  // offset beyond the file
  CHECK(code_of(with<int64_t>(136, -4)) == Exit::kDamaged);
  CHECK(code_of(with<int64_t>(144, 28)) == Exit::kDamaged);  // bytes contradict the extents
  CHECK(code_of(with<int64_t>(160, 8)) == Exit::kDamaged);   // rows 8+2 of 9
  CHECK(code_of(with<int64_t>(160, INT64_MAX)) == Exit::kDamaged);
  CHECK(code_of(with<int64_t>(192, 0)) == Exit::kDamaged);  // empty extent
  CHECK(code_of(with<int64_t>(192, INT64_MAX)) == Exit::kDamaged);
  CHECK(code_of(with<int64_t>(208, 2)) == Exit::kDamaged);  // unused dimension
}

TEST_CASE("records that overlap in the file are refused") {
  ShardIndex x = fixture();
  x.records.push_back(x.records[0]);
  x.records[1].offset += 8;
  CHECK(code_of(encode(x)) == Exit::kDamaged);
}

TEST_CASE("only well-formed uuids are read") {
  for (const char* bad : {"", "00112233-4455-8677-8899-aabbccddeef", "00112233x4455-8677-8899-aabbccddeeff",
                          "0011223G-4455-8677-8899-aabbccddeeff"})
    CHECK_THROWS_AS(uuid_from(bad), Error);
}

}  // namespace
}  // namespace gt::ckpt
