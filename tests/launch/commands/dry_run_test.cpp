// Dry run: one process that starts nothing, writes nothing and allocates no weights, with the figures of the real run.
#include "launch/train/dry_run.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "launch/observe/sinks/console.h"
#include "tests/launch/engine_ranks.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const std::string kTiny =
    "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --device.threads 1 --log.tensorboard false "
    "--checkpoint.every 0 ";

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

Rows dry(const std::string& flags) { return dry_run(load_config({.flags = words_of(flags)}), RankEnv{}); }

std::string row(const Rows& rows, const std::string& name) {
  for (const auto& [key, value] : rows)
    if (key == name) return value;
  return "";
}

// Kills the process with SIGSYS if it creates processes, opens files for writing or modifies a folder.
void forbid_starting_and_writing() {
#define GT_WORD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, field))
#define GT_KILL BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
#define GT_NEVER(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), GT_KILL
  constexpr unsigned kWrites = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  sock_filter rules[] = {
      GT_WORD(nr), GT_NEVER(SYS_fork), GT_NEVER(SYS_vfork), GT_NEVER(SYS_mkdir), GT_NEVER(SYS_mkdirat),
      GT_NEVER(SYS_rename), GT_NEVER(SYS_renameat), GT_NEVER(SYS_renameat2), GT_NEVER(SYS_unlink),
      GT_NEVER(SYS_unlinkat), GT_NEVER(SYS_symlink), GT_NEVER(SYS_link), GT_NEVER(SYS_creat),
      // clone3 takes its flags from memory, which a filter cannot read: report it missing, so that libc falls back to
      // clone.
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4), GT_WORD(args[0]),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0), GT_KILL, BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_open, 0, 4), GT_WORD(args[1]),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kWrites, 0, 1), GT_KILL, BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3), GT_WORD(args[2]),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kWrites, 0, 1), GT_KILL, BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    _exit(111);
}

// Returns the exit code of the program under this filter and with at most `megabytes` of data, 128 + n for a signal;
// `out` receives its output.
int under_rules(const std::string& flags, const std::string& cwd, int64_t megabytes, std::string* out) {
  std::vector<std::string> words = words_of(binary_dir() + "/gpttrain " + flags);
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO), dup2(ends[1], STDERR_FILENO);
    close(ends[0]), close(ends[1]);
    const rlimit data{static_cast<rlim_t>(megabytes) << 20, static_cast<rlim_t>(megabytes) << 20};
    if (chdir(cwd.c_str()) != 0 || setrlimit(RLIMIT_DATA, &data) != 0) _exit(112);
    forbid_starting_and_writing();
    execv(argv[0], argv.data());
    _exit(113);
  }
  close(ends[1]);
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) out->append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("layout, memory, bubble and traffic of a dry run are those that the run prints") {
  TempDir dir;
  for (const char* layout :
       {"--tp 2 --pp 2 --zero 1 --dp 2", "--pp 2 --dp 2 --zero 2 --parallel.recompute full", "--dp 2 --zero 0",
        "--dp 2 --zero 3 --parallel.recompute selective", "--pp 2 --vpp 2 --parallel.schedule interleaved",
        "--tp 2 --amp O2 --precision.dtype bf16 --precision.fp8 delayed"}) {
    INFO(layout);
    const std::string flags = kTiny + layout + " --launch.ranks threads ";
    const Rows rows = dry(flags);
    const Outcome run = gpttrain(flags + "--train.steps 1 --log.name x --force --checkpoint.resume never", dir.path());
    INFO(run.out);
    REQUIRE(run.code == 0);
    for (const char* name : {"layout", "memory", "traffic", "zero", "checkpoints"}) {
      std::istringstream lines(row(rows, name));
      for (std::string line; std::getline(lines, line);) CHECK(run.prints(line));
      CHECK(row(rows, name).empty() == (name == std::string("zero") && !std::strstr(layout, "--dp")));
    }
    CHECK_THAT(row(rows, "fit"), Contains("fits: rank "));
  }
}

TEST_CASE("planned traffic equals the bytes that the groups of a real step send") {
  const std::string optimizer = GENERATE("adamw", "muon");
  EngineOptions o;
  o.optim.type = optimizer;
  o.model = {.layers = 4, .hidden = 16, .heads = 4, .ffn = 32, .vocab = 60, .seq = 8};
  o.micro_batch = 2, o.microbatches = 3, o.sequence_parallel = true;
  const MeshShape shape{.pp = 2, .dp = 2, .tp = 2};
  on_engines(o, shape, [&](EngineRank& r) {
    const auto sent = [&] {
      return std::vector<int64_t>{
          r.mesh.group(Axis::kTp).counters().total(), r.mesh.group(Axis::kPp).counters().total(),
          r.mesh.group(Axis::kDp).counters().total(), r.mesh.embedding_group().counters().total()};
    };
    r.step(0);
    const auto before = sent();
    r.step(1);
    auto after = sent();
    const StepTraffic plan = plan_memory(o, shape, r.mesh.rank()).sent;
    for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
    GT_CHECK((after == std::vector<int64_t>{plan.tensor_parallel.total(), plan.pipeline.total(),
                                            plan.data_parallel.total(), plan.embedding.total()}),
             "rank ", r.mesh.rank());
    for (const int64_t bytes : after) GT_CHECK(bytes > 0);
  });
}

TEST_CASE("a dry run starts no process, writes no file and holds no weights, for any number of ranks") {
#ifdef GPT_SANITIZED
  SUCCEED("sanitizers write reports and map shadow memory");
#else
  TempDir dir;
  // The weights of GPT-2 1558M alone are 6.2 GB. In builds with the CUDA backend, the search for a GPU loads
  // libcublasLt, whose 194 MB of writable segments count as data although untouched.
  constexpr int64_t kMegabytes = 120, kWithCublas = kMegabytes + 200;
  std::string out;
  REQUIRE(under_rules("--config " + source_dir() + "/configs/gpt2-1558m.json --data.train mock --dry-run", dir.path(),
                      kWithCublas, &out) == 0);
  CHECK_THAT(out, Contains("dry run: nothing was started") && Contains("weights 6.2 GB"));
  out.clear();
  REQUIRE(under_rules("--config " + source_dir() +
                          "/configs/gpt3-175b.json --dp 32 --data.train mock --device.kind cpu --dry-run",
                      dir.path(), kMegabytes, &out) == 0);
  CHECK_THAT(out, Contains("4096 ranks") && Contains("dry run: nothing was started"));
  CHECK(std::filesystem::is_empty(dir.path()));
  out.clear();  // the filter works: a real run is killed
  CHECK(under_rules(kTiny + "--train.steps 1", dir.path(), 4000, &out) == 128 + SIGSYS);
  CHECK(under_rules(kTiny + "--train.steps 1 --pp 2", dir.path(), 4000, &out) == 128 + SIGSYS);
#endif
}

TEST_CASE("a dry run shows how ranks would start, even without the launcher installed") {
  TempDir dir;
  const auto without_path = [&](const std::string& flags) {
    return shell("PATH=/nowhere " + binary_dir() + "/gpttrain " + kTiny + flags + " --dry-run", dir.path());
  };
  const Outcome slurm = without_path("--pp 2 --launcher slurm");
  INFO(slurm.out);
  CHECK(slurm.code == 0);
  CHECK(slurm.prints("srun --ntasks=2 "));
  CHECK_FALSE(slurm.prints("--dry-run"));
  write_file(dir / "hosts", "node1 slots=1\nnode2 slots=1\n");
  const Outcome mpi = without_path("--pp 2 -H hosts");
  CHECK(mpi.code == 0);
  CHECK(mpi.prints("mpirun --oversubscribe "));
  CHECK_FALSE(without_path("--pp 2").prints("mpirun"));
  const Outcome missing = without_path("--data.train nowhere/tokens");
  CHECK(missing.code == 2);
  CHECK(missing.prints("nowhere/tokens"));
}

TEST_CASE("every shipped config can be planned in this process") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs")) {
    if (entry.path().extension() != ".json") continue;
    INFO(entry.path());
    const Config c = load_config({.file = entry.path().string()}).config;
    const std::string batch = std::to_string(2 * c.train.micro_batch * c.parallel.dp);
    std::vector<std::string> flags = words_of("--data.train mock --train.grad_accum 2 --train.global_batch " + batch);
    flags.insert(flags.end(), {"--data.tokenizer", ""});
    const Rows rows = dry_run(load_config({.file = entry.path().string(), .flags = flags}), RankEnv{});
    CHECK_THAT(row(rows, "memory"), Contains("stage 0: embedding"));
    CHECK_THAT(row(rows, "fit"), Contains("rank "));
    if (entry.path().stem() == "gpt3-175b") CHECK_THAT(row(rows, "model"), Contains("174,604,259,328 parameters"));
    if (entry.path().stem() == "turing-nlg-17b") CHECK_THAT(row(rows, "model"), Contains("17,1"));
    if (entry.path().stem() == "megatron-8.3b") CHECK_THAT(row(rows, "model"), Contains("8,3"));
    if (entry.path().stem() == "llama-1b") CHECK_THAT(row(rows, "model"), Contains("1,235,814,400 parameters"));
    if (entry.path().stem() == "llama-8b") CHECK_THAT(row(rows, "model"), Contains("8,030,261,248 parameters"));
    if (entry.path().stem() == "qwen3-4b") CHECK_THAT(row(rows, "model"), Contains("4,022,468,096 parameters"));
    if (entry.path().stem() == "olmo2-7b") CHECK_THAT(row(rows, "model"), Contains("7,298,617,344 parameters"));
    if (entry.path().stem() == "bert-base") CHECK_THAT(row(rows, "model"), Contains("110,106,428 parameters"));
    if (entry.path().stem() == "bert-large") CHECK_THAT(row(rows, "model"), Contains("336,226,108 parameters"));
    if (entry.path().stem() == "gemma2-2b") CHECK_THAT(row(rows, "model"), Contains("2,614,341,888 parameters"));
    if (entry.path().stem() == "gemma3-1b") CHECK_THAT(row(rows, "model"), Contains("999,885,952 parameters"));
    ++count;
  }
  CHECK(count >= 18);
}

TEST_CASE("a tokenizer of far fewer pieces than model.vocab has a line at the start of a run and of a dry run") {
  TempDir dir;
  write_file(dir / "text.txt", read_file(source_dir() + "/README.md"));
  REQUIRE(gpttrain("tokenizer train --input text.txt --vocab 400 --output tok.model", dir.path()).code == 0);
  REQUIRE(gpttrain("data prepare --input text.txt --tokenizer tok.model --output tokens", dir.path()).code == 0);
  const std::string run =
      "--model.layers 1 --model.hidden 16 --model.heads 2 --model.seq 16 --train.global_batch 2 --device.kind cpu "
      "--train.steps 1 --checkpoint.every 0 ";
  const char* const note = "has 400 pieces: 3600 rows of the embedding are never used; --model.vocab 400 suffices";
  for (const char* data : {"--data.train tokens ", "--data.train tokens --data.tokenizer tok.model ",
                           "--data.train text.txt --data.tokenizer tok.model --log.name text "}) {
    INFO(data);
    CHECK(gpttrain(run + data + "--model.vocab 4000 --dry-run", dir.path()).prints(note));
    const Outcome r = gpttrain(run + data + "--model.vocab 4000", dir.path());
    INFO(r.out);
    CHECK(r.code == 0);
    CHECK(r.prints(note));
    CHECK_FALSE(gpttrain(run + data + "--model.vocab 512 --dry-run", dir.path()).prints("never used"));
  }
}

TEST_CASE("a layout that does not fit names the rank, needed and available memory, and the smallest change that fits") {
  const Rows rows =
      dry("--model.layers 2 --model.hidden 64 --model.heads 4 --model.vocab 300 --model.seq 1024 "
          "--data.train mock --train.micro_batch 1048576 --train.global_batch 1048576 --device.kind cpu");
  CHECK_THAT(row(rows, "fit"), Contains("does not fit: rank 0 (pp0 dp0 tp0) on ") && Contains("of which activations "));
  CHECK_THAT(row(rows, "to fit"),
             Contains("--train.micro_batch ") && Contains(": fits: rank 0") || Contains(": tight: rank 0"));
}

TEST_CASE("ranks are placed as launchers place them, and the fullest device is found among all machines") {
  TempDir dir;
  write_file(dir / "hosts", "far0 slots=1\nfar1 slots=3\n");
  Config c = load_config({.flags = words_of(kTiny + "--pp 2 --dp 2 --launch.hostfile " + (dir / "hosts"))}).config;
  const std::vector<Machine> far = place_ranks(c, RankEnv{}, 1);
  REQUIRE(far.size() == 2);
  CHECK(far[0].ranks == std::vector<int>{0});
  CHECK(far[1].ranks == std::vector<int>{1, 2, 3});
  StagePlans plans(2);
  plans[0].memory.weights = 300, plans[1].memory.weights = 200;
  const MeshShape mesh{.pp = 2, .dp = 2};  // ranks 0 and 1 are stage 0
  const MemoryFit fit = fullest_device(mesh, plans, cpu_backend(), far);
  CHECK(fit.machine == "far1");
  CHECK(fit.limiting_rank == 1);
  CHECK(fit.needed == 700);
  c.launch = LaunchConfig{};
  CHECK(place_ranks(c, RankEnv{}, 1).size() == 1);
  c.launch.launcher = Launcher::kSlurm;
  CHECK(place_ranks(c, RankEnv{}, 2).size() == 2);
  RankEnv env;
  env.source = "SLURM_PROCID", env.world = 4, env.local_world = 3;
  CHECK(place_ranks(c, env, 1)[1].ranks == std::vector<int>{3});
}
