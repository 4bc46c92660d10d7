#include "parallel/pipeline/preamble.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/core/check.h"

namespace gt {
namespace {

static_assert(std::endian::native == std::endian::little, "preambles are little-endian on the wire");

std::string text(const BoundaryHeader& h) {
  std::string dims;
  for (int i = 0; i < std::min<int>(h.rank, 4); ++i) dims += cat(i > 0 ? ", " : "", h.dims[i]);
  return cat(h.kind == BoundaryKind::kActivation ? "an activation " : "a gradient ",
             name_of(static_cast<DType>(h.dtype)), " [", dims, "] of microbatch ", h.microbatch);
}

}  // namespace

Preamble preamble_of(const Shape& shape, DType dtype, const MicroBatch& mb, int microbatch, BoundaryKind kind) {
  Preamble p;
  p.header.dtype = static_cast<uint16_t>(dtype);
  p.header.rank = static_cast<uint16_t>(shape.rank);
  for (int32_t i = 0; i < shape.rank; ++i) p.header.dims[i] = shape[i];
  p.header.microbatch = static_cast<uint32_t>(microbatch);
  p.header.kind = kind;
  p.first_sample = mb.first_sample;
  p.samples = mb.batch;
  return p;
}

bool as_announced(const Preamble& got, const Preamble& expected, bool ordinals) {
  return std::memcmp(&got.header, &expected.header, sizeof got.header) == 0 &&
         (!ordinals || (got.first_sample == expected.first_sample && got.samples == expected.samples));
}

void throw_mismatch(const Preamble& got, const Preamble& expected, const std::string& who) {
  const BoundaryHeader &g = got.header, &w = expected.header;
  if (g.magic != BoundaryHeader::kMagic || g.dtype > static_cast<uint16_t>(DType::kI64))
    fail(Exit::kInternal, who, ": invalid boundary message header (", g.magic, " where ", BoundaryHeader::kMagic,
         " is expected); parallel.dynamic_shapes must be the same on every rank");
  if (std::memcmp(&g, &w, sizeof g) != 0)
    fail(Exit::kInternal, who, ": the neighbour sends ", text(g), ", this rank expects ", text(w),
         ": the ranks have different microbatches");
  fail(Exit::kInternal, who, ": the neighbour's tensor is of ", got.samples, " samples from ordinal ", got.first_sample,
       ", this rank's microbatch is of ", expected.samples, " from ", expected.first_sample,
       ": inputs and labels would not match");
}

Preambles::Preambles(int64_t bytes, size_t messages, const DeviceApi& api, Stream s)
    : bytes_(bytes), api_(api), stream_(s) {
  if (bytes == 0) return;
  buffer_ = Buffer(static_cast<int64_t>(messages) * kStride, s.device, api);
  host_.resize(messages);
  sending_.reserve(messages);
}

void Preambles::send(ProcessGroup& group, size_t at, const Preamble& p, int to, int tag) {
  host_[at] = p;
  if (stream_.device.kind != DeviceKind::kNull) api_.copy(slot(at).data, &host_[at], bytes_, stream_);
  sending_.push_back(group.send(slot(at), to, tag, stream_));
}

Work Preambles::receive(ProcessGroup& group, size_t at, const Preamble& expected, int from, int tag) {
  if (group.backend() == "null" && stream_.device.kind != DeviceKind::kNull)
    api_.copy(slot(at).data, &expected, bytes_, stream_);
  host_[at] = expected;  // nothing is read back from a null device
  return group.recv(slot(at), from, tag, stream_);
}

const Preamble& Preambles::read(size_t at) {
  if (stream_.device.kind != DeviceKind::kNull) {
    api_.copy(&host_[at], slot(at).data, bytes_, stream_);
    api_.synchronize(stream_);
  }
  return host_[at];
}

void Preambles::finish() {
  for (Work& w : sending_) w.wait(stream_);
  sending_.clear();
}

}  // namespace gt
