#include "model/stage_units.h"

#include <algorithm>

namespace gt {

void StageUnits::add(Module& m, const ModelSpec& model, int stage) {
  Entry& e = entries_.emplace_back(Entry{&m, {}, {}});
  for (Parameter* p : m.parameters()) {
    const int index = model.param(p->name).unit;
    auto unit = std::find_if(e.specs.begin(), e.specs.end(), [&](const UnitSpec& s) { return s.index == index; });
    if (unit == e.specs.end()) {
      const UnitEntry& entry = model.units[static_cast<size_t>(index)];
      unit = e.specs.insert(unit, {entry.name, {}, stage, index, entry.domain});
    }
    unit->params.push_back(p);
  }
  std::sort(e.specs.begin(), e.specs.end(), [](const UnitSpec& a, const UnitSpec& b) { return a.index < b.index; });
  for (UnitSpec& s : e.specs) s.module = e.specs.front().index;
}

std::vector<UnitSpec> StageUnits::specs() const {
  std::vector<UnitSpec> out;
  for (const Entry& e : entries_) out.insert(out.end(), e.specs.begin(), e.specs.end());
  return out;
}

void StageUnits::bind(ParamStore& store) {
  for (Entry& e : entries_) {
    e.bound.clear();
    for (const UnitSpec& s : e.specs) e.bound.push_back(&store.unit(s.name));
  }
}

const StageUnits::Entry& StageUnits::of(const Module& m) const {
  return *std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.module == &m; });
}

}  // namespace gt
