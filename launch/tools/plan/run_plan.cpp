#include "launch/tools/plan/run_plan.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/core/text.h"
#include "launch/config/config_precision.h"
#include "launch/engine/engine_options.h"
#include "launch/observe/predict.h"
#include "launch/observe/utilization.h"
#include "launch/options/console_text.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

const EnginePlan& largest(const RunPlan& p) { return p.stages[static_cast<size_t>(p.limiting)]; }

std::string seconds_text(double s) {
  return s < 0.1  ? fmt::format("{:.3g} ms", 1e3 * s)
         : s < 10 ? fmt::format("{:.0f} ms", 1e3 * s)
                  : fmt::format("{:.2f} s", s);
}

// Bytes that the limiting rank sends in a step, by link type.
struct Traffic {
  double inside = 0, across = 0;
};

Traffic traffic(const RunPlan& p, int64_t per_node) {
  const StepTraffic& t = largest(p).sent;
  const auto& par = p.config.parallel;
  Traffic out;
  const auto add = [&](const CommCounters& c, int64_t reach) {
    (reach <= per_node ? out.inside : out.across) += static_cast<double>(c.total());
  };
  add(t.tensor_parallel, par.tp), add(t.key_value, par.tp);
  add(t.data_parallel, par.tp * par.dp), add(t.expert_data_parallel, par.tp * par.dp), add(t.experts, par.tp * par.ep);
  add(t.pipeline, p.config.world()), add(t.embedding, p.config.world());
  return out;
}

struct WholeRun {
  double seconds, tokens, device_hours, steps;
};
WholeRun whole_run(const RunPlan& p, const RunPrice& price) {
  const double steps =
      price.tokens > 0 ? std::ceil(price.tokens / p.tokens()) : static_cast<double>(p.config.train.steps);
  const double seconds = steps * p.step();
  return {seconds, steps * p.tokens(), seconds / 3600 * static_cast<double>(p.config.world()), steps};
}

}  // namespace

RunPlan plan_run(const Config& config, const DeviceType& device, const MachineModel& machine) {
  RunPlan p;
  p.config = config;
  Config target = config;
  target.device.kind = DeviceChoice::kCuda;  // weight layouts and logit chunks as on a GPU
  const EngineOptions o = engine_options(target, 1);
  const MeshShape mesh = mesh_shape(target);
  p.stages = plan_stages(o, mesh, null_backend());
  for (size_t k = 0; k < p.stages.size(); ++k)
    if (p.stages[k].memory.total() > largest(p).memory.total()) p.limiting = static_cast<int64_t>(k);
  p.usable = kUsableShare * device.memory;
  p.needed = static_cast<double>(largest(p).memory.total()) + p.libraries;
  p.bubble = predict_pipeline(o, mesh.pp).bubble;
  p.terms = step_terms(workload_of(config), machine);
  const StepFlops flops = step_flops(o, mesh.pp, config.train.global_batch * config.model.seq, config.model.seq, -1);
  p.flops = flops.causal, p.hardware_flops = flops.hardware;
  p.peak = machine.peak * static_cast<double>(config.world());
  return p;
}

RunPlan plan_here(const Config& config, const MeasuredTimes& times, std::string_view transport,
                  const CoreShare& share) {
  RunPlan p;
  p.config = config;
  const EngineOptions o = engine_options(config, share.threads);
  const MeshShape mesh = mesh_shape(config);
  p.stages = plan_stages(o, mesh, cpu_backend());
  Machine machine{"this machine", std::vector<int>(static_cast<size_t>(mesh.world()))};
  std::iota(machine.ranks.begin(), machine.ranks.end(), 0);
  const MemoryFit fit = fullest_device(mesh, p.stages, cpu_backend(), {machine});
  p.limiting = mesh.coord(Axis::kPp, fit.limiting_rank);
  p.needed = static_cast<double>(fit.needed), p.usable = static_cast<double>(fit.usable);
  p.machine = true, p.libraries = 0, p.sharing = mesh.world();
  p.bubble = predict_pipeline(o, mesh.pp).bubble;
  const StepPrediction t = predict_step(o, mesh, p.stages, times, transport, share);
  p.terms = {.linear = t.gemms,
             .attention = t.attention,
             .elementwise = t.passes,
             .tensor_parallel = t.tensor_parallel,
             .p2p = t.messages,
             .bubble = t.bubble,
             .data_parallel = t.data_parallel,
             .optimizer = t.update};
  p.trained = times.step(layout_key(config));
  p.calls = t.calls, p.estimated = t.estimated;
  const StepFlops flops = step_flops(o, mesh.pp, config.train.global_batch * config.model.seq, config.model.seq, -1);
  p.flops = flops.causal, p.hardware_flops = flops.hardware;
  p.peak = std::numeric_limits<double>::quiet_NaN();
  return p;
}

std::string layout_flags(const Config& c) {
  return fmt::format(
      "--tp {} --pp {} --dp {}{} --parallel.schedule {} --parallel.vpp {} --parallel.recompute {} --zero.stage {} "
      "--train.micro_batch {}",
      c.parallel.tp, c.parallel.pp, c.parallel.dp, c.parallel.ep > 1 ? fmt::format(" --ep {}", c.parallel.ep) : "",
      shell_word(c.parallel.schedule), c.parallel.vpp, name_of(c.parallel.recompute), c.zero.stage,
      c.train.micro_batch);
}

std::string layout_key(const Config& c) {
  const EngineOptions o = engine_options(c, 1);
  const bool each = grad_reduce_of(o.zero, static_cast<int>(c.parallel.pp), o.microbatches) == GradReduce::kEach;
  return fmt::format("{} {}, {}, batch {}, sequence_parallel {}, in flight {}, reduce {}, amp {}, fp8 {}, optim {}",
                     c.model.arch, correction_key(c.model, static_cast<int>(c.world())), layout_flags(c),
                     c.train.global_batch, o.sequence_parallel, o.extra_in_flight, each ? "each" : "end",
                     name_of(c.precision.amp), name_of(c.precision.fp8), c.optim.type);
}

std::string plan_text(const RunPlan& p, const std::string& device, int64_t per_node, const std::string& constants,
                      const RunPrice& price) {
  const Config& c = p.config;
  const double step = p.step(), share = p.needed / p.usable;
  const MemoryReport& m = largest(p).memory;
  Rows rows;
  rows.push_back({"layout", fmt::format("tp {} pp {} dp {}{}{}, ZeRO {}, {} on {} {}", c.parallel.tp, c.parallel.pp,
                                        c.parallel.dp, c.parallel.ep > 1 ? fmt::format(" ep {}", c.parallel.ep) : "",
                                        c.parallel.vpp > 1 ? fmt::format(" vpp {}", c.parallel.vpp) : "", c.zero.stage,
                                        c.world() == 1 ? "1 rank" : fmt::format("{} ranks", c.world()),
                                        p.machine ? "this machine's" : device,
                                        p.machine        ? "CPUs"
                                        : c.world() == 1 ? "device"
                                                         : "devices")});
  rows.push_back({"batch", fmt::format("{} sequences of {} tokens: micro_batch {}, {} microbatches; recompute {}",
                                       c.train.global_batch, c.model.seq, c.train.micro_batch, c.train.grad_accum,
                                       name_of(c.parallel.recompute))});
  const std::string who =
      p.sharing == 1 ? fmt::format("pipeline rank {} needs", p.limiting) : fmt::format("{} ranks need", p.sharing);
  rows.push_back({"memory", fmt::format("{}: {} {} of {} ({:.0f} %)",
                                        !p.fits()      ? "does not fit"
                                        : share > 0.92 ? "tight"
                                                       : "fits",
                                        who, format_bytes(p.needed), format_bytes(p.usable), 100 * share)});
  rows.push_back({"", (p.sharing == 1 ? "" : fmt::format("pipeline rank {}: ", p.limiting)) + memory_line(m) +
                          (p.libraries > 0 ? fmt::format(", libraries {}", format_bytes(p.libraries)) : "")});
  if (c.parallel.ep > 1) {
    Config planned = c;
    if (!p.machine) planned.device.kind = DeviceChoice::kCuda;
    rows.push_back({"experts", expert_memory(engine_options(planned, 1), mesh_shape(c),
                                             p.machine ? cpu_backend() : null_backend())});
  }
  const double planned = p.terms.total();
  if (!std::isnan(p.trained)) rows.push_back({"measured", fmt::format("{} in a trial", seconds_text(step))});
  rows.push_back({"step", fmt::format("{} ({})", seconds_text(planned), constants)});
  std::string parts;
  for (const auto& [name, seconds] : p.terms.list())
    if (seconds > 0.005 * planned)
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, seconds_text(seconds));
  rows.push_back({"", parts});
  if (p.estimated > 0)
    rows.push_back({"", fmt::format("{} of {} op calls estimated from other shapes; --calibrate measures them",
                                    p.estimated, p.calls)});
  rows.push_back({"throughput", fmt::format("{} tokens/s{}", format_count(p.tokens() / step),
                                            std::isnan(p.peak) ? fmt::format(", {:.1f} GFLOP/s", p.flops / step * 1e-9)
                                                               : fmt::format(", MFU {:.1f} %, HFU {:.1f} %",
                                                                             100 * p.flops / step / p.peak,
                                                                             100 * p.hardware_flops / step / p.peak))});
  rows.push_back({"bubble", fmt::format("{:.1f} % of the pipeline's time", 100 * p.bubble)});
  const Traffic t = traffic(p, per_node);
  rows.push_back({"traffic", fmt::format("{} per step and rank within nodes, {} across nodes", format_bytes(t.inside),
                                         format_bytes(t.across))});
  const WholeRun all = whole_run(p, price);
  std::string run = fmt::format("{} for {} steps, {} tokens, {} device hours", format_duration(all.seconds),
                                format_count(all.steps), format_count(all.tokens), format_count(all.device_hours));
  if (price.watts > 0) run += fmt::format(", {} kWh", format_count(all.device_hours * price.watts / 1000));
  if (price.device_hour > 0)
    run += fmt::format(", {} at {:g} per device hour", format_count(all.device_hours * price.device_hour),
                       price.device_hour);
  rows.push_back({"run", run});
  return block(rows);
}

std::string plan_json(const RunPlan& p, const std::string& device, const std::string& constants,
                      const RunPrice& price) {
  const Config& c = p.config;
  const MemoryReport& m = largest(p).memory;
  const double step = p.step();
  std::string out = "{";
  const auto raw = [&](const char* key, const std::string& value) {
    out += fmt::format("{}\"{}\": {}", out.size() > 1 && out.back() != '{' ? ", " : "", key, value);
  };
  const auto number = [&](const char* key, double value) { raw(key, json_number(value)); };
  const auto text = [&](const char* key, const std::string& value) {
    std::string quoted;
    append_json_string(quoted, value);
    raw(key, quoted);
  };
  text("device_type", device), text("constants", constants);
  for (const auto& [key, value] : {std::pair{"tp", c.parallel.tp},
                                   {"pp", c.parallel.pp},
                                   {"vpp", c.parallel.vpp},
                                   {"dp", c.parallel.dp},
                                   {"ep", c.parallel.ep},
                                   {"zero", c.zero.stage},
                                   {"micro_batch", c.train.micro_batch},
                                   {"microbatches", c.train.grad_accum},
                                   {"global_batch", c.train.global_batch}})
    raw(key, std::to_string(value));
  text("recompute", name_of(c.parallel.recompute)), text("schedule", c.parallel.schedule);
  text("flags", layout_flags(c));
  raw("fits", p.fits() ? "true" : "false");
  raw("limiting_pipeline_rank", std::to_string(p.limiting));
  number("usable_bytes", p.usable), number("needed_bytes", p.needed);
  raw("memory_bytes", "{");
  for (const auto& [key, value] : {std::pair{"weights", m.weights},
                                   {"gradients", m.gradients},
                                   {"optimizer", m.optimizer},
                                   {"activations", m.activations},
                                   {"buffers", m.buffers}})
    raw(key, std::to_string(value));
  number("libraries", p.libraries);
  out += "}";
  number("step_seconds", step);
  if (!std::isnan(p.trained)) number("planned_step_seconds", p.terms.total());
  raw("step_terms", "{");
  for (const auto& [name, seconds] : p.terms.list()) number(name, seconds);
  out += "}";
  number("tokens_per_second", p.tokens() / step);
  if (!std::isnan(p.peak)) number("mfu", p.flops / step / p.peak), number("hfu", p.hardware_flops / step / p.peak);
  if (p.calls > 0) raw("op_calls", std::to_string(p.calls)), raw("op_calls_estimated", std::to_string(p.estimated));
  number("bubble", p.bubble);
  const WholeRun all = whole_run(p, price);
  number("run_seconds", all.seconds), number("run_tokens", all.tokens), number("device_hours", all.device_hours);
  if (price.watts > 0) number("kwh", all.device_hours * price.watts / 1000);
  if (price.device_hour > 0) number("cost", all.device_hours * price.device_hour);
  return out + "}\n";
}

}  // namespace gt
