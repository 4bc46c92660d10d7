// GPUs and cores that a rank may use. The parent passes the chosen slots of all machines in one environment variable.
// Ranks are assigned machine by machine, so a rank finds its machine in that list from its own number. It restricts
// itself to those slots before threads and libraries are initialized.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "launch/hosts/hostfile.h"

namespace gt {

constexpr const char* kSlotsVariable = "GPTTRAIN_SLOTS";

// Slots of each machine in rank order: "0,2;0,1,2,3". Empty for no machines.
std::string slots_text(const std::vector<HostSlots>& hosts);

// Returns the slots of the machine that hosts `rank`, given one rank per slot; empty if the text does not cover it.
std::vector<int> slots_of_rank(std::string_view text, int rank);

// Parses "0-3,8" as 0, 1, 2, 3, 8, sorted and deduplicated. Throws kUsage with the malformed item.
std::vector<int> parse_core_list(std::string_view text);

// Returns the share of local rank k of n: core indices [k c / n, (k + 1) c / n) of c cores. Throws kUsage if c < n.
std::vector<int> share_of_cores(const std::vector<int>& cores, int k, int n);

// Returns a value for CUDA_VISIBLE_DEVICES: those of the visible GPUs that `slots` index; "" leaves it unchanged.
std::string gpus_of(const std::vector<int>& slots);

struct LaunchConfig;
// Returns the cores of a rank; empty if unrestricted. On a machine without GPUs, slots are core ids if a filter
// selected them, otherwise only their count matters. launch.core_list limits the cores of all ranks on a machine;
// launch.bind_cores gives each rank a share.
std::vector<int> cores_of(const LaunchConfig& launch, const std::vector<int>& slots, int local_rank, int local_ranks);

// Restricts this process to the GPUs and cores above.
void restrict_to_slots(const LaunchConfig& launch, const std::vector<int>& slots, int local_rank, int local_ranks);

}  // namespace gt
