// An index's checksums guard against accidents, not attackers: the target repairs them to reach the code behind.
#include <cstring>

#include "checkpoint/format/index_file.h"
#include "kernels/core/hash/crc32c.h"
#include "tests/fuzz/sealed_step.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {

std::string repaired_index(std::string_view input) {
  constexpr size_t kHeader = 128;
  std::string s(input);
  if (s.size() < kHeader + 4) return s;
  const uint32_t head = crc32c(s.data(), kHeader - 4);
  std::memcpy(s.data() + kHeader - 4, &head, 4);
  const uint32_t table = crc32c(s.data() + kHeader, s.size() - kHeader - 4);
  std::memcpy(s.data() + s.size() - 4, &table, 4);
  return s;
}

namespace {

const std::vector<TensorShape>& tensors() {
  static const std::vector<TensorShape> all{{"master/embed.weight", DType::kF32, {23, 5}},
                                            {"master/norm.weight", DType::kF32, {11}},
                                            {"optim/exp_avg/cube.weight", DType::kBF16, {8, 3, 5}}};
  return all;
}

void run(std::string_view input) {
  const std::string bytes = repaired_index(input);
  ShardIndex x;
  if (refused([&] { x = decode_index(bytes, "fuzz.idx", tensors()); })) return;
  int64_t end = 0;
  for (const SliceRecord& r : x.records) {
    GT_CHECK(r.tensor < tensors().size() && r.offset >= end && r.bytes == r.box.numel() * size_of(r.dtype));
    end = r.offset + r.bytes;
  }
  GT_CHECK(end <= x.file_bytes, "slices end at ", end, " of ", x.file_bytes);
  GT_CHECK(encode(x) == bytes, "an index that was accepted is written as it was read");
}

SliceRecord slice(uint32_t tensor, DType dtype, const Box& box, int64_t at) {
  SliceRecord r{.tensor = tensor, .dtype = dtype, .box = box, .offset = at, .crc = 7};
  r.bytes = r.box.numel() * size_of(dtype);
  return r;
}

std::vector<std::string> seeds() {
  ShardIndex x{.step = 12, .rank = 1, .file_bytes = 2 * kBlockBytes + 17};
  x.blocks = {1, 2, 3};
  const std::string empty = encode(x);
  x.records = {slice(0, DType::kF32, {{2, 0, 0, 0}, {21, 5, 1, 1}, 2}, 4096),
               slice(1, DType::kF32, {{0, 0, 0, 0}, {11, 1, 1, 1}, 1}, 8192),
               slice(2, DType::kBF16, {{0, 1, 0, 0}, {8, 2, 5, 1}, 3}, 12288)};
  return {empty, encode(x)};
}

}  // namespace

Target ckpt_index() {
  return {"ckpt_index", run, seeds, {number_bytes(1u << 20, 8), number_bytes(~0ull, 8), number_bytes(88, 4)}, 60000};
}

}  // namespace gt::fuzz
