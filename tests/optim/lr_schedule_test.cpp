// Learning-rate schedules over their whole length: fixed values of the recipes, curves computed by PyTorch's and
// DeepSpeed's own code (tests/golden/lr_curves.txt), and properties of the corrected forms.
#include "optim/lr_schedule.h"

#include <fstream>
#include <map>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/enum_names.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

void check_curve(const LrOptions& o, const std::vector<double>& golden, double epsilon = 1e-12) {
  const auto s = make_lr_schedule(o);
  for (size_t k = 0; k < golden.size(); ++k) {
    INFO(o.type << " step " << k + 1);
    CHECK(s->at(static_cast<int64_t>(k) + 1).lr == Approx(golden[k]).epsilon(epsilon).margin(1e-18));
  }
}

struct Row {
  double lr, beta1 = kKeepBeta, beta2 = kKeepBeta;
};

std::map<std::string, std::vector<Row>> read_golden() {
  std::map<std::string, std::vector<Row>> out;
  std::ifstream in(source_dir() + "/tests/golden/lr_curves.txt");
  std::string line, name;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string first, lr, beta1, beta2;
    words >> first >> lr >> beta1 >> beta2;
    if (first == "curve") {
      name = lr;
      continue;
    }
    Row row{std::stod(lr)};
    if (beta1 != "-") row.beta1 = std::stod(beta1), row.beta2 = std::stod(beta2);
    out[name].push_back(row);
  }
  return out;
}

LrOptions torch_cycle(int64_t steps) { return {.type = "one_cycle_torch", .peak = 1e-3, .total_steps = steps}; }

LrOptions cycle(int64_t up, int64_t down = -1, double high = 0.99) {
  return {.type = "one_cycle",
          .peak = 1e-3,
          .min_lr = 1e-4,
          .total_steps = 13,
          .min_momentum = 0.85,
          .max_momentum = high,
          .ds_exact = true,
          .first_steps = up,
          .second_steps = down};
}

LrOptions warm(const char* type, WarmupShape kind, int64_t n, double start = 0, bool exact = true) {
  return {.type = type,
          .peak = 1e-3,
          .start_lr = start,
          .warmup_steps = n,
          .total_steps = 20,
          .ds_exact = exact,
          .warmup_type = kind};
}

std::map<std::string, LrOptions> golden_options() {
  std::map<std::string, LrOptions> m;
  m["torch12"] = torch_cycle(12);
  m["torch100"] = torch_cycle(100);
  m["torch100"].pct_start = 0.25, m["torch100"].final_div_factor = 100;
  m["torch_linear"] = torch_cycle(37);
  m["torch_linear"].anneal = Anneal::kLinear, m["torch_linear"].div_factor = 10;
  m["torch_three_phase"] = torch_cycle(50);
  m["torch_three_phase"].three_phase = true;
  m["torch_three_phase"].min_momentum = 0.8, m["torch_three_phase"].max_momentum = 0.9;
  m["one_cycle"] = cycle(4, 6);
  m["one_cycle"].decay_step_size = 2, m["one_cycle"].decay_lr_rate = 0.1;
  m["one_cycle_symmetric"] = cycle(20);
  m["one_cycle_stairs"] = cycle(20, 30);
  m["one_cycle_stairs"].first_stairs = 4, m["one_cycle_stairs"].second_stairs = 7;
  m["one_cycle_momentum_decay"] = cycle(7, -1, 0.9);
  m["one_cycle_momentum_decay"].decay_step_size = 10, m["one_cycle_momentum_decay"].decay_mom_rate = 0.01;
  m["one_cycle_momentum_decay"].decay_lr_rate = 0.5;
  for (const WarmupShape kind : {WarmupShape::kLog, WarmupShape::kLinear}) {
    const std::string name = name_of(kind);
    m["warmup_" + name] = warm("warmup", kind, 10, 1e-5);
    m["warmup_decay_" + name] = warm("warmup_decay", kind, 5);
    m["warmup_cosine_" + name] = warm("warmup_cosine", kind, 5);
    m["warmup_cosine_" + name].warmup_min_ratio = 0.1;
  }
  m["range_test"] = {.type = "lr_range_test", .start_lr = 1e-3, .range_steps = 5, .range_rate = 2};
  m["range_test_stairs"] = m["range_test"];
  m["range_test_stairs"].range_staircase = true;
  return m;
}

}  // namespace

TEST_CASE("cosine, linear and constant with warm-up follow the fixed curves") {
  check_curve({.type = "cosine", .peak = 6e-4, .min_lr = 6e-5, .warmup_steps = 3, .total_steps = 12},
              {2e-4, 4e-4, 6e-4, 5.83717e-4, 5.36832e-4, 4.65e-4, 3.76885e-4, 2.83115e-4, 1.95e-4, 1.23168e-4,
               7.6283e-5, 6e-5, 6e-5, 6e-5},
              2e-6);
  check_curve({.type = "linear", .peak = 1, .min_lr = 0.5, .total_steps = 10},
              {0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.5});
  check_curve({.type = "constant", .peak = 2, .start_lr = 1, .warmup_steps = 4, .total_steps = 4},
              {1.25, 1.5, 1.75, 2, 2, 2});
}

TEST_CASE("inverse square root and warm-up, stable, decay follow their equations over the whole length") {
  check_curve({.type = "inverse_sqrt", .peak = 1, .min_lr = 0.4, .warmup_steps = 4, .total_steps = 40},
              {0.25, 0.5, 0.75, 1, std::sqrt(4 / 5.), std::sqrt(4 / 6.), std::sqrt(4 / 7.), std::sqrt(.5),
               std::sqrt(4 / 9.), std::sqrt(.4)});
  CHECK(make_lr_schedule({.type = "inverse_sqrt", .peak = 1, .min_lr = 0.4, .warmup_steps = 4})->at(26).lr == 0.4);
  CHECK(make_lr_schedule({.type = "inverse_sqrt", .peak = 1})->at(1).lr == 1);
  LrOptions wsd{.type = "wsd", .peak = 1, .min_lr = 0.2, .warmup_steps = 2, .total_steps = 10, .decay_steps = 4};
  const std::vector<double> flat{0.5, 1, 1, 1, 1, 1};
  const auto tail = [&](DecayShape shape, std::vector<double> c) {
    std::vector<double> all = flat;
    for (double x : c) all.push_back(0.2 + 0.8 * x);
    wsd.decay_shape = shape;
    check_curve(wsd, all);
  };
  const double s = std::sqrt(0.5);
  tail(DecayShape::kLinear, {.75, .5, .25, 0, 0, 0});
  tail(DecayShape::kCosine, {(1 + s) / 2, .5, (1 - s) / 2, 0, 0});
  tail(DecayShape::kExponential, {2 * std::pow(.5, .25) - 1, 2 * s - 1, 2 * std::pow(.5, .75) - 1, 0, 0});
  tail(DecayShape::kMinusSqrt, {.5, 1 - s, 1 - std::sqrt(.75), 0, 0});
  wsd.decay_steps = 0;  // a tenth
  wsd.decay_shape = DecayShape::kLinear;
  check_curve(wsd, {0.5, 1, 1, 1, 1, 1, 1, 1, 1, 0.2});
}

TEST_CASE("a curve over samples equals that over steps at a constant batch, and continues when the batch changes") {
  for (const char* type : {"cosine", "linear", "constant", "inverse_sqrt", "wsd"}) {
    INFO(type);
    const LrOptions steps{
        .type = type, .peak = 1, .min_lr = 0.1, .warmup_steps = 3, .total_steps = 12, .decay_steps = 4};
    LrOptions samples = steps;
    samples.warmup_steps *= 16, samples.total_steps *= 16, samples.decay_steps *= 16, samples.samples_per_step = 16;
    const auto a = make_lr_schedule(steps), b = make_lr_schedule(samples);
    for (int64_t t = 1; t <= 15; ++t) CHECK(b->at(t).lr == Approx(a->at(t).lr).epsilon(1e-12));
    // After 6 steps of 16 a batch of 32: each step advances twice as far.
    samples.samples_per_step = 32, samples.steps_before = 6, samples.samples_before = 96;
    const auto c = make_lr_schedule(samples);
    CHECK(c->at(6).lr == Approx(a->at(6).lr).epsilon(1e-12));
    for (int64_t k = 1; k <= 3; ++k) CHECK(c->at(6 + k).lr == Approx(a->at(6 + 2 * k).lr).epsilon(1e-12));
    samples.samples_per_step = 8;
    CHECK(make_lr_schedule(samples)->at(8).lr == Approx(a->at(7).lr).epsilon(1e-12));
  }
}

TEST_CASE("the curves of PyTorch's OneCycleLR and of DeepSpeed 0.19.6 are reproduced number for number") {
  const auto golden = read_golden();
  const auto options = golden_options();
  REQUIRE(golden.size() == options.size());
  for (const auto& [name, rows] : golden) {
    REQUIRE(options.count(name) == 1);
    REQUIRE(rows.size() >= 12);
    const auto s = make_lr_schedule(options.at(name));
    for (size_t k = 0; k < rows.size(); ++k) {
      INFO(name << " step " << k + 1);
      const LrPoint p = s->at(static_cast<int64_t>(k) + 1);
      CHECK(p.lr == Approx(rows[k].lr).epsilon(1e-12).margin(1e-18));
      if (rows[k].beta1 != kKeepBeta) CHECK(p.beta1 == Approx(rows[k].beta1).epsilon(1e-12));
      if (rows[k].beta1 == kKeepBeta) CHECK(p.beta1 == kKeepBeta);
      if (options.at(name).type == "one_cycle") CHECK(p.beta2 == 0.99);
    }
    if (name.rfind("torch", 0) == 0)  // where PyTorch raises, the last value is kept
      CHECK(s->at(static_cast<int64_t>(rows.size()) + 9).lr == s->at(static_cast<int64_t>(rows.size())).lr);
  }
}

TEST_CASE("DeepSpeed's schedules equal the recipe's numbers in both forms") {
  LrOptions c = cycle(4, 6);
  c.decay_step_size = 2, c.decay_lr_rate = 0.1;
  const std::vector<double> lr{1e-4, 3.25e-4, 5.5e-4, 7.75e-4, 1e-3, 8.5e-4, 7e-4, 5.5e-4, 4e-4, 2.5e-4, 1e-4};
  check_curve(c, lr);
  c.ds_exact = false;
  check_curve(c, lr);
  CHECK(make_lr_schedule(c)->at(1).beta1 == 0.99);  // momentum is highest where the rate is lowest
  CHECK(make_lr_schedule(c)->at(5).beta1 == Approx(0.85));
  CHECK(make_lr_schedule(c)->at(1).beta2 == kKeepBeta);
  c.decay_mom_rate = 1;
  CHECK(make_lr_schedule(c)->at(13).beta1 == Approx(0.85));  // 0.99 / 2, bounded
  c.cycle_momentum = false;
  CHECK(make_lr_schedule(c)->at(3).beta1 == kKeepBeta);

  const auto first = [](const LrOptions& o, std::vector<double> golden) { check_curve(o, golden, 2e-6); };
  first(warm("warmup", WarmupShape::kLog, 10), {0, 0, 3.0103e-4, 4.771213e-4});
  first(warm("warmup", WarmupShape::kLog, 10, 0, false), {2.89065e-4, 4.58157e-4, 5.7813e-4});
  CHECK(make_lr_schedule(warm("warmup", WarmupShape::kLog, 10, 0, false))->at(10).lr == 1e-3);
  first(warm("warmup_decay", WarmupShape::kLinear, 5), {0, 0, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 9.33333e-4});
  first(warm("warmup_cosine", WarmupShape::kLinear, 5), {0, 0, 2e-4, 4e-4, 6e-4, 8e-4, 9.890749e-4, 9.567771e-4});
  // Corrected: the first step counts, the peak is reached, the minimum is reached at T.
  check_curve(warm("warmup_decay", WarmupShape::kLinear, 5, 0, false),
              {2e-4,      4e-4,      6e-4,      8e-4,     1e-3,     14 / 15e3, 13 / 15e3,
               12 / 15e3, 11 / 15e3, 10 / 15e3, 9 / 15e3, 8 / 15e3, 7 / 15e3,  6 / 15e3,
               5 / 15e3,  4 / 15e3,  3 / 15e3,  2 / 15e3, 1 / 15e3, 0,         0});
  const auto cosine = make_lr_schedule(warm("warmup_cosine", WarmupShape::kLinear, 5, 0, false));
  CHECK(cosine->at(1).lr == Approx(2e-4));
  CHECK(cosine->at(5).lr == Approx(1e-3));
  CHECK(cosine->at(20).lr == Approx(1e-7));
  CHECK(cosine->at(21).lr == Approx(1e-7));
}

TEST_CASE("DeepSpeed's defects are reported in the exact form only") {
  for (const std::string& name : lr_schedule_names()) {
    LrOptions o{.type = name, .total_steps = 100};
    CHECK(lr_deviations(o).empty());
    o.ds_exact = true;
    const bool has = name == "one_cycle" || name.rfind("warmup", 0) == 0;
    INFO(name);
    CHECK(lr_deviations(o).empty() != has);
  }
}

TEST_CASE("invalid schedules are usage errors that name the key and the known values") {
  const auto message = [](const LrOptions& o) -> std::string {
    try {
      make_lr_schedule(o);
      return "accepted";
    } catch (const Error& e) {
      CHECK(e.code() == Exit::kUsage);
      return e.what();
    }
  };
  CHECK_THAT(message({.type = "cosin"}), Catch::Contains("cosine") && Catch::Contains("lr_range_test"));
  CHECK_THAT(message({.type = "wsd", .warmup_steps = 5, .total_steps = 10, .decay_steps = 6}),
             Catch::Contains("schedule.decay_steps") && Catch::Contains("at most 5"));
  CHECK_THAT(message({.type = "one_cycle_torch", .pct_start = 0.6, .three_phase = true}), Catch::Contains("0.5"));
  LrOptions o = cycle(4, 6);
  o.decay_step_size = 1, o.decay_mom_rate = 0.1;
  CHECK_THAT(message(o), Catch::Contains("beta1") && Catch::Contains("ds_exact false"));
  o.ds_exact = false;
  CHECK(message(o) == "accepted");
}
