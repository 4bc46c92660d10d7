#include "launch/ranks/agree.h"

#include <fmt/format.h>

#include <array>
#include <fstream>

#include "launch/ranks/start/start_limits.h"
#include "parallel/comm/host_values.h"

namespace gt {

void agree(ProcessGroup& world, const std::function<void()>& body) {
  std::string message;
  Exit code = Exit::kOk;
  try {
    body();
  } catch (const Error& e) {
    message = e.what();
    code = e.code();
  } catch (const std::exception& e) {
    message = is_no_thread(e) ? no_thread_text() : e.what();
    code = is_no_thread(e) ? Exit::kUsage : Exit::kInternal;
  }
  // Lowest failing rank and its code in one integer, reduced with min.
  constexpr int32_t kNobody = INT32_MAX, kExitCodes = 1000;
  const int32_t first =
      min_over(world, code == Exit::kOk ? kNobody : world.rank() * kExitCodes + static_cast<int32_t>(code));
  if (first == kNobody) return;
  throw AgreedError(message, static_cast<Exit>(first % kExitCodes), first / kExitCodes == world.rank());
}

std::string shared_uuid(ProcessGroup& world) {
  std::array<int32_t, 4> words{};
  if (world.rank() == 0) {
    std::ifstream in("/dev/urandom", std::ios::binary);
    in.read(reinterpret_cast<char*>(words.data()), sizeof words);
  }
  std::string out;
  for (const int32_t w : broadcast_value(world, words)) out += fmt::format("{:08x}", static_cast<uint32_t>(w));
  return out;
}

}  // namespace gt
