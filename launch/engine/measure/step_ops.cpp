#include "launch/engine/measure/step_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "kernels/core/fields.h"
#include "kernels/core/open_stream.h"
#include "launch/engine/measure/module_timer.h"
#include "model/model_spec.h"
#include "parallel/comm/null_group.h"

namespace gt {
namespace {

// Clears fields that change from call to call, or from block to block, without affecting the work.
void normalize(DropMask& m) { m.key = 0, m.first_sample = 0, m.first_sample_at = nullptr; }
template <class Args>
void normalize(Args& a) {
  if constexpr (requires { a.drop.mask; }) normalize(a.drop.mask);
  if constexpr (requires { a.b_version; }) a.b_version = a.b_version > 0;
  if constexpr (std::is_same_v<Args, StochasticRound>) a.key = 0, a.base = a.first = 0;
  if constexpr (OverSegments<Args>) a.table.device = {}, a.table.host = nullptr;
}

template <class Args>
std::vector<Segment> segments_of(const Args& a) {
  std::vector<Segment> out;
  if constexpr (OverSegments<Args>) out.assign(a.table.segments().begin(), a.table.segments().end());
  const auto normalize_address = [](auto*& p) {
    if (p != nullptr) p = reinterpret_cast<std::decay_t<decltype(p)>>(0x100 | (reinterpret_cast<uintptr_t>(p) & 0xff));
  };
  for (Segment& s : out)
    normalize_address(s.master), normalize_address(s.grad), normalize_address(s.m), normalize_address(s.v),
        normalize_address(s.value);
  return out;
}
bool same_segments(const std::vector<Segment>& a, const std::vector<Segment>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits<Segment>);
}

// Replaces addresses by tensor numbers.
template <class Args>
Args with_tensor_numbers(Args a) {
  std::map<std::byte*, uintptr_t> index;
  each_operand(a, [&](const char*, Tensor& t, OperandRole) {
    if (!t) return;
    const uintptr_t number = index.try_emplace(t.data, index.size() + 1).first->second;
    t.data = reinterpret_cast<std::byte*>((number << 40) | (reinterpret_cast<uintptr_t>(t.data) & 0xff));
  });
  normalize(a);
  return a;
}

// Maps "layers.3.attn.qkv.weight" to "attn.qkv".
std::string module_of(const std::string& parameter) {
  constexpr std::string_view kBlock = "layers.*.";
  const std::string name = leaf_class(parameter), module = name.substr(0, name.rfind('.'));
  return module.starts_with(kBlock) ? module.substr(kBlock.size()) : module;
}

bool lies_in(const Tensor& t, const std::byte* p) { return t && p >= t.data && p < t.data + t.bytes(); }

class Recorder;
thread_local Recorder* recorder = nullptr;

class Recorder {
 public:
  explicit Recorder(const ParamStore& store) : parameters_(store.parameters()) { recorder = this; }
  ~Recorder() { recorder = nullptr; }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  template <class Args>
  void add(const char* op, const Args& args) {
    const Args plain = with_tensor_numbers(args);
    std::vector<Segment> segments = segments_of(args);
    std::string what = name(args);
    const auto same = [&](const OpCall& c) {
      const Args* other = std::get_if<Args>(&c.args);
      return other != nullptr && c.what == what && c.update == update_ && same_bits(*other, plain) &&
             same_segments(c.segments, segments);
    };
    auto it = std::find_if(calls_.begin(), calls_.end(), same);
    if (it == calls_.end())
      it = calls_.insert(calls_.end(), {op, std::move(what), update_, plain, std::move(segments), op_cost(args)});
    ++it->calls;
    if constexpr (requires { args.b_version; })
      if (args.b_version > 0) it->packs += packed_.emplace(args.b.data, direction_of(args)).second;
  }
  void update_begins() { update_ = true; }
  std::vector<OpCall> take() { return std::move(calls_); }

 private:
  // Returns the module whose weight or gradient a call uses and, for GEMMs, which of the three it is.
  template <class Args>
  std::string name(const Args& args) const {
    if (OpOf<Args>::kInfo.kind == OpClass::kOptimizer) return "";
    if (OpOf<Args>::kInfo.kind == OpClass::kGemm && update_) return "update";
    std::string module;
    bool gradient = false;
    each_operand(args, [&](const char*, const Tensor& t, OperandRole) {
      for (const Parameter* p : parameters_) {
        if (!module.empty() || !t) return;
        gradient = lies_in(p->grad, t.data);
        if (gradient || lies_in(p->value, t.data) || lies_in(p->fp8_data.rowwise, t.data) ||
            lies_in(p->fp8_data.columnwise, t.data))
          module = module_of(counted_parameter(p->name, OpOf<Args>::kInfo.kind));
      }
    });
    if (OpOf<Args>::kInfo.kind != OpClass::kGemm || module.empty()) return module;
    return module + (gradient                                    ? " weight gradient"
                     : direction_of(args) == Direction::kForward ? " forward"
                                                                 : " input gradient");
  }

  std::vector<Parameter*> parameters_;
  std::vector<OpCall> calls_;
  std::set<std::pair<const std::byte*, Direction>> packed_;
  bool update_ = false;
};

struct RecordOps {
  template <class Args>
  static void before(const char* op, const Args& args) {
    if (recorder != nullptr) recorder->add(op, args);
  }
};

std::string types(std::initializer_list<Tensor> list) {
  std::string out;
  for (const Tensor& t : list) out += cat(out.empty() ? "" : " ", name_of(t.dtype));
  return out;
}

template <class Args>
std::string gemm_text(const Args& g, int64_t inner) {
  return fmt::format("{} x {} x {}{}{}", g.out.shape.rows(), g.out.shape.cols(), inner, g.bias ? ", bias" : "",
                     g.accumulate ? ", added" : "");
}
std::string text_of(const Gemm& g) {
  std::string out = gemm_text(g, g.trans_a ? g.a.shape.rows() : g.a.shape.cols());
  if (g.epilogue != Epilogue::kNone) out += g.epilogue == Epilogue::kGelu ? ", gelu" : ", gelu'";
  if (g.dbias) out += ", bias gradient";
  return cat(out, ", ", types({g.a, g.out}));
}
std::string text_of(const GemmFp8& g) { return cat(gemm_text(g, g.a.shape.cols()), ", ", types({g.a, g.b, g.out})); }
std::string text_of(std::monostate) { return ""; }
template <class Args>
std::string text_of(const Args& args) {
  std::string out;
  if constexpr (OverSegments<Args>)
    return fmt::format("[{}] in {} {}, {}", args.table.elements, args.table.count,
                       args.table.count == 1 ? "segment" : "segments", name_of(args.table.grad));
  each_operand(args, [&](const char*, const Tensor& t, OperandRole) {
    if (out.empty() && t) out = cat(to_string(t.shape), " ", name_of(t.dtype));
  });
  return out;
}

}  // namespace

std::vector<OpCall> step_ops(const EngineOptions& options, const MeshShape& shape, int rank) {
  Backend backend = null_backend();
  backend.ops = &decorate<RecordOps>(*null_backend().ops);
  NullFactory factory(rank, shape.world());
  const Mesh mesh(shape, factory);
  const OpenStream stream(*backend.device, 0, 1);
  EngineOptions quiet = options;
  quiet.evaluates = false, quiet.expert_load = 1;
  Engine engine(quiet, mesh, backend, stream, plan_memory(quiet, shape, rank));
  const Shape s{options.micro_batch, options.model.seq};
  const Buffer tokens(s.numel() * size_of(DType::kI32), stream.device(), *backend.device);
  const MicroBatch mb = empty_batch(options, tokens.tensor(s, DType::kI32));
  const std::vector<MicroBatch> batch(static_cast<size_t>(options.microbatches), mb);
  engine.adopt();  // FP8 weights exist from the first step on
  if (options.precision.fp8 == Fp8Recipe::kDelayed)
    for (ModelStage* stage : engine.stages())
      for (Fp8State* range : stage->fp8_states()) range->scale.has_history = true;
  Recorder record(engine.store());
  engine.set_update_hook([&] { record.update_begins(); });
  engine.step(batch, options.micro_batch * options.model.seq);
  return record.take();
}

std::vector<OpCall> by_class(std::vector<OpCall> calls) {
  std::vector<OpCall> out;
  std::map<std::string, size_t> index;
  for (OpCall& c : calls) {
    const std::string signature =
        cat(c.op, "|", c.what, "|", c.update, "|", shape_text(c.args), "|", c.cost.bytes, "|", c.cost.fused_bytes);
    const auto [it, fresh] = index.try_emplace(signature, out.size());
    if (fresh)
      out.push_back(std::move(c));
    else
      out[it->second].calls += c.calls, out[it->second].packs += c.packs;
  }
  std::stable_sort(out.begin(), out.end(), [](const OpCall& a, const OpCall& b) { return a.cost.kind < b.cost.kind; });
  return out;
}

std::string shape_text(const OpArgs& args) {
  return std::visit([](const auto& a) { return text_of(a); }, args);
}

}  // namespace gt
