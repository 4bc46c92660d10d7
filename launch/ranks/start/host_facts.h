// What a job needs of a host, reported by the host itself (`gpttrain check --here`) and compared over all of them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launch/hosts/hostfile.h"
#include "launch/options/console_text.h"

namespace gt {

struct HostFacts {
  std::string host, program, isa, mpi, orted;  // orted: path of Open MPI's daemon, "" where there is none
  int64_t cores = 0, memory = 0, memory_free = 0, shared_memory = 0, open_files = 0, disk_free = 0;  // bytes; -1: unknown
  double clock = 0;                       // seconds since 1970
  std::vector<std::string> interfaces;    // "eth0 10.77.0.1", up, without loopback
  std::vector<std::string> devices;       // GPUs
  std::map<std::string, int64_t> files;   // asked for: their bytes, -1 where missing
  std::string marker;                     // content of the file that shows a shared folder
};

struct FactsRequest {
  std::vector<std::string> files;  // that ranks will open
  std::string folder, marker;      // of the run (its free bytes); a file in it whose content is read
};

HostFacts facts_here(const FactsRequest&);
std::string to_json(const HostFacts&);
// Throws kDamaged naming the host.
HostFacts facts_from_json(const std::string& json, const std::string& host);

// Facts of every host, by ssh with this very program in this very folder; `problems` gets a line for each host that
// gives none: ssh's words, a program that is missing or does not start there.
struct HostReport {
  std::vector<HostFacts> facts;  // of hosts that answered
  std::vector<std::string> problems;
  bool unreachable = false;  // some host did not answer ssh
};
HostReport ask_for_facts(const std::vector<std::string>& hosts, const FactsRequest&, int ssh_port);

// What would keep a job from starting, or make it wrong, on these hosts: programs, daemons, files and clocks that differ
// or are missing, folders that are not shared, limits. `ranks`: of each host, in the order of facts.
std::vector<std::string> differences(const std::vector<HostFacts>&, const std::vector<int>& ranks, int threads,
                                     bool named_interface);
// Rows of a table, a host each, labels first.
std::string facts_table(const std::vector<HostFacts>&, const std::vector<int>& ranks);

// The short form before the first start of a job: throws kUsage, or kHardware where a host does not answer, with one
// line for each problem. Nothing where another agent than ssh starts processes.
void require_ready_hosts(const std::vector<HostSlots>&, int ssh_port);

}  // namespace gt
