// Header of a boundary message. With parallel.dynamic_shapes it announces the shape that follows. Debug builds also
// send the samples, because mismatched labels would show only in the loss. Depends on tensors and
// groups, not on schedules.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/batch.h"
#include "kernels/core/memory.h"
#include "parallel/comm/process_group.h"

namespace gt {

enum class BoundaryKind : uint32_t { kActivation = 0, kGradient = 1 };

// 48 bytes on the wire, little-endian.
struct BoundaryHeader {
  static constexpr uint32_t kMagic = 0x31505447;  // "GTP1"
  uint32_t magic = kMagic;
  uint16_t dtype = 0, rank = 0;
  int64_t dims[4] = {};  // 0 beyond `rank`
  uint32_t microbatch = 0;
  BoundaryKind kind = BoundaryKind::kActivation;
};
static_assert(sizeof(BoundaryHeader) == 48);

struct Preamble {
  BoundaryHeader header;
  int64_t first_sample = 0, samples = 0;  // of the microbatch; sent by debug builds only
};
static_assert(sizeof(Preamble) == 64);

struct BoundaryOptions {
  bool dynamic_shapes = false;  // microbatches of one run may differ in shape
#ifdef NDEBUG
  bool check_ordinals = false;
#else
  bool check_ordinals = true;
#endif
  bool shapes_differ_between_runs = false;  // one shape within a run, which may differ between runs
  // Bytes before each boundary message.
  int64_t preamble_bytes() const {
    return check_ordinals ? sizeof(Preamble) : dynamic_shapes ? sizeof(BoundaryHeader) : 0;
  }
};

Preamble preamble_of(const Shape&, DType, const MicroBatch&, int microbatch, BoundaryKind);

// Returns whether a neighbour announced what this rank expects; `ordinals`: compares the samples too.
bool as_announced(const Preamble& got, const Preamble& expected, bool ordinals);
// Throws kInternal, naming the difference; `who` begins the message ("1F<3").
[[noreturn]] void throw_mismatch(const Preamble& got, const Preamble& expected, const std::string& who);

// The preambles of one step, each with its own storage, allocated once.
class Preambles {
 public:
  // `bytes`: size of each preamble; 0: none is sent. On groups that move no data (dry runs) receive() yields the
  // expected preamble.
  Preambles(int64_t bytes, size_t messages, const DeviceApi&, Stream);
  bool used() const { return bytes_ > 0; }
  void send(ProcessGroup&, size_t at, const Preamble&, int to, int tag);
  Work receive(ProcessGroup&, size_t at, const Preamble& expected, int from, int tag);
  const Preamble& read(size_t at);  // requires: its receive was waited for
  void finish();                    // waits for the sends since the last finish()

 private:
  Tensor slot(size_t at) const { return buffer_.tensor({bytes_}, DType::kByte, static_cast<int64_t>(at) * kStride); }
  static constexpr int64_t kStride = sizeof(Preamble);
  const int64_t bytes_;
  const DeviceApi& api_;
  const Stream stream_;
  Buffer buffer_;
  std::vector<Preamble> host_;
  std::vector<Work> sending_;
};

}  // namespace gt
