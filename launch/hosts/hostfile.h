// Which machines a job may use and how many ranks on each: hostfiles and the filters --include and --exclude as
// DeepSpeed documents them (where its code differs from its documentation, the documentation is followed). Parsing
// only; nothing is started, no name is looked up.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace gt {

struct HostSlots {
  std::string host;
  std::vector<int> slots;  // ascending
  friend bool operator==(const HostSlots&, const HostSlots&) = default;
};

// Lines "HOST slots=N" with N from 1, optionally "max_slots=M"; # begins a comment, empty lines are skipped. Throws
// kUsage "name:line: …", also for what is no name of a host: it goes to ssh and mpirun. Hosts in the order of the file.
std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& name);

// This machine: "localhost" with a slot for each visible GPU, or for each core where there is none.
std::vector<HostSlots> this_machine();
// Ids of the visible GPUs by CUDA_VISIBLE_DEVICES, else by device files; empty: none.
std::vector<std::string> visible_gpus();

// include or exclude (one of them may be given): NODE[:SLOT[,SLOT…]][@NODE…]. A node alone means all its slots;
// repeated nodes add up. Throws kUsage: an unknown host or slot, a malformed piece, nothing left.
std::vector<HostSlots> filter_hosts(const std::vector<HostSlots>& hosts, const std::string& include,
                                    const std::string& exclude);

int total_slots(const std::vector<HostSlots>& hosts);
bool is_this_machine(const std::string& host);  // localhost, 127.0.0.1, ::1 or this machine's name
bool only_here(const std::vector<HostSlots>& hosts);  // true for none

// The machines that `world` ranks need, slots being filled host by host; those behind them are spares.
std::vector<HostSlots> hosts_in_use(const std::vector<HostSlots>&, int world);
// "node2 (ranks 2, 3)": a host with those of `world` ranks that its slots hold; "node2" where it holds none.
std::string host_with_ranks(const std::vector<HostSlots>&, const std::string& host, int world);

struct LaunchConfig;
// The hosts that a config's launch section names: launch.hostfile, else /job/hostfile where that exists, else this
// machine; then num_nodes and num_slots, or include and exclude. Empty when it names none: nothing restricts the ranks.
std::vector<HostSlots> chosen_hosts(const LaunchConfig& launch);

}  // namespace gt
