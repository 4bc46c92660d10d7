// FSDP units of the modules of a stage. A module has a unit for each set of ranks that replicates some of its
// parameters (ModelSpec::units); all of them are gathered, used and reduced around one call of the module.
#pragma once
#include <vector>

#include "autograd/ops.h"
#include "model/module.h"
#include "parallel/zero/param_store.h"

namespace gt {

class StageUnits {
 public:
  // Adds the next module in the order of the forward. `stage`: virtual pipeline stage.
  void add(Module&, const ModelSpec&, int stage);
  std::vector<UnitSpec> specs() const;  // in the order of the forward
  void bind(ParamStore&);               // call before use()

  // Runs `body` with the module's parameters readable, and reduces their gradients after its backward. Forward and
  // backward acquire the units in one order; the gradients of the first are final last.
  template <class Body>
  void use(Tape& t, const Module& m, Body body) {
    const std::vector<ParamUnit*>& units = of(m).bound;
    for (ParamUnit* u : units) ops::enter(t, *u);
    body();
    for (size_t k = units.size(); k-- > 0;) ops::leave(t, *units[k]);
  }
  // Returns state of all modules: `list` is a member function of Module that returns that of one.
  template <class T>
  std::vector<T*> all(std::vector<T*> (Module::*list)()) {
    std::vector<T*> out;
    for (Entry& e : entries_)
      for (T* x : (e.module->*list)()) out.push_back(x);
    return out;
  }

 private:
  struct Entry {
    Module* module;
    std::vector<UnitSpec> specs;
    std::vector<ParamUnit*> bound;
  };
  const Entry& of(const Module&) const;
  std::vector<Entry> entries_;
};

}  // namespace gt
