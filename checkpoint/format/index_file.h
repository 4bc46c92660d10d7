// Binary index of a shard, rank-00000.idx: maps tensor rectangles to byte offsets in the .h5, with the CRC32C of every
// 1 MiB block. Loading reads this and never libhdf5. Byte layout: FORMAT.md. Works on bytes in memory; opens no files.
#pragma once
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/box.h"

namespace gt {

constexpr int kBlockBits = 20;
constexpr int64_t kBlockBytes = int64_t{1} << kBlockBits;

using Uuid = std::array<uint8_t, 16>;
std::string to_string(const Uuid&);  // 00112233-4455-8677-8899-aabbccddeeff
Uuid uuid_from(std::string_view);    // kDamaged when malformed

struct SliceRecord {
  uint32_t tensor = 0;  // index in the manifest's list of tensors
  DType dtype = DType::kF32;
  Box box;
  int64_t offset = 0, bytes = 0;  // in the .h5
  uint32_t crc = 0;               // of the slice in memory, before it was written
};

struct ShardIndex {
  Uuid uuid{};
  int64_t step = 0;
  int rank = 0, part = 0;
  int64_t file_bytes = 0;            // of the .h5
  std::vector<SliceRecord> records;  // ascending by offset, not overlapping
  std::vector<uint32_t> blocks;      // CRC32C of each 1 MiB block, the last one shorter
};

std::string encode(const ShardIndex&);

// Constraints on the records of a tensor, from the manifest.
struct TensorShape {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// Decodes an index. Checks magic, version, every size, both CRCs, every record against its tensor, order, reserved
// fields. Throws kDamaged naming `where`, the byte, expected and found. kUsage for a newer major version.
ShardIndex decode_index(std::string_view bytes, const std::string& where, std::span<const TensorShape> tensors);

}  // namespace gt
