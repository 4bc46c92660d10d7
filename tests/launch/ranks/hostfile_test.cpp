// Hostfiles and host filters: the table of DeepSpeed's documentation, every error with its position, and ranks that
// start on the selected slots.
#include "launch/hosts/hostfile.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernels/core/check.h"
#include "launch/config/config.h"
#include "launch/ranks/start/host_blame.h"
#include "launch/ranks/start/host_probe.h"
#include "launch/ranks/start/spawn.h"
#include "launch/tools/translate/deepspeed_flags.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const std::vector<HostSlots> kHosts = parse_hostfile("worker-0 slots=4\nworker-1 slots=4\nworker-2 slots=2\n", "hosts");

std::string problems_of(const std::vector<std::string>& flags, int world = 0) {
  try {
    load_config({.flags = flags, .external_world = world, .world_source = world > 0 ? "OMPI_COMM_WORLD_RANK" : ""});
  } catch (const Error& e) { return e.what(); }
  return "accepted";
}

}  // namespace

TEST_CASE("a hostfile has comments, blank lines and hosts in order") {
  const auto hosts = parse_hostfile("# machines\nb slots=2 # two\n\n  a\tslots=1 max_slots=4\r\n", "hosts");
  REQUIRE(hosts.size() == 2);
  CHECK(hosts[0] == HostSlots{"b", {0, 1}});
  CHECK(hosts[1] == HostSlots{"a", {0}});
  CHECK(total_slots(hosts) == 3);
  const struct {
    const char *text, *error;
  } wrong[] = {
      {"w0 slots=4\nw0 slots=2\n", "hosts:2: Hostfile contains multiple entries for w0"},
      {"# x\nw0 slots\n", "hosts:2: Hostfile contains a bad entry: w0 slots;"},
      {"w0\n", "hosts:1: Hostfile contains a bad entry: w0;"},
      {"w0 slots=0\n", "bad entry: w0 slots=0"},
      {"w0 slots=-1\n", "bad entry"},
      {"w0 slots=1e9\n", "bad entry"},
      {"w0 slots=+2\n", "bad entry"},
      {"# x\n-oProxyCommand=reboot slots=2\n", "hosts:2: \"-oProxyCommand=reboot\" is not a valid host name"},
      {"w0,w1 slots=2\n", "hosts:1: \"w0,w1\" is not a valid host name"},
      {"-l@w0 slots=2\n", "\"-l@w0\" is not a valid host name"},
      {"user@-w0 slots=2\n", "is not a valid host name"},
      {"a;b slots=2\n", "is not a valid host name"},
      {"[] slots=2\n", "is not a valid host name"},
      {"w0 slots=99999999\n", "bad entry"},
      {"w0 slots=4 max_slots=2\n", "bad entry"},
      {"w0 slots=4 cores=2\n", "bad entry"},
      {"w0 slots=4 max_slots=8 more\n", "bad entry"},
      {"slots=4\n", "bad entry"},
      {"", "hosts: Hostfile is empty or not formatted correctly"},
      {"# only this\n\n", "Hostfile is empty or not formatted correctly"},
  };
  for (const auto& w : wrong) {
    INFO(w.text);
    CHECK_THROWS_WITH(parse_hostfile(w.text, "hosts"), Contains(w.error));
  }
}

TEST_CASE("hosts may be addresses and have users, in the file and in filters, and a byte-order mark is ignored") {
  const auto hosts = parse_hostfile(
      "\xEF\xBB\xBF[fe80::1%eth0] slots=2\nuser@gpu-1.example.org slots=2\n"
      "10.0.0.7 slots=1\n",
      "h");
  REQUIRE(hosts.size() == 3);
  CHECK(hosts[0].host == "[fe80::1%eth0]");
  CHECK(filter_hosts(hosts, "[fe80::1%eth0]", "") == std::vector<HostSlots>{hosts[0]});
  CHECK(filter_hosts(hosts, "[fe80::1%eth0]:1@user@gpu-1.example.org@10.0.0.7", "") ==
        std::vector<HostSlots>{{"[fe80::1%eth0]", {1}}, hosts[1], hosts[2]});
  CHECK(filter_hosts(hosts, "user@gpu-1.example.org:0", "") == std::vector<HostSlots>{{"user@gpu-1.example.org", {0}}});
  CHECK(filter_hosts(hosts, "", "user@gpu-1.example.org@10.0.0.7:0") == std::vector<HostSlots>{hosts[0]});
  CHECK_THROWS_WITH(filter_hosts(hosts, "10.0.0.7@", ""), Contains("found \"10.0.0.7@\""));
  CHECK_THROWS_WITH(filter_hosts(hosts, "user@other", ""), Contains("'user' not found in hostfile"));
}

TEST_CASE("filters select as DeepSpeed's documentation specifies") {
  using Slots = std::vector<HostSlots>;
  CHECK(filter_hosts(kHosts, "", "") == kHosts);
  CHECK(filter_hosts(kHosts, "worker-1", "") == Slots{{"worker-1", {0, 1, 2, 3}}});
  CHECK(filter_hosts(kHosts, "worker-0@worker-1:0,2", "") == Slots{{"worker-0", {0, 1, 2, 3}}, {"worker-1", {0, 2}}});
  CHECK(filter_hosts(kHosts, "", "worker-0:1,3@worker-2") == Slots{{"worker-0", {0, 2}}, {"worker-1", {0, 1, 2, 3}}});
  // Repeated nodes accumulate, slots are sorted and deduplicated, hosts keep the file order.
  CHECK(filter_hosts(kHosts, "worker-1:3,0@worker-0:1@worker-1:0", "") ==
        Slots{{"worker-0", {1}}, {"worker-1", {0, 3}}});
  const struct {
    const char *include, *exclude, *error;
  } wrong[] = {
      {"worker-1:9", "", "No slot '9' specified on host 'worker-1'"},
      {"X", "", "Hostname 'X' not found in hostfile"},
      {"", "worker-9:1", "Hostname 'worker-9' not found in hostfile"},
      {"worker-0", "worker-1", "include and exclude are mutually exclusive"},
      {"", "worker-0@worker-1@worker-2", "no slots left"},
      {"worker-0:", "", "found \"worker-0:\""},
      {"worker-0:x", "", "found \"worker-0:x\""},
      {"worker-0:1,", "", "found \"worker-0:1,\""},
      {"@worker-0", "", "found \"@worker-0\""},
      {"worker-0:99999999999999999999", "", "found \"worker-0:9999"},
  };
  for (const auto& w : wrong) {
    INFO(w.include << " / " << w.exclude);
    CHECK_THROWS_WITH(filter_hosts(kHosts, w.include, w.exclude), Contains(w.error));
  }
}

TEST_CASE("slots determine the number of ranks where dp is left out, and limit it where it is given") {
  TempDir dir;
  write_file(dir / "hosts", "localhost slots=4\nfar slots=4\n");
  const std::string file = dir / "hosts";
  CHECK(load_config({.flags = {"--hostfile", file, "--tp", "2"}}).config.parallel.dp == 4);
  CHECK(load_config({.flags = {"--hostfile", file, "--include", "far:0,1"}}).config.parallel.dp == 2);
  CHECK(load_config({.flags = {"--hostfile", file, "--num_nodes", "1", "--num_gpus", "3"}}).config.parallel.dp == 3);
  CHECK(load_config({.flags = {"--hostfile", file, "--dp", "3"}}).config.parallel.dp == 3);
  CHECK_THAT(problems_of({"--hostfile", file, "--dp", "9"}),
             Contains("tp 1 x pp 1 x dp 9 = 9 ranks, but the chosen hosts have 8 slots"));
  CHECK_THAT(problems_of({"--hostfile", file, "--include", "far:7"}), Contains("No slot '7' specified on host 'far'"));
  CHECK_THAT(problems_of({"--hostfile", file, "--include", "far", "--num_nodes", "1"}),
             Contains("cannot be combined with"));
  CHECK_THAT(problems_of({"--hostfile", file, "--num_nodes", "3"}), Contains("--num_nodes: 3, but there are 2"));
  CHECK_THAT(problems_of({"--hostfile", dir / "none"}), Contains("cannot be read"));
  CHECK_THAT(problems_of({"--hostfile", file, "--launch.ranks", "threads"}), Contains("threads live in one process"));
  CHECK(problems_of({"--hostfile", dir / "none"}, 2) == "accepted");  // the launcher has already placed the ranks
  CHECK(load_config({.flags = {"--include", "localhost:" + std::to_string(this_machine()[0].slots[0])}})
            .config.parallel.dp == 1);
}

TEST_CASE("mpirun receives the hosts with their slots, and uses ssh when one of them is another machine") {
  const auto line = [](const std::vector<HostSlots>& hosts) {
    std::string out;
    const SpawnOptions options{
        .hosts = hosts, .launcher_args = "--tag-output  --mca a b", .variables = {{"NAME", "x"}}};
    for (const std::string& w : mpirun_command(3, "mpirun", "gpttrain", {"--x"}, options)) out += w + " ";
    return out;
  };
  CHECK_THAT(line({}), !Contains("-H") && !Contains("-x GPTTRAIN"));
  CHECK_THAT(line({{"localhost", {0, 1}}}), Contains("-H localhost:2 --tag-output --mca a b -n 3 gpttrain --x"));
  CHECK_THAT(line({{"localhost", {0, 1}}, {"far", {4}}}),
             Contains("-H localhost:2,far:1 -x GPTTRAIN_LAUNCHED") &&
                 Contains("-x GPTTRAIN_SLOTS -x GPTTRAIN_REPORTS -x NAME --tag-output"));
}

TEST_CASE("only machines with ranks are used, and a machine is named with its ranks") {
  const std::vector<HostSlots> hosts{{"a", {0, 1}}, {"b", {0, 1, 2}}, {"c", {0}}, {"d", {0}}};
  CHECK(hosts_in_use(hosts, 1).size() == 1);
  CHECK(hosts_in_use(hosts, 3).back().host == "b");
  CHECK(hosts_in_use(hosts, 6).size() == 3);
  CHECK(hosts_in_use(hosts, 7) == hosts);
  CHECK(host_with_ranks(hosts, "a", 6) == "a (ranks 0, 1)");
  CHECK(host_with_ranks(hosts, "b", 3) == "b (rank 2)");
  CHECK(host_with_ranks(hosts, "c", 6) == "c (rank 5)");
  CHECK(host_with_ranks(hosts, "d", 6) == "d");
  std::string line;
  for (const std::string& w : mpirun_command(3, "mpirun", "gpttrain", {}, {.hosts = hosts})) line += w + " ";
  CHECK_THAT(line, Contains("-H a:2,b:3 "));
}

TEST_CASE("connections to other machines time out within seconds, and one machine needs none") {
  const auto environment = [](const std::vector<HostSlots>& hosts, int port) {
    std::string out;
    for (const auto& [name, value] :
         job_command(2, false, {}, {.program = "x", .hosts = hosts, .ssh_port = port}).environment)
      out += name + "=" + value + "\n";
    return out;
  };
  CHECK_THAT(environment({{"localhost", {0, 1}}}, 0), !Contains("keepalive") && !Contains("plm_rsh_args"));
  CHECK_THAT(
      environment({{"localhost", {0}}, {"far", {0}}}, 2200),
      Contains("oob_tcp_keepalive_time=5\n") && Contains("oob_tcp_keepalive_probes=") &&
          Contains("oob_tcp_keepalive_intvl=") &&
          Contains("plm_rsh_args=-o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -p 2200\n"));
}

TEST_CASE("machines that do not answer ssh are found, all in parallel") {
  TempDir dir;
  write_file(
      dir / "ssh",
      "#!/bin/sh\necho \"$*\" >>$0.calls\ncase \"$*\" in\n*' dead true') echo 'Warning: x' >&2; echo 'ssh: connect to "
      "host dead port 22: Connection refused' >&2; exit 255;;\n*' odd true') echo no >&2; exit 1;;\nesac\nsleep 0.3\n");
  std::filesystem::permissions(dir / "ssh", std::filesystem::perms::owner_all);
  const std::string path = getenv("PATH");
  setenv("PATH", (dir.path() + ":" + path).c_str(), 1);
  const auto found = unreachable_hosts({{"localhost", {0}}, {"dead", {0}}, {"odd", {0}}, {"well", {0}}}, 77);
  setenv("PATH", dir.path().c_str(), 1);
  const auto without = unreachable_hosts({{"localhost", {0}}}, 0);
  setenv("PATH", path.c_str(), 1);
  REQUIRE(found.size() == 1);
  CHECK(found[0].host == "dead");
  CHECK(found[0].why == "ssh: connect to host dead port 22: Connection refused");
  CHECK(without.empty());
  std::ifstream in(dir / "ssh.calls");
  const std::string calls{std::istreambuf_iterator<char>(in), {}};
  CHECK_THAT(calls, Contains("ConnectTimeout=") && Contains("-p 77 -- well true") && !Contains("localhost"));
}

TEST_CASE("srun receives the machines and the number of ranks on each") {
  const auto line = [](const std::vector<HostSlots>& hosts) {
    std::string out;
    for (const std::string& w :
         srun_command(4, "srun", "gpttrain", {"--x"}, {.hosts = hosts, .launcher_args = "-p big"}))
      out += w + " ";
    return out;
  };
  CHECK(line({}) == "srun --ntasks=4 --mpi=pmix --kill-on-bad-exit=1 -p big gpttrain --x ");
  CHECK_THAT(line({{"b", {0, 1}}, {"a", {0, 1}}}),
             Contains("--nodes=2 --nodelist=b,a --ntasks-per-node=2 --distribution=block -p big gpttrain"));
  CHECK_THROWS_WITH(line({{"b", {0, 1}}, {"a", {0}}}), Contains("b has 2 chosen slots and a 1"));
}

TEST_CASE("ranks start on the slots of a hostfile that names this machine, after launch and -- too") {
  TempDir dir;
  write_file(dir / "hosts", "localhost slots=2 # here\n");
  write_file(dir / "ds.json", "{\"train_batch_size\": 4}");
  const std::string tiny =
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--device.kind cpu --log.tensorboard false --checkpoint.every 0 ";
  const Outcome r =
      gpttrain("launch -H hosts -- " + tiny + "--deepspeed_config ds.json --train.steps 2 --log.name x", dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(r.prints("2 ranks"));
  CHECK(logged(dir / "runs/x", "loss").size() == 2);
  const std::string core = std::to_string(this_machine()[0].slots[0]);
  const Outcome one = gpttrain(tiny + "--include localhost:" + core + " --train.steps 1 --log.name y", dir.path());
  INFO(one.out);
  CHECK(one.code == 0);
}

TEST_CASE("flags that DeepSpeed's launchers pass are accepted, checked or refused by name") {
  const auto take = [](std::vector<std::string> words, const RankEnv& env = {}) {
    Problems problems;
    const DsFlags flags = consume_deepspeed_flags(words, env, problems);
    std::string out = flags.config + (flags.allow_unknown_keys ? "+" : "") + "|";
    for (const std::string& w : words) out += w + " ";
    return problems.empty() ? out : problems.text();
  };
  RankEnv third;
  third.rank = 7, third.world = 8, third.local_rank = 3, third.source = "OMPI_COMM_WORLD_RANK";
  CHECK(take({"--deepspeed", "--deepspeed_config", "a.json", "--tp", "2"}) == "a.json|--tp 2 ");
  CHECK(take({"--deepspeed_config=a.json", "--allow_unknown_keys"}) == "a.json+|");
  CHECK(take({"--local_rank", "3", "--local-rank=3", "--x"}, third) == "|--x ");
  CHECK(take({"--local_rank=-1"}) == "|");
  CHECK(take({"-H", "f", "-i", "a", "-e", "b"}) == "|--hostfile f --include a --exclude b ");
  CHECK(take({"--master_addr", "w0", "--master_port=29501", "--dry_run", "--x"}) == "|--dry-run --x ");
  const struct {
    std::vector<std::string> words;
    const char* error;
  } wrong[] = {
      {{"--local_rank", "2"}, "--local_rank: 2, but the launcher reports local rank 3 (OMPI_COMM_WORLD_RANK)"},
      {{"--local_rank", "two"}, "expected a whole number from -1, found \"two\""},
      {{"--deepspeed", "ds.json"}, "--deepspeed: takes no value; did you mean --deepspeed_config ds.json?"},
      {{"--deepspeed_config"}, "expected a file, - or base64:TEXT, found none"},
      {{"--deepspeed_config", "--tp", "2"}, "expected a file"},
      {{"--deepscale_config", "x"}, "--deepscale_config: is an obsolete DeepSpeed name; use --deepspeed_config FILE"},
      {{"--elastic_training"}, "--elastic_training: is a flag of DeepSpeed's launcher that is not implemented: "},
      {{"--module"}, "gpttrain does not run Python"},
  };
  for (const auto& w : wrong) {
    INFO(w.words[0]);
    CHECK_THAT(take(w.words, third), Contains(w.error) && Contains("1 problem"));
  }
}

TEST_CASE("a machine that answers ssh only at the second try is not lost, one known to be lost is not awaited") {
  TempDir dir;
  write_file(dir / "ssh",
             "#!/bin/sh\ncase \"$*\" in\n*' busy true') [ -e $0.tried ] || { touch $0.tried; echo 'Connection reset by "
             "peer' >&2; exit 255; };;\n*' silent true' | *' mute true') exec sleep 60;;\nesac\n");
  std::filesystem::permissions(dir / "ssh", std::filesystem::perms::owner_all);
  const std::string path = getenv("PATH");
  setenv("PATH", (dir.path() + ":" + path).c_str(), 1);
  const auto begin = std::chrono::steady_clock::now();
  LostHostsCheck lost({"silent", "well", "localhost"}, {"well", "other", "mute"}, 0);
  const auto found = lost.finish();
  const auto took = std::chrono::steady_clock::now() - begin;
  const auto second = unreachable_hosts({{"busy", {0}}, {"well", {0}}}, 0);
  setenv("PATH", path.c_str(), 1);
  CHECK(std::filesystem::exists(dir / "ssh.tried"));
  CHECK(second.empty());
  CHECK(lost.known() == std::vector<std::string>{"silent", "well", "other"});  // "mute" gets a longer check
  REQUIRE(found.size() == 1);
  CHECK(found[0].host == "silent");
  CHECK(found[0].why == "no answer to ssh within 1.5 s");
  CHECK(took < std::chrono::seconds(50));  // and not until ssh ends
}

TEST_CASE("a verdict blames the hosts of the ranks or of the daemon that it names") {
  const std::vector<HostSlots> hosts{{"a", {0, 1}}, {"b", {0}}, {"c", {0}}};
  using Hosts = std::vector<std::string>;
  CHECK(blamed_hosts("rank 2 (b) died of SIGKILL", hosts) == Hosts{"b"});
  CHECK(blamed_hosts("lost: no sign of life from ranks 0 (a pid 5), 1 (a pid 6) for 5 s", hosts) == Hosts{"a"});
  CHECK(blamed_hosts("lost: c: the connection to its Open MPI daemon ended", hosts) == Hosts{"c"});
  CHECK(blamed_hosts("lost: d: the connection to its Open MPI daemon ended", hosts).empty());
  CHECK(blamed_hosts("stalled: not arrived: rank 1, 3", hosts) == Hosts{"a", "c"});
  CHECK(blamed_hosts("", hosts).empty());
  HostBlame blame;
  CHECK(blame.after(137, "rank 2 (b) died of SIGKILL", hosts, 3) == "");
  CHECK(blame.after(137, "rank 2 (b) died of SIGKILL", hosts, 3) == "b");  // named twice
}
