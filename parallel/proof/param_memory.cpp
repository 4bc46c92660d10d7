#include "parallel/proof/param_memory.h"

#include <algorithm>
#include <iterator>

namespace gt::proof {

void ParamMemory::begin(const ParamStore& store) {
  for (const Parameter* p : store.parameters()) params_.push_back(p);
  units_ = store.flat_memory();
  for (const FlatMemory& f : units_) {
    sharded_ = sharded_ || f.values_sharded || f.grads_sharded || f.values.dtype == DType::kI8;
    for (const Parameter* p : f.params)
      if (f.values_sharded && f.values.dtype != DType::kI8 && !p->tied_owner && p->tied_to.empty()) on_use_[p] = &f;
  }
}

const Parameter* ParamMemory::find(const Tensor& t, bool value) {
  const auto of = [](const Parameter* p, bool v) -> const Tensor& { return v ? p->value : p->grad; };
  if (std::exchange(moved_, false))
    for (const bool v : {true, false}) {
      Addresses& list = v ? values_ : grads_;
      list.clear();
      for (const Parameter* p : params_)
        if (of(p, v).data != nullptr) list.emplace_back(of(p, v).data, p);
      std::sort(list.begin(), list.end());
    }
  const Addresses& list = value ? values_ : grads_;
  auto it = std::upper_bound(list.begin(), list.end(), t.data,
                             [](const std::byte* at, const auto& e) { return at < e.first; });
  if (it == list.begin()) return nullptr;
  const Tensor& whole = of((--it)->second, value);
  return inside(t, whole) && t.shape.rank == whole.shape.rank ? it->second : nullptr;
}

void ParamMemory::gathered(const Tensor& part, const Tensor& whole) {
  for (const FlatMemory& f : units_) {
    if (!f.values_sharded || !inside(part, f.values)) continue;
    auto it = gathered_.lower_bound(whole.data);
    if (it != gathered_.begin() && std::prev(it)->second.end > whole.data) --it;
    while (it != gathered_.end() && it->first < whole.data + whole.bytes()) it = gathered_.erase(it);
    gathered_[whole.data] = {whole.data + whole.bytes(), &f};
  }
}

void ParamMemory::updated(const FlatMemory& f) {
  std::erase_if(gathered_, [&](const auto& g) { return g.second.unit == &f; });
}

bool ParamMemory::is_gathered(const Parameter& p, const Tensor& t) const {
  const auto unit = on_use_.find(&p);
  if (unit == on_use_.end()) return true;
  auto it = gathered_.upper_bound(t.data);
  return it != gathered_.begin() && t.data < (--it)->second.end && it->second.unit == unit->second;
}

}  // namespace gt::proof
