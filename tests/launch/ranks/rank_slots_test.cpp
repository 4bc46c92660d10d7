// Effect of launcher flags on ranks: available cores and GPUs, variables of .deepspeed_env, and machines reached by
// ssh, here replaced by a program that starts a clean shell as ssh would.
#include "launch/hosts/rank_slots.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "launch/config/config.h"
#include "launch/hosts/env_file.h"
#include "launch/ranks/start/spawn.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const std::string kTiny = "--config " + source_dir() + "/configs/tiny.json --device.kind cpu ";

// Sets a variable of this process within a scope; nullptr unsets it.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old, had_ = true;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~ScopedVariable() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

std::string problems_of(const std::vector<std::string>& flags) {
  try {
    load_config({.flags = flags});
  } catch (const Error& e) { return e.what(); }
  return "accepted";
}

std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> out;
  const std::string text = read_file(file);
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    out.push_back(text.substr(at, end - at));
  std::sort(out.begin(), out.end());
  return out;
}

// Replacement for ssh: takes options, a host and a command line, which it runs in an empty environment.
std::string fake_ssh(const TempDir& dir) {
  const std::string file = dir / "fake-ssh";
  write_file(file, "#!/bin/sh\necho \"$@\" | cut -c1-300 >> " + dir.path() +
                       "/ssh.log\nwhile :; do case \"$1\" in -p | -o) shift 2 ;; -*) shift ;; *) break ;; esac; done\n"
                       "host=$1; shift\nmkdir -p " +
                       dir.path() + "/$host\nexec env -i PATH=\"$PATH\" HOME=" + dir.path() + " TMPDIR=" + dir.path() +
                       "/$host FAR=$host sh -c \"$*\"\n");  // daemons of one machine create and remove one folder
  chmod(file.c_str(), 0755);
  return file;
}

// Empty if there is no list.
std::vector<int> parse_core_list_or(const std::string& text) {
  return text.empty() ? std::vector<int>() : parse_core_list(text);
}

}  // namespace

TEST_CASE("a rank finds the slots of its machine by its local rank") {
  const std::string text = slots_text({{"a", {0, 2}}, {"b", {1}}, {"c", {0, 1, 2}}});
  CHECK(text == "0,2;1;0,1,2");
  CHECK(slots_of_rank(text, 0) == std::vector<int>{0, 2});
  CHECK(slots_of_rank(text, 1) == std::vector<int>{0, 2});
  CHECK(slots_of_rank(text, 2) == std::vector<int>{1});
  CHECK(slots_of_rank(text, 5) == std::vector<int>{0, 1, 2});
  CHECK(slots_of_rank(text, 6).empty());
  for (const char* nothing : {"", ";", "x", "0,,1", "-1", "99999999999999999999"})
    CHECK(slots_of_rank(nothing, 1).empty());
}

TEST_CASE("slots are GPUs where there are any, and cores where a filter names them") {
  LaunchConfig launch;
  {
    const ScopedVariable gpus("CUDA_VISIBLE_DEVICES", "4,GPU-a,6");
    CHECK(gpus_of({0, 2}) == "4,6");
    CHECK(gpus_of({1, 7}) == "GPU-a");
    launch.include = "localhost:0";
    CHECK(cores_of(launch, {0}, 0, 1).empty());  // its GPU, any core
  }
  const ScopedVariable none("CUDA_VISIBLE_DEVICES", "");
  const std::vector<int> all = this_machine()[0].slots;
  launch.include = "";
  CHECK(gpus_of({0}).empty());
  CHECK(cores_of(launch, {all[0]}, 0, 1).empty());  // "slots=1" of a hostfile is a number of ranks, not a core
  launch.include = "localhost:0";
  CHECK(cores_of(launch, {all[0]}, 0, 1) == std::vector<int>{all[0]});
  CHECK(cores_of(launch, {1000}, 0, 1) == all);  // no such core here
  launch = {};
  launch.core_list = std::to_string(all.back());
  CHECK(cores_of(launch, {}, 1, 3) == std::vector<int>{all.back()});
  launch.bind_cores = true;
  CHECK_THROWS_WITH(cores_of(launch, {}, 1, 3), Contains("launch.bind_cores: 3 ranks on ") && Contains("but 1 core"));
}

TEST_CASE("cores are listed as numbers and ranges, and divided equally") {
  CHECK(parse_core_list("0-3,8") == std::vector<int>{0, 1, 2, 3, 8});
  CHECK(parse_core_list("5,1,1-2") == std::vector<int>{1, 2, 5});
  for (const char* wrong : {"", "x", "1-", "-1", "3-1", "1,", "1,,2", "0-99999", "1-2-3"})
    CHECK_THROWS_WITH(parse_core_list(wrong), Contains("expected cores as in 0-3,8"));
  CHECK_THAT(problems_of({"--bind_core_list", "2-x"}), Contains("--bind_core_list: expected cores as in 0-3,8"));
  CHECK_THAT(problems_of({"--bind_cores_to_rank", "--launch.ranks", "threads"}), Contains("threads of one process"));
  const std::vector<int> cores{0, 1, 2, 3, 8};
  std::vector<int> together;
  for (int k = 0; k < 3; ++k)
    for (const int c : share_of_cores(cores, k, 3)) together.push_back(c);
  CHECK(together == cores);
  CHECK(share_of_cores(cores, 0, 3).size() == 1);
  CHECK(share_of_cores(cores, 2, 3) == std::vector<int>{3, 8});
}

TEST_CASE(".deepspeed_env cannot select code, and is read only where no other user can write it") {
  for (const char* name : {"LD_PRELOAD",
                           "LD_LIBRARY_PATH",
                           "OMPI_MCA_plm_rsh_agent",
                           "PMIX_MCA_x",
                           "PATH",
                           "HWLOC_PLUGINS_PATH",
                           "UCX_MODULE_DIR",
                           "FI_PROVIDER_PATH",
                           "OPENSSL_CONF",
                           "HDF5_PLUGIN_PATH",
                           "NCCL_ENV_PLUGIN",
                           "NCCL_NET_PLUGIN",
                           "NCCL_CONF_FILE",
                           "NCCL_DEBUG_FILE",
                           "CUDA_INJECTION64_PATH",
                           "OMP_TOOL_LIBRARIES",
                           "RDMAV_DRIVERS",
                           "PYTHONPATH",
                           "BASH_ENV",
                           "ENV",
                           "HOME",
                           "TMPDIR",
                           "XDG_CACHE_HOME",
                           "GPTTRAIN_REPORTS",
                           "GCONV_PATH",
                           "MALLOC_TRACE",
                           "A"})
    CHECK_THROWS_WITH(parse_env_file("NCCL_DEBUG=1\n" + std::string(name) + "=x\n", "f"),
                      Contains("f:2: " + std::string(name) + " is not accepted in a file"));
  for (const char* name :
       {"NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG", "HDF5_USE_FILE_LOCKING", "UCX_TLS",
        "FI_PROVIDER", "LC_ALL", "TZ", "GPTTRAIN_JOB_SECRET", "WANDB_API_KEY"})
    CHECK(parse_env_file(std::string(name) + "=x\n", "f").size() == 1);
  TempDir home;
  write_file(home / ".deepspeed_env", "OMP_A=home\n");
  const ScopedVariable there("HOME", home.path().c_str());
  const auto has_note = [&](const std::string& text) {
    write_file(home / ".deepspeed_env", text);
    const auto notes = load_config({.flags = {"--data.train", "mock"}}).notes;
    return std::any_of(notes.begin(), notes.end(),
                       [](const std::string& n) { return n.find(".deepspeed_env") != std::string::npos; });
  };
  CHECK((has_note("OMP_A=home\n") && !has_note("# nothing\n\n") && !has_note("")));
  write_file(home / ".deepspeed_env", "OMP_A=home\n");
  std::filesystem::permissions(home / ".deepspeed_env", std::filesystem::perms(0666));
  CHECK_THROWS_WITH(read_env_files(), Contains(".deepspeed_env: writable by others"));
  std::filesystem::permissions(home / ".deepspeed_env", std::filesystem::perms(0640));
  CHECK(read_env_files().variables.size() == 1);
  if (::geteuid() != 0) return report_partly_skipped("a file of another user: only root can make one");
  REQUIRE(::chown((home / ".deepspeed_env").c_str(), 12345, 0) == 0);
  CHECK_THROWS_WITH(read_env_files(), Contains(".deepspeed_env: belongs to user 12345"));
}

TEST_CASE(".deepspeed_env has lines NAME=VALUE, and that of the working directory wins") {
  const Variables v = parse_env_file("# of all\nOMP_A=1\n\n OMP_B = two words \r\nOMP_C=x=y\nOMP_A=3\nOMP_D=", "f");
  CHECK(v == Variables{{"OMP_A", "3"}, {"OMP_B", "two words"}, {"OMP_C", "x=y"}, {"OMP_D", ""}});
  CHECK_THROWS_WITH(parse_env_file("OMP_A=1\nB\n", "f"), Contains("f:2: expected NAME=VALUE, found \"B\""));
  CHECK_THROWS_WITH(parse_env_file("1A=1\n", "f"), Contains("f:1: expected NAME=VALUE"));
  TempDir home;
  write_file(home / ".deepspeed_env", "OMP_A=home\nOMP_B=home\n");
  const ScopedVariable there("HOME", home.path().c_str());
  const EnvFiles found = read_env_files();
  CHECK(found.files == std::vector<std::string>{home / ".deepspeed_env"});
  CHECK(found.variables == Variables{{"OMP_A", "home"}, {"OMP_B", "home"}});
  TempDir dir;
  write_file(dir / ".deepspeed_env", "NOT A VARIABLE\n");
  const Outcome r = gpttrain("--data.train mock --nonsense", dir.path());
  CHECK(r.code == 2);
  CHECK(r.prints(".deepspeed_env:1: expected NAME=VALUE"));
  CHECK(r.prints("2 problems, nothing was started"));
}

TEST_CASE("ranks on other machines receive the variables, their slots and the port of ssh") {
  TempDir dir;
  const ScopedVariable agent("OMPI_MCA_plm_rsh_agent", fake_ssh(dir).c_str());
  SpawnOptions options;
  options.program = "/bin/sh";
  options.hosts = {{"far0", {1, 3}}, {"far1", {0}}};
  options.ssh_port = 2222;
  options.variables = {{"GT_COLOUR", "deep blue"}};
  CHECK(
      launch_ranks(
          3,
          {"-c", "echo $OMPI_COMM_WORLD_RANK $FAR $GPTTRAIN_LAUNCHED $GPTTRAIN_SLOTS $GT_COLOUR $GPTTRAIN_REPORTS >> " +
                     (dir / "out")},
          options) == 0);
  CHECK(lines_of(dir / "out") == std::vector<std::string>{"0 far0 1 1,3;0 deep blue 2", "1 far0 1 1,3;0 deep blue 2",
                                                          "2 far1 1 1,3;0 deep blue 2"});
  const auto calls = lines_of(dir / "ssh.log");
  REQUIRE(calls.size() == 2);
  CHECK_THAT(calls[0], Contains("-p 2222 far0"));
  CHECK_THAT(calls[1], Contains("-p 2222 far1"));
}

TEST_CASE(
    "training on the machines of a hostfile equals local training, and a dry run shows the command and starts "
    "nothing") {
  TempDir dir;
  write_file(dir / "hosts", "far0 slots=2\nfar1 slots=2 # two more\n");
  write_file(dir / ".deepspeed_env", "NCCL_COLOUR=blue\n");
  const std::string tiny =
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--device.kind cpu --log.tensorboard false --checkpoint.every 0 --train.steps 3 --pp 2 ";
  const ScopedVariable agent("OMPI_MCA_plm_rsh_agent", fake_ssh(dir).c_str());
  const Outcome dry = gpttrain(tiny + "-H hosts --include far0@far1 --ssh_port 2222 --dry_run", dir.path());
  INFO(dry.out);
  CHECK(dry.code == 0);
  CHECK(dry.prints("-H far0:2,far1:2 -x GPTTRAIN_LAUNCHED"));
  CHECK(dry.prints("-x NCCL_COLOUR -n 4 "));
  CHECK(dry.prints("on far1 needs "));
  CHECK(dry.prints("dry run: nothing was started"));
  CHECK_FALSE(std::filesystem::exists(dir / "ssh.log"));

  // The shared memory of both "machines" would collide, because they are the same machine.
  const Outcome far = gpttrain(tiny + "-H hosts --log.name far --launcher_args=\"--mca btl self,tcp\"", dir.path());
  INFO(far.out);
  REQUIRE(far.code == 0);
  CHECK(far.prints("NCCL_COLOUR of ./.deepspeed_env for every rank"));
  CHECK(lines_of(dir / "ssh.log").size() == 2);
  REQUIRE(gpttrain(tiny + "--dp 2 --launch.ranks threads --log.name here", dir.path()).code == 0);
  CHECK(logged(dir / "runs/far", "loss") == logged(dir / "runs/here", "loss"));
}

TEST_CASE("a machine whose ranks die twice is excluded from the next start, if a spare one has slots") {
  TempDir dir;
  write_file(dir / "hosts", "far0 slots=2\nfar1 slots=2\nfar2 slots=2\n");
  const std::string ssh = fake_ssh(dir), log = dir / "runs/x/log.jsonl";
  // Kills the first rank found on far1 after another twenty lines in the log. Other tests have a far1 too, at the same
  // time; this one's is known by its temporary folder.
  write_file(dir / "killer",
             "lines() { cat " + log + " 2>/dev/null | wc -l; }\nfar1=TMPDIR=" + dir.path() + "/far1\n" + R"sh(
for i in $(seq 600); do
  for e in /proc/[0-9]*/environ; do
    p=${e%/environ}
    [ "$(cat $p/comm 2>/dev/null)" = gpttrain ] && tr '\0' '\n' 2>/dev/null < $e | grep -qxF "$far1" || continue
    before=$(lines)
    while [ -d $p ] && [ $(lines) -lt $((before + 20)) ]; do sleep 0.1; done
    [ -d $p ] || continue  # of the start before, and gone by itself: its number may be another's soon
    kill -9 ${p#/proc/}
    exit
  done
  sleep 0.1
done
)sh");
  std::string text = read_file(ssh);
  const std::string make_folder = "mkdir -p " + dir.path() + "/$host\n";
  const size_t at = text.find(make_folder);
  REQUIRE(at != std::string::npos);
  text.insert(at + make_folder.size(), "[ $host != far1 ] || sh " + (dir / "killer") + " >/dev/null 2>&1 &\n");
  write_file(ssh, text);
  const ScopedVariable agent("OMPI_MCA_plm_rsh_agent", ssh.c_str());
  const Outcome r = gpttrain(
      "launch --model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--device.kind cpu --log.tensorboard false --checkpoint.every 2 --train.steps 160 --pp 2 --dp 2 --log.name x "
      "--fault.inject delay@step:rank=0,ms=30 --max-restarts 5 -H hosts --launcher_args=\"--mca btl self,tcp\"",
      dir.path(), 200);
  INFO(r.out << read_file(dir / "runs/x/restarts.jsonl"));
  CHECK(r.code == 0);
  CHECK(r.prints("far1 is excluded from now on"));
  std::vector<nlohmann::json> story;
  for (const std::string& line : lines_of(dir / "runs/x/restarts.jsonl")) story.push_back(nlohmann::json::parse(line));
  // One more attempt if ranks ended by the launcher were reported before the killed one: another machine is then
  // suspected once.
  REQUIRE((story.size() == 2 || story.size() == 3));
  size_t left_out = 0;
  for (const auto& j : story) {
    CHECK_THAT(j.at("suspect").get<std::string>(), Contains("died"));
    left_out += j.at("left_out").size();
  }
  CHECK(left_out == 1);
  const auto calls = lines_of(dir / "ssh.log");
  CHECK(std::any_of(calls.begin(), calls.end(),
                    [](const std::string& c) { return c.find("far2") != std::string::npos; }));
  CHECK(logged(dir / "runs/x", "loss").size() == 160);
}

TEST_CASE("with Slurm ranks are started by srun, and options that Slurm decides are refused") {
  TempDir dir;
  write_file(dir / "hosts", "w0 slots=1\nw1 slots=1\n");
  const std::string hosts = dir / "hosts";
  CHECK_THAT(problems_of({"--hostfile", hosts, "--launcher", "slurm", "--include", "w0:0"}),
             Contains("slurm assigns the slots of a machine itself"));
  CHECK_THAT(problems_of({"--launcher", "pdsh"}),
             Contains("pdsh is not built yet in this version (this launcher); use openmpi or slurm"));
  CHECK_THAT(problems_of({"--launcher", "srun"}), Contains("expected openmpi"));
  // An srun that starts the requested number of ranks here.
  write_file(dir / "srun", "#!/bin/sh\necho \"$@\" >> " + dir.path() +
                               "/srun.log\nexec mpirun --oversubscribe -n ${1#--ntasks=} $(shift; "
                               "while :; do case \"$1\" in --*) shift ;; *) break ;; esac; done; echo \"$@\")\n");
  chmod((dir / "srun").c_str(), 0755);
  const ScopedVariable path("PATH", (dir.path() + ":" + std::getenv("PATH")).c_str());
  const Outcome r = gpttrain(kTiny +
                                 "--launcher slurm -H hosts "
                                 "--launcher_args=--partition=big --train.steps 2 --log.name x",
                             dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK_THAT(read_file(dir / "srun.log"), Contains("--ntasks=2 ") && Contains("--nodelist=w0,w1 --ntasks-per-node=1") &&
                                              Contains("--partition=big "));
  CHECK(logged(dir / "runs/x", "loss").size() == 2);
}

TEST_CASE("each rank is bound to its share of the cores") {
  const std::vector<int> all = this_machine()[0].slots;
  if (all.size() < 2) GT_SKIP("a machine of one core");
  TempDir dir;
  const std::string run = kTiny + "--dp 2 --bind_cores_to_rank ";
  std::map<int, std::string> cores;  // of each rank during training
  const Outcome r = gpttrain(run + "--train.steps 120 --log.name x", dir.path(), 120, [&](int pid) {
    if (!wait_for_step(dir / "runs/x/log.jsonl", 1)) return;
    for (const int rank : {0, 1}) {
      const std::string status = read_file(cat("/proc/", process_of(pid, rank), "/status"));
      const size_t at = status.find("Cpus_allowed_list:\t") + 19;
      cores[rank] = status.substr(at, status.find('\n', at) - at);
    }
  });
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(parse_core_list_or(cores[0]) == share_of_cores(all, 0, 2));
  CHECK(parse_core_list_or(cores[1]) == share_of_cores(all, 1, 2));
  const Outcome more = gpttrain(cat(run, "--bind_core_list ", all[0], " --train.steps 1 --log.name y"), dir.path());
  CHECK(more.code == 2);
  CHECK(more.prints("launch.bind_cores: 2 ranks on "));
}
