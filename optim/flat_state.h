// One optimizer state (a moment): a flat f32 buffer per FSDP unit, initially 0, laid out like the tensor ranges that
// this rank updates. Checkpoint views carry parameter names, so the state can be loaded into any layout.
#pragma once
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/zero/param_store.h"

namespace gt {

class FlatState {
 public:
  FlatState(const ParamStore& store, const Backend& backend, Stream stream) {
    for (int k = 0; k < store.num_units(); ++k) {
      const int64_t bytes = store.state_elements(k) * size_of(DType::kF32);
      buffers_.emplace_back(bytes, stream.device, *backend.device);
      if (bytes > 0) backend.device->zero(buffers_.back().data(), bytes, stream);
    }
  }

  // State of elements [first, first + count) of a range.
  Tensor of(const TensorRange& r, int64_t first, int64_t count) const {
    return buffers_[static_cast<size_t>(r.unit)].tensor({count}, DType::kF32, (r.at + first) * size_of(DType::kF32));
  }

  // Views named "optim/<name>/<parameter>".
  void append_views(const std::string& name, const ParamStore& store, std::vector<ShardView>& out) const {
    std::vector<Tensor> flat;
    for (int k = 0; k < store.num_units(); ++k)
      flat.push_back(buffers_[static_cast<size_t>(k)].tensor({store.state_elements(k)}, DType::kF32));
    store.append_views("optim/" + name, flat, out);
  }

  int64_t bytes() const {
    int64_t n = 0;
    for (const Buffer& b : buffers_) n += b.bytes();
    return n;
  }

 private:
  std::vector<Buffer> buffers_;
};

}  // namespace gt
