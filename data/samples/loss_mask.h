// Loss mask of a token file: PREFIX.mask, one byte for each token of PREFIX.bin (table in data/FORMAT.md). 1: the token
// is a target, its prediction counts in the loss; 0: it is context only. Mapped, never copied.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "data/tokens/mapped_file.h"

namespace gt {

constexpr char kLossMaskMagic[9] = "GPTMASK1";  // 8 bytes in the file
constexpr int64_t kLossMaskHeader = 8;

class LossMask {
 public:
  LossMask() = default;
  // Opens the mask of `tokens` tokens. Throws Error(kUsage) naming file, byte, expected and found: another magic,
  // another number of bytes.
  LossMask(const std::string& path, int64_t tokens);

  explicit operator bool() const { return file_.data() != nullptr; }
  const MappedFile& file() const { return file_; }
  // Copies the bytes of tokens [first, first + out.size()) of the .bin. Throws Error(kIo) for a byte other than 0
  // and 1.
  void read(int64_t first, std::span<uint8_t> out) const;

 private:
  MappedFile file_;
};

}  // namespace gt
