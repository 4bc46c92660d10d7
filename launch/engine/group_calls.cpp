#include "launch/engine/group_calls.h"

#include <algorithm>

#include "parallel/comm/call.h"

namespace gt {
namespace {

constexpr size_t kMostSpans = 1 << 18;  // address space: memory is used as they are added

std::string text(const std::vector<GroupCall>& calls, size_t at) {
  if (at >= calls.size()) return "none";
  const GroupCall& c = calls[at];
  const std::string size = c.op == CommOp::kAllToAllV ? "" : cat(" of ", c.bytes, " bytes");
  return cat(name_of(c.op), size, " over ", c.group);
}

}  // namespace

CallRecorder::CallRecorder(const Mesh& mesh) {
  for (const Mesh::Named& g : mesh.groups()) {
    const bool known =
        std::any_of(groups_.begin(), groups_.end(), [&](const auto& k) { return k.first.group == g.group; });
    if (known || g.group->size() == 1) continue;
    groups_.emplace_back(g, &spans_.emplace_back(kMostSpans));
    g.group->set_spans(groups_.back().second);
  }
}

CallRecorder::~CallRecorder() {
  for (const auto& [g, spans] : groups_) g.group->set_spans(nullptr);
}

std::vector<GroupCall> CallRecorder::take() {
  std::vector<std::pair<int64_t, GroupCall>> all;
  for (const auto& [g, spans] : groups_) {
    GT_CHECK(!spans->full(), "more than ", kMostSpans, " calls in ", g.name);
    for (const CommSpan& s : spans->spans())
      if (!s.waits && (s.bytes > 0 || s.op == CommOp::kBarrier || s.op == CommOp::kAllToAllV))
        all.emplace_back(s.begin, GroupCall{g.name, s.op, s.op == CommOp::kAllToAllV ? 0 : s.bytes});
    spans->clear();
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<GroupCall> out;
  for (auto& [begin, call] : all) out.push_back(std::move(call));
  return out;
}

std::string first_difference(const std::vector<GroupCall>& expected, const std::vector<GroupCall>& found) {
  const auto at = static_cast<size_t>(
      std::mismatch(expected.begin(), expected.end(), found.begin(), found.end()).first - expected.begin());
  if (at == expected.size() && at == found.size()) return "";
  return cat("call ", at + 1, " of ", expected.size(), ": expected ", text(expected, at), ", found ", text(found, at));
}

}  // namespace gt
