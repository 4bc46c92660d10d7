// Writes the safetensors format (u64 length, JSON header, data) canonically: names in byte order, data in the same
// order, header padded with spaces so the data begins at a multiple of 8.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/weights/weights.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

const char* type_name(DType t) {
  switch (t) {
    case DType::kF32: return "F32";
    case DType::kBF16: return "BF16";
    case DType::kF16: return "F16";
    case DType::kI8: return "I8";
    default: fail(Exit::kInternal, "safetensors: no weights are written as ", name_of(t));
  }
}

int64_t bytes_of(const OutTensor& t) { return size_of(t.dtype) * t.numel(); }

// Writes tensors [first, last) as one file.
void write_one(Vfs& vfs, const std::string& path, const std::vector<OutTensor>& tensors, size_t first, size_t last,
               const Notes& notes, const Fetch& fetch) {
  Json header, metadata;
  metadata["format"] = "pt";
  for (const auto& [key, text] : notes) metadata[key] = text;
  header["__metadata__"] = metadata;
  int64_t at = 0;
  for (size_t k = first; k < last; ++k) {
    const int64_t end = at + bytes_of(tensors[k]);
    header[tensors[k].name] = {
        {"dtype", type_name(tensors[k].dtype)}, {"shape", tensors[k].shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  // Under another name until it is whole: a writer that is killed leaves nothing that a reader takes for weights.
  const std::string part = path + ".part";
  File file = File::create(vfs, part);
  file.reserve(8 + static_cast<int64_t>(length) + at);
  file.write(&length, sizeof length, 0);
  file.write(text.data(), static_cast<int64_t>(length), 8);
  int64_t offset = 8 + static_cast<int64_t>(length);
  for (size_t k = first; k < last; ++k)
    encode_tensor(tensors[k], k, fetch, [&](const std::string& bytes) {
      file.write(bytes.data(), static_cast<int64_t>(bytes.size()), offset);
      offset += static_cast<int64_t>(bytes.size());
    });
  GT_CHECK(offset == 8 + static_cast<int64_t>(length) + at, path, ": values of another shape");
  file.sync();
  file.close();
  rename_file(vfs, part, path);
}

}  // namespace

void write_safetensors(Vfs& vfs, const std::string& dir, const std::vector<OutTensor>& tensors, const Notes& notes,
                       int64_t max_shard, const Fetch& fetch) {
  std::vector<size_t> begins{0};
  int64_t total = 0, held = 0;
  for (size_t k = 0; k < tensors.size(); ++k) {
    GT_CHECK(k == 0 || tensors[k - 1].name < tensors[k].name, "names in order");
    const int64_t n = bytes_of(tensors[k]);
    if (held > 0 && held + n > max_shard) {
      begins.push_back(k);
      held = 0;
    }
    held += n;
    total += n;
  }
  if (begins.size() == 1) return write_one(vfs, dir + "/model.safetensors", tensors, 0, tensors.size(), notes, fetch);
  Json map;
  for (size_t f = 0; f < begins.size(); ++f) {
    const size_t end = f + 1 < begins.size() ? begins[f + 1] : tensors.size();
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", f + 1, begins.size());
    write_one(vfs, dir + "/" + name, tensors, begins[f], end, notes, fetch);
    for (size_t k = begins[f]; k < end; ++k) map[tensors[k].name] = name;
  }
  const Json index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_synced(vfs, dir + "/model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace gt
