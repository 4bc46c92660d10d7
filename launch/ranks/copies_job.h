// Environment variable by which a supervisor passes the ranks of an attempt the identity of the copies of their state
// in the machines' memory (checkpoint/store/peer_copies.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace gt {

constexpr const char* kCopiesVariable = "GPTTRAIN_COPIES";

struct CopiesJob {
  std::string job;        // 16 hexadecimal digits, random: the same for all attempts
  int64_t attempt = 0;    // from 1
  bool restores = false;  // the attempt may continue from copies of earlier ones
};

CopiesJob new_copies_job();
std::string to_text(const CopiesJob&);  // "0123456789abcdef:3:restore"
// Throws kUsage if the text is none of to_text().
CopiesJob copies_job_from(const std::string& text);
// Returns the job of this process; nullopt: no supervisor requested copies.
std::optional<CopiesJob> copies_job();

}  // namespace gt
