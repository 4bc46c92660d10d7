// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78): checksum of TensorBoard records and checkpoint blocks. Uses
// AVX-512 carry-less multiplication or the SSE4.2 instruction where available, else tables; all give the same value.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gt {

// crc32c("123456789", 9) = 0xE3069283. `crc` continues an earlier call: crc32c(b, crc32c(a)) = crc32c(a then b).
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

// Returns crc32c(first then second) from both CRCs and the length of the second, in a few dozen operations.
uint32_t crc32c_join(uint32_t first, uint32_t second, size_t second_bytes);

// The three implementations, for tests; the latter two only where the matching has_...() is true.
uint32_t crc32c_table(const void* data, size_t bytes, uint32_t crc = 0);
uint32_t crc32c_hardware(const void* data, size_t bytes, uint32_t crc = 0);
uint32_t crc32c_folding(const void* data, size_t bytes, uint32_t crc = 0);
bool has_crc32c_instruction();
bool has_crc32c_folding();  // implies the instruction

}  // namespace gt
