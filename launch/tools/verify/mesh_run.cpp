#include "launch/tools/verify/mesh_run.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "data/samples/masked_pairs.h"
#include "kernels/core/open_stream.h"
#include "kernels/core/rng.h"
#include "launch/engine/prove_layout.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/threads/thread_group.h"

namespace gt {
namespace {

// Microbatches of one step and data-parallel rank: microbatch k takes ordinals base + (k * dp + i) * b ….
struct Batches {
  std::vector<std::vector<int32_t>> storage;
  std::vector<Buffer> on_device;
  std::vector<MicroBatch> list;
};
int64_t length(const MeshRun& run, int step, int microbatch) {
  // not for the evaluation after the last step
  if (run.curriculum && step < run.steps) return run.curriculum.length(step + 1);
  return run.vary_length ? run.engine.model.seq * (3 - microbatch % 3) / 3 : run.engine.model.seq;
}
// Positions of a sample's tokens, and of one behind them, in documents of 1 to 7 tokens.
std::vector<int32_t> document_positions(int64_t sample, int64_t length) {
  const uint64_t key = stream_key(1234, "verify/documents");
  std::vector<int32_t> out;
  for (uint64_t k = 0; static_cast<int64_t>(out.size()) <= length; ++k)
    for (int32_t at = 0, n = 1 + static_cast<int32_t>(philox(key, k, static_cast<uint64_t>(sample))[0] % 7); at < n;
         ++at)
      out.push_back(at);
  out.resize(static_cast<size_t>(length) + 1);
  return out;
}
// Targets of `b` samples that are not the first token of a document.
int64_t targets_in_documents(int64_t first, int64_t b, int64_t length) {
  int64_t count = 0;
  for (int64_t j = 0; j < b; ++j) {
    const std::vector<int32_t> at = document_positions(first + j, length);
    count += std::count_if(at.begin() + 1, at.end(), [](int32_t p) { return p > 0; });
  }
  return count;
}
// Copies a tensor to the device.
void bring(Tensor& t, std::vector<Buffer>& to, const DeviceApi& api, Stream stream) {
  const Buffer& here = to.emplace_back(t.bytes(), stream.device, api);
  api.copy(here.data(), t.data, t.bytes(), stream);
  t = here.tensor(t.shape, t.dtype);
}
const std::vector<int32_t>& sample(const MeshRun& run, int64_t ordinal) {
  return run.samples[static_cast<size_t>(ordinal % static_cast<int64_t>(run.samples.size()))];
}
// Targets that carry loss in the global batch of a step.
int64_t global_targets(const MeshRun& run, int step, int m) {
  int64_t count = 0;
  for (int64_t k = 0; run.engine.model.predicts_pairs() && k < run.global_batch; ++k) {
    std::vector<int32_t> x = sample(run, step * run.global_batch + k);
    const auto targets = PairRow{x, run.engine.model.seq}.targets();
    count += std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
  }
  for (int k = 0; !run.engine.model.predicts_pairs() && k < m; ++k) {
    const int64_t s = length(run, step, k), n = run.engine.micro_batch * run.mesh.dp;
    count += run.engine.documents ? targets_in_documents(step * run.global_batch + k * n, n, s) : n * s;
  }
  return count;
}
// Appends the parts of samples `first` on, of `length` tokens each, to the tensors of the microbatch.
void add_samples(const MeshRun& run, int64_t first, int64_t length, MicroBatch& mb, Batches& out) {
  std::vector<int32_t> tokens, targets, positions, types, lengths, pairs;
  const auto append = [](std::vector<int32_t>& to, std::span<const int32_t> part) {
    to.insert(to.end(), part.begin(), part.end());
  };
  const bool of_pairs = run.engine.model.predicts_pairs();
  for (int64_t j = 0; j < mb.batch; ++j) {
    std::vector<int32_t> x = sample(run, first + j);
    const std::span<int32_t> all(x);
    if (of_pairs) {
      const PairRow row{all, length};
      append(tokens, row.tokens()), append(targets, row.targets()), append(types, row.types());
      lengths.push_back(row.length()), pairs.push_back(row.label());
    } else {
      append(tokens, all.first(static_cast<size_t>(length)));
      append(targets, all.subspan(1, static_cast<size_t>(length)));
    }
    if (!run.engine.documents) continue;
    const std::vector<int32_t> at = document_positions(first + j, length);
    append(positions, std::span(at).first(static_cast<size_t>(length)));
    for (int64_t i = 0; i < length; ++i)  // the first token of a document is not a target
      if (at[static_cast<size_t>(i + 1)] == 0) targets[targets.size() - static_cast<size_t>(length - i)] = -1;
  }
  const auto keep = [&](std::vector<int32_t>& values, Shape shape) -> Tensor {
    if (values.empty()) return {};
    out.storage.push_back(std::move(values));
    return host_tensor(std::span(out.storage.back())).view(shape);
  };
  mb.tokens = keep(tokens, {mb.batch, length}), mb.targets = keep(targets, {mb.batch, length});
  mb.positions = keep(positions, {mb.batch, length}), mb.types = keep(types, {mb.batch, length});
  mb.lengths = keep(lengths, {mb.batch}), mb.pairs = keep(pairs, {mb.batch});
  if (run.engine.documents) mb.loss_tokens = targets_in_documents(first, mb.batch, length);
}
Batches make_batches(const MeshRun& run, int step, const Mesh& mesh, int m, const DeviceApi& api, Stream stream) {
  Batches out;
  const int64_t b = run.engine.micro_batch;
  for (int k = 0; k < m; ++k) {
    const int64_t s = length(run, step, k);
    const int64_t first = step * run.global_batch + (int64_t{k} * run.mesh.dp + mesh.coord(Axis::kDp)) * b;
    MicroBatch mb;
    mb.batch = b;
    mb.seq = s;
    mb.first_sample = first;
    add_samples(run, first, s, mb, out);
    if (run.hooks != nullptr && run.hooks->batch) run.hooks->batch(mesh, mb);
    if (stream.device.kind == DeviceKind::kCuda)
      for (Tensor* t : {&mb.tokens, &mb.targets, &mb.positions, &mb.types, &mb.lengths, &mb.pairs})
        if (*t) bring(*t, out.on_device, api, stream);
    out.list.push_back(mb);
  }
  api.synchronize(stream);
  return out;
}

// Random values in place of the zeros and ones of biases and norms, equal under every layout.
Logical stirred(const std::vector<ShardView>& views, uint64_t seed, const Backend& backend, Stream stream) {
  RankRecord now;
  record_views(now, 0, views, true, backend, stream);
  Logical out;
  for (const RecordedTensor& p : now.pieces) {
    std::vector<float>& full = out[logical_name(p.view.name)];
    full.resize(static_cast<size_t>(p.view.full.numel()));
    const uint64_t key = stream_key(seed, "verify/" + logical_name(p.view.name));
    // lora_b: small. At rank 1 the outputs of an adapter all have one direction; once they outweigh the residual
    // stream, a norm leaves nothing else, and gradients before it are differences of rounding errors.
    const double scale = p.view.name.ends_with(".lora_b") ? 0.01 : p.view.full.rank == 1 ? 0.1 : 0;
    for (int64_t i = 0; i < static_cast<int64_t>(p.values.size()); ++i) {
      const int64_t at = logical_offset(p.view, p.view.begin + i);
      if (at < 0) continue;
      const float extra = scale > 0 ? static_cast<float>(scale * philox_normal(key, static_cast<uint64_t>(at))) : 0.f;
      full[static_cast<size_t>(at)] = p.values[static_cast<size_t>(i)] + extra;
    }
  }
  return out;
}

void begin(const MeshRun& run, Engine& engine, const Backend& backend, Stream stream) {
  engine.init_weights();
  if (run.weights == nullptr && !run.stir) return;
  const std::vector<ShardView> views = engine.store().value_views();
  write_views(views, run.weights != nullptr ? *run.weights : stirred(views, engine.options().seed, backend, stream),
              backend, stream);
  engine.adopt();
}

// Runs the steps of one rank and records their results.
RankRecord train(const MeshRun& run, Engine& engine, const Backend& backend, Stream stream, RankRun& done) {
  const Mesh& mesh = engine.mesh();
  const int m = engine.options().microbatches;
  RankRecord out;
  ActivationRecorder tap(mesh.coord(Axis::kTp), *backend.device, stream);
  std::optional<CallRecorder> calls;
  if (run.derive_calls && backend.kind == DeviceKind::kCpu) calls.emplace(mesh);  // graphs replay calls without spans
  if (run.every_step) record_views(out, kInitial, engine.store().value_views(), false, backend, stream);
  for (int k = 0; k < run.steps; ++k) {
    const bool last = k + 1 == run.steps, observe = k == 0 && run.activations;
    for (ModelStage* s : engine.stages()) s->set_observer(observe ? &tap : nullptr);
    Batches batches = make_batches(run, k, mesh, m, *backend.device, stream);
    const int64_t targets = global_targets(run, k, m);
    std::map<std::string, CommCounters> before;
    for (const auto& g : mesh.groups()) before[g.name] = g.group->counters();
    if (calls) calls->take();
    const StepResult r = engine.step(batches.list, targets);
    if (calls) done.calls.push_back(calls->take());
    for (const auto& g : mesh.groups()) (done.comm[g.name] = g.group->counters()).add(before[g.name], -1);
    out.losses.push_back(r.loss);
    out.parts.insert(out.parts.end(), r.parts.begin(), r.parts.begin() + engine.spec().losses.size());
    out.norms.push_back(r.grad_norm);
    if (run.hooks != nullptr && run.hooks->after_step) run.hooks->after_step(engine, k);
    if (k == 0 || run.every_step) record_views(out, k, engine.store().grad_views(), false, backend, stream);
    if (last || run.every_step) record_views(out, k, engine.checkpoint_views(), true, backend, stream);
    if (run.follow != nullptr && !last) {
      const Snapshot& right = run.follow->at(static_cast<size_t>(k));
      Logical both = right.weights;
      both.insert(right.state.begin(), right.state.end());
      write_views(engine.checkpoint_views(), both, backend, stream);
      engine.adopt();
    }
  }
  out.activations = tap.recorded();
  out.module_order = tap.order();
  return out;
}

// Compares the calls of each step with the derived ones. Which blocks a step drops, and which delayed FP8 scales are
// known, depends on the steps before it, that is on values.
void compare_calls(const MeshRun& run, const EngineOptions& options, int rank, const RankRun& made, RankRecord& out) {
  const bool by_values = options.layer_drop || options.precision.fp8 == Fp8Recipe::kDelayed;
  std::vector<std::vector<int64_t>> lengths(static_cast<size_t>(by_values ? 1 : run.steps));
  for (size_t k = 0; k < lengths.size(); ++k)
    for (int i = 0; i < options.microbatches; ++i) lengths[k].push_back(length(run, static_cast<int>(k), i));
  const auto derived = derive_calls(options, run.mesh, rank, lengths);
  for (size_t k = 0; k < derived.size() && out.wrong_call.empty(); ++k) {
    out.derived_calls += static_cast<int64_t>(derived[k].size());
    out.wrong_call = first_difference(derived[k], made.calls[k]);
    out.wrong_step = static_cast<int>(k) + 1;
  }
}

struct RankPlans {
  RankRun run;
  std::vector<TrustRatio> ratios;
  EnginePlan planned, measured;
};

RankRecord run_rank(const MeshRun& run, const EngineOptions& options, GroupFactory& given, const Backend& backend,
                    int device, RankPlans& plans) {
  const auto wrapped = run.hooks != nullptr && run.hooks->wrap ? run.hooks->wrap(given) : nullptr;
  const Mesh mesh(run.mesh, wrapped ? *wrapped : given);
  const OpenStream stream(*backend.device, device, options.threads);
  plans.planned = plan_memory(options, run.mesh, mesh.rank());
  Engine engine(options, mesh, backend, stream, plans.planned);
  begin(run, engine, backend, stream);
  RankRecord record = train(run, engine, backend, stream, plans.run);
  plans.ratios = engine.optimizer().trust_ratios(stream);
  plans.run.computed = engine.executor().computed();
  plans.run.slots = engine.executor().slots();
  plans.run.peak_live = engine.executor().peak_live();
  plans.run.data_parallel = mesh.group(Axis::kDp).counters();
  if (run.evaluate) {
    Batches batches = make_batches(run, run.steps, mesh, options.microbatches, *backend.device, stream);
    const LossSums sums = engine.evaluate(batches.list);
    record.eval_loss = std::accumulate(sums.sums.begin(), sums.sums.end(), 0.);
    record.eval_hits = sums.hits;
  }
  plans.measured = engine.measured_plan();
  if (!plans.run.calls.empty()) compare_calls(run, options, mesh.rank(), plans.run, record);
  return record;
}

EngineOptions options_of(const MeshRun& run) {
  EngineOptions o = run.engine;
  GT_CHECK(run.global_batch % (o.micro_batch * run.mesh.dp) == 0, "global batch ", run.global_batch, ", micro_batch ",
           o.micro_batch, ", dp ", run.mesh.dp);
  o.microbatches = static_cast<int>(run.global_batch / (o.micro_batch * run.mesh.dp));
  return o;
}

}  // namespace

MeshResult run_mesh(const MeshRun& run) {
  const EngineOptions options = options_of(run);
  const int world = run.mesh.world();
  std::vector<RankRecord> records(static_cast<size_t>(world));
  std::vector<RankPlans> plans(static_cast<size_t>(world));
  ThreadWorld ranks(world, run.deadline);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world));
  std::vector<std::thread> team;
  for (int r = 0; r < world; ++r)
    team.emplace_back([&, r] {
      const auto i = static_cast<size_t>(r);
      try {
        const auto factory = ranks.factory(r);
        const Backend& backend = run.hooks != nullptr && run.hooks->backend ? *run.hooks->backend : cpu_backend();
        records[i] = run_rank(run, options, *factory, backend, 0, plans[i]);
      } catch (const Error& e) {
        errors[i] = std::current_exception();
        ranks.abort(r, e.what(), e.code());
      } catch (const std::exception& e) {
        errors[i] = std::current_exception();
        ranks.abort(r, e.what());
      }
    });
  for (std::thread& t : team) t.join();
  if (const int first = ranks.failed_rank(); first >= 0 && errors[static_cast<size_t>(first)])
    std::rethrow_exception(errors[static_cast<size_t>(first)]);
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
  MeshResult result = assemble(run, std::move(records));
  for (RankPlans& p : plans) {
    result.ranks.push_back(std::move(p.run));
    for (const TrustRatio& t : p.ratios) {
      const auto [at, fresh] = result.ratios.emplace(t.tensor, t.ratio);
      if (!fresh && at->second != t.ratio) at->second = std::numeric_limits<float>::quiet_NaN();
    }
    result.planned.push_back(p.planned);
    result.measured.push_back(p.measured);
  }
  return result;
}

MeshResult run_mesh_here(const MeshRun& run, GroupFactory& factory, const Backend& backend, int device) {
  RankPlans plans;
  const RankRecord mine = run_rank(run, options_of(run), factory, backend, device, plans);
  std::vector<int> everyone(static_cast<size_t>(factory.world_size()));
  for (size_t r = 0; r < everyone.size(); ++r) everyone[r] = static_cast<int>(r);
  const auto world = factory.make(everyone);
  std::vector<RankRecord> all = gather_records(*world, mine);
  return all.empty() ? MeshResult{} : assemble(run, std::move(all));
}

std::vector<std::vector<int32_t>> synthetic_samples(const TransformerConfig& m, int count, uint64_t seed) {
  std::vector<std::vector<int32_t>> runs = synthetic_samples(count, m.seq, m.vocab, seed);
  if (!m.predicts_pairs()) return runs;
  std::vector<std::vector<int32_t>> out;
  const MaskingOptions masking{.short_prob = 0.4, .vocab = m.vocab};
  for (size_t k = 0; k < runs.size(); ++k) {
    SampleDraws draws(stream_key(seed, "test/pairs"), static_cast<int64_t>(k));
    const auto length = static_cast<size_t>(draw_length(masking, m.seq, draws));
    const auto first = static_cast<size_t>(1 + draws.below(static_cast<int64_t>(length) - 1));
    const bool unrelated = draws.with_probability(0.5);
    const std::span<const int32_t> a(runs[k]), b(runs[unrelated ? (k + 1) % runs.size() : k]);
    std::vector<int32_t>& row = out.emplace_back(static_cast<size_t>(PairRow::width(m.seq)));
    make_pair(masking, a.first(first), b.subspan(first, length - first), unrelated, draws, {row, m.seq});
  }
  return out;
}

std::vector<std::vector<int32_t>> synthetic_samples(int count, int64_t seq, int64_t vocab, uint64_t seed) {
  std::vector<std::vector<int32_t>> out;
  const uint64_t key = stream_key(seed, "test/samples");
  for (int n = 0; n < count; ++n) {
    std::vector<int32_t> x;
    int64_t last = 1;
    for (int64_t k = 0; k <= seq; ++k) {
      const auto w = philox(key, static_cast<uint64_t>(k), static_cast<uint64_t>(n));
      last = w[0] % 4 != 0 ? (last * 7 + 3) % vocab : w[1] % vocab;  // mostly predictable
      x.push_back(static_cast<int32_t>(last));
    }
    out.push_back(std::move(x));
  }
  return out;
}

}  // namespace gt
