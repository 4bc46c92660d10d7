// Weights outside of checkpoints: named tensors in files of other formats, read and written one at a time, so that
// memory is that of the largest tensor. Knows containers, no model.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/vfs.h"
#include "kernels/core/tensor.h"

namespace gt {

struct WeightInfo {
  std::string name;
  std::string dtype;  // "f32", "bf16", "f16", "i8", or what the file calls a type that holds no weights
  std::vector<int64_t> shape;
  int64_t numel() const;
};
std::string to_string(const std::vector<int64_t>& shape);  // "[3, 4]"

// A file that was looked at and found consistent: every tensor lies inside it.
class WeightFile {
 public:
  virtual ~WeightFile() = default;
  const std::vector<WeightInfo>& list() const { return list_; }
  // Text that came with the tensors, "" when there is none: "ties", "model".
  virtual std::string note(const std::string& key) const;
  // Row-major, widened to f32; int8 as it stands, without its scale. kDamaged when the type holds no weights; kIo.
  virtual std::vector<float> read(size_t k) = 0;

 protected:
  std::vector<WeightInfo> list_;
};

// Untrusted input: every claim of the file is checked before it is used; kDamaged names file, tensor and claim; kUsage:
// no such file. Nothing larger than the tensor asked for is ever allocated.
// One .safetensors file, or a folder with model.safetensors or model.safetensors.index.json.
std::unique_ptr<WeightFile> open_safetensors(Vfs&, const std::string& path);
// HDF5 of anybody. Its structure is read by a child process under limits (time, memory, no plugins), whose word is then
// checked; only plain contiguous little-endian floats below hard links are taken. Notes are root attributes.
std::unique_ptr<WeightFile> open_h5(Vfs&, const std::string& path);
// What the header of an llm.c checkpoint says of its model. padded: rows of its vocabulary.
struct LlmcShape {
  int64_t seq, vocab, layers, heads, hidden, padded;
};
// The tensors of such a model in the order of the file, the vocabulary's table first; their types are the file's.
using LlmcTensors = std::vector<WeightInfo> (*)(const LlmcShape&);
// llm.c's checkpoints (version 3: f32, 5: bf16). Orientation is ours; note("model") is its header as JSON.
std::unique_ptr<WeightFile> open_llmc(Vfs&, const std::string& path, LlmcTensors);

// What is written: values come tensor by tensor, in the order of the list, and are rounded to nearest even.
struct OutTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;  // f32, bf16, f16; a value beyond f16 is kUsage naming the tensor. i8: whole numbers
};
using Fetch = std::function<std::vector<float>(size_t k)>;
using Notes = std::vector<std::pair<std::string, std::string>>;

// Files in `dir`: model.safetensors, or model-00001-of-0000n.safetensors and an index when the tensors take more than
// max_shard bytes. `tensors` in the byte order of their names. The bytes depend on the arguments alone. Synced.
void write_safetensors(Vfs&, const std::string& dir, const std::vector<OutTensor>& tensors, const Notes&,
                       int64_t max_shard, const Fetch&);
// One file, data sets /model/<name>, notes as root attributes. `tensors` by name. Likewise.
void write_h5(Vfs&, const std::string& path, const std::vector<OutTensor>& tensors, const Notes&, const Fetch&);

// Values as the bytes of a file. Used by both writers.
std::string encode_values(const std::vector<float>& values, size_t begin, size_t end, const OutTensor&);
// `count` numbers of a dtype at `offset`, widened.
std::vector<float> read_values(const File&, int64_t offset, int64_t count, const std::string& dtype);

}  // namespace gt
