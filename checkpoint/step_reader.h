// Whole tensors of one committed step, by name, on the host, whatever layout wrote them: what diff, export and
// statistics read. Every byte is checked before it is handed out. No mesh, no device.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/steps.h"
#include "checkpoint/vfs.h"

namespace gt {

class StepReader {
 public:
  // Seal, version, presence and sizes of all files, hashes of aux files. kDamaged; kUsage for a newer format; kIo.
  StepReader(Vfs&, const std::string& step_dir);

  const std::string& path() const { return step_.path; }
  const Manifest& manifest() const { return step_.manifest; }
  // nullptr when the step holds no such tensor.
  const TensorEntry* find(const std::string& name) const;
  // All elements, row-major, as f32; bf16 and f16 are widened. Memory: the tensor, one block, the indexes it needs.
  // kDamaged naming file, block, bytes; kIo; kUsage for a dtype that is no float.
  std::vector<float> read(const TensorEntry&);

 private:
  Vfs& vfs_;
  OpenedStep step_;
  std::map<int, ShardIndex> indexes_;  // those read so far
};

// 2-byte floats to f32 and back, nearest even. to_f16: overflow gives infinity.
float f32_from_bf16(uint16_t bits);
float f32_from_f16(uint16_t bits);
uint16_t bf16_from(float);
uint16_t f16_from(float);

}  // namespace gt
