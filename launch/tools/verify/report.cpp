#include "launch/tools/verify/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "launch/engine/engine_options.h"
#include "launch/tools/verify/layouts.h"
#include "model/model_spec.h"

namespace gt {
namespace {

std::string ranges(const std::set<int>& s) {
  std::string out;
  for (auto it = s.begin(); it != s.end();) {
    auto last = it;
    while (std::next(last) != s.end() && *std::next(last) == *last + 1) ++last;
    out += fmt::format("{}{}", out.empty() ? "" : ",", *it);
    if (last != it) out += fmt::format("-{}", *last);
    it = std::next(last);
  }
  return out;
}

// Maps "exp_avg/layers.3.norm1.weight" to "layers.*.norm1.weight".
std::string class_of(const Difference& d) {
  return leaf_class(d.quantity == Quantity::kState ? d.name.substr(d.name.find('/') + 1) : d.name);
}

std::string number(double x) { return x < 0 ? "" : x == 0 ? "0" : fmt::format("{:.1e}", x); }

}  // namespace

std::string rank_coordinates_text(const MeshShape& shape, const std::vector<int>& ranks) {
  std::string out;
  size_t block = 1;
  for (Axis a : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp}) {
    std::set<int> at;
    for (int r : ranks) at.insert(shape.coord(a, r));
    block *= at.size();
    if (a != Axis::kCp || shape.cp > 1)
      out += fmt::format("{}{}{}", out.empty() ? "" : " ",
                         a == Axis::kPp   ? "pp"
                         : a == Axis::kDp ? "dp"
                         : a == Axis::kCp ? "cp"
                                          : "tp",
                         ranges(at));
  }
  if (ranks.empty()) return "every rank";
  return block == ranks.size() ? out : "ranks " + ranges({ranks.begin(), ranks.end()});
}

std::string class_table(const std::vector<Difference>& all) {
  struct Row {
    std::set<std::string> members;
    std::array<double, 3> worst{-1, -1, -1};
  };
  std::vector<std::string> order;
  std::map<std::string, Row> rows;
  std::array<double, 3> scalars{-1, -1, -1};  // activations, losses, norms
  for (const Difference& d : all) {
    if (d.quantity == Quantity::kCopy || d.quantity == Quantity::kCalls) continue;
    if (d.quantity == Quantity::kActivation || d.quantity == Quantity::kLoss || d.quantity == Quantity::kNorm) {
      double& worst = scalars[d.quantity == Quantity::kActivation ? 0 : d.quantity == Quantity::kLoss ? 1 : 2];
      worst = std::max(worst, d.error);
      continue;
    }
    const std::string name = class_of(d);
    if (rows.count(name) == 0 && d.quantity == Quantity::kParameter) order.push_back(name);
    Row& row = rows[name];
    row.members.insert(d.quantity == Quantity::kState ? d.name.substr(d.name.find('/') + 1) : d.name);
    double& worst = row.worst[d.quantity == Quantity::kGradient ? 0 : d.quantity == Quantity::kParameter ? 1 : 2];
    worst = std::max(worst, d.error);
    if (rows.count(name) != 0 && std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
  }
  std::string out = fmt::format("outputs of modules {}, losses {}, gradient norms {} (largest relative errors)\n\n",
                                number(scalars[0]), number(scalars[1]), number(scalars[2]));
  out += fmt::format("{:<32}{:>8}{:>12}{:>12}{:>12}\n", "tensors", "number", "gradient", "parameter", "state");
  for (const std::string& name : order) {
    const Row& r = rows[name];
    out += fmt::format("{:<32}{:>8}{:>12}{:>12}{:>12}\n", name, r.members.size(), number(r.worst[0]),
                       number(r.worst[1]), number(r.worst[2]));
  }
  return out;
}

std::string worst_lines(const std::vector<Difference>& all, size_t n, const MeshShape& shape) {
  std::vector<const Difference*> sorted;
  for (const Difference& d : all) sorted.push_back(&d);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Difference* a, const Difference* b) {
    const bool copy_a = a->quantity == Quantity::kCopy,
               copy_b = b->quantity == Quantity::kCopy;  // copies have no numeric error
    if (copy_a != copy_b) return copy_b;
    return a->bad != b->bad ? a->bad : a->error > b->error;
  });
  sorted.resize(std::min(n, sorted.size()));
  std::string out;
  for (const Difference* d : sorted)
    out += fmt::format("{} {:<16}{:<38} step {}  {:<22}{:>9}{}\n", d->bad ? "!" : " ", name_of(d->quantity), d->name,
                       d->step, rank_coordinates_text(shape, d->ranks), number(d->error),
                       d->ulp > 0 ? fmt::format("  {:.0f} ulp", d->ulp) : "");
  return out;
}

std::string describe(const Difference& d, const MeshShape& shape) {
  if (d.quantity == Quantity::kCopy)
    return fmt::format("the copy of {} on {} differs from its owner's after step {}", d.name,
                       rank_coordinates_text(shape, d.ranks), d.step);
  std::string out = d.quantity == Quantity::kLoss || d.quantity == Quantity::kNorm
                        ? fmt::format("the {} of step {}", name_of(d.quantity), d.step)
                        : fmt::format("the {} of {} in step {}", name_of(d.quantity), d.name, d.step);
  if (d.sample >= 0) out += fmt::format(", microbatch of sample {}", d.sample);
  out += d.missed.empty() ? fmt::format(": relative error {:.3g} where {:g} is allowed", d.error, d.limit)
                          : cat(": ", d.missed);
  if (!d.ranks.empty()) out += "; held by " + rank_coordinates_text(shape, d.ranks);
  return out;
}

std::string report(const Config& c, const VerifyResult& v) {
  const MeshShape shape = mesh_shape(c);
  const std::string reference = layout_text(flat(c));
  std::string out = "\nagainst one rank: " + class_table(v.close) + "\nworst\n" + worst_lines(v.close, 10, shape);
  if (!v.bits)
    out += "bitwise comparison skipped: the layout ran on another device than its reference\n";
  else if (v.exact.empty())
    out += fmt::format("bitwise identical to {}\n", reference);
  else
    out += fmt::format("NOT bitwise identical to {}: {} differences\n{}", reference, v.exact.size(),
                       worst_lines(v.exact, 10, shape));
  if (v.calls > 0)
    out += fmt::format("collectives and messages of all ranks compared with the derived ones: {}\n", v.calls);
  if (const Difference* d = v.bad())
    return out + fmt::format("\nDIFFERENT. First in execution order: {}\n", describe(*d, shape));
  const std::string forgiven =
      v.forgiven == 0
          ? ""
          : fmt::format(", {} of them only within {:g} times one rank's own rounding", v.forgiven, kRoundings);
  return out + fmt::format("\nequal: the layout computes what one rank computes ({} comparisons{})\n", v.close.size(),
                           forgiven);
}

}  // namespace gt
