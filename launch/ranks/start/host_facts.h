// Host requirements of a job, reported by each host (`gpttrain check --here`) and compared across hosts.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/hosts/hostfile.h"
#include "launch/options/console_text.h"

namespace gt {

class HostRun;  // host_probe.h

struct HostFacts {
  std::string host, program, isa, mpi, orted;  // orted: path of Open MPI's daemon; "" if absent
  int64_t cores = 0, memory = 0, memory_free = 0, shared_memory = 0, open_files = 0,
          disk_free = 0;                 // bytes; -1: unknown
  double clock = 0;                      // seconds since 1970
  std::vector<std::string> interfaces;   // "eth0 10.77.0.1", up, without loopback
  std::vector<std::string> devices;      // GPUs
  std::map<std::string, int64_t> files;  // requested files → bytes; -1 if missing
  std::string marker;                    // content of the marker file, which proves a shared folder
};

struct FactsRequest {
  std::vector<std::string> files;  // files that ranks will open
  std::string folder, marker;      // run folder (for its free bytes); file in it whose content is reported
};

HostFacts facts_here(const FactsRequest&);
std::string to_json(const HostFacts&);
// Throws kDamaged naming the host.
HostFacts facts_from_json(const std::string& json, const std::string& host);

// Collects the facts of every host over ssh, by running this program from the same path in the same folder. Adds a line
// to `problems` for each failing host: ssh's message, or a program that is missing or does not start.
struct HostReport {
  std::vector<HostFacts> facts;  // of hosts that answered
  std::vector<std::string> problems;
  bool unreachable = false;  // some host did not answer ssh
  double seconds = 0;        // until the last answer: clocks were read that far apart at most
};
HostReport collect_facts(const std::vector<std::string>& hosts, const FactsRequest&, int ssh_port);

// Returns what would prevent or corrupt a job on these hosts: programs, daemons, files and clocks that differ or are
// missing, folders that are not shared, limits. `ranks`: ranks per host, in the order of facts. seconds: of the report.
std::vector<std::string> differences(const std::vector<HostFacts>&, const std::vector<int>& ranks, int threads,
                                     bool named_interface, double seconds = 0);
// Returns a table with one row per host, labels first.
std::string facts_table(const std::vector<HostFacts>&, const std::vector<int>& ranks);

// Quick check before the first start of a job. Throws kUsage, or kHardware if a host does not answer, with one line for
// each problem. No effect if another agent than ssh starts remote processes.
void require_ready_hosts(const std::vector<HostSlots>&, int ssh_port);

// The same check without blocking; its processes are children of this one.
class ReadyCheck {
 public:
  ReadyCheck(const std::vector<HostSlots>&, int ssh_port);
  ~ReadyCheck();
  bool done();     // call several times a second
  void require();  // once, after done(); throws as require_ready_hosts() does

 private:
  std::unique_ptr<HostRun> run_;  // nullptr: nothing to check
};

}  // namespace gt
