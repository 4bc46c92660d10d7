#include "launch/engine/prove_layout.h"

#include <algorithm>
#include <set>

#include "kernels/core/open_stream.h"
#include "launch/config/values/schedule_file.h"
#include "launch/ranks/stack_watch.h"
#include "parallel/comm/null_group.h"

namespace gt {
namespace {

// Microbatches of a proof: of as many kinds as those of a step.
int few(const EngineOptions& o, int pp) {
  const int enough = 2 * pp * o.vpp;
  return is_schedule_file(o.schedule) ? o.microbatches : std::min(o.microbatches, enough);
}

// Two steps and an evaluation.
void run_all(const EngineOptions& options, Engine& engine, const std::vector<MicroBatch>& batch) {
  const int64_t targets = batch.front().tokens.numel();
  for (int step = 0; options.trains && step < 2; ++step) engine.step(batch, targets);
  if (options.evaluates) engine.evaluate(batch);
}

// "gt::ops::linear < gt::Block::operator()": of a stack, those that call ops.
std::string functions(const std::vector<void*>& frames) {
  std::string out;
  int named = 0;
  bool above = false;  // the frames that observe
  for (const void* frame : frames) {
    std::string name = symbol_at(frame);
    if (const size_t at = name.find("(anonymous namespace)::"); at != std::string::npos) name.erase(at, 23);
    name = name.substr(0, name.find('('));
    const bool observes = name.find("gt::proof") != std::string::npos || name.find("decorate") != std::string::npos;
    above = above || observes;
    if (!above || observes || name.find("gt::") == std::string::npos || named == 4) continue;
    out += (named++ > 0 ? " < " : "") + name;
  }
  return out;
}

// Calls run(engine, batch) with an engine whose calls the proof observes.
template <class Run>
void observe(const EngineOptions& options, const MeshShape& shape, int rank, proof::LayoutProof& proof, Run run) {
  constexpr int64_t kPlenty = int64_t{1} << 40;  // address space, not memory
  GT_CHECK(rank >= 0 && rank < shape.world(), "rank ", rank);
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
    run(engine, batch);
  }
  backend.device->close_stream(stream);
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

ProofSize prove_rank(const EngineOptions& options, const MeshShape& shape, int rank, std::vector<proof::Site>* sites,
                     const std::optional<proof::Fault>& fault) {
  proof::LayoutProof proof(shape, rank, fault);
  observe(typed(options, shape.pp), shape, rank, proof,
          [&](Engine& engine, const std::vector<MicroBatch>& batch) { run_all(options, engine, batch); });
  for (const proof::Site& s : proof.sites())
    if (sites != nullptr && std::find(sites->begin(), sites->end(), s) == sites->end()) sites->push_back(s);
  return {proof.ops(), proof.messages()};
}

ProofSize prove_layout(const EngineOptions& options, const MeshShape& shape, std::vector<proof::Site>* sites,
                       const std::optional<proof::Fault>& fault) {
  ProofSize all;
  for (int stage = 0; stage < shape.pp; ++stage) {
    const ProofSize of = prove_rank(options, shape, stage * (shape.world() / shape.pp), sites, fault);
    all.ops += of.ops, all.messages += of.messages;
  }
  return all;
}

std::string code_of(const proof::LayoutError& e, const EngineOptions& options, const MeshShape& shape,
                    const std::optional<proof::Fault>& fault) {
  std::set<int64_t> calls{e.call};
  for (const auto& [name, call] : e.written) calls.insert(call);
  proof::LayoutProof proof(shape, e.rank, fault, calls);
  try {
    observe(typed(options, shape.pp), shape, e.rank, proof,
            [&](Engine& engine, const std::vector<MicroBatch>& batch) { run_all(options, engine, batch); });
  } catch (const proof::LayoutError&) {}  // the same one
  const auto at = [&](int64_t call) {
    const auto stack = proof.stacks().find(call);
    return cat("call ", call, " in ", stack == proof.stacks().end() ? "?" : functions(stack->second));
  };
  std::string out = cat("\n  found at ", at(e.call));
  for (const auto& [name, call] : e.written) out += cat("\n  ", name, " was written at ", at(call));
  return out;
}

Untyped untyped(const EngineOptions& o) { return {o.precision.fp8 != Fp8Recipe::kOff, o.optim.uses("muon")}; }

std::vector<std::vector<GroupCall>> derive_calls(const EngineOptions& options, const MeshShape& shape, int rank,
                                                 const std::vector<std::vector<int64_t>>& lengths) {
  const Backend& backend = null_backend();
  NullFactory factory(rank, shape.world());
  const Mesh mesh(shape, factory);
  const OpenStream stream(*backend.device, 0, 1);
  Engine engine(options, mesh, backend, stream, plan_memory(options, shape, rank));
  engine.adopt();
  const Buffer tokens(options.micro_batch * options.model.seq * size_of(DType::kI32), stream.device(), *backend.device);
  std::vector<std::vector<GroupCall>> out;
  CallRecorder calls(mesh);
  for (const std::vector<int64_t>& step : lengths) {
    std::vector<MicroBatch> batch;
    for (const int64_t seq : step) {
      batch.push_back(empty_batch(options, tokens.tensor({options.micro_batch, options.model.seq}, DType::kI32)));
      MicroBatch& mb = batch.back();
      mb.seq = mb.tokens.shape.dim[1] = mb.targets.shape.dim[1] = seq;
      if (mb.positions) mb.positions.shape = mb.tokens.shape;
      if (mb.types) mb.types.shape = mb.tokens.shape;
    }
    engine.step(batch, batch.front().tokens.numel());
    out.push_back(calls.take());
  }
  return out;
}

}  // namespace gt
