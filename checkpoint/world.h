// Agreement between the ranks of a save or a load: bytes and errors travel over the world group, from CPU memory.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/mesh.h"

namespace gt {

// Collective. Returns the bytes of every rank, by rank.
std::vector<std::string> gather_bytes(ProcessGroup&, std::string_view mine);
// Collective. Returns the root's bytes.
std::string broadcast_bytes(ProcessGroup&, std::string_view mine, int root);

// Collective. Runs `body` on every rank. If it throws anywhere, every rank throws the error of the lowest failing rank,
// prefixed with its rank, host and mesh coordinates. Requires: `body` contains no collectives.
void all_or_none(const Mesh&, const std::function<void()>& body);

// Serialize several strings into one, and back.
std::string pack(const std::vector<std::string>&);
std::vector<std::string> unpack(std::string_view);

}  // namespace gt
