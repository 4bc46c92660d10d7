#include "launch/engine/prove_layout.h"

#include <algorithm>

#include "launch/config/values/schedule_file.h"

namespace gt {
namespace {

// Microbatches of a proof: of as many kinds as those of a step.
int few(const EngineOptions& o, int pp) {
  const int enough = 2 * pp * o.vpp;
  return is_schedule_file(o.schedule) ? o.microbatches : std::min(o.microbatches, enough);
}

ProofSize prove_rank(const EngineOptions& options, const MeshShape& shape, int rank, std::vector<proof::Site>* sites,
                     const std::optional<proof::Fault>& fault) {
  constexpr int64_t kPlenty = int64_t{1} << 40;  // address space, not memory
  proof::LayoutProof proof(shape, rank, fault);
  const Backend& backend = proof.backend();
  const Mesh mesh(shape, proof.factory());
  const Stream stream = backend.device->open_stream(0, 1);
  EnginePlan endless;
  endless.train = endless.eval = {kPlenty, kPlenty, 0};
  endless.zero = {kPlenty, kPlenty};
  {
    Engine engine(options, mesh, backend, stream, endless);
    const Shape s{options.micro_batch, options.model.seq};
    const Buffer tokens(s.numel() * size_of(DType::kI32), stream.device, *backend.device);
    const Tensor memory = tokens.tensor(s, DType::kI32);
    const std::vector<MicroBatch> batch(static_cast<size_t>(options.microbatches), empty_batch(options, memory));
    const TensorAxis axis{mesh.group(Axis::kTp), options.sequence_parallel};
    const RowSlice rows = axis.rows(batch.front());
    proof.begin(engine.store(), memory, {rows.rows * options.model.hidden, axis.splits_rows()});
    for (int step = 0; options.trains && step < 2; ++step) engine.step(batch, s.numel());
    if (options.evaluates) engine.evaluate(batch);
  }
  backend.device->close_stream(stream);
  for (const proof::Site& s : proof.sites())
    if (sites != nullptr && std::find(sites->begin(), sites->end(), s) == sites->end()) sites->push_back(s);
  return {proof.ops(), proof.messages()};
}

// The run as far as it is typed: in 16 bits instead of FP8, with AdamW instead of Muon.
EngineOptions typed(const EngineOptions& options, int pp) {
  EngineOptions o = options;
  o.microbatches = few(options, pp);
  o.precision.fp8 = Fp8Recipe::kOff;
  if (o.optim.type == "muon") o.optim.type = "adamw";
  for (ParamGroup& g : o.optim.groups)
    if (g.rule == "muon") g.rule = "adamw";
  return o;
}

}  // namespace

ProofSize prove_layout(const EngineOptions& options, const MeshShape& shape, std::vector<proof::Site>* sites,
                       const std::optional<proof::Fault>& fault) {
  const EngineOptions run = typed(options, shape.pp);
  ProofSize all;
  for (int stage = 0; stage < shape.pp; ++stage) {
    const ProofSize of = prove_rank(run, shape, stage * (shape.world() / shape.pp), sites, fault);
    all.ops += of.ops, all.messages += of.messages;
  }
  return all;
}

}  // namespace gt
