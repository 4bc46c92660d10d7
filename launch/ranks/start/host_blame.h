// Attribution of failed attempts to hosts, and exclusion of failing hosts. Text processing only.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launch/hosts/hostfile.h"

namespace gt {

// Returns the ranks that the first line of a verdict names as dead, late or inconsistent: "rank 3 (node07 pid 4711, …)
// died", "stalled: not arrived: rank 2, 5, …", "…: ranks 1 (node07, …), 4 (…) differ". Empty if no rank is at fault:
// ranks disagree, or wait for each other.
std::vector<int> blamed_ranks(std::string_view verdict);

// Returns the hosts of `hosts` that a verdict is about: those of the ranks that blamed_ranks() finds, or the one after
// "lost: ", without duplicates.
std::vector<std::string> blamed_hosts(std::string_view verdict, const std::vector<HostSlots>& hosts);

// Returns the host of a rank when slots are filled host by host; "" if there is no slot for it.
std::string host_of_rank(const std::vector<HostSlots>&, int rank);

class HostBlame {
 public:
  // Processes an attempt of `world` ranks on `hosts` that ended with `code` and a verdict. Returns the host to exclude
  // from now on, or "". A host is excluded if only its ranks are named, for the second time or with code 16, and the
  // other hosts have slots for all ranks.
  std::string after(int code, const std::string& verdict, const std::vector<HostSlots>& hosts, int world);

 private:
  std::map<std::string, int> named_;
};

}  // namespace gt
