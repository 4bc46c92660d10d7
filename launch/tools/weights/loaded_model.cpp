#include "launch/tools/weights/loaded_model.h"

#include "launch/engine/engine_options.h"
#include "launch/options/near_path.h"
#include "launch/ranks/agree.h"
#include "launch/tools/weights/checkpoint_config.h"

namespace gt {

ModelSource find_model(const std::string& load, const std::vector<std::string>& flags, InferencePrecision precision,
                       const RankEnv& env) {
  require_path("--load", load);
  ModelSource m;
  m.precision = precision;
  m.step_dir = resolve_step(load);
  Vfs vfs;
  const StepReader step(vfs, m.step_dir);
  m.global_batch = checkpoint_config(step, {}).train.global_batch;
  // The run's batch does not apply to this layout, which has one rank unless flags change it.
  std::vector<std::string> words{"--dp", env.launched() ? "0" : "1", "--train.grad_accum",
                                 "1",    "--train.global_batch",     "0"};
  words.insert(words.end(), flags.begin(), flags.end());
  m.loaded = load_checkpoint_config(
      step, {.flags = words, .external_world = env.launched() ? env.world : 0, .world_source = env.source});
  m.loaded.notes.clear();
  Config& c = m.loaded.config;
  c.parallel.recompute = Recompute::kNone;  // no backward
  c.parallel.recompute_layers = 0;
  if (precision != InferencePrecision::k16Bit) return m;
  c.precision.fp8 = Fp8Recipe::kOff;
  c.parallel.sequence_parallel = AutoBool::kFalse;  // single tokens cannot be sharded
  c.zero.stage = std::min<int64_t>(c.zero.stage, 1);
  return m;
}

std::unique_ptr<LoadedModel> load_model(const ModelSource& source, GroupFactory& factory) {
  auto m = std::make_unique<LoadedModel>();
  m->step_dir = source.step_dir;
  m->config = source.loaded.config;
  m->device = std::make_unique<RankDevice>(m->config, factory);
  m->backend = &m->device->backend();
  const int threads = threads_per_rank(m->config, factory.local_size());
  set_cpu_may_spin(ranks_may_spin(m->config, factory.local_size(), threads));
  EngineOptions options = engine_options(m->config, threads);
  options.trains = false;
  options.lengths = source.lengths;
  options.evaluates = source.precision == InferencePrecision::kAsTrained;
  m->mesh = std::make_unique<Mesh>(mesh_shape(m->config), m->device->groups());
  m->stream = OpenStream(*m->backend->device, m->device->index(), threads);
  m->engine = std::make_unique<Engine>(options, *m->mesh, *m->backend, m->stream,
                                       plan_memory(options, m->mesh->shape(), m->mesh->rank(), *m->backend));
  agree(m->mesh->world(), [&] {
    m->report = load_step(m->step_dir, m->engine->model_views(), *m->mesh, *m->backend->device, m->stream);
  });
  m->engine->adopt();
  return m;
}

std::unique_ptr<LoadedModel> load_model(const std::string& load, const std::vector<std::string>& flags,
                                        InferencePrecision precision) {
  auto alone = std::make_unique<SelfFactory>();
  auto m = load_model(find_model(load, flags, precision), *alone);
  m->alone = std::move(alone);
  return m;
}

}  // namespace gt
