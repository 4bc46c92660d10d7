#include "launch/tools/weights/model_weights.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  OneFile vfs(input);
  std::unique_ptr<WeightFile> f;
  if (refused([&] { f = open_llmc(vfs, kAnyPath, llmc_tensors); })) return;
  for (size_t k = 0; k < f->list().size(); ++k)
    GT_CHECK(static_cast<int64_t>(f->read(k).size()) == f->list()[k].numel(), "a tensor of another size");
  GT_CHECK(!f->note(kModelNote).empty());
}

// Model dimensions: T 4, V 5, L 1, H 2, C 4, Vp 8.
std::string file(int version, int item) {
  std::string s;
  for (uint64_t v : {20240326, version, 4, 5, 1, 2, 4, 8}) s += number_bytes(v, 4);
  s.resize(1024);
  const int c = 4, elements = 8 * c + 4 * c + 12 * c * c + 13 * c + 2 * c;
  return s + std::string(static_cast<size_t>(elements * item), '\x3e');
}

std::vector<std::string> seeds() { return {file(3, 4), file(5, 2)}; }

}  // namespace

Target llmc_header() {
  return {
      "llmc_header", run, seeds, {number_bytes(1 << 20, 4), number_bytes(0x7fffffff, 4), number_bytes(0, 4)}, 30000};
}

}  // namespace gt::fuzz
