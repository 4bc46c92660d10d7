// Agreement between the ranks of a save or a load: bytes and errors travel over the world group, from CPU memory.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/mesh.h"

namespace gt {

// Collective. Everybody's bytes, by rank.
std::vector<std::string> gather_bytes(ProcessGroup&, std::string_view mine);
// Collective. The root's bytes.
std::string broadcast_bytes(ProcessGroup&, std::string_view mine, int root);

// Collective. Runs `body` on every rank. If it throws anywhere, every rank throws the error of the lowest rank that
// failed, with its rank, host and place in front. `body` must not contain collectives.
void all_or_none(const Mesh&, const std::function<void()>& body);

// Several strings as one, and back.
std::string pack(const std::vector<std::string>&);
std::vector<std::string> unpack(std::string_view);

}  // namespace gt
