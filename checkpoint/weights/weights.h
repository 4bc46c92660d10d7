// Weights outside checkpoints: named tensors in foreign file formats, read and written in ranges of elements, so that
// memory does not depend on the size of a tensor. Handles containers; independent of models.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store/vfs.h"
#include "kernels/core/tensor.h"

namespace gt {

struct WeightInfo {
  std::string name;
  std::string dtype;  // "f32", "bf16", "f16", "i8", or the file's own name of a type that holds no weights
  std::vector<int64_t> shape;
  int64_t numel() const;
  int64_t item_bytes() const;  // of a value of f32, bf16, f16 or i8
};
std::string to_string(const std::vector<int64_t>& shape);  // "[3, 4]"

// Key of the metadata in which our own exports describe their model.
constexpr const char* kModelNote = "gpttrain.model";

// An opened weight file whose structure was validated: every tensor lies inside it.
class WeightFile {
 public:
  virtual ~WeightFile() = default;
  const std::vector<WeightInfo>& list() const { return list_; }
  // Returns metadata text stored with the tensors, "" when absent: "format", kModelNote.
  virtual std::string note(const std::string& key) const;
  // Returns elements [first, first + count) of tensor k: row-major, widened to f32; int8 unscaled. kDamaged when the
  // type holds no weights; kIo. Requires: the range lies in the tensor.
  virtual std::vector<float> read(size_t k, int64_t first, int64_t count) = 0;
  std::vector<float> read(size_t k) { return read(k, 0, list_[k].numel()); }  // the whole tensor

 protected:
  std::vector<WeightInfo> list_;
};

// Opens one .safetensors file, or a folder with model.safetensors or model.safetensors.index.json. The input is
// untrusted: every field is checked before use. kDamaged names file, tensor and field; kUsage: no such file. Never
// allocates more than the requested range.
std::unique_ptr<WeightFile> open_safetensors(Vfs&, const std::string& path);
// Opens third-party HDF5. A child process with limits (time, memory, no plugins) reads the structure; the parent checks
// its output. Accepts only contiguous little-endian floats below hard links. Notes are root attributes.
std::unique_ptr<WeightFile> open_h5(Vfs&, const std::string& path);
// Model shape from the header of an llm.c checkpoint. padded: rows of its vocabulary table.
struct LlmcShape {
  int64_t seq, vocab, layers, heads, hidden, padded;
};
// Returns the tensors of such a model in file order, embedding table first; dtypes are those of the file.
using LlmcTensors = std::vector<WeightInfo> (*)(const LlmcShape&);
// Opens an llm.c checkpoint (version 3: f32, 5: bf16). Linear weights are [out, in], as in this project; note("model")
// returns the header as JSON.
std::unique_ptr<WeightFile> open_llmc(Vfs&, const std::string& path, LlmcTensors);

// Tensor to write. Values are produced in list order and rounded to nearest even.
struct OutTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;  // f32, bf16, f16; a value beyond f16 is kUsage naming the tensor. i8: whole numbers
  int64_t numel() const;
};
// Returns elements [first, first + count) of tensor k. The ranges of a tensor are requested in ascending order, each at
// most kWindowValues long.
using Fetch = std::function<std::vector<float>(size_t k, int64_t first, int64_t count)>;
constexpr int64_t kWindowValues = int64_t{4} << 20;
using Notes = std::vector<std::pair<std::string, std::string>>;

// Writes model.safetensors into `dir`, or model-00001-of-0000n.safetensors and an index when the tensors exceed
// max_shard bytes. Requires: `tensors` sorted by the bytes of their names. Output depends on the arguments only.
// Synced.
void write_safetensors(Vfs&, const std::string& dir, const std::vector<OutTensor>& tensors, const Notes&,
                       int64_t max_shard, const Fetch&);
// Writes one file with data sets /model/<name> and notes as root attributes. Requires: `tensors`
// sorted by name. Synced.
void write_h5(Vfs&, const std::string& path, const std::vector<OutTensor>& tensors, const Notes&, const Fetch&);

// Encodes all values of a tensor, range by range, and passes the bytes to `write`. Used by both writers.
void encode_tensor(const OutTensor&, size_t k, const Fetch&, const std::function<void(const std::string&)>& write);
// Reads `count` values of a dtype at `offset`, widened to f32.
std::vector<float> read_values(const File&, int64_t offset, int64_t count, const std::string& dtype);

}  // namespace gt
