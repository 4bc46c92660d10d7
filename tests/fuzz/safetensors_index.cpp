// Input: model.safetensors.index.json of a folder with two weight files.
#include <filesystem>

#include "checkpoint/weights/weights.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

std::string one_tensor(const std::string& name) {
  const std::string header = "{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  return number_bytes(header.size(), 8) + header + std::string(8, '\x3f');
}

void run(std::string_view input) {
  static const ScratchFile index("model.safetensors.index.json"), a("a.safetensors"), b("b.safetensors");
  static const bool made = (a.put(one_tensor("x")), b.put(one_tensor("y")), true);
  GT_CHECK(made);
  index.put(input);
  Vfs vfs;
  std::unique_ptr<WeightFile> f;
  if (refused([&] { f = open_safetensors(vfs, std::filesystem::path(index.path()).parent_path()); })) return;
  GT_CHECK(f->list().size() <= 2 && f->note("format").empty());
  for (size_t k = 0; k < f->list().size(); ++k) GT_CHECK(f->read(k).size() == 2);
}

std::vector<std::string> seeds() {
  return {R"({"metadata":{"total_size":16},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})",
          R"({"weight_map":{"x":"a.safetensors"}})",
          R"({"weight_map":{"x":"a.safetensors","y":"a.safetensors"}})",
          R"({"weight_map":{"x":"a.safetensors","z":"a.safetensors"}})",
          R"({"weight_map":{"x":"../a.safetensors"}})",
          R"({"weight_map":{"x":"c.safetensors"}})",
          R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})",
          R"({"weight_map":{}})",
          R"({"weight_map":[7]})",
          R"({"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{}}}}}}}}}})"};
}

}  // namespace

Target safetensors_index() {
  return {"safetensors_index",
          run,
          seeds,
          {"\"weight_map\"", "a.safetensors", "b.safetensors", "\"x\"", "\"y\"", "/", "..", "null", "[]", "{}"},
          4000};
}

}  // namespace gt::fuzz
