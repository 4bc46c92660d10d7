#include "kernels/core/hash/sha256.h"

#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/files.h"

namespace gt {
namespace {
// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
}  // namespace

void Sha256::block(const uint8_t* p) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = uint32_t{p[4 * i]} << 24 | uint32_t{p[4 * i + 1]} << 16 | uint32_t{p[4 * i + 2]} << 8 | p[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t add[8] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += add[i];
}

void Sha256::update(const void* data, size_t bytes) {
  if (bytes == 0) return;  // `data` may be null
  const auto* p = static_cast<const uint8_t*>(data);
  length_ += bytes;
  if (held_ > 0) {
    const size_t take = bytes < 64 - held_ ? bytes : 64 - held_;
    std::memcpy(pending_.data() + held_, p, take);
    held_ += take, p += take, bytes -= take;
    if (held_ < 64) return;
    block(pending_.data());
    held_ = 0;
  }
  for (; bytes >= 64; p += 64, bytes -= 64) block(p);
  if (bytes > 0) std::memcpy(pending_.data(), p, bytes);
  held_ = bytes;
}

Sha256::Digest Sha256::finish() {
  const uint64_t bits = length_ * 8;
  const uint8_t one = 0x80, zero = 0;
  update(&one, 1);
  while (held_ != 56) update(&zero, 1);
  uint8_t tail[8];
  for (int i = 0; i < 8; ++i) tail[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(tail, 8);
  Digest out;
  for (size_t i = 0; i < 32; ++i) out[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

std::string to_hex(const uint8_t* bytes, size_t count) {
  constexpr char kDigit[] = "0123456789abcdef";
  std::string s;
  for (size_t i = 0; i < count; ++i) {
    s += kDigit[bytes[i] >> 4];
    s += kDigit[bytes[i] & 15];
  }
  return s;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 h;
  h.update(bytes);
  const auto d = h.finish();
  return to_hex(d.data(), d.size());
}

std::string sha256_file_hex(const std::string& path) {
  const Fd file = open_to_read(path);
  Sha256 h;
  std::string buffer(1 << 18, '\0');
  for (ssize_t n = 1; n > 0;) {
    n = ::read(file.get(), buffer.data(), buffer.size());
    GT_REQUIRE(n >= 0, Exit::kIo, path, ": read failed: ", std::strerror(errno));
    h.update(buffer.data(), static_cast<size_t>(n));
  }
  const auto d = h.finish();
  return to_hex(d.data(), d.size());
}

}  // namespace gt
