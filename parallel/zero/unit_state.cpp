#include "parallel/zero/unit_state.h"

#include <algorithm>

#include "parallel/zero/gatherer.h"
#include "parallel/zero/reducer.h"

namespace gt {
namespace {

FlatLayout layout_of(const UnitSpec& spec, int shards) {
  std::vector<int64_t> numels;
  for (const Parameter* p : spec.params) numels.push_back(p->local_shape.numel());
  return flat_layout(numels, shards);
}

// A null pointer with the parameter's shape: use outside the unit's lifetime fails at the first access.
Tensor nowhere(const Parameter& p, DType type, Device device) { return {nullptr, p.local_shape, type, device}; }

}  // namespace

std::array<CountedRange, 2> split_by_owner(const UnitState& s, const FlatSegment& g, const Mesh& mesh) {
  const Parameter& p = *s.spec.params[static_cast<size_t>(g.tensor)];
  const int tp = mesh.size(Axis::kTp);
  const int holders = p.shard.tp().splits() ? p.shard.tp().copies(tp) : tp;
  const int64_t alone = std::clamp<int64_t>(unshared_elements(p, tp) - g.begin, 0, g.count);
  return {{{{g.tensor, g.begin, alone, g.at}, true},
           {{g.tensor, g.begin + alone, g.count - alone, g.at + alone}, mesh.coord(Axis::kTp) % holders == 0}}};
}

UnitState::UnitState(UnitSpec s, std::vector<int> at, DType grad, Domain d, GradReducer& r, ValueGatherer& g)
    : spec(std::move(s)),
      index_in_module(std::move(at)),
      layout(layout_of(spec, d.size)),
      dtype(spec.params.front()->dtype),
      grad_dtype(grad),
      domain(d),
      reducer(r),
      gatherer(g),
      int8(spec.params.front()->int8),
      frozen(spec.params.front()->frozen),
      quantizes_(std::any_of(spec.params.begin(), spec.params.end(), [](auto* p) { return p->fake_quant; })) {
  for (Parameter* p : spec.params) p->unit = this;
}

Tensor UnitState::held_values() const {
  if (shares_values()) return owner->held_values();
  return values.tensor({values_sharded ? layout.shard : layout.size}, int8 ? DType::kI8 : dtype);
}

Tensor UnitState::held_grads() const {
  if (frozen) return grads.tensor({0}, grad_dtype);
  if (adds_to_owner()) return owner->held_grads();
  return grads.tensor({grads_sharded ? layout.shard : layout.size}, grad_dtype);
}

void UnitState::bind_values(Tensor flat, int64_t version) {
  for (size_t i = 0; i < spec.params.size(); ++i) {
    Parameter& p = *spec.params[i];
    p.value = flat.slice(layout.offset[i], p.local_shape.numel()).view(p.local_shape);
    p.version = version;
  }
  if (copy && copy->shares_values()) copy->bind_values(flat, version);
}

void UnitState::unbind_values() {
  for (Parameter* p : spec.params) p->value = nowhere(*p, dtype, grads.device());
  if (copy && copy->shares_values()) copy->unbind_values();
}

void UnitState::bind_grads(Tensor flat) {
  for (size_t i = 0; i < spec.params.size(); ++i) {
    Parameter& p = *spec.params[i];
    p.grad = flat.slice(layout.offset[i], p.local_shape.numel()).view(p.local_shape);
  }
}

void UnitState::unbind_grads() {
  for (Parameter* p : spec.params) p->grad = nowhere(*p, grad_dtype, grads.device());
}

void UnitState::acquire(Stream) {
  if (on_use()) gatherer.acquire(shares_values() ? *owner : *this);
}

// Further units of the module are released first: the first unit of a stage ends a backward, and nothing may follow it.
void UnitState::release(Stream s) {
  for (size_t k = siblings.size(); k-- > 0;) siblings[k]->release(s);
  // Gradients that the forward already made (the LM head's, while its logits are in cache) belong to this microbatch
  // alone. They are reduced now, so that every microbatch is reduced on its own, in order, whatever the schedule runs
  // before its backward.
  if (grads_sharded && phase == Phase::kOpen) reducer.ready(*this);
  if (on_use()) gatherer.release(shares_values() ? *owner : *this);
}

void UnitState::open_grads() { reducer.open(*this); }

void UnitState::grads_ready(Stream) {
  for (size_t k = siblings.size(); k-- > 0;) reducer.ready(*siblings[k]);
  reducer.ready(*this);
}

}  // namespace gt
