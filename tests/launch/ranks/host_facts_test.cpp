// Host facts, and those that would prevent a job from starting.
#include "launch/ranks/start/host_facts.h"

#include "launch/ranks/start/host_probe.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

HostFacts good(const std::string& host) {
  HostFacts f;
  f.host = host, f.program = "0.1.0 (abc)", f.isa = "avx2", f.mpi = "Open MPI 4.1.4", f.orted = "/usr/bin/orted";
  f.cores = 8, f.memory_free = 1 << 30, f.shared_memory = 1 << 30, f.open_files = 4096, f.disk_free = 1 << 30;
  f.clock = 1000, f.interfaces = {"eth0 10.0.0.1"}, f.marker = "x", f.files = {{"a.bin", 10}};
  return f;
}

std::string all_of(const std::vector<HostFacts>& hosts, bool named = false) {
  std::string out;
  for (const std::string& line : differences(hosts, std::vector<int>(hosts.size(), 2), 1, named)) out += line + "\n";
  return out;
}

}  // namespace

TEST_CASE("host facts round-trip through JSON, and a malformed report is refused with the host's name") {
  const TempDir dir;
  write_file(dir / "data", "12345");
  write_file(dir / "mark", "here");
  const HostFacts f = facts_here({{dir / "data", dir / "none"}, dir.path(), dir / "mark"});
  CHECK(f.files == std::map<std::string, int64_t>{{dir / "data", 5}, {dir / "none", -1}});
  CHECK(f.marker == "here");
  CHECK(f.cores > 0);
  CHECK(f.memory_free > 0);
  CHECK(f.disk_free > 0);
  const HostFacts back = facts_from_json(to_json(f), "node1");
  CHECK(to_json(back) == to_json(f));
  for (const char* text : {"", "{}", "[1]", "{\"host\": 1}", "\x1b[2J"}) {
    INFO(text);
    CHECK_THROWS_WITH(facts_from_json(text, "node7"), Contains("node7: its answer is not what"));
  }
}

TEST_CASE("hosts that differ are named with their values, and equal ones are not") {
  CHECK(all_of({good("a"), good("b")}) == "");
  HostFacts odd = good("c");
  odd.program = "0.1.0 (xyz)", odd.isa = "avx512", odd.files["a.bin"] = -1, odd.marker = "", odd.clock = 1010;
  odd.orted = "", odd.shared_memory = 1 << 20, odd.open_files = 8, odd.interfaces = {"eth0 10.0.0.3", "ib0 10.1.0.3"};
  const std::string text = all_of({good("a"), good("b"), odd});
  for (const char* line :
       {"program: 0.1.0 (abc) on a, b; 0.1.0 (xyz) on c; copy one build", "instruction set: avx2 on a, b; avx512 on c",
        "a.bin: 10 B on a, b; missing on c", "run folder: shared on a, b; not shared on c", "clocks are 10.0 s apart",
        "c: no orted in the PATH", "c: /dev/shm has 1.0 MiB free", "c: a process may have 8 open files",
        "c: 2 networks are up (eth0 10.0.0.3, ib0 10.1.0.3)"}) {
    INFO(text);
    CHECK_THAT(text, Contains(line));
  }
  CHECK_THAT(all_of({odd, good("a")}, true), !Contains("networks are up"));
  CHECK_THAT(all_of({odd, good("a")}), Contains("clocks are"));
  for (const std::string& line : differences({odd, good("a")}, {2, 2}, 1, false, 9))  // slow answers are no difference
    CHECK_THAT(line, !Contains("clocks are"));
}

TEST_CASE("a file missing on every host is one line, and a single host needs no daemon and no network") {
  HostFacts a = good("a"), b = good("b");
  a.files["a.bin"] = b.files["a.bin"] = -1;
  CHECK(all_of({a, b}) == "a.bin: missing on every host\n");
  HostFacts alone = good("a");
  alone.orted = "", alone.interfaces = {"eth0 1.1.1.1", "eth1 1.1.2.1"};
  CHECK(all_of({alone}) == "");
}

TEST_CASE("commands on hosts return output, errors and codes, and a hanging one is killed at the limit") {
  const auto answers = run_on_hosts({"localhost"}, "echo out; echo first >&2; echo last >&2; exit 7", 0, 20);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].code == 7);
  CHECK(answers[0].out == "out\n");
  CHECK(answers[0].last_line() == "last");
  CHECK(run_on_hosts({"localhost"}, "sleep 600", 0, 0.2)[0].code == HostAnswer::kNone);
  CHECK(run_on_hosts({"localhost"}, "kill -9 $$", 0, 20)[0].code == 128 + 9);
  CHECK(run_on_hosts({"localhost"}, "head -c 1000000 /dev/zero", 0, 20)[0].out.size() <= (68 << 10));
}
