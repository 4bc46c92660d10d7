// SHA-256 (FIPS 180-4), for cache names, data fingerprints and checkpoint manifests. Not for secrets.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gt {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  // Appends bytes; any number of calls hashes the concatenation.
  void update(const void* data, size_t bytes);
  void update(std::string_view s) { update(s.data(), s.size()); }
  // Pads and returns the digest. The object must not be used afterwards.
  Digest finish();

 private:
  void block(const uint8_t* p);
  std::array<uint32_t, 8> state_{0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  std::array<uint8_t, 64> pending_{};
  size_t held_ = 0;      // bytes in pending_
  uint64_t length_ = 0;  // total bytes
};

std::string to_hex(const uint8_t* bytes, size_t count);
std::string sha256_hex(std::string_view bytes);        // 64 lower-case digits
std::string sha256_file_hex(const std::string& path);  // throws Error kIo naming the path
}  // namespace gt
