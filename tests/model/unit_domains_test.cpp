// Blocks of two FSDP units: the dense parameters of a Transformer block, and matrices that are split over ep and
// replicated over expert_dp alone, as experts are. In any layout they train as on one rank, and their layouts are
// proved by types.
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "model/layers/norm.h"
#include "model/stage_units.h"
#include "model/transformer.h"
#include "parallel/comm/threads/thread_group.h"
#include "parallel/pipeline/executor.h"
#include "parallel/proof/layout_proof.h"
#include "parallel/zero/shard_copy.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int64_t kBlocks = 4, kHidden = 16, kWide = 24, kVocab = 40, kSeq = 8;
constexpr int kSequences = 16;  // of a step

TransformerConfig config() {
  return {.layers = kBlocks, .hidden = kHidden, .heads = 4, .ffn = 32, .vocab = kVocab, .seq = kSeq, .tied = false};
}

// Gives every block of the model the matrices "experts.up" and "experts.down", in units of their own.
ModelSpec with_experts(ModelSpec m) {
  std::vector<UnitEntry> units;
  for (size_t l = 0; l < m.layers.size(); ++l) {
    LayerSpec& layer = m.layers[l];
    const int before = static_cast<int>(units.size()) - layer.first_unit;
    for (ParamSpec& p : m.params)
      if (p.layer == static_cast<int>(l)) p.unit += before;
    const auto first = m.units.begin() + layer.first_unit;
    units.insert(units.end(), first, first + layer.units);
    layer.first_unit += before;
    if (layer.type != "block") continue;
    const std::string module = layer.modules.front();
    for (const bool up : {true, false}) {
      ParamSpec p{.name = module + (up ? ".experts.up" : ".experts.down"),
                  .shape = up ? Shape{kWide, kHidden} : Shape{kHidden, kWide},
                  .shard = ShardSpec::split(up ? 0 : 1, 1, Axis::kEp),
                  .init = {Init::Kind::kNormal, 0.3f},
                  .role = Role::kExpert};
      p.layer = static_cast<int>(l), p.unit = static_cast<int>(units.size());
      m.index[p.name] = m.params.size();
      m.params.push_back(p);
    }
    units.push_back({module + ".experts", module, kExpertDomain});
    ++layer.units;
  }
  m.units = units;
  return m;
}

// x + down(gelu(up(x))), whose inner channels are split over ep: every rank applies its own to the rows of all.
class WideBlock : public Module {
 public:
  WideBlock(const std::string& name, const Build& b)
      : Module(name), ep_(b.mesh.group(Axis::kEp)), dense_(name, b, nullptr), experts_(name + ".experts", b) {
    child(dense_);
    child(experts_);
  }
  Var operator()(Tape& t, Var x, const MicroBatch& mb) {
    x = Block::join(t, dense_(t, {x, {}, {}}, mb, ops::Keep::kOutputs, 1));
    const Var all = ops::gather_rows(t, x, ep_);
    const Var h = ops::gelu(t, ops::linear(t, all, experts_.up, nullptr));
    const Var y =
        ops::linear(t, h, experts_.down, nullptr, ep_.size() > 1 ? ops::Output::kTransient : ops::Output::kKept);
    return ops::add(t, x, ops::scatter_rows(t, y, ep_));
  }

 private:
  struct Experts : Module {
    Experts(const std::string& name, const Build& b) : Module(name), up(param("up", b)), down(param("down", b)) {}
    Parameter &up, &down;
  };
  ProcessGroup& ep_;
  Block dense_;
  Experts experts_;
};

class WideStage : public PipelineStage {
  static constexpr int kTokens = 0;

 public:
  WideStage(LayerRange range, int stage, const Build& b, std::vector<double> keep, bool recompute)
      : keep_(std::move(keep)), recompute_(recompute) {
    for (int i = range.begin; i < range.end; ++i)
      for (const std::string& name : b.model.layers[static_cast<size_t>(i)].modules) {
        const auto add = [&](auto& module) { units.add(module, b.model, stage); };
        if (name == "embed") add(*(embed_ = std::make_unique<VocabTable>(name, b, false)));
        if (name == "pos_embed") add(*(position_ = std::make_unique<PositionTable>(name, b)));
        if (name == "final_norm") add(*(norm_ = std::make_unique<Norm>(name, b)));
        if (name == "head") add(*(head_ = std::make_unique<VocabTable>(name, b, true)));
        if (name.rfind("layers.", 0) != 0) continue;
        blocks_.emplace_back(i - 1, std::make_unique<WideBlock>(name, b));
        add(*blocks_.back().second);
      }
  }
  Shape boundary(const MicroBatch& mb) const override { return {mb.batch * mb.seq, kHidden}; }
  Var forward(Tape& t, Var x, const MicroBatch& mb) override {
    if (embed_) {
      units.use(t, *embed_, [&] { x = embed_->lookup(t, mb.tokens); });
      units.use(t, *position_, [&] { x = (*position_)(t, x, mb); });
    }
    for (auto& [i, block] : blocks_) {
      if (keep_[static_cast<size_t>(i)] == 0) continue;
      const auto run = [this, b = block.get(), mb](Tape& tape, Var in) {
        Var out;
        units.use(tape, *b, [&] { out = (*b)(tape, in, mb); });
        return out;
      };
      x = recompute_ ? ops::recompute(t, x, run) : run(t, x);
    }
    if (norm_) units.use(t, *norm_, [&] { x = (*norm_)(t, x, nullptr).out; });
    if (!head_) return x;
    units.use(t, *head_, [&] { x = head_->loss(t, x, mb, 64); });
    ops::keep_loss(t, mb, 0, x);
    return x;
  }
  std::span<const int> losses() const override { return {&kTokens, head_ ? size_t{1} : 0}; }
  StageUnits units;

 private:
  const std::vector<double> keep_;
  const bool recompute_;
  std::unique_ptr<VocabTable> embed_, head_;
  std::unique_ptr<PositionTable> position_;
  std::vector<std::pair<int, std::unique_ptr<WideBlock>>> blocks_;
  std::unique_ptr<Norm> norm_;
};

struct Layout {
  MeshShape mesh;
  std::string schedule = "1f1b";
  int vpp = 1, microbatches = 1;
  ZeroOptions zero;
  bool recompute = false;
  std::string text() const {
    return cat("pp ", mesh.pp, " dp ", mesh.dp, " cp ", mesh.cp, " ep ", mesh.ep, " tp ", mesh.tp, " ", schedule,
               " vpp ", vpp, " microbatches ", microbatches, " zero ", zero.stage, " reduce ",
               static_cast<int>(zero.grad_reduce), recompute ? " recompute" : "");
  }
};

// What a step leaves: logical gradients and values, how often each element was saved, the loss, and the squared norm.
struct Result {
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, std::vector<int>> times;
  double loss = 0, square = 0;
  std::mutex mutex;
  void add(const std::vector<ShardView>& views) {
    for (const ShardView& v : views) {
      if (!v.save) continue;
      auto& out = tensors[v.name];
      auto& count = times[v.name];
      out.resize(static_cast<size_t>(v.full.numel()));
      count.resize(out.size());
      std::vector<float> part(static_cast<size_t>(v.data.numel()));
      fetch_view(v, part.data(), cpu_backend(), {});
      for (int64_t i = 0; i < v.data.numel(); ++i)
        if (const int64_t at = logical_offset(v, v.begin + i); at >= 0)
          out[static_cast<size_t>(at)] = part[static_cast<size_t>(i)], ++count[static_cast<size_t>(at)];
    }
  }
};

std::vector<StagePass> read_order(const PipelineSchedule& s, int rank) {
  std::vector<StagePass> out;
  for (const Action& a : s.program[static_cast<size_t>(rank)])
    if (a.act == Act::kForward || a.act == Act::kBackward || a.act == Act::kBackwardInput)
      out.push_back({a.stage, a.act != Act::kForward});
  return out;
}

// One rank's stages, parameters and executor.
class Rank {
 public:
  Rank(const Layout& l, const std::vector<double>& keep, const Mesh& mesh, const Backend& backend, Stream stream)
      : model_(with_experts(describe(config()))) {
    const Build build{.model = model_, .mesh = mesh};
    const std::vector<int> cut = partition("flops", model_.layer_costs(), l.mesh.pp * l.vpp);
    std::vector<PipelineStage*> local;
    std::vector<UnitSpec> units;
    for (int chunk = 0; chunk < l.vpp; ++chunk) {
      const int stage = chunk * l.mesh.pp + mesh.coord(Axis::kPp);
      const LayerRange range{cut[static_cast<size_t>(stage)], cut[static_cast<size_t>(stage) + 1]};
      stages_.push_back(std::make_unique<WideStage>(range, stage, build, keep, l.recompute));
      local.push_back(stages_.back().get());
      for (UnitSpec& u : stages_.back()->units.specs()) units.push_back(std::move(u));
    }
    ZeroOptions zero = l.zero;
    zero.grad_reduce = grad_reduce_of(zero, l.mesh.pp, l.microbatches);
    store_ = std::make_unique<ParamStore>(std::move(units), static_cast<int>(model_.units.size()), zero, mesh, backend,
                                          stream);
    for (auto& s : stages_) s->units.bind(*store_);
    const PipelineSchedule schedule = make_schedule(l.schedule, l.mesh.pp, l.vpp, l.microbatches);
    store_->set_order(read_order(schedule, mesh.coord(Axis::kPp)), {});
    executor_ =
        std::make_unique<PipelineExecutor>(schedule, local, mesh, *backend.ops, *backend.device, stream,
                                           ExecutorMemory{.activation_bytes = 8 << 20, .gradient_bytes = 8 << 20});
    mark_unused_units(model_, keep, unused_);
  }
  ParamStore& store() { return *store_; }
  int64_t units() const { return static_cast<int64_t>(model_.units.size()); }
  void step(std::span<const MicroBatch> list, Tensor losses) {
    const GradHooks hooks{[this](int stage, int mb, bool last) { store_->begin_backward(stage, mb, last); },
                          [this](int stage) { store_->reduce_grads(stage); }, [this] { store_->reduce_tied(); },
                          [this](int stage) { return store_->fingerprint(stage); }};
    store_->begin_step(unused_);
    executor_->run(list, losses, hooks);
    store_->finish_reduction();
  }

 private:
  const ModelSpec model_;
  std::vector<std::unique_ptr<WideStage>> stages_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<PipelineExecutor> executor_;
  std::vector<uint8_t> unused_;
};

// Two steps on the same weights: the second finds buffers, orders and flags as the first left them.
void train(const Layout& l, const std::vector<double>& keep, GroupFactory& f, Result& result) {
  const Mesh mesh(l.mesh, f);
  Rank rank(l, keep, mesh, cpu_backend(), {});
  ParamStore& store = rank.store();
  store.init(7, 1);
  const int ranks = l.mesh.dp * l.mesh.cp, mine = mesh.coord(Axis::kDp) * l.mesh.cp + mesh.coord(Axis::kCp);
  const int64_t batch = kSequences / (ranks * l.microbatches);
  std::vector<int32_t> tokens(kSequences * (kSeq + 1));
  std::mt19937 draw(3);
  for (int32_t& token : tokens) token = static_cast<int32_t>(draw() % kVocab);
  float seed = 1.f / (kSequences * kSeq);
  std::vector<std::vector<int32_t>> inputs, targets;
  std::vector<MicroBatch> list;
  for (int m = 0; m < l.microbatches; ++m) {
    auto& in = inputs.emplace_back();
    auto& out = targets.emplace_back();
    for (int64_t s = (mine * l.microbatches + m) * batch; s < (mine * l.microbatches + m + 1) * batch; ++s)
      for (int64_t i = 0; i < kSeq; ++i)
        in.push_back(tokens[static_cast<size_t>(s * (kSeq + 1) + i)]),
            out.push_back(tokens[static_cast<size_t>(s * (kSeq + 1) + i + 1)]);
  }
  for (int m = 0; m < l.microbatches; ++m) {
    const auto at = static_cast<size_t>(m);
    MicroBatch& mb = list.emplace_back();
    mb.batch = batch, mb.seq = kSeq, mb.train = true;
    mb.tokens = {reinterpret_cast<std::byte*>(inputs[at].data()), {batch, kSeq}, DType::kI32, {}};
    mb.targets = {reinterpret_cast<std::byte*>(targets[at].data()), {batch, kSeq}, DType::kI32, {}};
    mb.dloss = {reinterpret_cast<std::byte*>(&seed), {1}, DType::kF32, {}};
  }
  std::vector<double> losses(static_cast<size_t>(l.microbatches)), squares(static_cast<size_t>(rank.units() + 1));
  for (int step = 0; step < 2; ++step)
    rank.step(list, {reinterpret_cast<std::byte*>(losses.data()), {1, l.microbatches}, DType::kF64, {}});
  store.norm_squares(
      {reinterpret_cast<std::byte*>(squares.data()), {static_cast<int64_t>(squares.size())}, DType::kF64, {}});
  const std::lock_guard lock(result.mutex);
  result.add(store.grad_views());
  result.add(store.value_views());
  for (const double s : squares) result.square += s;
  result.square -= squares.back();
  // Of the ranks of the last stage with one tp coordinate, which have the same losses.
  if (mesh.last_stage() && mesh.coord(Axis::kTp) == 0)
    for (const double x : losses) result.loss += x;
}

// Returns what of two steps of a rank is wrong by the types of its tensors; "" if it is proved.
std::string wrong_by_types(const Layout& l, const std::vector<double>& keep, int rank,
                           std::vector<proof::Site>* sites = nullptr, const std::optional<proof::Fault>& fault = {}) {
  proof::LayoutProof proof(l.mesh, rank, fault);
  const DeviceApi& device = *proof.backend().device;
  const Stream stream = device.open_stream(0, 1);
  const Mesh mesh(l.mesh, proof.factory());
  try {
    Rank r(l, keep, mesh, proof.backend(), stream);
    const int64_t batch = kSequences / (l.mesh.dp * l.mesh.cp * l.microbatches);
    const Buffer ids(batch * kSeq * size_of(DType::kI32), stream.device, device),
        sums((l.microbatches + r.units() + 2) * size_of(DType::kF64), stream.device, device);
    MicroBatch mb;
    mb.batch = batch, mb.seq = kSeq, mb.train = true;
    mb.tokens = mb.targets = ids.tensor({batch, kSeq}, DType::kI32);
    mb.dloss = sums.tensor({1}, DType::kF32);
    const Tensor doubles = sums.tensor({l.microbatches + r.units() + 2}, DType::kF64);
    proof.begin(r.store(), mb.tokens, {batch * kSeq * kHidden, false});
    for (int step = 0; step < 2; ++step) {
      r.step(std::vector(static_cast<size_t>(l.microbatches), mb),
             doubles.slice(1, l.microbatches).view({1, l.microbatches}));
      r.store().norm_squares(doubles.slice(1 + l.microbatches, r.units() + 1));
    }
    if (sites != nullptr) *sites = proof.sites();
    return "";
  } catch (const Error& e) { return e.what(); }
}

void run(const Layout& l, const std::vector<double>& keep, Result& out) {
  ThreadWorld world(l.mesh.world(), std::chrono::seconds(60));
  std::vector<std::string> errors(static_cast<size_t>(l.mesh.world()));
  std::vector<std::thread> ranks;
  for (int r = 0; r < l.mesh.world(); ++r)
    ranks.emplace_back([&, r] {
      try {
        train(l, keep, *world.factory(r), out);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
        world.abort(r, e.what());
      }
    });
  for (std::thread& t : ranks) t.join();
  CHECK(errors == std::vector<std::string>(errors.size()));
}

Layout random_layout(std::mt19937& draw) {
  const auto one_of = [&](std::initializer_list<int> values) {
    return *(values.begin() + static_cast<ptrdiff_t>(draw() % values.size()));
  };
  Layout l;
  do l.mesh = {.pp = one_of({1, 1, 2, 3}), .dp = one_of({1, 2, 4}), .cp = one_of({1, 1, 2}), .tp = one_of({1, 1, 2})};
  while (l.mesh.world() > 8 || l.mesh.dp * l.mesh.cp == 1);
  do l.mesh.ep = one_of({1, 2, 2, 4, 4, 8});
  while (l.mesh.dp * l.mesh.cp % l.mesh.ep != 0);
  l.microbatches = one_of({1, 2});
  if (l.mesh.pp == 2 && draw() % 2 == 0)
    l.schedule = "interleaved", l.vpp = 2, l.microbatches = 2;
  else if (l.mesh.pp > 1)
    l.schedule = draw() % 2 == 0 ? "gpipe" : "zb-h1";
  l.zero.stage = one_of({0, 1, 2, 3, 3});
  l.zero.bucket_bytes = one_of({1, 1 << 12, 1 << 20});
  l.zero.overlap = draw() % 4 != 0;
  l.zero.persist_numel = 0;
  l.recompute = draw() % 3 == 0 && l.schedule != "zb-h1";  // which defers weight gradients
  return l;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    size = std::max(size, std::fabs(static_cast<double>(b[i])));
  }
  return most / std::max(size, 1e-30);
}

}  // namespace

TEST_CASE("blocks of two FSDP units, of dense parameters and experts, train in 40 layouts as on one rank") {
  std::mt19937 draw(11);
  const std::vector<double> all(kBlocks, 1), dropped{1, 0, 1, 1};
  Result one, one_dropped;
  run({.zero = {.persist_numel = 0}}, all, one);
  run({.zero = {.persist_numel = 0}}, dropped, one_dropped);
  CHECK(std::fabs(one.loss / (kSequences * kSeq) - std::log(kVocab)) < 1);
  CHECK(distance(one_dropped.tensors.at("grad/layers.1.experts.up"), one.tensors.at("grad/layers.1.experts.up")) == 1);
  for (int n = 0; n < 40; ++n) {
    const Layout l = random_layout(draw);
    const bool drops = n % 4 == 3;
    const Result& expected = drops ? one_dropped : one;
    INFO(l.text() << (drops ? " one block dropped" : ""));
    Result is;
    run(l, drops ? dropped : all, is);
    CHECK(std::fabs(is.loss - expected.loss) < 1e-5 * expected.loss);
    CHECK(std::fabs(is.square - expected.square) < 1e-5 * expected.square);
    REQUIRE(is.tensors.size() == expected.tensors.size());
    for (const auto& [name, values] : expected.tensors) {
      INFO(name);
      CHECK(is.times.at(name) == std::vector<int>(values.size(), 1));
      CHECK(distance(is.tensors.at(name), values) < 1e-5);
    }
  }
}

TEST_CASE("a block's units are in the order of its forward, and a dropped block uses none of them") {
  const ModelSpec m = with_experts(describe(config()));
  REQUIRE(m.units.size() == 2 + 2 * kBlocks + 2);
  CHECK(m.units[2].name == "layers.0");
  CHECK(m.units[3].name == "layers.0.experts");
  CHECK(m.units[3].domain == kExpertDomain);
  std::vector<uint8_t> unused;
  mark_unused_units(m, std::vector<double>{1, 0, 0.5, 1}, unused);
  CHECK(unused == std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0});
  for (const ParamSpec& p : m.params) {
    const UnitEntry& unit = m.units[static_cast<size_t>(p.unit)];
    INFO(p.name);
    CHECK(p.name.rfind(unit.module + ".", 0) == 0);
    CHECK(unit.domain == p.domain());
  }
}

TEST_CASE("layouts of dense parameters and experts are proved by types, and every fault of a collective is found") {
  using proof::Along;
  std::mt19937 draw(11);
  const std::vector<double> all(kBlocks, 1), dropped{1, 0, 1, 1};
  int64_t faults = 0, of_experts = 0;
  std::vector<std::string> missed;
  for (int n = 0; n < 40; ++n) {
    const Layout l = random_layout(draw);
    const std::vector<double>& keep = n % 4 == 3 ? dropped : all;
    INFO(l.text());
    for (int rank = 0; rank < l.mesh.world(); rank += l.mesh.world() / l.mesh.pp) {
      std::vector<proof::Site> sites;
      REQUIRE(wrong_by_types(l, keep, rank, &sites) == "");
      const int in_cp = std::min(l.mesh.ep, l.mesh.cp), in_dp = l.mesh.ep / in_cp;
      for (const proof::Site& site : sites) {
        if (l.zero.stage == 0 && site.op == CommOp::kAllGather && site.part.rank == 1) continue;  // nothing is updated
        std::vector<proof::Fault> kinds{{site, 0, site.over}};
        if (site.op != CommOp::kAllGather) kinds.push_back({site, 2, site.over});  // a gather may be repeated
        for (const auto& [a, size] : {std::pair{Along::kDp, l.mesh.dp / in_dp},
                                      {Along::kDpInEp, in_dp},
                                      {Along::kCp, l.mesh.cp / in_cp},
                                      {Along::kCpInEp, in_cp},
                                      {Along::kTp, l.mesh.tp}})
          if (size > 1 && site.over != std::vector{a}) kinds.push_back({site, 1, {a}});
        for (const proof::Fault& fault : kinds) {
          ++faults, of_experts += l.mesh.ep > 1;
          if (wrong_by_types(l, keep, rank, nullptr, fault) != "") continue;
          missed.push_back(cat(l.text(), " rank ", rank, ": ", proof::to_string(site), ", ", fault.times,
                               " times over ", proof::name_of(fault.over.front())));
        }
      }
    }
  }
  CHECK(missed == std::vector<std::string>{});
  CHECK(faults > 800);
  CHECK(of_experts > 400);
}
