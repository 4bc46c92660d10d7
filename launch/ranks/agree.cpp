#include "launch/ranks/agree.h"

#include <fmt/format.h>

#include <fstream>

#include "launch/ranks/start/start_limits.h"

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
  int32_t first = code == Exit::kOk ? kNobody : world.rank() * kExitCodes + static_cast<int32_t>(code);
  world.all_reduce({reinterpret_cast<std::byte*>(&first), {1}, DType::kI32, {}}, ReduceOp::kMin, {}).wait({});
  if (first == kNobody) return;
  throw AgreedError(message, static_cast<Exit>(first % kExitCodes), first / kExitCodes == world.rank());
}

std::string shared_uuid(ProcessGroup& world) {
  int32_t words[4] = {};
  if (world.rank() == 0) {
    std::ifstream in("/dev/urandom", std::ios::binary);
    in.read(reinterpret_cast<char*>(words), sizeof words);
  }
  world.broadcast({reinterpret_cast<std::byte*>(words), {4}, DType::kI32, {}}, 0, {}).wait({});
  std::string out;
  for (int32_t w : words) out += fmt::format("{:08x}", static_cast<uint32_t>(w));
  return out;
}

}  // namespace gt
