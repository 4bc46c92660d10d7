// Hosts and slots of a job: hostfiles and the filters --include and --exclude as documented by DeepSpeed. Where
// DeepSpeed's code differs from its documentation, the documentation is followed. Parsing only: starts nothing and
// resolves no names.
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

// Parses lines "HOST slots=N" with N >= 1 and optional "max_slots=M"; # starts a comment, empty lines are skipped.
// Returns hosts in file order. Throws kUsage "name:line: …", also for invalid host names, because they are passed to
// ssh and mpirun.
std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& name);

// Returns this machine as "localhost" with one slot per visible GPU, or per core if it has no GPU.
std::vector<HostSlots> this_machine();
// Returns the ids of the visible GPUs, from CUDA_VISIBLE_DEVICES or else from device files; empty if there are none.
std::vector<std::string> visible_gpus();

// Applies an include or an exclude filter (at most one of them): NODE[:SLOT[,SLOT…]][@NODE…]. A node without slots
// means all its slots; repeated nodes accumulate. Throws kUsage for unknown hosts or slots, malformed terms and an
// empty result.
std::vector<HostSlots> filter_hosts(const std::vector<HostSlots>& hosts, const std::string& include,
                                    const std::string& exclude);

int total_slots(const std::vector<HostSlots>& hosts);
bool is_this_machine(const std::string& host);            // localhost, 127.0.0.1, ::1 or this machine's name
bool is_local_only(const std::vector<HostSlots>& hosts);  // true for an empty list

// Returns the hosts that `world` ranks occupy when slots are filled host by host; the remaining hosts are spares.
std::vector<HostSlots> hosts_in_use(const std::vector<HostSlots>&, int world);
// Returns a host with the ranks on its slots, "node2 (ranks 2, 3)"; "node2" if none of the `world` ranks is there.
std::string host_with_ranks(const std::vector<HostSlots>&, const std::string& host, int world);

struct LaunchConfig;
// Returns the hosts selected by a config's launch section: launch.hostfile, else /job/hostfile if it exists, else this
// machine; then limited by num_nodes and num_slots, or include and exclude. Empty if the section selects nothing: ranks
// are then unrestricted.
std::vector<HostSlots> chosen_hosts(const LaunchConfig& launch);

}  // namespace gt
