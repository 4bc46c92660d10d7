// Sections optim and schedule: defaults by type, keys of other types, notes; the subcommand lr; resume and range test
// from outside.
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "launch/config/config_optim.h"
#include "launch/config/values/param_groups.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string w; in >> w;) out.push_back(w);
  return out;
}

LoadedConfig load(const std::string& flags, const std::string& file = "") {
  return load_config({.file = file, .flags = words_of(flags)});
}

std::string problems_of(const std::string& flags, const std::string& file = "") {
  try {
    load(flags, file);
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kUsage);
    return e.what();
  }
  return "accepted";
}

std::string joined(const std::vector<std::string>& notes) {
  std::string out;
  for (const std::string& n : notes) out += n + "\n";
  return out;
}

const std::string kTiny =
    "--model.layers 3 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --launch.ranks threads ";

}  // namespace

TEST_CASE("each optimizer has its own defaults, which an explicit value overrides") {
  const auto optim = [](const std::string& flags) { return load(flags).config.optim; };
  CHECK(optim("").weight_decay == 0.1f);
  CHECK(optim("--optim.type adam").weight_decay == 0);
  CHECK(optim("--optim.type sgd").weight_decay == 0);
  CHECK(optim("--optim.type lion").betas == std::vector<double>{0.9, 0.99});
  const OptimConfig muon = optim("--optim.type muon");
  CHECK((muon.momentum == 0.95f && muon.nesterov && muon.weight_decay == 0.1f && muon.muon_iterations == 5));
  for (const auto& [flags, dtype] : {std::pair{"", DType::kF32}, {"--precision.amp O2", DType::kBF16}})
    CHECK(optimizer_options(load(std::string("--optim.type muon ") + flags).config).muon_gemms == dtype);
  const OptimConfig lamb = optim("--optim.type lamb");
  CHECK(lamb.betas == std::vector<double>{0.9, 0.999});
  CHECK(lamb.eps == 1e-6f);
  CHECK(lamb.weight_decay == 0.01f);
  CHECK(lamb.lamb_variant == LambVariant::kPaper);
  const OptimConfig ds = optim("--optim.type lamb --optim.lamb_variant deepspeed");
  CHECK(ds.eps == 1e-8f);
  CHECK(ds.weight_decay == 0);
  CHECK(optim("--optim.type lamb --optim.eps 1e-3 --optim.betas 0.5,0.5").eps == 1e-3f);
  CHECK(optim("--optim.type lion --optim.weight_decay 0.7").weight_decay == 0.7f);
  const ScheduleConfig cycle = load("--schedule.type one_cycle").config.schedule;
  CHECK(cycle.min_momentum == 0.8);
  CHECK(cycle.max_momentum == 0.9);
  CHECK(load("--schedule.type lr_range_test").config.schedule.start_lr == 1e-3);
}

TEST_CASE("a key of another optimizer or schedule type is refused with the types that it belongs to") {
  const struct {
    const char *flags, *message;
  } cases[] = {
      {"--optim.momentum 0.9", "0.9 has no effect with optim.type adamw; leave it out; it belongs to sgd"},
      {"--optim.type sgd --optim.betas 0.5,0.5", "belongs to adamw, adam, lamb, lion"},
      {"--optim.lamb_variant apex", "adamw; leave it out; it belongs to lamb"},
      {"--optim.type lamb --optim.lamb_nvlamb", "optim.lamb_variant paper; leave it out; it belongs to apex"},
      {"--optim.type lamb --optim.bias_correction false", "lamb_variant deepspeed"},
      {"--schedule.pct_start 0.4", "schedule.type cosine; leave it out; it belongs to one_cycle_torch"},
      {"--schedule.type one_cycle --schedule.warmup_steps 3", "has no effect with schedule.type one_cycle"},
      {"--schedule.ds_exact", "has no effect with schedule.type cosine"},
      {"--optim.type sgd --optim.nesterov", "optim.momentum above 0"},
      {"--optim.type sgd --optim.nesterov --optim.momentum 0.9 --optim.dampening 0.1", "no optim.dampening"},
      {"--optim.type lamb --optim.lamb_min_norm 3 --optim.lamb_max_norm 2", "below optim.lamb_min_norm 3"},
      {"--optim.type lamb --optim.lamb_variant deepspeed --optim.lamb_max_coeff 0.001", "below optim.lamb_min_coeff"},
      {"--optim.no_decay (", "\"(\" is not a valid regular expression"},
      {"--schedule.type wsd --schedule.decay_steps 2000", "at most 1001"},
      {"--schedule.type one_cycle_torch --schedule.three_phase --schedule.pct_start 0.7", "at most 0.5"},
      {"--schedule.type one_cycle --schedule.min_momentum 0.95", "below schedule.min_momentum"},
      {"--schedule.type lr_range_test --schedule.start_lr 0", "starts at 0"},
      {"--schedule.min_lr 1", "above optim.lr"},
      {"--schedule.type one_cycle --schedule.ds_exact --schedule.first_steps 5 --schedule.decay_step_size 1 "
       "--schedule.decay_mom_rate 0.1",
       "ds_exact false"},
      {"--optim.type shampoo", "expected adamw or adam or lamb"},
      {"--optim.muon_scale original", "original has no effect with optim.type adamw; leave it out; it belongs to muon"},
      {"--optim.type muon --optim.dampening 0.1", "no effect with optim.type muon"},
  };
  for (const auto& c : cases) {
    INFO(c.flags);
    const std::string found = problems_of(c.flags);
    CHECK_THAT(found, Contains(c.message) && Contains("1 problem, nothing was started"));
  }
  // A key at its default value is accepted although it has no effect.
  CHECK(problems_of("--optim.momentum 0 --schedule.pct_start 0.3") == "accepted");
}

TEST_CASE("a file's key that a flag's type excludes is ignored with a note, within the file it is refused") {
  TempDir dir;
  write_file(dir / "a.json", R"({"optim": {"type": "sgd", "momentum": 0.9}, "schedule": {"warmup_steps": 7}})");
  const LoadedConfig c = load("--optim.type adamw --schedule.type one_cycle_torch", dir / "a.json");
  CHECK(c.config.optim.momentum == 0);
  CHECK(c.config.schedule.warmup_steps == 0);
  CHECK_THAT(joined(c.notes), Contains("optim.momentum has no effect with optim.type adamw") &&
                                  Contains("schedule.warmup_steps has no effect with schedule.type one_cycle_torch"));
  write_file(dir / "b.json", R"({"schedule": {"type": "one_cycle_torch", "warmup_steps": 7}})");
  CHECK_THAT(problems_of("", dir / "b.json"), Contains("b.json:1 schedule.warmup_steps"));
}

TEST_CASE("every optimizer and schedule is read back from its own config.json") {
  for (const std::string& optimizer : optimizer_names())
    for (const std::string& schedule : lr_schedule_names()) {
      TempDir dir;
      const std::string once = config_json(load("--optim.type " + optimizer + " --schedule.type " + schedule).config);
      write_file(dir / "c.json", once);
      INFO(optimizer << " " << schedule);
      CHECK(config_json(load("", dir / "c.json").config) == once);
      // Another optimizer can be selected on top of it.
      CHECK(problems_of("--optim.type lamb --schedule.type constant", dir / "c.json") == "accepted");
    }
}

TEST_CASE("DeepSpeed's defects are reported where they are reproduced") {
  CHECK_THAT(joined(load("--schedule.type warmup --schedule.ds_exact").notes),
             Contains("steps 1 and 2 run at schedule.start_lr 0") && Contains("ds_exact false removes this"));
  CHECK_THAT(joined(load("--schedule.type warmup").notes), !Contains("DeepSpeed"));
}

TEST_CASE("lr draws the curve and writes every step") {
  TempDir dir;
  const Outcome drawn =
      gpttrain("lr --optim.lr 0.4 --schedule.type one_cycle_torch --train.steps 60 --csv c.csv", dir.path());
  INFO(drawn.out);
  CHECK(drawn.code == 0);
  CHECK(drawn.prints("learning rate"));
  CHECK(drawn.prints("momentum (beta1)"));
  CHECK(drawn.prints("0.4 |"));
  const std::string csv = read_file(dir / "c.csv");
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 61);
  CHECK_THAT(csv, Catch::StartsWith("step,lr,beta1\n1,0.016"));
  const Outcome plain = gpttrain("lr --optim.lr 1 --schedule.type linear --train.steps 3 --csv -", dir.path());
  CHECK(plain.out == "step,lr\n1,0.75\n2,0.5\n3,0.25\n");  // 0 at step 4: no step of the run is in vain
  CHECK(gpttrain("lr --csv /nowhere/x.csv", dir.path()).code == 74);
}

TEST_CASE("a schedule over samples continues from its sample count when the batch changes") {
  CHECK_THAT(problems_of("--schedule.type one_cycle --schedule.unit samples"),
             Contains("samples has no effect with schedule.type one_cycle"));
  CHECK(lr_options(load("--schedule.unit samples --train.steps 10 --train.global_batch 4").config).total_steps == 44);
  TempDir dir;
  const std::string run = kTiny +
                          "--schedule.unit samples --schedule.type linear --schedule.total_steps 96 --optim.lr 0.96 "
                          "--train.steps 6 --log.name x --checkpoint.allow_change train ";
  REQUIRE(gpttrain(run + "--train.steps 4", dir.path()).code == 0);
  const Outcome r = gpttrain(run + "--train.global_batch 16", dir.path());
  INFO(r.out);
  REQUIRE(r.code == 0);
  CHECK_FALSE(r.prints("schedule changed"));
  const std::vector<double> lr = logged(dir / "runs/x", "lr"), curve{.88, .80, .72, .64, .48, .32};
  REQUIRE(lr.size() == 6);
  for (size_t i = 0; i < 6; ++i) CHECK(lr[i] == Approx(curve[i]).epsilon(1e-6));
}

TEST_CASE("every optimizer stops, changes layout and resumes bitwise where the layout allows it") {
  TempDir dir;
  const struct {
    const char *name, *flags, *curve;  // the length that a run of 8 steps has by default
  } kinds[] = {
      {"lamb", "--optim.type lamb --optim.lr 1e-2 --schedule.type one_cycle_torch", "--schedule.total_steps 8 "},
      {"sgd", "--optim.type sgd --optim.momentum 0.9 --optim.lr 0.1 --schedule.type one_cycle --schedule.first_steps 4",
       ""},
      {"muon", "--optim.type muon --optim.lr 1e-2 --schedule.type wsd --schedule.decay_steps 4",
       "--schedule.total_steps 9 "},
      {"lion", "--optim.type lion --optim.lr 1e-3 --schedule.type wsd --schedule.decay_steps 4",
       "--schedule.total_steps 9 "}};
  for (const auto& k : kinds) {
    const std::string run = kTiny + k.flags + " --train.steps 8 --tp 2 ";
    const Outcome whole = gpttrain(run + "--log.name whole-" + k.name, dir.path());
    INFO(whole.out);
    REQUIRE(whole.code == 0);
    // The same curve, stopped after four of its steps; then another pipeline depth and another ZeRO stage.
    const std::string part = kTiny + k.flags + " --train.steps 4 --tp 2 " + k.curve + "--log.name parts-" + k.name;
    REQUIRE(gpttrain(part, dir.path()).code == 0);
    const Outcome rest = gpttrain(run + k.curve + "--pp 2 --zero 0 --log.name parts-" + k.name, dir.path());
    INFO(rest.out);
    REQUIRE(rest.code == 0);
    CHECK_FALSE(rest.prints("schedule changed"));
    if (std::string(k.name) == "muon")
      CHECK(rest.prints("muon (adamw scale, 5 simple iterations), momentum 0.95 (Nesterov), betas 0.9 0.95"));
    for (const char* key : {"loss", "grad_norm", "lr"})
      CHECK(logged(dir / (std::string("runs/parts-") + k.name), key) ==
            logged(dir / (std::string("runs/whole-") + k.name), key));
  }
  const Outcome other = gpttrain(kTiny + "--train.steps 9 --log.name whole-lamb", dir.path());
  INFO(other.out);
  CHECK(other.code == 2);
  CHECK(other.prints("holds the state of lamb, this run needs adamw"));
  CHECK(other.prints("--optim.type lamb"));
  const Outcome changed =
      gpttrain(kTiny +
                   "--optim.type lamb --optim.lr 1e-3 --schedule.type constant --train.steps 9 --log.name whole-lamb "
                   "--checkpoint.allow_change schedule optim",
               dir.path());
  INFO(changed.out);
  CHECK(changed.code == 0);
  CHECK(changed.prints("the learning-rate schedule changed"));
  const Outcome wrong = gpttrain(kTiny + "--optim.no_decay nothing.like.this --train.steps 1 --log.name x", dir.path());
  INFO(wrong.out);
  CHECK(wrong.code == 2);
  CHECK(wrong.prints("\"nothing.like.this\" matches no parameter"));
}

TEST_CASE("a malformed parameter group is refused with the expected form") {
  const ParamGroup group = parse_param_group("^embed weight_decay=0 betas=0.8/0.99 lr_scale=0.5");
  CHECK(group.match == "^embed");
  CHECK(group.lr_scale == 0.5);
  CHECK(group.weight_decay == 0.0f);
  CHECK((group.betas && (*group.betas)[0] == 0.8f && (*group.betas)[1] == 0.99f));
  const struct {
    const char *text, *message;
  } cases[] = {
      {"", "a group begins with a regular expression"},
      {"( lr_scale=1", "\"(\" is not a valid regular expression"},
      {"embed", "\"embed\" changes nothing: add lr_scale=, weight_decay=, betas= or rule="},
      {"embed lr_scal=1", "did you mean lr_scale=?"},
      {"embed lr_scale", "lr_scale=: expected a number from 0 to 1000"},
      {"embed lr_scale=-1", "lr_scale=-1: expected a number from 0 to 1000"},
      {"embed lr_scale=1x", "lr_scale=1x: expected a number"},
      {"embed weight_decay=nan", "weight_decay=nan: expected a number from 0 to 10"},
      {"embed betas=0.9", "betas=0.9: expected two numbers, as betas=0.9/0.95"},
      {"embed rule=lion", "rule=lion: expected rule=adamw"},
      {"embed betas=0.9/1", "betas=1: expected a number from 0 to below 1"},
  };
  for (const auto& c : cases) CHECK_THROWS_WITH(parse_param_group(c.text), Contains(c.message));
  const auto load_groups = [](const std::string& type, const std::string& text) {
    return load_config({.flags = {"--optim.type", type, "--optim.groups", text}}).config.optim.group_texts;
  };
  CHECK(load_groups("adamw", "embed betas=0.9/0.95") == std::vector<std::string>{"embed betas=0.9/0.95"});
  CHECK(load_groups("muon", "mlp rule=adamw") == std::vector<std::string>{"mlp rule=adamw"});
  CHECK_THROWS_WITH(load_groups("adamw", "mlp rule=adamw"), Contains("rule has no effect with optim.type adamw"));
  CHECK_THROWS_WITH(load_groups("sgd", "embed betas=0.9/0.95"), Contains("betas have no effect with optim.type sgd"));
  CHECK_THROWS_WITH(load_groups("adamw", "embed lr_scal=1"), Contains("did you mean lr_scale=?"));
}

TEST_CASE("a run with parameter groups resumes only with them, to the losses of the uninterrupted run") {
  TempDir dir;
  const std::string run = kTiny + "--schedule.type constant ";
  const std::string groups = "--optim.groups 'embed lr_scale=0.5' 'mlp weight_decay=0.3 betas=0.8/0.99' ";
  for (const char* steps : {"2", "4"}) {
    const Outcome part = gpttrain(run + groups + "--log.name parts --train.steps " + steps, dir.path());
    INFO(part.out);
    REQUIRE(part.code == 0);
  }
  REQUIRE(gpttrain(run + groups + "--log.name whole --train.steps 4", dir.path()).code == 0);
  const Outcome same = gpttrain("ckpt diff runs/parts runs/whole", dir.path());
  INFO(same.out);
  CHECK(same.prints("of them bitwise equal"));
  CHECK(same.code == 0);
  const Outcome other =
      gpttrain(run + "--optim.groups 'embed lr_scale=0.25' --log.name parts --train.steps 6", dir.path());
  INFO(other.out);
  CHECK(other.code == 2);
  CHECK(other.prints("optim.groups: "));
  for (const char* dry : {"", "--dry-run "}) {
    const Outcome wrong =
        gpttrain(run + dry + "--optim.groups 'layers.1.mlp.up.wieght lr_scale=2' --log.name x", dir.path());
    INFO(wrong.out);
    CHECK(wrong.code == 2);
    CHECK(wrong.prints("\"layers.1.mlp.up.wieght\" matches no parameter"));
    CHECK(wrong.prints("such as layers.1.mlp.up.weight"));
  }
  const Outcome shadowed = gpttrain(
      run + "--optim.groups 'mlp lr_scale=2' 'layers.1.mlp weight_decay=0' --log.name x --train.steps 1", dir.path());
  INFO(shadowed.out);
  CHECK(shadowed.code == 2);
  CHECK(shadowed.prints("\"layers.1.mlp\" finds only parameters of groups before it"));
}

TEST_CASE("LAMB's trust ratios reach the logs from every stage, and momentum where the schedule changes it") {
  TempDir dir;
  const std::string run =
      kTiny + "--optim.type lamb --schedule.type one_cycle_torch --train.steps 3 --log.lamb_every 2 ";
  REQUIRE(gpttrain(run + "--log.name one", dir.path()).code == 0);
  const Outcome many = gpttrain(run + "--pp 2 --dp 2 --log.name many", dir.path());
  INFO(many.out);
  REQUIRE(many.code == 0);
  const std::vector<double> one = logged(dir / "runs/one", "value", "scalar"),
                            all = logged(dir / "runs/many", "value", "scalar");
  CHECK(one.size() == 1);  // one key per step: the last record wins
  CHECK(all.size() == 1);
  const std::string log = read_file(dir / "runs/many/log.jsonl");
  for (const char* tensor : {"embed.weight", "layers.0.attn.qkv.weight", "layers.2.mlp.up.weight"})
    CHECK_THAT(log, Contains(std::string("\"tag\": \"train/lamb_coeff/") + tensor));
  CHECK_THAT(problems_of("--log.lamb_every 5"), Contains("belongs to lamb"));
}

TEST_CASE("a range test increases the rate, proposes a peak and saves nothing") {
  TempDir dir;
  const Outcome r = gpttrain(kTiny + "--optim.lr 1e-2 --train.steps 40 --log.name x --lr_range_test", dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(r.prints("largest lr"));
  CHECK(r.prints("suggested: --optim.lr "));
  const std::vector<double> lr = logged(dir / "runs/x-lr-range", "lr");
  REQUIRE(lr.size() == 40);
  CHECK(lr.front() == Approx(1e-4));
  CHECK(lr.back() == Approx(0.1));
  CHECK_FALSE(std::filesystem::exists(dir / "runs/x-lr-range/checkpoints"));
  const std::string csv = read_file(dir / "runs/x-lr-range/lr_range.csv");
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 41);
  // Writes beside the run, not into it, with or without a name; extreme rates end it early.
  const Outcome wild = gpttrain(
      kTiny + "--optim.type sgd --optim.lr 100 --optim.grad_clip 0 --train.steps 400 --lr_range_test", dir.path());
  INFO(wild.out);
  CHECK(wild.code == 0);
  CHECK(std::filesystem::exists(dir / "runs/gpt2-3x32-lr-range/lr_range.csv"));
  CHECK(logged(dir / "runs/gpt2-3x32-lr-range", "lr").size() < 400);
}
