// Assembles the records of all ranks: shards are placed into logical tensors, replicas are compared with their owner.
#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "launch/tools/verify/mesh_run.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

void scatter(const RecordedTensor& p, Logical& out) {
  std::vector<float>& full = out[logical_name(p.view.name)];
  full.resize(static_cast<size_t>(p.view.full.numel()), std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < p.values.size(); ++i)
    if (const int64_t at = logical_offset(p.view, p.view.begin + static_cast<int64_t>(i)); at >= 0)
      full[static_cast<size_t>(at)] = p.values[i];
}

std::vector<float> rounded(std::vector<float> x, DType t) {
  if (t != DType::kBF16 && t != DType::kF16) return x;
  const Backend& cpu = cpu_backend();
  const Tensor wide = host_tensor(std::span(x));
  const Buffer narrow(wide.numel() * size_of(t), {}, *cpu.device);
  cpu.ops->cast({.src = wide, .dst = narrow.tensor({wide.numel()}, t)}, {});
  cpu.ops->cast({.src = narrow.tensor({wide.numel()}, t), .dst = wide}, {});
  return x;
}

// Vocabulary padding must be 0, every other element the owner's, rounded to the dtype of the copy: at O1 a frozen tied
// head holds 16 bits of an f32 table.
bool same(const RecordedTensor& p, const std::vector<float>& full) {
  std::vector<float> expected(p.values.size());
  for (size_t i = 0; i < p.values.size(); ++i)
    if (const int64_t at = logical_offset(p.view, p.view.begin + static_cast<int64_t>(i)); at >= 0)
      expected[i] = full[static_cast<size_t>(at)];
  return p.values == rounded(std::move(expected), p.dtype);
}

bool in_group(const RecordedTensor& p, const char* group) { return p.view.name.rfind(group, 0) == 0; }

void find_stale(const std::vector<RankRecord>& records, std::vector<Snapshot>& steps, MeshResult& out) {
  for (size_t r = 0; r < records.size(); ++r)
    for (const RecordedTensor& p : records[r].pieces) {
      if (!in_group(p, "master/") || p.step == kInitial) continue;
      const std::string name = logical_name(p.view.name);
      std::vector<int>& ranks = out.holders[name];
      if (std::find(ranks.begin(), ranks.end(), static_cast<int>(r)) == ranks.end())
        ranks.push_back(static_cast<int>(r));
      const Logical& owner = steps[static_cast<size_t>(p.step)].weights;
      const auto it = owner.find(name);
      const bool known = std::any_of(out.stale.begin(), out.stale.end(), [&](const StaleCopy& s) {
        return s.name == name && s.rank == static_cast<int>(r) && s.step == p.step;
      });
      if (!known && (it == owner.end() || !same(p, it->second)))
        out.stale.push_back({name, static_cast<int>(r), p.step});
    }
}

}  // namespace

MeshResult assemble(const MeshRun& run, std::vector<RankRecord> records) {
  MeshResult out;
  out.losses = records.front().losses;
  out.norms = records.front().norms;
  const std::vector<LossTerm> terms = describe(run.engine.model).losses;
  for (size_t i = 0; terms.size() > 1 && i < terms.size(); ++i) {
    std::vector<double>& of_term = out.parts.emplace_back(terms[i].name, std::vector<double>()).second;
    for (size_t at = i; at < records.front().parts.size(); at += terms.size())
      of_term.push_back(records.front().parts[at]);
  }
  out.eval_loss = records.front().eval_loss;
  out.eval_hits = records.front().eval_hits;
  std::vector<Snapshot> steps(static_cast<size_t>(run.steps));
  for (const RankRecord& r : records) {
    for (const RecordedTensor& p : r.pieces) {
      if (!p.view.save) continue;
      if (p.step == kInitial) {
        scatter(p, out.initial);
        continue;
      }
      Snapshot& s = steps[static_cast<size_t>(p.step)];
      const bool grad = in_group(p, "grad/"), value = in_group(p, "master/");
      scatter(p, grad ? s.grads : value ? s.weights : s.state);
      const std::string name = logical_name(p.view.name);
      if (value && std::find(out.order.begin(), out.order.end(), name) == out.order.end()) out.order.push_back(name);
    }
    for (const auto& [key, prints] : r.activations)
      out.activations[key].insert(out.activations[key].end(), prints.begin(), prints.end());
    for (const std::string& m : r.module_order)
      if (std::find(out.modules.begin(), out.modules.end(), m) == out.modules.end()) out.modules.push_back(m);
  }
  for (size_t r = 0; r < records.size(); ++r) {
    out.derived_calls += records[r].derived_calls;
    if (records[r].wrong_call.empty()) continue;
    out.wrong_calls.push_back({records[r].wrong_call, static_cast<int>(r), records[r].wrong_step});
  }
  find_stale(records, steps, out);
  out.grads = steps.front().grads;
  out.weights = steps.back().weights;
  out.state = steps.back().state;
  out.steps = std::move(steps);
  return out;
}

}  // namespace gt
