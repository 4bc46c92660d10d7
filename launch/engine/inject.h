// Injects the faults of launch/config/values/fault_spec.h into a rank: its steps, saves, ops and tensors.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "launch/config/values/fault_spec.h"
#include "parallel/zero/shard_view.h"

namespace gt {

class Injector {
 public:
  Injector(const std::string& spec, int rank) : faults_(parse_injections(spec)), rank_(rank) {}
  bool configured(const char* site, int64_t step) const;  // whether a fault is configured for any rank
  std::vector<std::string> params() const;                // every tensor that a fault names
  std::optional<int64_t> left_out() const;                // of the collectives of this rank's proof of its layout
  void at_step(int64_t step) const;                       // may not return
  void at_save(int64_t step) const;
  // Flips a bit of a 16-bit value.
  void at_value(int64_t step, std::byte* value, const DeviceApi&, Stream) const;
  std::vector<Injection> in_ops(int64_t step) const;  // faults that OpWatch injects
  // `views`: tensors of the site.
  void at_tensors(const char* site, int64_t step, const std::vector<ShardView>& views, const Backend&, Stream) const;

 private:
  bool due(const Injection&, const char* site, int64_t step) const;
  bool hits(const Injection&, const char* site, int64_t step) const;
  std::vector<Injection> faults_;
  int rank_;
};

}  // namespace gt
