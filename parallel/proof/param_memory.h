// Where the parameters of a rank are while its layout is proved: whose value or gradient a tensor is, and for which
// FSDP unit a buffer of unsharded values was gathered last.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "parallel/zero/param_store.h"

namespace gt::proof {

class ParamMemory {
 public:
  void begin(const ParamStore&);
  const std::vector<FlatMemory>& units() const { return units_; }
  // Whose value or gradient a tensor is a part of; nullptr: of none, or of a flat buffer.
  const Parameter* value_of(const Tensor& t) { return find(t, true); }
  const Parameter* grad_of(const Tensor& t) { return find(t, false); }
  void changed() { moved_ = moved_ || sharded_; }  // sharded units may have been gathered or reduced since

  // Buffers of gathered values are reused.
  void gathered(const Tensor& part, const Tensor& whole);
  void updated(const FlatMemory&);  // what was gathered before is of the last step
  bool is_gathered(const Parameter&, const Tensor&) const;

 private:
  using Addresses = std::vector<std::pair<const std::byte*, const Parameter*>>;  // ascending
  const Parameter* find(const Tensor&, bool value);
  struct Gathered {
    const std::byte* end = nullptr;
    const FlatMemory* unit = nullptr;
  };
  std::vector<FlatMemory> units_;
  std::vector<const Parameter*> params_;
  Addresses values_, grads_;
  bool moved_ = true, sharded_ = false;
  std::map<const Parameter*, const FlatMemory*> on_use_;  // units whose values are gathered for each use
  std::map<const std::byte*, Gathered> gathered_;         // by begin; disjoint
};

// Whether a tensor lies within another's memory.
inline bool inside(const Tensor& t, const Tensor& of) {
  return of.data != nullptr && t.data >= of.data && t.data + t.bytes() <= of.data + of.bytes();
}

}  // namespace gt::proof
