// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78): the checksum of TensorBoard records and checkpoint chunks.
// Uses the SSE4.2 instruction where the processor has it, else tables; both give the same value.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gt {

// crc32c("123456789", 9) = 0xE3069283. `crc` continues an earlier call: crc32c(b, crc32c(a)) = crc32c(a then b).
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

// The two ways, for tests; the hardware one only where has_crc32c_instruction().
uint32_t crc32c_table(const void* data, size_t bytes, uint32_t crc = 0);
uint32_t crc32c_hardware(const void* data, size_t bytes, uint32_t crc = 0);
bool has_crc32c_instruction();

}  // namespace gt
