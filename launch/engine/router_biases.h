// Loss-free balance of routers on this rank (Wang et al. 2024, arXiv 2408.15664). After each applied step the bias of
// expert i becomes b_i + rate sign(mean(c) - c_i), of the tokens c of each expert in that step: of all its microbatches
// and of all ranks that have different tokens. The counts are exact, so that the biases depend on no layout.
#pragma once
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "model/layers/feed_forward.h"
#include "parallel/mesh.h"

namespace gt {

class RouterBiases {
 public:
  // Allocates the counts. The loads must outlive this object.
  RouterBiases(std::vector<RouterLoad*>, double rate, const Mesh&, const Backend&, Stream);
  void begin_step();  // zeroes the counts
  void end_step();    // of an applied step; collective over the ranks that replicate routers
  int64_t bytes() const { return memory_.bytes(); }

 private:
  std::vector<RouterLoad*> loads_;
  const double rate_;
  const Mesh& mesh_;
  const Backend& backend_;
  Stream stream_;
  Tensor counts_;  // f64, of all routers
  Buffer memory_;
  std::vector<double> host_counts_;
  std::vector<float> host_bias_;
};

}  // namespace gt
