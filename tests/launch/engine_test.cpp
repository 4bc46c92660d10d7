// The engine on ranks as threads: skipped steps, stop requests, evaluation, planned against measured memory.
#include "launch/engine/engine.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/simd/isa.h"
#include "launch/tools/verify/mesh_run.h"
#include "tests/launch/engine_ranks.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int64_t kSeq = 16, kVocab = 300;

EngineOptions small(MeshShape shape) {
  EngineOptions o;
  o.model = {.layers = 2, .hidden = 32, .heads = 4, .ffn = 64, .vocab = kVocab, .seq = kSeq};
  o.loss_chunk = 24;
  o.lr = {.type = "cosine", .peak = 1e-2, .warmup_steps = 3, .total_steps = 30};
  o.optim.weight_decay = 0.1f;
  o.micro_batch = 2;
  o.microbatches = 2;
  if (shape.pp == 2) o.partition = "1,1";
  return o;
}

// Returns the base options; for pipelines also with chunks and with split backwards.
std::vector<EngineOptions> schedules_for(const EngineOptions& base, MeshShape shape) {
  std::vector<EngineOptions> out{base};
  if (shape.pp == 1) return out;
  EngineOptions o = base;
  for (const char* schedule : {"gpipe", "zb-h1"}) {
    o.schedule = schedule;
    out.push_back(o);
  }
  o.schedule = "interleaved";
  o.vpp = 2;
  o.partition = "flops";
  out.push_back(o);
  return out;
}

const std::vector<MeshShape> kLayouts{{}, {.dp = 2}, {.tp = 2}, {.pp = 2}, {.pp = 2, .dp = 2, .tp = 2}};

// Returns an element of a block's weight that this rank updates.
float* block_weight(Engine& engine) {
  for (Parameter* p : engine.store().parameters()) {
    if (p->name.find(".mlp.") == std::string::npos || p->full_shape.rank < 2) continue;
    for (const TensorRange& u : engine.store().ranges())
      for (int64_t i = 0; i < p->value.numel(); i += 7) {
        float* at = p->value.as<float>() + i;
        if (at >= u.value.as<float>() && at < u.value.as<float>() + u.value.numel()) return at;
      }
  }
  fail(Exit::kInternal, "this rank updates no block weight");
}

}  // namespace

TEST_CASE("a non-finite gradient on one rank skips the step on all and changes nothing") {
  for (const MeshShape& shape : kLayouts)
    for (int stage : {0, 1})
      for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        INFO("tp " << shape.tp << " pp " << shape.pp << " dp " << shape.dp << " zero " << stage);
        EngineOptions o = small(shape);
        o.zero.stage = stage;
        std::vector<std::vector<float>> clean(static_cast<size_t>(shape.world()));
        on_engines(o, shape, [&](EngineRank& r) {
          r.step(0);
          r.step(1);
          clean[static_cast<size_t>(r.mesh.rank())] = r.state();
        });
        on_engines(o, shape, [&](EngineRank& r) {
          GT_CHECK(!r.step(0).skipped, "a clean step was skipped");
          const bool mine = r.mesh.rank() == shape.world() - 1;
          float none = 0, *weight = mine ? block_weight(r.engine) : &none;
          const float keep = *weight;
          if (mine) *weight = bad;
          const std::vector<float> before = r.own_values();
          const StepResult s = r.step(7);
          GT_CHECK(s.skipped, "the step was not skipped");
          GT_CHECK(!std::isfinite(s.grad_norm), "the norm is ", s.grad_norm);
          GT_CHECK(r.engine.applied_steps() == 1, "applied steps ", r.engine.applied_steps());
          const std::vector<float> after = r.own_values();
          GT_CHECK(before.size() == after.size() && std::memcmp(before.data(), after.data(), before.size() * 4) == 0,
                   "weights changed");
          if (mine) *weight = keep;
          r.engine.store().all_gather_values();
          const StepResult next = r.step(1);
          GT_CHECK(!next.skipped && r.engine.applied_steps() == 2, "the step after a skipped one");
          // Weights and moments as if the skipped step had not happened.
          GT_CHECK(r.state() == clean[static_cast<size_t>(r.mesh.rank())], "a skipped step left traces");
        });
      }
}

TEST_CASE("a stop requested on one rank stops all") {
  for (const MeshShape& shape : kLayouts)
    for (int who = 0; who < shape.world(); who += std::max(1, shape.world() - 1))
      on_engines(small(shape), shape, [&](EngineRank& r) {
        GT_CHECK(!r.step(0).stop, "nobody wished to stop");
        GT_CHECK(r.step(1, r.mesh.rank() == who).stop, "rank ", who, "'s stop flag was lost");
        GT_CHECK(!r.step(2).stop, "the stop flag outlived its step");
      });
}

TEST_CASE("evaluation returns the training loss of the same weights and tokens and changes nothing") {
  for (const MeshShape& shape : kLayouts) {
    INFO("tp " << shape.tp << " pp " << shape.pp << " dp " << shape.dp);
    std::vector<std::vector<float>> alone(static_cast<size_t>(shape.world()));
    on_engines(small(shape), shape, [&](EngineRank& r) {
      for (int k = 0; k < 3; ++k) r.step(k);
      alone[static_cast<size_t>(r.mesh.rank())] = r.state();
    });
    double first = 0;
    on_engines(small(shape), shape, [&](EngineRank& r) {
      const int m = r.engine.options().microbatches;
      for (int k = 0; k < 3; ++k) {
        const double sum = r.evaluate(k, m);
        GT_CHECK(sum == r.evaluate(k, m), "evaluation is not repeatable");
        const StepResult s = r.step(k);
        GT_CHECK(sum / static_cast<double>(r.targets(m)) == s.loss, "evaluation ",
                 sum / static_cast<double>(r.targets(m)), ", training ", s.loss);
        if (k == 0 && r.mesh.rank() == 0) first = s.loss;
      }
      GT_CHECK(r.state() == alone[static_cast<size_t>(r.mesh.rank())], "evaluation changed weights or state");
      GT_CHECK(r.engine.applied_steps() == 3, "evaluation counted as a step");
      const double two = r.evaluate(0, 2 * m), both = r.evaluate(0, m);
      GT_CHECK(two > both, "more microbatches, more loss");
    });
    CHECK(first == Approx(std::log(kVocab)).epsilon(0.02));  // an untrained model predicts uniformly
  }
}

TEST_CASE("evaluation leaves out the terms of the training loss that regularize: z-loss and dropout") {
  for (const MeshShape& shape : kLayouts) {
    INFO("tp " << shape.tp << " pp " << shape.pp << " dp " << shape.dp);
    std::vector<double> evaluated, trained;
    for (const bool regularized : {false, true}) {
      EngineOptions o = small(shape);
      if (regularized) o.model.z_loss = 0.5, o.model.dropout = 0.3, o.model.attn_dropout = 0.3;
      on_engines(o, shape, [&](EngineRank& r) {
        const double sum = r.evaluate(0, r.engine.options().microbatches);
        const StepResult s = r.step(0);
        if (r.mesh.rank() == 0) evaluated.push_back(sum), trained.push_back(s.loss);
      });
    }
    CHECK(evaluated[0] == evaluated[1]);
    CHECK(trained[1] > trained[0] + 5);  // 0.5 log(300)^2 is 16
  }
}

TEST_CASE("loss, norm, clip factor and rate of a step are equal on every rank") {
  const MeshShape shape{.pp = 2, .dp = 2, .tp = 2};
  EngineOptions o = small(shape);
  o.grad_clip = 0.05f;
  std::vector<StepResult> results(8);
  on_engines(o, shape, [&](EngineRank& r) {
    r.engine.set_applied_steps(1);  // as after a resume: the next step is step 2
    results[static_cast<size_t>(r.mesh.rank())] = r.step(0);
  });
  for (const StepResult& s : results) {
    CHECK(s.loss == results[0].loss);
    CHECK(s.grad_norm == results[0].grad_norm);
    CHECK(s.clip == results[0].clip);
    CHECK(s.lr == Approx(1e-2 * 2 / 3).epsilon(1e-6));
  }
  CHECK(results[0].grad_norm > 0.05);
  CHECK(results[0].clip == Approx(0.05 / (results[0].grad_norm + 1e-6)).epsilon(1e-5));
}

TEST_CASE("a wrong number of microbatches is refused") {
  on_engines(small({}), {}, [](EngineRank& r) {
    EngineBatches three(r.engine.options(), 0, 0, 1, 3);
    for (const bool train : {true, false}) {
      std::string error;
      try {
        if (train)
          r.engine.step(three.list, 1);
        else
          r.engine.evaluate(three.list);
      } catch (const Error& e) { error = e.what(); }
      GT_CHECK(error.find(train ? "a step takes 2 microbatches, got 3" : "whole steps of 2 microbatches") !=
                   std::string::npos,
               error);
    }
  });
}

TEST_CASE("memory planned without computing equals the memory of a real run, byte for byte") {
  for (const MeshShape& shape : kLayouts)
    for (const auto& [tied, int8] : {std::pair{true, false}, {false, false}, {true, true}}) {
      EngineOptions o = small(shape);
      o.model.tied = tied;
      if (int8) {
        o.model.lora.rank = 2, o.precision.frozen_int8 = true;
        o.zero.stage = shape.dp > 1 ? 3 : 1, o.zero.persist_numel = 0;
      }
      o.microbatches = 4;
      for (const EngineOptions& with : schedules_for(o, shape)) {
        INFO("tp " << shape.tp << " pp " << shape.pp << " dp " << shape.dp << " " << with.schedule << " vpp "
                   << with.vpp << (int8 ? " LoRA, int8" : ""));
        on_engines(with, shape, [&](EngineRank& r) {
          const EnginePlan plan = plan_memory(with, shape, r.mesh.rank());
          r.step(0);
          r.evaluate(0, with.microbatches);
          const EnginePlan real = r.engine.measured_plan();
          const auto same = [](const char* what, int64_t planned, int64_t used) {
            GT_CHECK(planned == used, what, ": planned ", planned, ", used ", used);
          };
          same("activations of training", plan.train.activation_bytes, real.train.activation_bytes);
          same("activation gradients", plan.train.gradient_bytes, real.train.gradient_bytes);
          same("boundaries of training", plan.train.boundary_bytes, real.train.boundary_bytes);
          same("activations of evaluation", plan.eval.activation_bytes, real.eval.activation_bytes);
          same("boundaries of evaluation", plan.eval.boundary_bytes, real.eval.boundary_bytes);
          same("slots", plan.slots, real.slots);
          same("weights", plan.memory.weights, real.memory.weights);
          same("gradients", plan.memory.gradients, real.memory.gradients);
          same("optimizer", plan.memory.optimizer, real.memory.optimizer);
          same("copies of weights", plan.memory.copies, real.memory.copies);
          same("all", plan.memory.total(), real.memory.total());
          GT_CHECK(plan.train.activation_bytes > 0 && plan.train.gradient_bytes > 0, "an empty plan");
        });
      }
    }
}

TEST_CASE("copies of weights in the CPU's blocked layouts are included in the memory plan") {
  if (cpu::best_isa() == CpuIsa::kAmx) set_cpu_isa(CpuIsa::kAvx512);  // AMX takes none
  for (const MeshShape& shape : {MeshShape{}, MeshShape{.tp = 2}, MeshShape{.pp = 2}}) {
    EngineOptions o = small(shape);
    o.model.ffn = 2048;  // rows of 1024 floats or more are whole pages apart: always copied
    on_engines(o, shape, [&](EngineRank& r) {
      const int64_t planned = plan_memory(o, shape, r.mesh.rank()).memory.copies;
      r.step(0);
      r.evaluate(0, o.microbatches);
      const int64_t kept = r.engine.measured_plan().memory.copies;
      GT_CHECK(planned == kept && planned > 0, "copies of weights: planned ", planned, ", kept ", kept);
    });
  }
  set_cpu_isa(CpuIsa::kAuto);
}

TEST_CASE("a tied table whose copies diverge is found at the next comparison, which debug builds make") {
  CHECK(EngineOptions().compare_copies_every == (BoundaryOptions().check_ordinals ? 100 : 0));
  for (const MeshShape& shape : {MeshShape{.pp = 2}, MeshShape{.pp = 2, .dp = 2, .tp = 2}})
    for (int zero : {0, 1, 3}) {
      MeshRun run;
      run.engine = small(shape);
      run.engine.zero.stage = zero;
      run.engine.zero.persist_numel = 0;
      run.engine.compare_copies_every = 3;
      run.mesh = shape;
      run.steps = 4;
      run.samples = synthetic_samples(16, kSeq, kVocab, 3);
      CHECK_NOTHROW(run_mesh(run));
      MeshHooks hooks;
      run.hooks = &hooks;
      hooks.after_step = [](Engine& engine, int step) {
        if (step != 1 || !engine.mesh().last_stage()) return;
        for (const ShardView& v : engine.store().value_views())  // the copy has its owner's name
          if (v.name == "master/embed.weight" && v.begin == 0) v.data.as<float>()[0] += 1;
      };
      INFO("pp 2 dp " << shape.dp << " zero " << zero);
      CHECK_THROWS_WITH(run_mesh(run),
                        Catch::Contains("the copies of embed.weight on the first and the last stage differ"));
      run.engine.compare_copies_every = 0;
      CHECK_NOTHROW(run_mesh(run));
    }
}
