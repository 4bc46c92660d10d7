#include "parallel/zero/param_store.h"

#include <algorithm>

#include "kernels/core/hash/state_hash.h"
#include "kernels/core/rng.h"
#include "parallel/zero/fp8_weights.h"
#include "parallel/zero/gatherer.h"
#include "parallel/zero/init.h"
#include "parallel/zero/int8_weights.h"
#include "parallel/zero/reducer.h"
#include "parallel/zero/unit_state.h"
#include "parallel/zero/weight_quantizer.h"

namespace gt {

ParamStore::ParamStore(std::vector<UnitSpec> specs, int total_units, const ZeroOptions& options, const Mesh& mesh,
                       const Backend& backend, Stream compute, ZeroMemory memory)
    : mesh_(mesh),
      options_(options),
      backend_(backend),
      compute_(compute),
      total_units_(total_units),
      reducer_(std::make_unique<GradReducer>(units_, options, mesh, backend, compute)),
      gatherer_(std::make_unique<ValueGatherer>(compute, options.prefetch)),
      int8_(std::make_unique<Int8Weights>(mesh, backend, compute)) {
  GT_CHECK(options.stage >= 0 && options.stage <= 3, "ZeRO stage ", options.stage);
  GT_CHECK(options.grad == DType::kF32 || options.grad == DType::kBF16, "gradients in ", name_of(options.grad));
  for (UnitSpec& spec : specs) add_unit(std::move(spec));
  if (std::any_of(units_.begin(), units_.end(), [](const auto& s) { return s->quantizes(); }))
    quantizer_ = std::make_unique<WeightQuantizer>(units_, mesh, backend, compute);
  gatherer_->quantize_with(quantizer_.get());
  if (std::any_of(units_.begin(), units_.end(), [](const auto& s) { return Fp8Weights::bytes_of(s->spec) > 0; }))
    fp8_ = std::make_unique<Fp8Weights>(units_, mesh, backend, compute);
  gatherer_->quantize_with(fp8_.get());
  gatherer_->dequantize_with(int8_.get());
  ZeroMemory needed;
  for (const auto& s : units_) {
    if (s->on_use() && !s->shares_values()) needed.gathered += 2 * ValueGatherer::bytes_of(*s);
    if (s->grads_sharded) needed.gradients += 2 * align_up(s->layout.size * size_of(options.grad));
    if (options.reduce != options.grad && !s->frozen)
      needed.gradients += 2 * align_up(s->layout.size * size_of(options.reduce));
  }
  gatherer_->allocate(memory.gathered > 0 ? memory.gathered : needed.gathered, backend);
  if (!options.gradients) return;
  reducer_->allocate(memory.gradients > 0 ? memory.gradients : needed.gradients);
  for (int k = 0; k < num_units(); ++k) add_ranges(k);
  cut_pieces();
  list_squares();
}

// Makes a unit of each dtype of a module's parameters, int8 and 16-bit first, and of frozen and trained ones, so that
// each is gathered in one dtype and all or none of it is updated. They are used as one. The first parameter is like
// most of them: adapters, or biases of routers, are in further units.
void ParamStore::add_unit(UnitSpec spec) {
  UnitState* main = nullptr;
  const bool most = spec.params.front()->frozen;
  for (const bool int8 : {true, false})
    for (const auto& [wide, frozen] : {std::pair{false, most}, {false, !most}, {true, most}, {true, !most}}) {
      UnitSpec part = spec;
      part.params.clear();
      std::vector<int> index_in_module;
      for (int i = 0; i < static_cast<int>(spec.params.size()); ++i) {
        Parameter* p = spec.params[static_cast<size_t>(i)];
        if (p->int8 != int8 || (p->dtype == DType::kF32) != wide || p->frozen != frozen) continue;
        part.params.push_back(p);
        index_in_module.push_back(i);
      }
      if (part.params.empty()) continue;
      if (main != nullptr) part.name += cat(" (", name_of(part.params.front()->dtype), frozen ? ", frozen)" : ")");
      UnitState& made = add_uniform(std::move(part), std::move(index_in_module), main);
      if (main == nullptr) main = &made;
    }
}

namespace {
// Ranks of a unit's domain replicate its parameters: an axis that splits one is outside of it. Gradients of KV heads
// are summed, and amaxes of quantized weights taken, over tp alone. Norms and checkpoints count replicas over tp, which
// is the innermost axis of experts too only where etp is tp.
void check_shard(const Parameter& p, AxisSet domain, const Mesh& mesh) {
  GT_CHECK(!domain.has(Axis::kExpertDp) || mesh.size(Axis::kEtp) == mesh.size(Axis::kTp), p.name, ": replicated over ",
           name_of(domain), " with etp ", mesh.size(Axis::kEtp), " and tp ", mesh.size(Axis::kTp));
  for (const AxisShard& a : p.shard.axes) {
    const bool dense = domain.has(Axis::kDp) || domain.has(Axis::kCp);
    GT_CHECK(a.axis == Axis::kTp || !a.splits() || mesh.size(a.axis) == 1 ||
                 (a.axis == Axis::kEp && !dense && !domain.has(Axis::kEp)),
             p.name, ": split over ", name_of(a.axis), ", replicated over ", name_of(domain));
    GT_CHECK(a.axis == Axis::kTp || !a.named() || (a.splits() && a.heads == 0 && !p.int8 && !p.fp8 && !p.fake_quant),
             p.name, ": partial sums, heads and quantized weights over ", name_of(a.axis));
  }
  const AxisShard tp = p.shard.tp();
  GT_CHECK(tp.heads == 0 || (tp.dim == 0 && !p.shard.along(0).axes[1].named()), p.name, ": heads of a slice");
}
}  // namespace

UnitState& ParamStore::add_uniform(UnitSpec spec, std::vector<int> index_in_module, UnitState* main) {
  const Domain domain = mesh_.domain(spec.domain);
  for (const Parameter* p : spec.params) check_shard(*p, spec.domain, mesh_);
  units_.push_back(std::make_unique<UnitState>(std::move(spec), std::move(index_in_module), options_.grad, domain,
                                               *reducer_, *gatherer_));
  UnitState& s = *units_.back();
  if (main != nullptr) main->siblings.push_back(&s);
  allocate(s, main != nullptr);
  return s;
}

void ParamStore::cut_pieces() {
  for (size_t k = 0; k < units_.size(); ++k) {
    const UnitState& s = *units_[k];
    if (s.owner || s.frozen) continue;
    const auto first_tensor = static_cast<int>(tensors_.size());
    tensors_.insert(tensors_.end(), s.spec.params.begin(), s.spec.params.end());
    for (size_t j = 0; j < ranges_.size(); ++j) {
      const TensorRange& r = ranges_[j];
      if (r.unit != static_cast<int>(k)) continue;
      const int64_t from = r.at + (options_.stage == 0 ? 0 : s.begin()), to = from + r.value.numel();
      for (int shard = 0; shard < s.domain.size; ++shard)
        for (const FlatSegment& g : s.layout.segments[static_cast<size_t>(shard)]) {
          for (const auto& [piece, counted] : split_by_owner(s, g, mesh_)) {
            const int64_t begin = std::max(from, piece.at), end = std::min(to, piece.at + piece.count);
            if (begin < end)
              pieces_.push_back({.range = static_cast<int>(j),
                                 .at = begin - from,
                                 .count = end - begin,
                                 .tensor = first_tensor + g.tensor,
                                 .begin = piece.begin + begin - piece.at,
                                 .owned = shard == s.domain.rank && counted});
          }
        }
    }
  }
}

ParamStore::~ParamStore() = default;

// A domain of one rank shards nothing, at any stage. The few values of a module's further units (norms, adapters) stay
// unsharded.
void ParamStore::allocate(UnitState& s, bool sibling) {
  for (auto& other : units_)
    if (s.tied_copy() && other->spec.params.front()->name == s.spec.params.front()->tied_to) {
      s.owner = other.get();
      other->copy = &s;
    }
  const bool shares = s.domain.size > 1;
  s.values_sharded = shares && options_.stage == 3 && !sibling && s.elements() >= options_.persist_numel;
  const bool gradients = options_.gradients && !s.frozen;
  s.grads_sharded = shares && !s.frozen && grad_reduce_of(options_, mesh_.size(Axis::kPp)) == GradReduce::kEach;
  // Every element is written before it is read, except the padding at the end, which stays 0.
  const auto buffer = [&](bool sharded, DType type) {
    const int64_t from = sharded ? s.begin() : 0, size = sharded ? s.layout.shard : s.layout.size;
    Buffer b(size * size_of(type), compute_.device, *backend_.device);
    const int64_t used = std::clamp<int64_t>(s.elements() - from, 0, size) * size_of(type);
    backend_.device->zero(b.data() + used, b.bytes() - used, compute_);
    return b;
  };
  // Elsewhere the sums of both copies are complete before they are added. That order is kept here only if nothing is
  // reduced or rounded in between, and each copy adds once.
  const bool adds =
      gradients && s.owner != nullptr && options_.one_microbatch && !shares && s.grad_dtype == DType::kF32;
  s.spec.params.front()->adds_to = adds ? s.owner->spec.params.front() : nullptr;
  s.grads = gradients && !adds ? buffer(s.grads_sharded, s.grad_dtype) : Buffer(0, compute_.device, *backend_.device);
  if (s.grads_sharded || !gradients)
    s.unbind_grads();
  else
    s.bind_grads(s.held_grads());
  if (!s.shares_values()) s.values = buffer(s.values_sharded, s.int8 ? DType::kI8 : s.dtype);
  s.scales = Buffer(Int8Weights::rows_of(s.spec) * size_of(DType::kF32), compute_.device, *backend_.device);
  if (!s.values_sharded) s.fp8_data = Buffer(Fp8Weights::bytes_of(s.spec), compute_.device, *backend_.device);
  const bool apart = s.rounds() ? options_.masters : s.quantizes() && !s.values_sharded;
  if (apart && s.owner == nullptr && !s.frozen) s.masters = buffer(options_.stage > 0, DType::kF32);
  if (s.on_use())
    s.unbind_values();
  else
    s.bind_values(s.held_values(), fresh_version());
}

// Merges neighbours with the same decay setting. Stage 0 updates everything, the other stages this rank's shard.
void ParamStore::add_ranges(int unit) {
  const UnitState& s = *units_[static_cast<size_t>(unit)];
  if (s.owner || s.frozen) return;
  const int64_t from = options_.stage == 0 ? 0 : s.begin();
  const int64_t to = options_.stage == 0 ? s.layout.size : from + s.layout.shard;
  for (size_t i = 0; i < s.spec.params.size(); ++i) {
    int64_t begin = std::max(from, s.layout.offset[i]);
    const int64_t end = std::min(to, s.layout.offset[i] + s.spec.params[i]->local_shape.numel());
    if (begin >= end) continue;
    const bool decay = s.spec.params[i]->decay;
    if (!ranges_.empty() && ranges_.back().unit == unit && ranges_.back().decay == decay) {
      begin = ranges_.back().at + from;
      ranges_.pop_back();
    }
    ranges_.push_back({.value = s.values_at(begin, end),
                       .grad = s.grads_at(begin, end),
                       .master = s.trained_at(begin, end, from),
                       .decay = decay,
                       .fake_quantized = s.quantizes() && !s.values_sharded,
                       .unit = unit,
                       .at = begin - from});
  }
}

void ParamStore::set_order(std::span<const StagePass> step, std::span<const StagePass> evaluation) {
  const auto units_of = [&](std::span<const StagePass> passes) {
    std::vector<UnitState*> order;
    for (const StagePass& v : passes) {
      std::vector<std::vector<UnitState*>> modules;  // the units of each that have no values otherwise
      for (auto& s : units_) {
        if (s->spec.stage != v.stage || !s->on_use()) continue;
        UnitState* holder = s->shares_values() ? s->owner : s.get();
        if (modules.empty() || modules.back().back()->module() != holder->module()) modules.emplace_back();
        modules.back().push_back(holder);
      }
      if (v.backward) std::reverse(modules.begin(), modules.end());
      for (const std::vector<UnitState*>& m : modules)
        if (order.empty() || order.back()->module() != m.back()->module())
          order.insert(order.end(), m.begin(), m.end());
    }
    return order;
  };
  step_order_ = units_of(step);
  evaluation_order_ = units_of(evaluation);
  running_order_.reserve(step_order_.size());
  ordered_ = true;
}

void ParamStore::init_whole(UnitState& s, Tensor whole, uint64_t seed, int threads) {
  const Tensor padding = whole.slice(s.elements(), s.layout.pad);
  backend_.device->zero(padding.data, padding.bytes(), compute_);
  for (size_t i = 0; i < s.spec.params.size(); ++i) {
    const Parameter& p = *s.spec.params[i];
    const std::string& name = p.tied_to.empty() ? p.name : p.tied_to;
    init_parameter(p, whole.slice(s.layout.offset[i], p.local_shape.numel()), stream_key(seed, "init/" + name),
                   mesh_.all_coordinates(), threads, *backend_.device, compute_);
  }
}

namespace {
// The values are not f32, or separate master weights are trained.
bool kept_apart(const UnitState& s) { return !s.int8 && (s.rounds() || s.masters.bytes() > 0); }
}  // namespace

void ParamStore::init(uint64_t seed, int threads) {
  gatherer_->drop_all();
  for (auto& s : units_) {
    if (s->owner) continue;
    if (s->int8) {
      const Buffer scratch(s->layout.size * size_of(DType::kF32), compute_.device, *backend_.device);
      const Tensor whole = scratch.tensor({s->layout.size}, DType::kF32);
      init_whole(*s, whole, seed, threads);
      int8_->quantize(*s, whole);
    } else if (kept_apart(*s)) {
      const Buffer scratch(s->layout.size * size_of(DType::kF32), compute_.device, *backend_.device);
      const Tensor whole = scratch.tensor({s->layout.size}, DType::kF32);
      init_whole(*s, whole, seed, threads);
      const bool all = options_.stage == 0;
      const int64_t from = all ? 0 : s->begin(), to = from + (all ? s->layout.size : s->layout.shard);
      backend_.ops->cast({.src = all ? whole : s->own(whole), .dst = s->trained_at(from, to, from)}, compute_);
      backend_.device->synchronize(compute_);  // `scratch` is freed here
    } else if (s->values_sharded) {
      const Tensor whole = gatherer_->scratch(*s);
      init_whole(*s, whole, seed, threads);
      backend_.ops->copy({.src = s->own(whole), .dst = s->value_shard()}, compute_);
      gatherer_->free(whole);
    } else {
      init_whole(*s, s->held_values(), seed, threads);
      s->bind_values(s->held_values(), fresh_version());
    }
  }
  if (std::any_of(units_.begin(), units_.end(), [](const auto& s) { return kept_apart(*s); })) refresh_from_masters();
}

ParamUnit& ParamStore::unit(const std::string& name) {
  for (auto& s : units_)
    if (s->spec.name == name) return *s;
  GT_CHECK(false, "no FSDP unit named ", name, " on this rank");
  return *units_.front();
}

void ParamStore::begin_step(std::span<const uint8_t> unused) {
  GT_CHECK(unused.empty() || static_cast<int>(unused.size()) == total_units_, "one entry per FSDP unit of the model");
  const UnitState* before = nullptr;  // the last unit with gradients
  for (auto& s : units_) {
    s->unused = !unused.empty() && unused[static_cast<size_t>(s->spec.index)] != 0;
    const bool reduced = !s->unused && !s->frozen;
    s->ends_backward = reduced && (before == nullptr || before->spec.stage != s->spec.stage);
    if (reduced) before = s.get();
  }
  drop_squares();
  for (const Recorded& r : recorded_) record_squares(r.unit->spec.stage, options_.one_microbatch);
  reducer_->begin_step();
  gatherer_->begin(ordered_ ? &used_order() : nullptr);
}

// Merges two consecutive uses of a module when the unused ones between them are skipped.
const std::vector<UnitState*>& ParamStore::used_order() {
  running_order_.clear();
  const auto used = [&](const UnitState* s) {  // in the module at the end of the order
    auto it = running_order_.rbegin();
    while (it != running_order_.rend() && (*it)->module() == s->module() && *it != s) ++it;
    return it != running_order_.rend() && *it == s;
  };
  for (UnitState* s : step_order_)
    if (!s->unused && !used(s)) running_order_.push_back(s);
  return running_order_;
}

void ParamStore::begin_evaluation() { gatherer_->begin(ordered_ ? &evaluation_order_ : nullptr); }

void ParamStore::begin_backward(int stage, int, bool last) {
  record_squares(stage, last);
  reducer_->begin_backward(stage, last);
}
uint64_t ParamStore::fingerprint(int stage) const {
  StateHash f;
  gatherer_->add_to(f);
  reducer_->add_to(f);
  for (const auto& s : units_) {
    if (s->spec.stage != stage) continue;
    f.add(static_cast<uint64_t>(s->phase)).add(uint64_t{s->last_backward}).add(uint64_t{s->accumulated});
    f.add(uint64_t{s->unused}).add(s->open.data).add(s->gathered.data);
    for (const Parameter* p : s->spec.params) f.add(uint64_t{p->grad_dirty});
  }
  return f.value();
}

void ParamStore::reduce_grads(int stage) { reducer_->reduce_stage(stage); }
void ParamStore::reduce_tied() { reducer_->reduce_tied(); }
void ParamStore::finish_reduction(bool tied_copies) { reducer_->finish(tied_copies); }
void ParamStore::finish_tied_copies() { reducer_->finish_tied_copies(); }

namespace {
// Whether ops write a parameter's gradient as it is when norms are taken: nothing is reduced or added after them.
bool is_final_when_written(const UnitState& s, const Parameter& p, int tp_size) {
  const bool alone = !p.tied_owner || (s.copy != nullptr && s.copy->adds_to_owner());
  const AxisShard tp = p.shard.tp();
  return alone && s.domain.size == 1 && tp.dim != AxisShard::kPartial && (!tp.splits() || tp.copies(tp_size) == 1);
}
}  // namespace

// Lists the elements of a unit's own shard that this TP rank counts, or those it does not count.
void ParamStore::list_squares(const UnitState& s, bool of_counted, int group) {
  if (s.tied_copy() || s.frozen) return;  // a tied copy is counted once, by the owner
  for (const FlatSegment& g : s.own_segments())
    for (const auto& [piece, counted] : split_by_owner(s, g, mesh_)) {
      if (counted != of_counted || piece.count == 0) continue;
      Parameter& p = *s.spec.params[static_cast<size_t>(g.tensor)];
      if (piece.count == p.local_shape.numel() && is_final_when_written(s, p, mesh_.size(Axis::kTp)))
        recorded_.push_back({&s, &p, num_segments_});
      ++num_segments_;
      norms_.add({.grad = s.grads_at(piece.at, piece.at + piece.count).data, .count = piece.count, .group = group});
    }
}

void ParamStore::list_squares() {
  norms_.open(options_.grad, options_.grad, options_.grad);
  for (int index = 0; index < total_units_; ++index)
    for (const auto& s : units_)
      if (s->spec.index == index) list_squares(*s, true, index);
  for (const auto& s : units_) list_squares(*s, false, total_units_);
  const auto tensors = static_cast<int64_t>(parameters().size());
  norms_.upload(2 * tensors, compute_, *backend_.device);
  known_ = Buffer(2 * tensors * size_of(DType::kF64), compute_.device, *backend_.device);
  if (compute_.device.kind != DeviceKind::kCpu || options_.grad != DType::kF32) recorded_.clear();
}

// Of gradients in host memory that are final after this backward, ops record sums of squares.
void ParamStore::record_squares(int stage, bool last) {
  for (const Recorded& r : recorded_)
    if (r.unit->spec.stage == stage) r.parameter->squares = last ? known().as<double>() + r.segment : nullptr;
}

void ParamStore::drop_squares() const {
  if (!recorded_.empty()) std::fill_n(known().as<double>(), num_segments_, -1.0);
}

void ParamStore::norm_squares(Tensor out) {
  GT_CHECK(out.numel() == total_units_ + 1 && out.dtype == DType::kF64, "one f64 entry per FSDP unit, and one");
  backend_.device->zero(out.data, out.bytes(), compute_);
  const Tensor known_sums = recorded_.empty() ? Tensor{} : known();
  backend_.ops->sum_squares({.table = norms_.tables().front(), .out = out, .known = known_sums}, compute_);
}

// Rounds master weights to values, to nearest even, as the optimizer step does.
void ParamStore::round_masters() {
  for (auto& s : units_) {
    if (s->masters.bytes() == 0) continue;
    const int64_t from = options_.stage == 0 ? 0 : s->begin(), to = from + s->masters.bytes() / size_of(DType::kF32);
    backend_.ops->cast({.src = s->trained_at(from, to, from), .dst = s->values_at(from, to)}, compute_);
  }
}

void ParamStore::refresh_from_masters() {
  round_masters();
  gather_kept([](const UnitState&) { return true; });
}

// Recomputes values that the optimizer step does not write: the 16-bit copy of a tied f32 table, and fake-quantized
// values, which the last all_gather_values() overwrote.
void ParamStore::derive_values(UnitState& s) {
  const bool copy = s.owner != nullptr && !s.shares_values();
  if (!copy && !(s.quantizes() && s.masters.bytes() > 0)) return;
  const bool whole = options_.stage == 0;
  const int64_t from = whole ? 0 : s.begin(), to = whole ? s.layout.size : from + s.layout.shard;
  const UnitState& trained = copy ? *s.owner : s;
  backend_.ops->cast({.src = trained.trained_at(from, to, from), .dst = s.values_at(from, to)}, compute_);
}

// Frozen values are the same after a step.
void ParamStore::all_gather_values() {
  gather_kept([](const UnitState& s) { return !s.frozen; });
}

// All-gathers the values of units that are kept unsharded and fulfil `changed`.
void ParamStore::gather_kept(bool (*changed)(const UnitState&)) {
  gatherer_->drop_all();
  for (auto& s : units_)
    if (changed(*s)) derive_values(*s);
  const auto kept_whole = [&](const UnitState& s) { return changed(s) && !s.shares_values() && !s.on_use(); };
  if (options_.stage > 0) {
    for (auto& s : units_)
      if (kept_whole(*s)) s->gathering = s->domain.group->all_gather(s->value_shard(), s->held_values(), compute_);
    for (auto& s : units_)
      if (kept_whole(*s)) s->gathering.wait(compute_);
  }
  for (auto& s : units_) {
    if (!kept_whole(*s)) continue;
    if (s->quantizes()) quantizer_->apply(*s, s->held_values());
    s->bind_values(s->held_values(), fresh_version());
  }
  if (fp8_) fp8_->quantize_kept();
}

int ParamStore::int8_units() const {
  return static_cast<int>(std::count_if(units_.begin(), units_.end(), [](const auto& s) { return s->int8; }));
}

std::vector<ShardView> ParamStore::stage_int8(int k) {
  std::vector<Tensor> flat;
  for (const auto& s : units_) {
    flat.push_back(s->held_values().slice(0, 0));
    if (!s->int8 || k-- != 0) continue;
    staged_ = s.get();
    staged_values_ = Buffer(s->layout.size * size_of(DType::kF32), compute_.device, *backend_.device);
    flat.back() = staged_values_.tensor({s->layout.size}, DType::kF32);
  }
  std::vector<ShardView> out;
  append_views("master", flat, out);
  return out;
}

void ParamStore::quantize_staged() {
  GT_CHECK(staged_ != nullptr, "no unit is staged");
  gatherer_->drop_all();
  int8_->quantize(*staged_, staged_values_.tensor({staged_->layout.size}, DType::kF32));
  staged_ = nullptr;
  staged_values_ = Buffer(0, compute_.device, *backend_.device);
}

int ParamStore::num_units() const { return static_cast<int>(units_.size()); }

int64_t ParamStore::num_shards() const {
  int64_t n = 0;
  for (const auto& s : units_) n += s->domain.size;
  return n;
}

int64_t ParamStore::state_elements(int unit) const {
  const UnitState& s = *units_[static_cast<size_t>(unit)];
  if (s.owner || s.frozen) return 0;
  return options_.stage == 0 ? s.layout.size : s.layout.shard;
}

std::vector<FlatMemory> ParamStore::flat_memory() const {
  std::vector<FlatMemory> out;
  for (const auto& s : units_)
    out.push_back({.params = s->spec.params,
                   .values = s->held_values(),
                   .grads = s->held_grads(),
                   .masters = s->masters.tensor({s->masters.bytes() / size_of(DType::kF32)}, DType::kF32),
                   .values_sharded = s->values_sharded,
                   .grads_sharded = s->grads_sharded,
                   .masters_sharded = options_.stage > 0 && s->domain.size > 1,
                   .domain = s->spec.domain,
                   .padding = s->layout.pad});
  return out;
}

FlatUnit ParamStore::flat_unit(int unit) const {
  const UnitState& s = *units_[static_cast<size_t>(unit)];
  const auto first = std::find(tensors_.begin(), tensors_.end(), s.spec.params.front());
  return {.params = s.spec.params,
          .offsets = s.layout.offset,
          .first_tensor = static_cast<int>(first - tensors_.begin()),
          .size = s.layout.size,
          .begin = options_.stage == 0 ? 0 : s.begin(),
          .held = state_elements(unit),
          .domain = s.domain};
}

std::vector<Parameter*> ParamStore::parameters() const {
  std::vector<Parameter*> out;
  for (const auto& s : units_) out.insert(out.end(), s->spec.params.begin(), s->spec.params.end());
  return out;
}

int64_t ParamStore::master_bytes() const {
  int64_t n = 0;
  for (const auto& s : units_) n += s->masters.bytes();
  return n;
}

int64_t ParamStore::value_bytes() const {
  int64_t n = gatherer_->high_water() + (quantizer_ ? quantizer_->bytes() : 0) + (fp8_ ? fp8_->bytes() : 0);
  for (const auto& s : units_) n += s->values.bytes() + s->scales.bytes() + s->fp8_data.bytes();
  return n;
}

int64_t ParamStore::grad_bytes() const {
  int64_t n = reducer_->high_water();
  for (const auto& s : units_) n += s->grads.bytes();
  return n;
}

ZeroMemory ParamStore::temporary_bytes() const { return {gatherer_->high_water(), reducer_->high_water()}; }

}  // namespace gt
