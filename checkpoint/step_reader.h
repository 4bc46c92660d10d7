// Reads whole tensors of one committed step by name, on the host, whatever layout wrote them. Used by diff, export and
// statistics. Every byte is checked before it is returned. No mesh, no device.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/steps.h"
#include "checkpoint/store/vfs.h"

namespace gt {

class StepReader {
 public:
  // Checks seal, version, presence and sizes of all files, hashes of aux files. kDamaged; kUsage: newer format; kIo.
  StepReader(Vfs&, const std::string& step_dir);

  const std::string& path() const { return step_.path; }
  const Manifest& manifest() const { return step_.manifest; }
  // Returns the manifest's entry of the tensor, valid while this object lives; nullptr if the step holds no such
  // tensor.
  const TensorEntry* find(const std::string& name) const;
  // Returns all elements, row-major, as f32; bf16 and f16 are widened, i8 weights multiplied by "scale/…". Memory: the
  // values, one block, the indexes it needs. kDamaged naming file, block, bytes; kIo; kUsage for a non-float dtype.
  std::vector<float> read(const TensorEntry& t) { return read(t, 0, t.shape.numel()); }
  // The same for elements [first, first + count). Requires: the range lies in the tensor.
  std::vector<float> read(const TensorEntry&, int64_t first, int64_t count);

 private:
  std::vector<float> read_int8(const TensorEntry&, int64_t first, int64_t count);

  Vfs& vfs_;
  OpenedStep step_;
  std::map<int, ShardIndex> indexes_;  // indexes read so far
};

// Conversions between 16-bit floats and f32, round to nearest even. f16_from() overflows to infinity.
float f32_from_bf16(uint16_t bits);
float f32_from_f16(uint16_t bits);
uint16_t bf16_from(float);
uint16_t f16_from(float);

}  // namespace gt
