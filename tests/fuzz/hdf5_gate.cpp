// libhdf5 dies on some damaged files: in its child. The parent must live, and what it believes must lie in the file.
#include "checkpoint/h5_gate.h"
#include "checkpoint/weights.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  static const ScratchFile file("weights.h5");
  file.put(input);
  Vfs vfs;
  std::unique_ptr<WeightFile> f;
  refused([&] { list_h5(file.path()); });
  if (refused([&] { f = open_h5(vfs, file.path()); })) return;
  for (size_t k = 0; k < f->list().size(); ++k)
    refused([&] { GT_CHECK(4 * f->read(k).size() <= 2 * input.size(), "a tensor larger than its file"); });
}

std::vector<std::string> seeds() {
  const ScratchFile file("seed.h5");
  Vfs vfs;
  const std::vector<OutTensor> tensors{{"a.weight", {2, 3}, DType::kF32}, {"b.weight", {4}, DType::kBF16}};
  write_h5(vfs, file.path(), tensors, {{"ties", "[]"}},
           [&](size_t k) { return std::vector<float>(k == 0 ? 6 : 4, 1.5f); });
  return {read_file(vfs, file.path(), 1 << 20)};
}

}  // namespace

Target hdf5_gate() {
  return {"hdf5_gate", run, seeds, {"SNOD", "TREE", "HEAP", number_bytes(~0ull, 8), number_bytes(1ull << 60, 8)}, 250};
}

}  // namespace gt::fuzz
