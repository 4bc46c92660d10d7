// Memory and traffic of each ZeRO stage: planned on the null backend for large models, against closed forms.
#include <deque>
#include <map>
#include <set>

#include "launch/engine/engine_options.h"
#include "launch/observe/banner.h"
#include "parallel/zero/flat_layout.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr GradReduce kEach = GradReduce::kEach, kEnd = GradReduce::kEnd, kAuto = GradReduce::kAuto;

EngineOptions options_of(const TransformerConfig& model, int stage, GradReduce reduce, int microbatches = 3) {
  EngineOptions o;
  o.model = model;
  o.zero.stage = stage;
  o.zero.grad_reduce = reduce;
  o.zero.bucket_bytes = 1;
  o.microbatches = microbatches;
  o.evaluates = false;
  return o;
}

const TransformerConfig kSmall{.layers = 6, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 1000, .seq = 32};
const TransformerConfig kLarge{.layers = 48, .hidden = 1600, .heads = 16, .ffn = 6400, .vocab = 50257, .seq = 1024};

// Padded flat sizes of the FSDP units of pipeline rank `rank` in forward order. 1f1b, one chunk a rank.
struct UnitSizes {
  std::vector<int64_t> size;
  bool tied_here = false;  // the last one is a second copy of the first one
};

UnitSizes unit_sizes(const EngineOptions& o, const MeshShape& mesh, int rank) {
  const TransformerConfig& c = o.model;
  const int64_t t = mesh.tp, h = c.hidden;
  const auto flat = [&](std::vector<int64_t> numels) { return flat_layout(numels, mesh.dp).size; };
  const int64_t table = flat({padded_vocab(c.vocab, t) / t * h});
  const std::vector<int> bounds = stage_boundaries(o, mesh.pp);
  UnitSizes out;
  for (int i = bounds[static_cast<size_t>(rank)]; i < bounds[static_cast<size_t>(rank) + 1]; ++i) {
    if (i == 0) {
      out.size.push_back(table);
      out.size.push_back(flat({c.seq * h}));
    } else if (i <= c.layers) {
      out.size.push_back(
          flat({h, h, 3 * h * h / t, 3 * h / t, h * h / t, h, h, h, h * c.ffn / t, c.ffn / t, c.ffn * h / t, h}));
    } else {
      out.size.push_back(i == c.layers + 1 ? flat({h, h}) : table);
    }
  }
  out.tied_here = c.tied && mesh.pp == 1;
  return out;
}

int64_t sum(const std::vector<int64_t>& v) {
  int64_t n = 0;
  for (int64_t x : v) n += x;
  return n;
}
// Elements updated by a step: without the second copy.
int64_t updated(const UnitSizes& s) { return sum(s.size) - (s.tied_here ? s.size.back() : 0); }

// All-gather volume and peak size of prefetch windows of w FSDP units in execution order over m microbatches, computed
// independently from the sets themselves. Small units stay whole.
struct Windows {
  int64_t gathered = 0, most = 0;
};
Windows windows(const UnitSizes& s, const std::vector<bool>& backward, size_t w, int64_t persist) {
  std::vector<size_t> use;
  const size_t n = s.size.size();
  for (bool back : backward)
    for (size_t i = 0; i < n; ++i) {
      size_t k = back ? n - 1 - i : i;
      if (s.tied_here && k == n - 1) k = 0;
      if (s.size[k] >= persist && (use.empty() || use.back() != k)) use.push_back(k);
    }
  Windows out;
  std::set<size_t> before;
  for (size_t at = 0; at < use.size(); ++at) {
    const std::set<size_t> now(use.begin() + static_cast<ptrdiff_t>(at),
                               use.begin() + static_cast<ptrdiff_t>(std::min(at + w + 1, use.size())));
    int64_t live = 0;
    for (size_t k : now) {
      out.gathered += before.count(k) ? 0 : s.size[k];
      live += s.size[k];
    }
    out.most = std::max(out.most, live);
    before = now;
  }
  return out;
}

// Returns the forwards (false) and backwards (true) of a pipeline rank in 1f1b.
std::vector<bool> passes(int pp, int rank, int m) {
  const PipelineSchedule s = one_f_one_b(pp, m);
  std::vector<bool> out;
  for (const Action& a : s.program[static_cast<size_t>(rank)]) out.push_back(a.act == Act::kBackward);
  return out;
}

std::string text(const MeshShape& m, const EngineOptions& o, int rank) {
  return cat("tp ", m.tp, " pp ", m.pp, " dp ", m.dp, " zero ", o.zero.stage, " grad_reduce ",
             static_cast<int>(o.zero.grad_reduce), " prefetch ", o.zero.prefetch, " m ", o.microbatches,
             o.model.tied ? " tied" : " untied", " pipeline rank ", rank);
}

}  // namespace

TEST_CASE("elements sent in a step equal the closed forms exactly, padding included") {
  for (const MeshShape& mesh : {MeshShape{.dp = 2}, MeshShape{.dp = 4}, MeshShape{.dp = 3, .tp = 2},
                                MeshShape{.pp = 2, .dp = 2}, MeshShape{.pp = 3, .dp = 8, .tp = 2}})
    for (bool tied : {true, false})
      for (int m : {1, 4})
        for (int stage : {0, 1, 2, 3})
          for (GradReduce reduce : {kEach, kEnd}) {
            if (stage < 2 && reduce == kEach) continue;
            for (int prefetch : {0, 1, 2}) {
              if (stage < 3 && prefetch != 1) continue;
              EngineOptions o = options_of(kSmall, stage, reduce, m);
              o.model.tied = tied;
              o.zero.prefetch = prefetch;
              o.zero.persist_numel = 5000;  // the position embedding and the final norm stay whole
              for (int rank = 0; rank < mesh.pp; ++rank) {
                INFO(text(mesh, o, rank));
                const UnitSizes s = unit_sizes(o, mesh, rank);
                const auto sent = [&](int64_t elements) { return elements * (mesh.dp - 1) / mesh.dp * 4; };
                const CommCounters c = plan_memory(o, mesh, rank * mesh.dp * mesh.tp).sent.data_parallel;
                CHECK(c.bytes(CommOp::kReduceScatter) == sent(sum(s.size)) * (reduce == kEach ? m : 1));
                int64_t gathered = updated(s);
                if (stage == 3) {
                  int64_t whole = 0;
                  for (size_t k = 0; k + (s.tied_here ? 1 : 0) < s.size.size(); ++k)
                    whole += s.size[k] < 5000 ? s.size[k] : 0;
                  gathered = whole + windows(s, passes(mesh.pp, rank, m), static_cast<size_t>(prefetch), 5000).gathered;
                }
                CHECK(c.bytes(CommOp::kAllGather) == sent(gathered));
                CHECK(c.total() == c.bytes(CommOp::kAllGather) + c.bytes(CommOp::kReduceScatter));
              }
            }
          }
}

TEST_CASE("stage 3 gathers twice a microbatch, less the units kept at the turns between forward and backward") {
  const MeshShape mesh{.dp = 4};
  const int m = 5;
  for (bool tied : {true, false}) {
    EngineOptions o = options_of(kSmall, 3, kAuto, m);
    o.model.tied = tied;
    o.zero.prefetch = 0;
    o.zero.persist_numel = 0;
    const UnitSizes s = unit_sizes(o, mesh, 0);
    const auto sent = [&](int64_t elements) { return elements * (mesh.dp - 1) / mesh.dp * 4; };
    const int64_t first = s.size.front(), last = s.size.back(), all = sum(s.size);
    const int64_t gathered = 2 * m * all - m * last - (m - 1) * first;
    const CommCounters each = plan_memory(o, mesh, 0).sent.data_parallel;
    CHECK(each.bytes(CommOp::kAllGather) == sent(gathered));
    CHECK(each.bytes(CommOp::kReduceScatter) == m * sent(all));  // total: 3m a, minus reuse at the turns
    o.recompute = Recompute::kFull;  // one gather serves a block's recomputation and backward
    CHECK(plan_memory(o, mesh, 0).sent.data_parallel.bytes(CommOp::kAllGather) == each.bytes(CommOp::kAllGather));
    o.recompute = Recompute::kNone;
    o.zero.grad_reduce = kEnd;
    const CommCounters end = plan_memory(o, mesh, 0).sent.data_parallel;
    CHECK(end.bytes(CommOp::kAllGather) == each.bytes(CommOp::kAllGather));
    CHECK(end.bytes(CommOp::kReduceScatter) == sent(all));  // total: (2m + 1) a, minus reuse at the turns
  }
}

TEST_CASE("bytes of parameters, gradients and optimizer state are the closed forms") {
  constexpr double kW = 4, kG = 4, kK = 8;
  for (const MeshShape& mesh :
       {MeshShape{.dp = 2}, MeshShape{.dp = 8}, MeshShape{.dp = 4, .tp = 2}, MeshShape{.dp = 64, .tp = 4},
        MeshShape{.pp = 2, .dp = 4}, MeshShape{.pp = 4, .dp = 8, .tp = 2}, MeshShape{.pp = 3, .dp = 16}})
    for (int stage : {0, 1, 2, 3})
      for (GradReduce reduce : {kEach, kEnd}) {
        if (stage < 2 && reduce == kEach) continue;
        const EngineOptions o = options_of(kLarge, stage, reduce);
        for (int rank = 0; rank < mesh.pp; ++rank) {
          INFO(text(mesh, o, rank));
          const UnitSizes s = unit_sizes(o, mesh, rank);
          const auto psi = static_cast<double>(updated(s)), n = static_cast<double>(mesh.dp);
          const auto grads = static_cast<double>(sum(s.size));  // a second copy has its own gradients
          double expected = stage == 0 ? (kW + kK) * psi + kG * grads : kK * psi / n;
          if (stage == 1 || stage == 2) expected += kW * psi;
          if (stage == 3)
            expected += kW * psi / n +
                        kW * static_cast<double>(windows(s, passes(mesh.pp, rank, 3), 1, o.zero.persist_numel).most);
          if (stage > 0) expected += kG * (reduce == kEach && stage > 1 ? grads / n : grads);
          const MemoryReport plan = plan_memory(o, mesh, rank * mesh.dp * mesh.tp).memory;
          auto held = static_cast<double>(plan.weights + plan.gradients + plan.optimizer);
          if (stage > 1 && reduce == kEach) {
            // Unsharded gradients in flight: the largest unit and at most the one before it, depending on a stage's
            // last unit.
            const auto alive = static_cast<double>(plan_memory(o, mesh, rank * mesh.dp * mesh.tp).zero.gradients);
            const auto largest = static_cast<double>(*std::max_element(s.size.begin(), s.size.end()));
            CHECK(alive >= kG * largest);
            CHECK(alive <= kG * static_cast<double>(largest + 2 * s.size[s.size.size() / 2]) * 1.02);
            held -= alive;
          }
          CHECK(held == Approx(expected).epsilon(0.02));
        }
      }
}

TEST_CASE("small buckets without overlap keep one unit of whole gradients, with overlap two") {
  TransformerConfig c = kLarge;
  c.vocab = 1000;  // blocks are the largest units
  const MeshShape mesh{.dp = 8};
  EngineOptions o = options_of(c, 2, kEach);
  const int64_t block = unit_sizes(o, mesh, 0).size[5];
  const int64_t norm = 2 * c.hidden * 4, table = padded_vocab(1000, 1) * c.hidden * 4;
  o.zero.overlap = false;
  CHECK(plan_memory(o, mesh, 0).zero.gradients == block * 4);
  o.zero.overlap = true;
  const int64_t two = plan_memory(o, mesh, 0).zero.gradients;
  CHECK(two >= 2 * block * 4);
  CHECK(two <= 2 * block * 4 + norm + table + 4096);  // alignment
  o.zero.bucket_bytes = block * 4 * 3;                // three blocks in flight while three fill
  CHECK(plan_memory(o, mesh, 0).zero.gradients > 5 * block * 4);
}

TEST_CASE("evaluation and a larger prefetch take the memory of their windows") {
  EngineOptions o = options_of(kSmall, 3, kAuto);
  const MeshShape mesh{.dp = 4};
  o.zero.persist_numel = 0;
  const UnitSizes s = unit_sizes(o, mesh, 0);
  for (size_t prefetch : {0, 1, 3})
    for (bool evaluates : {false, true}) {
      o.zero.prefetch = static_cast<int>(prefetch);
      o.evaluates = evaluates;
      const int64_t most = 4 * windows(s, passes(1, 0, 3), prefetch, 0).most;
      const int64_t planned = plan_memory(o, mesh, 0).zero.gathered;
      CHECK(planned >= most);
      if (prefetch < 2) CHECK(planned == most);  // no gaps between two neighbours
      CHECK(planned <= most + 4 * *std::max_element(s.size.begin(), s.size.end()));
    }
}

TEST_CASE("the start block reports what a ZeRO stage holds and sends, and the cost of the other reduction mode") {
  const auto bytes = [](const EngineOptions& o, const MeshShape& mesh) {
    return zero_text(o, mesh, plan_stages(o, mesh, cpu_backend()), cpu_backend());
  };
  const std::string one = bytes(options_of(kSmall, 1, kAuto), {.dp = 4});
  CHECK_THAT(one, Catch::StartsWith("stage 1: a rank holds ") && Catch::Contains("a step (reduce-scatter "));
  CHECK(one.find("grad_reduce") == std::string::npos);
  const std::string two = bytes(options_of(kSmall, 2, kAuto), {.dp = 4});
  CHECK_THAT(two, Catch::StartsWith("stage 2, gradients reduced after each microbatch: a rank holds "));
  CHECK(two.find("zero.grad_reduce") == std::string::npos);
  const std::string piped = bytes(options_of(kSmall, 2, kAuto), {.pp = 2, .dp = 4});
  CHECK_THAT(piped, Catch::StartsWith("stage 2, gradients reduced at the end of the step: a rank holds ") &&
                        Catch::Contains("\nwith zero.grad_reduce each: a rank holds "));
}

TEST_CASE("the config's ZeRO keys reach the engine") {
  const auto options = [](std::vector<std::string> flags) {
    return engine_options(load_config({.flags = std::move(flags)}).config, 1).zero;
  };
  const ZeroOptions plain = options({});
  CHECK(plain.stage == 1);
  CHECK(plain.grad_reduce == kAuto);
  CHECK(plain.prefetch == 1);
  CHECK(plain.persist_numel == 100000);
  const ZeroOptions all =
      options({"--zero", "3", "--zero.grad_reduce", "end", "--zero.prefetch", "2", "--zero.persist_numel", "7",
               "--zero.overlap", "false", "--zero.bucket_bytes", "9", "--zero.offload", "optimizer"});
  CHECK(all.stage == 3);
  CHECK(all.grad_reduce == kEnd);
  CHECK(all.prefetch == 2);
  CHECK(all.persist_numel == 7);
  CHECK_FALSE(all.overlap);
  CHECK(all.bucket_bytes == 9);
  CHECK(options({"--zero", "2", "--zero.grad_reduce", "each"}).grad_reduce == kEach);
}
