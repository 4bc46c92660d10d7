// Checkpoints of llm.c (github.com/karpathy/llm.c, train_gpt2.py): a header of 256 int32, then the tensors, those of
// all layers stacked, linear weights [out, in]. Version 3 is f32, version 5 bf16; both pad the vocabulary to Vp rows.
#include <array>

#include "checkpoint/weights/source_file.h"
#include "checkpoint/weights/weights.h"

namespace gt {
namespace {

constexpr int kMagic = 20240326;
constexpr int64_t kHeader = 256 * 4;

class LlmcFile : public WeightFile {
 public:
  LlmcFile(Vfs& vfs, const std::string& path, LlmcTensors tensors) : file_(open_source(vfs, path)) {
    const int64_t size = file_.size();
    GT_REQUIRE(size >= kHeader, Exit::kDamaged, path, ": ", size, " bytes, an llm.c checkpoint begins with ", kHeader);
    std::array<int32_t, 256> h{};
    file_.read(h.data(), kHeader, 0);
    GT_REQUIRE(h[0] == kMagic, Exit::kDamaged, path, ": begins with ", h[0], ", an llm.c model with ", kMagic);
    GT_REQUIRE(h[1] == 3 || h[1] == 5, Exit::kDamaged, path, ": llm.c version ", h[1],
               ", expected 3 (f32) or 5 (bf16)");
    dtype_ = h[1] == 3 ? "f32" : "bf16";
    item_ = h[1] == 3 ? 4 : 2;
    const int64_t seq = h[2], vocab = h[3], layers = h[4], heads = h[5], width = h[6], padded = h[7];
    const bool sane = seq >= 1 && seq <= 1 << 20 && vocab >= 2 && vocab <= 1 << 22 && layers >= 1 && layers <= 1024 &&
                      heads >= 1 && width >= 1 && width <= 1 << 20 && width % heads == 0 && padded >= vocab &&
                      padded <= 1 << 23;
    GT_REQUIRE(sane, Exit::kDamaged, path, ": invalid header: T ", seq, ", V ", vocab, ", L ", layers, ", H ", heads,
               ", C ", width, ", Vp ", padded);
    note_ = cat("{\"layers\":", layers, ",\"hidden\":", width, ",\"heads\":", heads, ",\"ffn\":", 4 * width,
                ",\"vocab\":", vocab, ",\"seq\":", seq, ",\"tied\":true}");
    at_ = kHeader;
    for (WeightInfo& t : tensors({seq, vocab, layers, heads, width, padded})) {
      offsets_.push_back(at_);
      at_ += item_ * (list_.empty() ? padded * width : t.numel());
      t.dtype = dtype_;
      list_.push_back(std::move(t));
    }
    GT_REQUIRE(at_ == size, Exit::kDamaged, path, ": ", size, " bytes, these tensors take ", at_);
  }
  std::string note(const std::string& key) const override { return key == kModelNote ? note_ : ""; }
  std::vector<float> read(size_t k, int64_t first, int64_t count) override {
    return read_values(file_, offsets_[k] + list_[k].item_bytes() * first, count, dtype_);
  }

 private:
  File file_;
  std::string dtype_, note_;
  int64_t item_ = 4, at_ = 0;
  std::vector<int64_t> offsets_;
};

}  // namespace

std::unique_ptr<WeightFile> open_llmc(Vfs& vfs, const std::string& path, LlmcTensors tensors) {
  return std::make_unique<LlmcFile>(vfs, path, tensors);
}

}  // namespace gt
