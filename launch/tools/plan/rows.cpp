#include "launch/tools/plan/rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "launch/options/json_text.h"
#include "launch/tools/plan/machine_types.h"
#include "launch/tools/plan/memory_model.h"
#include "model/module.h"

namespace gt {
namespace {

// Fraction of a device that runs use; allocators and libraries need the rest.
constexpr double kUsable = 0.9;
// Fraction of the FP4 peak that GEMMs reach: operands are quantized to blocks of 16 with scales of their own.
constexpr double kFp4Efficiency = 0.46;
// GEMM rate of MXFP8, with scales of blocks of 32, relative to FP8 with scales of tensors.
constexpr double kBlockScaled = 0.92;
// Exposed fraction of TP transfers in TransformerEngine, which overlaps them with GEMMs.
constexpr double kTransformerEngineExposed = 0.7;

std::vector<std::string> fields_of(std::string line) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  std::vector<std::string> out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

// One line of the table, by column.
class Line {
 public:
  Line(std::string where, const std::vector<std::string>& header, const std::vector<std::string>& values)
      : where_(std::move(where)) {
    GT_REQUIRE(values.size() == header.size(), Exit::kUsage, where_, ": expected ", header.size(), " columns, found ",
               values.size());
    for (size_t i = 0; i < header.size(); ++i) columns_[header[i]] = values[i];
  }
  bool has(const std::string& column) const {
    const auto it = columns_.find(column);
    return it != columns_.end() && !it->second.empty();
  }
  std::string text(const std::string& column, const std::string& otherwise = "") const {
    return has(column) ? columns_.at(column) : otherwise;
  }
  double number(const std::string& column, double otherwise) const {
    if (!has(column)) return otherwise;
    double value = 0;
    GT_REQUIRE(parse_double(columns_.at(column), value) && value >= 0 && value <= 1e18, Exit::kUsage, where_, ", ",
               column, ": expected a number, found \"", columns_.at(column), "\"");
    return value;
  }
  int64_t size(const std::string& column, int64_t otherwise = 0) const {
    const double value = number(column, static_cast<double>(otherwise));
    GT_REQUIRE(value >= 1 && value < 1e12 && value == static_cast<double>(static_cast<int64_t>(value)), Exit::kUsage,
               where_, ", ", column, ": expected a whole number above 0",
               has(column) ? ", found \"" + columns_.at(column) + "\"" : "");
    return static_cast<int64_t>(value);
  }
  bool flag(const std::string& column, bool otherwise) const { return number(column, otherwise ? 1 : 0) != 0; }
  const std::string& where() const { return where_; }

 private:
  std::string where_;
  std::map<std::string, std::string> columns_;
};

Workload workload_of(const Line& l) {
  Workload w;
  w.layers = l.size("layers"), w.hidden = l.size("hidden"), w.heads = l.size("heads"), w.seq = l.size("seq");
  w.kv_heads = l.size("kv_heads", w.heads);
  w.head_dim = l.size("head_dim", std::max<int64_t>(1, w.hidden / w.heads));
  w.ffn = l.size("ffn", 4 * w.hidden), w.vocab = l.size("vocab", 51200);
  w.gated = l.flag("glu", false), w.untied = l.flag("untied", false);
  w.tp = l.size("tp"), w.pp = l.size("pp"), w.dp = l.size("dp"), w.vpp = static_cast<int>(l.size("vpp", 1)),
  w.cp = l.size("cp", 1);
  const bool timed = l.text("use", "time").find("time") != std::string::npos;  // others may lack their batch
  w.global_batch = timed ? l.size("gbs") : l.size("gbs", 1), w.micro_batch = timed ? l.size("mbs") : l.size("mbs", 1);
  w.zero = static_cast<int>(l.number("zero", 0));
  w.sequence_parallel = l.flag("sp", false), w.overlap = l.flag("overlap", false);
  w.scatter_gather = l.flag("p2p_sg", true), w.embedding_slot = l.flag("emb_slot", false);
  if (l.flag("lora", false)) w.trained = w.gradient_bytes = 0;  // adapters are small
  w.fused_attention = l.text("attn", "unfused") == "flash";
  w.kept_bytes = l.number("w_bytes", 18), w.sharded_bytes = l.number("o_bytes", 0);
  return w;
}

const DeviceType& device_of(const Line& l) {
  const std::string gpu = l.text("gpu", "A100-80GB");
  const auto contains = [&](const char* text) { return gpu.find(text) != std::string::npos; };
  const double memory = l.number("hbm_gb", 0);
  return device_type(contains("V100")                      ? memory > 20 ? "V100-32" : "V100-16"
                     : contains("GB300")                   ? "GB300"
                     : contains("GB200")                   ? "GB200"
                     : contains("B300")                    ? "B300"
                     : contains("B200")                    ? "B200"
                     : contains("H200")                    ? "H200"
                     : contains("H100")                    ? "H100"
                     : contains("A100-40") || memory == 40 ? "A100-40"
                                                           : "A100-80");
}

PlanRow row_of(const Line& l, size_t n) {
  PlanRow r;
  r.id = l.text("id", cat("row ", n)), r.source = l.text("source"), r.profile = l.text("profile", r.source);
  r.work = workload_of(l);
  const DeviceType& device = device_of(l);
  const std::string precision = l.text("prec", "bf16");
  const bool low = precision == "fp8" || precision == "mxfp8" || precision == "nvfp4";  // GEMMs only
  r.machine = machine_model(device, low ? DType::kF8E4M3 : DType::kBF16);
  const double peak = r.machine.peak;
  r.machine.peak = l.number("peak_tflops", peak / 1e12) * 1e12;
  if (low) r.machine.tp_exposed = kTransformerEngineExposed;
  if (low) r.machine.attention_efficiency *= peak / r.machine.peak;
  if (precision == "mxfp8") r.machine.gemm_efficiency *= kBlockScaled;
  if (precision == "nvfp4") r.machine.gemm_efficiency = kFp4Efficiency;
  r.machine.per_node = l.size("gpus_per_node", 8);
  set_eager(r.machine, r.work.fused_attention);
  r.capacity = l.number("hbm_gb", device.memory / 1e9) * 1e9;
  const std::string how = l.text("recompute", "none");
  r.work.recompute = how == "full" ? Recompute::kFull : how == "none" ? Recompute::kNone : Recompute::kSelective;
  r.seconds = l.has("iter_ms") ? l.number("iter_ms", 0) / 1e3 : l.number("iter_s", 0);
  r.graded = l.flag("graded", true);
  r.memory = l.number("mem_gb", 0) * 1e9;
  r.fits = l.has("fits") ? static_cast<int>(l.number("fits", 0)) : -1;
  const Workload& w = r.work;
  r.group = cat(r.profile, " ", w.layers, "x", w.hidden, "x", w.seq, " on ", w.devices(), ", ", w.global_batch);
  std::string uses = l.text("use", "time") + "+";
  for (size_t at = 0, end; (end = uses.find('+', at)) != std::string::npos; at = end + 1)
    r.use.push_back(uses.substr(at, end - at));
  return r;
}

// Sets full recomputation in all rows of a model and source of which one would not fit otherwise: they come from one
// program.
void assume_recompute(std::vector<PlanRow>& rows) {
  const auto model = [](const PlanRow& r) { return cat(r.source, " ", r.work.layers, "x", r.work.hidden); };
  std::set<std::string> large;
  for (const PlanRow& r : rows)
    if (largest_stage_memory(r.work).total() > kUsable * r.capacity) large.insert(model(r));
  for (PlanRow& r : rows)
    if (large.count(model(r)) > 0) r.work.recompute = Recompute::kFull;
}

}  // namespace

bool PlanRow::serves(const std::string& what) const { return std::find(use.begin(), use.end(), what) != use.end(); }

std::vector<PlanRow> read_plan_rows(const std::string& path) {
  std::istringstream in(read_whole_file(path));
  std::string line;
  GT_REQUIRE(std::getline(in, line), Exit::kUsage, path, ": expected a header of column names, found nothing");
  const std::vector<std::string> header = fields_of(line);
  std::vector<PlanRow> out;
  for (size_t n = 2; std::getline(in, line); ++n) {
    GT_REQUIRE(n < 1000000 && line.size() < 65536, Exit::kUsage, path, ", line ", n, ": table too large");
    if (line.empty() || line == "\r") continue;
    const Line l(cat(path, ", line ", n), header, fields_of(line));
    const bool timed = l.text("use", "time").find("time") != std::string::npos;
    if (!timed && !(l.has("layers") && l.has("hidden") && l.has("heads"))) continue;  // nothing to predict
    out.push_back(row_of(l, n));
    const Workload& w = out.back().work;
    GT_REQUIRE(w.global_batch % (w.dp * w.micro_batch) == 0 || !out.back().serves("time"), Exit::kUsage, l.where(),
               ": gbs ", w.global_batch, " is not a multiple of dp ", w.dp, " x mbs ", w.micro_batch);
  }
  const bool given = std::find(header.begin(), header.end(), "recompute") != header.end();
  if (!given) assume_recompute(out);
  return out;
}

double row_error(const PlanRow& r, const MachineModel& m) { return step_terms(r.work, m).total() / r.seconds - 1; }

}  // namespace gt
