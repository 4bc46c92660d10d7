// Which GPUs or cores a rank may use. The parent tells ranks the chosen slots of all machines in one variable; a rank
// finds its machine there by its number, because ranks are placed machine by machine. Before threads and libraries are
// made, it leaves itself only those.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "launch/hosts/hostfile.h"

namespace gt {

constexpr const char* kSlotsVariable = "GPTTRAIN_SLOTS";

// "0,2;0,1,2,3": slots of each machine in the order of ranks. Empty for no machines.
std::string slots_text(const std::vector<HostSlots>& hosts);

// The slots of the machine that rank `rank` is on, with as many ranks as slots; empty: the text says nothing of it.
std::vector<int> slots_of_rank(std::string_view text, int rank);

// "0-3,8" -> 0, 1, 2, 3, 8; ascending, each once. Throws kUsage with the piece that is none.
std::vector<int> parse_core_list(std::string_view text);

// Rank k of n on a machine: core indices [k c / n, (k + 1) c / n) of c cores. Throws kUsage where c < n.
std::vector<int> share_of_cores(const std::vector<int>& cores, int k, int n);

// GPUs by CUDA_VISIBLE_DEVICES ("": leave it): those of the visible ones that the slots number.
std::string gpus_of(const std::vector<int>& slots);

struct LaunchConfig;
// The cores of a rank: empty where nothing restricts them. `slots` of a machine without GPUs are its cores when a
// filter named them (else their number alone counts); launch.core_list is all that ranks of a machine may use;
// launch.bind_cores gives each its share.
std::vector<int> cores_of(const LaunchConfig& launch, const std::vector<int>& slots, int local_rank, int local_ranks);

// Applies both to this process.
void take_slots(const LaunchConfig& launch, const std::vector<int>& slots, int local_rank, int local_ranks);

}  // namespace gt
