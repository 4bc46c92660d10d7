// Private to parallel/zero. Weights that products read as numbers of 8 bits (Parameter::fp8): their codes, as the weight
// lies and transposed, made whenever values are published or gathered. One scale a logical weight, its largest |w|
// counted over the tensor ranks: no layout changes it. That is known only once all of the weight has been stepped, by
// ranks whose shards begin and end within rows, so the optimizer's own pass cannot write codes.
#pragma once
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/mesh.h"
#include "parallel/zero/scope_state.h"

namespace gt {

class Fp8Weights {
 public:
  Fp8Weights(const ScopeList&, const Mesh&, const Backend&, Stream compute);

  // What a scope's codes take beside its values; 0: it has none.
  static int64_t bytes_of(const ScopeSpec&);

  struct Scope {
    const ScopeState* state;
    Tensor values;  // whole
    std::byte* room;
  };
  // Makes the codes of all these scopes; their parameters see them. Collective over tp: one maximum for all of them.
  void encode(std::span<const Scope>) const;
  void encode_kept() const { encode(kept_); }  // those whose values this rank keeps whole
  static void hide(const ScopeState&);

  int64_t bytes() const { return largest_.bytes(); }

 private:
  const Mesh& mesh_;
  const Backend& backend_;
  Stream compute_;
  std::vector<Scope> kept_;
  Buffer largest_;  // f32, of every weight of this rank at most
};

}  // namespace gt
