#include "checkpoint/world.h"

#include <cstring>

#include "kernels/core/host.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {}  // namespace

std::vector<std::string> gather_bytes(ProcessGroup& g, std::string_view mine) {
  const auto own = static_cast<int64_t>(mine.size());
  const int64_t slot = max_over(g, own) + int64_t{sizeof own};
  std::vector<char> part(static_cast<size_t>(slot)), all(static_cast<size_t>(slot * g.size()));
  std::memcpy(part.data(), &own, sizeof own);
  std::memcpy(part.data() + sizeof own, mine.data(), mine.size());
  g.all_gather(host_tensor(std::span(part)), host_tensor(std::span(all)), {}).wait({});
  std::vector<std::string> out;
  for (int r = 0; r < g.size(); ++r) {
    const char* p = all.data() + slot * r;
    int64_t n = 0;
    std::memcpy(&n, p, sizeof n);
    out.emplace_back(p + sizeof n, static_cast<size_t>(n));
  }
  return out;
}

std::string broadcast_bytes(ProcessGroup& g, std::string_view mine, int root) {
  const int64_t n = broadcast_value(g, static_cast<int64_t>(mine.size()), root);
  std::string out = g.rank() == root ? std::string(mine) : std::string(static_cast<size_t>(n), '\0');
  if (n > 0) g.broadcast(host_tensor(std::span(out)), root, {}).wait({});
  return out;
}

void all_or_none(const Mesh& mesh, const std::function<void()>& body) {
  ProcessGroup& g = mesh.world();
  std::string failure;  // exit code as one byte, then the message
  const auto failed = [&](Exit code, const std::string& what) {
    failure =
        static_cast<char>(code) + cat("rank ", mesh.rank(), " (", host_name(), ", ", mesh.coordinates(), "): ", what);
  };
  try {
    body();
  } catch (const Error& e) { failed(e.code(), e.what()); } catch (const std::exception& e) {
    failed(Exit::kInternal, e.what());
  } catch (...) { failed(Exit::kInternal, "unknown exception"); }
  if (max_over(g, failure.empty() ? 0 : 1) == 0) return;
  for (const std::string& text : gather_bytes(g, failure))
    if (!text.empty()) throw Error(text.substr(1), static_cast<Exit>(static_cast<uint8_t>(text[0])));
}

std::string pack(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& p : parts) {
    const uint64_t n = p.size();
    out.append(reinterpret_cast<const char*>(&n), sizeof n);
    out += p;
  }
  return out;
}

std::vector<std::string> unpack(std::string_view s) {
  std::vector<std::string> out;
  while (!s.empty()) {
    uint64_t n = 0;
    std::memcpy(&n, s.data(), sizeof n);
    out.emplace_back(s.substr(sizeof n, n));
    s.remove_prefix(sizeof n + n);
  }
  return out;
}

}  // namespace gt
