#include "optim/optimizer.h"

#include "optim/families.h"

namespace gt {

std::vector<std::string> optimizer_names() { return {"adamw", "adam", "lamb", "sgd", "lion"}; }

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                          const Backend& backend, Stream stream) {
  if (o.type == "adamw" || o.type == "adam") return make_adam(o, store, mesh, backend, stream);
  if (o.type == "lamb") return make_lamb(o, store, mesh, backend, stream);
  if (o.type == "sgd") return make_sgd(o, store, mesh, backend, stream);
  if (o.type == "lion") return make_lion(o, store, mesh, backend, stream);
  std::string known;
  for (const std::string& name : optimizer_names()) known += (known.empty() ? "" : ", ") + name;
  fail(Exit::kUsage, "optim.type: unknown optimizer \"", o.type, "\"; there are ", known);
}

}  // namespace gt
