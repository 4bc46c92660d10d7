#include "launch/agree.h"

#include <exception>

namespace gt {

void agree(ProcessGroup& world, const std::function<void()>& body) {
  std::exception_ptr error;
  Exit code = Exit::kOk;
  try {
    body();
  } catch (const Error& e) {
    error = std::current_exception();
    code = e.code();
  } catch (const std::exception&) {
    error = std::current_exception();
    code = Exit::kInternal;
  }
  // Lowest failing rank and its code in one number: smaller rank wins.
  constexpr int32_t kNobody = INT32_MAX;
  int32_t first = error ? world.rank() * 1000 + static_cast<int32_t>(code) : kNobody;
  const Tensor flag{reinterpret_cast<std::byte*>(&first), {1}, DType::kI32, {}};
  world.all_reduce(flag, ReduceOp::kMin, {}).wait({});
  if (first == kNobody) return;
  if (error && first / 1000 == world.rank()) std::rethrow_exception(error);
  throw PeerFailed(static_cast<Exit>(first % 1000));
}

}  // namespace gt
