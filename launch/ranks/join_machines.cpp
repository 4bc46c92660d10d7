#include "launch/ranks/join_machines.h"

#include <numeric>

#include "checkpoint/world.h"
#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "launch/hosts/network.h"

namespace gt {
namespace {

AddressSet addresses_of_job(ProcessGroup& world) {
  const AddressSet mine = own_addresses();
  AddressSet out;
  for (const std::string& sent : gather_bytes(world, pack({mine.begin(), mine.end()})))
    for (const std::string& address : unpack(sent)) out.insert(address);
  return out;
}

}  // namespace

void join_machines(MessageFactory& factory, const std::string& interface, ConnectionGuard* guard,
                   StallOptions& options) {
  if (factory.local_size() == factory.world_size()) return;
  std::vector<int> everybody(static_cast<size_t>(factory.world_size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto world = factory.make(everybody);
  const AddressSet addresses = addresses_of_job(*world);
  std::string text;
  if (factory.world_rank() == 0) {
    const std::string secret = random_word();
    options.hub = std::make_shared<NodeHub>(secret, interface.empty() ? "" : interface_here(interface));
    text = pack({options.hub->address(), secret, cat("rank 0 (", host_name(), ")")});
  }
  if (guard != nullptr) guard->admit(addresses);
  const std::vector<std::string> hub = unpack(broadcast_bytes(*world, text, 0));
  const bool beside_it = factory.board().pages[0].rank.world_rank.load() == 0;
  if (beside_it || hub.size() < 3 || hub[0].empty()) return;
  options.link = std::make_shared<NodeLink>(hub[0], hub[1]);
  options.hub_name = hub[2];
}

}  // namespace gt
