#include "launch/ranks/copies_job.h"

#include <algorithm>
#include <cstdlib>
#include <random>

#include "kernels/core/check.h"
#include "kernels/core/text.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

constexpr size_t kDigits = 16;

}  // namespace

CopiesJob new_copies_job() {
  std::random_device random;
  CopiesJob out;
  while (out.job.size() < kDigits) out.job += "0123456789abcdef"[random() % 16];
  return out;
}

std::string to_text(const CopiesJob& c) { return cat(c.job, ":", c.attempt, c.restores ? ":restore" : ":new"); }

CopiesJob copies_job_from(const std::string& text) {
  CopiesJob out;
  const size_t end = text.find(':', std::min(text.size(), kDigits + 1));
  out.job = text.substr(0, kDigits);
  out.restores = text.ends_with(":restore");
  const bool valid = out.job.size() == kDigits && out.job.find_first_not_of("0123456789abcdef") == std::string::npos &&
                     end != std::string::npos && text[kDigits] == ':' &&
                     parse_int(text.substr(kDigits + 1, end - kDigits - 1), out.attempt) && out.attempt > 0 &&
                     (out.restores || text.ends_with(":new"));
  GT_REQUIRE(valid && to_text(out) == text, Exit::kUsage, kCopiesVariable,
             ": expected JOB:ATTEMPT:new or :restore, found \"", printable(text), "\"; gpttrain launch sets it");
  return out;
}

std::optional<CopiesJob> copies_job() {
  const char* text = std::getenv(kCopiesVariable);
  if (text == nullptr) return std::nullopt;
  return copies_job_from(text);
}

}  // namespace gt
