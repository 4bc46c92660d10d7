// Parses our own JSON from disk. Copying and printing nlohmann's values recurses, so text nested deeper than anything
// we write is rejected while parsing.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/core/check.h"

namespace gt {

constexpr int kMaxOwnDepth = 32;

// Throws nlohmann's exceptions, and kUsage naming `where` when the text is nested too deeply.
template <class Json>
Json parse_shallow(const std::string& text, const std::string& where) {
  const size_t zero = text.find('\0');  // which nlohmann's parser takes for the end of the text
  GT_REQUIRE(zero == std::string::npos, Exit::kUsage, where, " byte ", zero, ": broken JSON: a zero byte");
  return Json::parse(text, [&](int depth, typename Json::parse_event_t, Json&) {
    GT_REQUIRE(depth <= kMaxOwnDepth, Exit::kUsage, where, ": nested deeper than ", kMaxOwnDepth, " levels");
    return true;
  });
}

}  // namespace gt
