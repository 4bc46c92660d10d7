#include "checkpoint/weights/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/format/skeleton.h"
#include "checkpoint/step_reader.h"

namespace gt {
namespace {

constexpr size_t kChunk = size_t{1} << 20;  // values converted at a time

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

// first: index of values[0] in the tensor, for messages.
std::string encode_values(const std::vector<float>& values, int64_t first, const OutTensor& t) {
  const size_t end = values.size();
  if (t.dtype == DType::kF32) return {reinterpret_cast<const char*>(values.data()), end * sizeof(float)};
  if (t.dtype == DType::kI8) {
    std::string out(end, '\0');
    for (size_t k = 0; k < end; ++k) {
      GT_CHECK(std::fabs(values[k]) <= 127 && values[k] == std::nearbyint(values[k]), t.name, ": element ",
               first + static_cast<int64_t>(k), " is ", values[k], ", expected a whole number of -127 to 127");
      out[k] = static_cast<char>(static_cast<int8_t>(values[k]));
    }
    return out;
  }
  std::string out(end * 2, '\0');
  for (size_t k = 0; k < end; ++k) {
    const uint16_t bits = t.dtype == DType::kBF16 ? bf16_from(values[k]) : f16_from(values[k]);
    GT_REQUIRE(t.dtype == DType::kBF16 || (bits & 0x7fff) != 0x7c00 || std::isinf(values[k]), Exit::kUsage, t.name,
               ": element ", first + static_cast<int64_t>(k), " is ", values[k],
               ", f16 ends at 65504; use --dtype bf16 or f32");
    std::memcpy(out.data() + k * 2, &bits, sizeof bits);
  }
  return out;
}

}  // namespace

int64_t WeightInfo::numel() const { return product(shape); }
int64_t WeightInfo::item_bytes() const { return dtype == "f32" ? 4 : dtype == "i8" ? 1 : 2; }
int64_t OutTensor::numel() const { return product(shape); }

std::string to_string(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t k = 0; k < shape.size(); ++k) out += cat(k ? ", " : "", shape[k]);
  return out + "]";
}

std::string WeightFile::note(const std::string&) const { return ""; }

void encode_tensor(const OutTensor& t, size_t k, const Fetch& fetch,
                   const std::function<void(const std::string&)>& write) {
  for (int64_t first = 0, all = t.numel(); first < all; first += kWindowValues) {
    const int64_t count = std::min(kWindowValues, all - first);
    const std::vector<float> values = fetch(k, first, count);
    GT_CHECK(static_cast<int64_t>(values.size()) == count, t.name, ": fetched ", values.size(), " of ", count,
             " values");
    write(encode_values(values, first, t));
  }
}

std::vector<float> read_values(const File& file, int64_t offset, int64_t count, const std::string& dtype) {
  std::vector<float> out(static_cast<size_t>(count));
  if (dtype == "f32") {
    file.read(out.data(), count * 4, offset);
    return out;
  }
  if (dtype == "i8") {
    std::vector<int8_t> bytes(out.size());
    file.read(bytes.data(), count, offset);
    std::copy(bytes.begin(), bytes.end(), out.begin());
    return out;
  }
  std::vector<uint16_t> bits(std::min(out.size(), kChunk));
  for (size_t at = 0; at < out.size(); at += bits.size()) {
    const size_t n = std::min(bits.size(), out.size() - at);
    file.read(bits.data(), static_cast<int64_t>(n) * 2, offset + static_cast<int64_t>(at) * 2);
    for (size_t k = 0; k < n; ++k) out[at + k] = dtype == "bf16" ? f32_from_bf16(bits[k]) : f32_from_f16(bits[k]);
  }
  return out;
}

void write_h5(Vfs& vfs, const std::string& path, const std::vector<OutTensor>& tensors, const Notes& notes,
              const Fetch& fetch) {
  std::vector<DataSet> sets;
  for (const OutTensor& t : tensors) {
    DataSet d{.name = "model/" + t.name, .dtype = t.dtype, .global = {}, .boxes = {}};
    Box box;
    for (int64_t n : t.shape) {
      box.extent[static_cast<size_t>(box.ndim++)] = n;
      d.global.dim[static_cast<size_t>(d.global.rank++)] = n;
    }
    d.boxes = {box};
    sets.push_back(std::move(d));
  }
  const size_t slash = path.rfind('/');
  const Skeleton skeleton = make_skeleton(sets, notes, slash == std::string::npos ? "." : path.substr(0, slash));
  File file = File::create(vfs, path);
  file.reserve(skeleton.file_bytes);
  // Holes and padding of a new file read as zeros. Writing the last byte fixes its size where nothing else does.
  const char zero = 0;
  if (skeleton.file_bytes > 0) file.write(&zero, 1, skeleton.file_bytes - 1);
  for (const auto& [offset, bytes] : skeleton.metadata)
    file.write(bytes.data(), static_cast<int64_t>(bytes.size()), offset);
  for (size_t t = 0; t < tensors.size(); ++t) {
    int64_t offset = skeleton.offsets[t];
    encode_tensor(tensors[t], t, fetch, [&](const std::string& bytes) {
      file.write(bytes.data(), static_cast<int64_t>(bytes.size()), offset);
      offset += static_cast<int64_t>(bytes.size());
    });
  }
  file.sync();
  file.close();
}

}  // namespace gt
