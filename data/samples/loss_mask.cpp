#include "data/samples/loss_mask.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"

namespace gt {

LossMask::LossMask(const std::string& path, int64_t tokens) : file_(path) {
  GT_REQUIRE(file_.size() >= kLossMaskHeader, Exit::kUsage, path, " byte ", file_.size(),
             ": expected the magic GPTMASK1, found the end of the file");
  if (std::memcmp(file_.data(), kLossMaskMagic, kLossMaskHeader) != 0)
    fail(Exit::kUsage, path, " byte 0: expected the magic ",
         to_hex(reinterpret_cast<const uint8_t*>(kLossMaskMagic), 8), " (GPTMASK1), found ", to_hex(file_.data(), 8));
  GT_REQUIRE(file_.size() - kLossMaskHeader == tokens, Exit::kUsage, path, ": expected one byte for each of the ",
             tokens, " tokens of the .bin, found ", file_.size() - kLossMaskHeader, "; prepare the data again");
}

void LossMask::read(int64_t first, std::span<uint8_t> out) const {
  GT_DCHECK(first >= 0 && first + static_cast<int64_t>(out.size()) <= file_.size() - kLossMaskHeader);
  std::memcpy(out.data(), file_.data() + kLossMaskHeader + first, out.size());
  uint8_t top = 0;
  for (const uint8_t b : out) top = std::max(top, b);
  if (top <= 1) [[likely]]
    return;
  const auto at = std::find_if(out.begin(), out.end(), [](uint8_t b) { return b > 1; }) - out.begin();
  fail(Exit::kIo, file_.path(), " byte ", kLossMaskHeader + first + at, ": expected 0 or 1, found ",
       static_cast<int>(out[static_cast<size_t>(at)]), "; prepare the data again");
}

}  // namespace gt
