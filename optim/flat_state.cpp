#include "optim/flat_state.h"

#include <algorithm>

namespace gt {
namespace {

// Returns the most elements of `members` in any shard of the unit: equal on all ranks of a stage, as memory plans
// require.
int64_t elements_of(const FlatUnit& u, const std::vector<bool>& members) {
  int64_t most = 0;
  for (int64_t begin = 0; begin < u.size; begin += u.held) {
    int64_t sum = 0;
    for (size_t k = 0; k < u.params.size(); ++k) {
      const int64_t from = std::max(begin, u.offsets[k]);
      const int64_t to = std::min(begin + u.held, u.offsets[k] + u.params[k]->local_shape.numel());
      if (members[static_cast<size_t>(u.first_tensor) + k]) sum += std::max<int64_t>(0, to - from);
    }
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

FlatState::FlatState(const Moment& moment, const ParamStore& store, const Backend& backend, Stream stream,
                     const std::vector<bool>& members)
    : moment_(moment) {
  GT_CHECK(moment.dtype == DType::kF32, moment.name, ": a moment of ", name_of(moment.dtype), "; ops read f32");
  for (int k = 0; k < store.num_units(); ++k) {
    const int64_t held = store.state_elements(k);
    UnitBuffer& unit = units_.emplace_back();
    int64_t elements = held;
    if (members.empty())
      unit.runs.push_back({0, held, 0});
    else if (held > 0)
      elements = elements_of(store.flat_unit(k), members);
    unit.memory = Buffer(elements * size_of(moment.dtype), stream.device, *backend.device);
    if (elements > 0) backend.device->zero(unit.memory.data(), unit.memory.bytes(), stream);
  }
  if (members.empty()) return;
  for (const TensorRangePart& p : store.pieces()) {
    if (!members[static_cast<size_t>(p.tensor)]) continue;
    const TensorRange& r = store.ranges()[static_cast<size_t>(p.range)];
    std::vector<Run>& runs = units_[static_cast<size_t>(r.unit)].runs;
    const int64_t begin = r.at + p.at, next = runs.empty() ? 0 : runs.back().at + runs.back().count;
    if (!runs.empty() && runs.back().begin + runs.back().count == begin)
      runs.back().count += p.count;
    else
      runs.push_back({begin, p.count, next});
  }
}

Tensor FlatState::at(int unit, int64_t begin, int64_t count) const {
  const UnitBuffer& u = units_[static_cast<size_t>(unit)];
  const auto after =
      std::upper_bound(u.runs.begin(), u.runs.end(), begin, [](int64_t b, const Run& r) { return b < r.begin; });
  if (after == u.runs.begin() || (after - 1)->begin + (after - 1)->count < begin + count)
    return u.memory.tensor({0}, moment_.dtype);
  const Run& r = *(after - 1);
  return u.memory.tensor({count}, moment_.dtype, (r.at + begin - r.begin) * size_of(moment_.dtype));
}

void FlatState::append_views(const ParamStore& store, std::vector<ShardView>& out) const {
  const auto part = [&](int unit, int64_t begin, int64_t count) { return at(unit, begin, count); };
  store.append_views(cat("optim/", moment_.name), part, out);
}

int64_t FlatState::bytes() const {
  int64_t n = 0;
  for (const UnitBuffer& u : units_) n += u.memory.bytes();
  return n;
}

FlatStates::FlatStates(const std::vector<Moment>& moments, const ParamStore& store, const Backend& backend,
                       Stream stream, const std::vector<bool>& members) {
  states_.reserve(moments.size());
  for (const Moment& m : moments) states_.emplace_back(m, store, backend, stream, members);
}

std::vector<const FlatState*> FlatStates::all() const {
  std::vector<const FlatState*> out;
  for (const FlatState& s : states_) out.push_back(&s);
  return out;
}

std::vector<ShardView> FlatStates::views(const ParamStore& store) const {
  std::vector<ShardView> out;
  for (const FlatState& s : states_) s.append_views(store, out);
  return out;
}

int64_t FlatStates::bytes() const {
  int64_t n = 0;
  for (const FlatState& s : states_) n += s.bytes();
  return n;
}

}  // namespace gt
