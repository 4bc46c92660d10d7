// Subcommands, their flags, and messages for wrong ones.
#include "launch/commands/cli.h"

#include <map>
#include <set>
#include <sstream>

#include "kernels/core/check.h"
#include "launch/commands/subcommand_args.h"
#include "launch/commands/subcommands.h"
#include "launch/config/config_alias.h"
#include "launch/hosts/rank_env.h"
#include "launch/tools/bench/subcommands.h"
#include "launch/tools/generate/subcommands.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

Command parse(std::vector<std::string> words) { return parse_command(words, RankEnv{}); }

std::string error_of(std::vector<std::string> words) {
  try {
    parse(std::move(words));
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kUsage);
    return e.what();
  }
  return "accepted";
}

RankEnv env_of(const std::map<std::string, std::string>& variables) {
  return find_rank_env([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

}  // namespace

TEST_CASE("flags without a subcommand train") {
  const Command c = parse({"--data.train", "mock", "--tp", "2", "--optim.lr=1e-3", "--quiet", "--model.heads", "12",
                           "--schedule.type", "linear"});
  CHECK(c.run == run_train);
  CHECK(c.loaded.config.parallel.tp == 2);
  CHECK(c.loaded.config.optim.lr == 1e-3);
  CHECK(c.loaded.config.schedule.type == "linear");
  CHECK(c.get<TrainArgs>().quiet);
  CHECK_FALSE(c.get<TrainArgs>().dry_run);
  CHECK(parse({"train", "--dry-run", "--data.train", "0.5", "mock", "0.5", "mock"}).loaded.config.data.train.size() ==
        2);
  CHECK(parse({"train", "--config", source_dir() + "/configs/tiny.json"}).loaded.config.model.hidden == 64);
}

TEST_CASE("each subcommand parses its own flags") {
  const Command t = parse({"tokenizer", "train", "--input", "a.txt", "b.txt", "--vocab", "100", "--output", "m"});
  CHECK(t.run == run_tokenizer_train);
  CHECK(t.get<TokenizerTrainArgs>().input == std::vector<std::string>{"a.txt", "b.txt"});
  CHECK(t.get<TokenizerTrainArgs>().vocab == 100);
  CHECK(t.get<TokenizerTrainArgs>().type == "bpe");
  const Command g = parse(
      {"generate", "--load", "runs/demo", "--prompt", "Once upon", "--top-k", "40", "--temperature", "0", "--tp", "2"});
  CHECK(g.get<GenerateArgs>().prompt == "Once upon");
  CHECK(g.get<GenerateArgs>().top_k == 40);
  CHECK(g.config_flags == std::vector<std::string>{"--tp", "2"});
  const Command deep = parse({"ckpt", "verify", "--deep", "runs/demo", "--all", "false"});
  CHECK(deep.get<CkptVerifyArgs>().dir == "runs/demo");
  CHECK(deep.get<CkptVerifyArgs>().deep);
  CHECK_FALSE(deep.get<CkptVerifyArgs>().all);
  CHECK(parse({"ckpt", "ls", "runs/demo"}).get<CkptArgs>().dir == "runs/demo");
  CHECK(parse({"ckpt", "inspect", "--dir", "x"}).run == run_ckpt_inspect);
  CHECK(parse({"ckpt", "inspect", "x", "--stats"}).get<CkptInspectArgs>().stats);
  const Command i = parse({"data", "inspect", "x", "--order", "--data.order", "megatron", "--doc", "3"});
  CHECK((i.get<DataInspectArgs>().path == "x" && i.get<DataInspectArgs>().data_order == SampleOrder::kMegatron));
  CHECK((i.get<DataInspectArgs>().order && i.get<DataInspectArgs>().doc == 3));
  const Command p = parse({"data", "prepare", "--input", "a", "-", "--tokenizer", "t", "--output", "o", "--json-key",
                           "body", "--no-eod", "--memory-mb=100", "--split-docs", "line", "--force"});
  CHECK(p.get<DataPrepareArgs>().input == std::vector<std::string>{"a", "-"});
  CHECK((p.get<DataPrepareArgs>().no_eod && p.get<DataPrepareArgs>().force && !p.get<DataPrepareArgs>().strict_utf8));
  CHECK((p.get<DataPrepareArgs>().memory_mb == 100 && p.get<DataPrepareArgs>().json_key == "body"));
  const Command s = parse({"schedule", "--pp", "2", "--schedule", "zb-h1", "--cost", "1,3"});
  CHECK(s.get<ScheduleArgs>().schedule == "zb-h1");
  CHECK(s.get<ScheduleArgs>().cost == std::vector<double>{1, 3});
  CHECK(parse({"bench", "--steps", "3", "--tp", "2"}).loaded.config.parallel.tp == 2);
  CHECK(parse({"bench", "--steps", "2"}).run == run_bench);
  CHECK(parse({"bench", "ops", "--gemms", "--tp", "2"}).run == run_bench_ops);
}

TEST_CASE("wrong command lines are refused with the likely intended one") {
  CHECK(error_of({"trian"}) == "gpttrain trian: unknown subcommand; did you mean train?");
  const Outcome once = gpttrain("verfy", TempDir().path());
  CHECK(once.code == 2);
  CHECK(once.out == "gpttrain verfy: unknown subcommand; did you mean verify?\n");
  CHECK(error_of({"verfy"}) == "gpttrain verfy: unknown subcommand; did you mean verify?");
  CHECK_THAT(error_of({"frobnicate"}), Catch::Contains("unknown subcommand; see gpttrain --help"));
  CHECK(error_of({"ckpt"}) == "gpttrain ckpt: expected one of: ls inspect verify diff prune");
  CHECK_THAT(error_of({"ckpt", "lz", "x"}), Catch::Contains("did you mean ckpt ls?"));
  CHECK(error_of({"bench", "gemm", "--x"}) ==
        "gpttrain bench gemm: unknown subcommand; expected one of: ceilings ops peer suite roofline comm data");
  CHECK(error_of({"bench", "peers"}) == "gpttrain bench peers: unknown subcommand; did you mean bench peer?");
  CHECK_THAT(error_of({"export", "--x"}), Catch::Contains("--output: missing") && Catch::Contains("--x: unknown flag"));
  CHECK_THAT(error_of({"generate"}), Catch::StartsWith("--load: missing: checkpoint folder"));
  CHECK_THAT(error_of({"ckpt", "ls", "a", "b"}), Catch::StartsWith("b: unexpected argument"));
  CHECK_THAT(error_of({"tokenizer", "train", "--inptu", "a", "--output", "b"}),
             Catch::Equals("--inptu: unknown flag; did you mean --input?\n1 problem, nothing was started"));
  CHECK_THAT(error_of({"tokenizer", "train", "--input", "a", "--output", "b", "--type", "bpee"}),
             Catch::Contains("(did you mean bpe?)"));
  CHECK_THAT(error_of({"train", "--data.train", "mock", "--dry-rn"}),
             Catch::Contains("--dry-rn: unknown flag; did you mean --dry-run?"));
  CHECK_THAT(error_of({"schedule", "--pp"}), Catch::Contains("--pp"));
  CHECK_THAT(error_of({"data", "prepare", "--input", "a", "--key", "b"}),
             Catch::Contains("--tokenizer: missing") && Catch::Contains("--output: missing") &&
                 Catch::Contains("did you mean --json-key?"));
  CHECK_THAT(error_of({"ckpt", "ls", "a", "--stats"}), Catch::Contains("--stats: unknown flag"));
  CHECK_THAT(error_of({"bench", "--runs", "3"}), Catch::Contains("--runs"));
  CHECK_THAT(error_of({"tokenizer", "train", "--input", "a", "--output", "b", "--coverage", "2", "--sample-mb", "0"}),
             Catch::Contains("--coverage: 2 is outside") && Catch::Contains("--sample-mb: 0 is outside"));
}

TEST_CASE("one typo is one problem, and suggestions belong to the subcommand") {
  const auto one = [](const std::vector<std::string>& words, const std::string& expected) {
    CHECK_THAT(error_of(words), Catch::StartsWith(expected) && Catch::Contains("1 problem,"));
  };
  one({"tokenizer", "train", "--imput", "x", "y", "--output", "m"}, "--imput: unknown flag; did you mean --input?");
  one({"generate", "--laod", "runs/x"}, "--laod: unknown flag; did you mean --load?");
  one({"generate", "--load", "x", "--promt", "hello"}, "--promt: unknown flag; did you mean --prompt?");
  one({"generate", "--load", "x", "--topk", "5"}, "--topk: unknown flag; did you mean --top-k?");
  one({"generate", "--load", "x", "--case", "5"}, "--case: unknown flag; see gpttrain generate --help");
  one({"generate", "--load", "x", "--device.kin", "cpu"}, "--device.kin: unknown flag; did you mean --device.kind?");
  one({"ckpt", "ls", "--jsn", "runs/x"}, "--jsn: unknown flag; did you mean --json?");
  CHECK_THAT(error_of({"tokeniser", "train"}), Catch::Contains("did you mean tokenizer?"));
}

TEST_CASE("names of other trainers are answered with the settings that they mean") {
  Config config;
  std::set<std::string> keys;
  for (const Option& o : list_options(config)) keys.insert(o.key());
  std::set<std::string_view> names;
  for (const auto& [there, key] : names_elsewhere()) {
    INFO(there);
    CHECK(keys.count(std::string(key)) == 1);
    CHECK(names.insert(there).second);
    CHECK(key_elsewhere(there) == key);
  }
  const auto meant = [](const std::string& flag, const std::string& key) {
    CHECK_THAT(error_of({"verify", "--" + flag, "8"}),
               Catch::Contains("unknown flag; " + (key.empty() ? key : "did you mean --" + key + "?")));
  };
  meant("n_layer", "model.layers");
  meant("model.n-layer", "model.layers");
  meant("vocab_size", "model.vocab");
  meant("gradient_accumulation_steps", "train.grad_accum");
  meant("lora-rank", "model.lora_rank");
  meant("lora.rank", "model.lora_rank");
  meant("lora_r", "model.lora_rank");
  meant("train.lr", "optim.lr");
  meant("fulfilled_steepness", "");
  const auto value = [](const std::string& flag, const std::string& word, const std::string& here) {
    CHECK_THAT(error_of({"verify", "--" + flag, word}),
               Catch::Contains("\"" + word + "\" (did you mean " + here + "?)"));
  };
  value("device.kind", "gpu", "cuda");
  value("model.activation", "swiglu", "silu with model.gated true");
  value("amp", "bf16", "O2 with precision.dtype bf16");
  value("parallel.schedule", "1F1B", "1f1b");
  value("optim.type", "AdamW", "adamw");
  TempDir dir;
  write_file(dir / "hf.json", R"({"architectures": ["X"], "num_hidden_layers": 2, "model": {"n_embd": 8}})");
  CHECK_THAT(error_of({"train", "--config", dir / "hf.json"}), Catch::Contains("give a model's folder as --from") &&
                                                                   Catch::Contains("did you mean model.layers?") &&
                                                                   Catch::Contains("did you mean model.hidden?"));
}

TEST_CASE("a subcommand accepts only config flags that affect it") {
  for (const char* subcommand : {"generate", "eval"}) {
    const auto refused = [&](const std::vector<std::string>& flag, const std::string& error) {
      std::vector<std::string> words{subcommand, "--load", "x"};
      words.insert(words.end(), flag.begin(), flag.end());
      CHECK_THAT(error_of(words), Catch::Contains(flag[0] + ": has no effect on gpttrain " + subcommand) &&
                                      Catch::Contains(error) && Catch::Contains("1 problem,"));
    };
    refused({"--optim.lr", "3"}, "leave it out");
    refused({"--zero", "3"}, "--help");
    refused({"--checkpoint.every", "7"}, "");
    refused({"--num-layers", "7"}, "");
    CHECK_THAT(error_of({subcommand, "--load", "x", "--tp", "many"}), Catch::Contains("--tp: expected a whole number"));
    CHECK_NOTHROW(parse({subcommand, "--load", "x", "--tp", "2", "--launch.ranks", "threads", "--device.kind", "cpu"}));
    const std::string help = parse({subcommand, "--help-all"}).text;
    CHECK_THAT(help, Catch::Contains("--parallel.tp") && !Catch::Contains("--optim.") && !Catch::Contains("--config"));
  }
  CHECK_THAT(error_of({"generate", "--load", "x", "--train.seed", "3"}), Catch::Contains("did you mean --seed?"));
  CHECK_THAT(error_of({"lr", "--data.train", "mock"}), Catch::Contains("has no effect on gpttrain lr"));
}

TEST_CASE("help shows a subcommand's own flags and at most ten settings, within the width of the terminal") {
  for (const Subcommand& v : subcommands()) {
    std::vector<std::string> words;
    std::istringstream name(v.name);
    for (std::string w; name >> w;) words.push_back(w);
    words.emplace_back("--help");
    const std::string help = parse(words).text;
    INFO(help);
    std::istringstream lines(help);
    int settings = 0, count = 0;
    bool common = false;
    for (std::string line; std::getline(lines, line); ++count) {
      CHECK(line.size() <= 100 + (line.rfind("example:", 0) == 0 ? 60 : 0));
      common = common || line.rfind("common settings", 0) == 0;
      settings += common && line.rfind("  --", 0) == 0;
    }
    CHECK(settings <= 10);
    CHECK(common == (v.config != ConfigFlags::kNone));
    CHECK(count < 100);
  }
}

TEST_CASE("help and version print text") {
  CHECK_THAT(parse({}).text, Catch::Contains("./launch/demo.sh"));
  CHECK_THAT(parse({"--help"}).text, Catch::Contains("tokenizer train") && Catch::Contains("generate"));
  const std::string all = parse({"train", "--help-all"}).text, some = parse({"train", "--help"}).text;
  for (const char* own : {"--dry-run", "--config <text>", "--deepspeed_config"})
    CHECK_THAT(some, Catch::Contains(own) && Catch::Contains("--help-all"));
  CHECK_THAT(all,
             Catch::Contains("--zero.bucket_bytes") && Catch::Contains("--dry-run") && Catch::Contains("--num-layers"));
  CHECK_THAT(some, Catch::Contains("short: --tp"));
  for (const char* unbuilt : {"--cp ", "context-parallel-size", "mvapich"}) CHECK_THAT(all, !Catch::Contains(unbuilt));
  CHECK_THAT(some, !Catch::Contains("--zero.bucket_bytes") && !Catch::Contains("--num-layers"));
  CHECK_THAT(parse({"generate", "--help"}).text, Catch::Contains("--max-tokens"));
  CHECK_THAT(parse({"data", "--help"}).text,
             Catch::Contains("data prepare") && Catch::Contains("data inspect") && !Catch::Contains("tokenizer train"));
  CHECK(parse({"help", "ckpt"}).text == parse({"ckpt", "-h"}).text);
  CHECK_THAT(parse({"bench", "--help"}).text,
             Catch::Contains("--warmup") && Catch::Contains("also: gpttrain bench ceilings"));
  CHECK_THAT(parse({"bench", "ceilings", "--help"}).text, Catch::Contains("--output"));
  CHECK_THAT(parse({"bench", "roofline", "--help"}).text, Catch::Contains("--ceilings"));
  CHECK(parse({"help", "data", "prepare"}).text == parse({"data", "prepare", "--help"}).text);
  CHECK(parse({"help"}).text == parse({"--help"}).text);
  CHECK_THAT(parse({"data", "prepare", "--help"}).text, Catch::Contains("example: gpttrain data prepare --input") &&
                                                            Catch::Contains("--split-docs") &&
                                                            Catch::Contains("blank-line") && Catch::Contains("512"));
  CHECK_THAT(parse({"--version"}).text, Catch::StartsWith("gpttrain "));
  CHECK(parse({"tokenizer", "train", "--help"}).run == nullptr);
}

TEST_CASE("ranks are found from launchers in order, and contradictions are errors") {
  CHECK_FALSE(env_of({}).launched());
  RankEnv e = env_of({{"OMPI_COMM_WORLD_RANK", "3"},
                      {"OMPI_COMM_WORLD_SIZE", "8"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"PMIX_RANK", "3"}});
  CHECK((e.rank == 3 && e.world == 8 && e.local_rank == 1 && e.source == "OMPI_COMM_WORLD_RANK"));
  e = env_of({{"PMIX_RANK", "2"},
              {"SLURM_PROCID", "2"},
              {"SLURM_STEP_ID", "0"},
              {"SLURM_STEP_NUM_TASKS", "4"},
              {"SLURM_LOCALID", "1"}});
  CHECK((e.rank == 2 && e.world == 4 && e.local_rank == 1 && e.source == "PMIX_RANK"));
  e = env_of({{"RANK", "5"}, {"WORLD_SIZE", "6"}, {"LOCAL_RANK", "1"}});
  CHECK((e.rank == 5 && e.world == 6));
  CHECK_FALSE(env_of({{"RANK", "5"}}).launched());
  const RankEnv batch =
      env_of({{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_JOB_NUM_NODES", "2"}});
  CHECK_FALSE(batch.launched());
  CHECK_THAT(batch.note, Catch::Contains("Slurm job 77 on 2 nodes") && Catch::Contains("srun"));
  CHECK_THROWS_WITH(
      env_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"RANK", "0"}, {"WORLD_SIZE", "4"}}),
      Catch::Contains("OMPI_COMM_WORLD_RANK: rank 1 of 2, RANK: rank 0 of 4"));
  CHECK_THROWS_WITH(env_of({{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
                    Catch::Contains("OMPI_COMM_WORLD_RANK=x"));
  CHECK_THROWS_WITH(env_of({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}), Catch::Contains("must be below"));
  CHECK_THROWS_WITH(env_of({{"PMI_RANK", "2"}}), Catch::Contains("but not PMI_SIZE"));
}

TEST_CASE("the help of launch begins with the settings of the supervisor") {
  TempDir dir;
  const std::string help = must("launch --help", dir).out;
  const size_t restarts = help.find("--launch.max_restarts"), common = help.find("common settings of");
  CHECK(restarts < common);
  CHECK(help.find("--launch.hostfile") < common);
}

TEST_CASE("ranks of an srun step without PMIx are refused with the flag that it lacks") {
  TempDir dir;
  const Outcome r = shell("SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 exec " + binary_dir() +
                              "/gpttrain --data.train mock --tp 2 --train.steps 1 --log.name x",
                          dir.path());
  INFO(r.out);
  CHECK(r.code == 2);
  CHECK(r.prints("use srun --mpi=pmix gpttrain"));
}
