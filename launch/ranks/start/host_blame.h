// Which machine an attempt of a job is blamed on, and when it is left out of the next one. Text and lists only.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launch/hosts/hostfile.h"

namespace gt {

// The ranks that the first line of a verdict calls dead, late or wrong: "rank 3 (node07 pid 4711, …) died", "stalled:
// not arrived: rank 2, 5, …", "…: ranks 1 (node07, …), 4 (…) differ". Empty where it blames nobody: ranks that
// disagree, or wait for each other.
std::vector<int> blamed_ranks(std::string_view verdict);

// Ranks fill the slots host by host. "": the hosts have no slot for it.
std::string host_of_rank(const std::vector<HostSlots>&, int rank);

class HostBlame {
 public:
  // An attempt of `world` ranks on `hosts` ended with `code` and a verdict. The host to leave out from now on: one
  // whose ranks alone are blamed, for the second time or with code 16, as long as the others have slots for all ranks.
  // "": none.
  std::string after(int code, const std::string& verdict, const std::vector<HostSlots>& hosts, int world);

 private:
  std::map<std::string, int> named_;
};

}  // namespace gt
