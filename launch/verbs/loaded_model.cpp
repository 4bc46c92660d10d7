#include "launch/verbs/loaded_model.h"

#include "launch/train/engine_options.h"

namespace gt {

std::unique_ptr<LoadedModel> load_model(const std::string& load, const std::vector<std::string>& flags,
                                        Products products) {
  auto m = std::make_unique<LoadedModel>();
  m->step_dir = resolve_step(load);
  const std::string config_file = m->step_dir + "/config.json";
  // The layout of training is of no interest here, and the file of its schedule may be gone.
  std::vector<std::string> words{"--parallel.schedule", "1f1b", "--parallel.vpp", "1", "--parallel.partition", "flops"};
  words.insert(words.end(), flags.begin(), flags.end());
  m->config = load_config({.file = config_file, .flags = words}).config;
  Config& c = m->config;
  c.parallel.tp = c.parallel.pp = c.parallel.dp = 1;
  c.parallel.recompute = "none";  // nothing is differentiated here
  c.parallel.recompute_layers = 0;
  if (products == Products::kHalf) c.precision.fp8 = "off";
  c.train.grad_accum = 1;
  c.train.global_batch = c.train.micro_batch;
  m->backend = &choose_backend(m->config);
  const int threads = threads_per_rank(m->config, 1);
  EngineOptions options = engine_options(m->config, threads);
  options.evaluates = true;
  m->mesh = std::make_unique<Mesh>(MeshShape{}, m->factory);
  m->stream = OpenStream(*m->backend->device, 0, threads);
  m->engine = std::make_unique<Engine>(options, *m->mesh, *m->backend, m->stream, plan_memory(options, {}, 0));
  m->report = load_step(m->step_dir, m->engine->model_views(), *m->mesh, *m->backend->device, m->stream);
  m->engine->adopt();
  return m;
}

}  // namespace gt
