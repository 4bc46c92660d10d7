#include "checkpoint/shard_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <queue>

#include "checkpoint/step_reader.h"
#include "kernels/core/crc32c.h"
#include "kernels/core/sha256.h"

namespace gt {
namespace {

// The overlap of a stored rectangle and a wanted one, as runs that are contiguous on both sides, in ascending file
// order.
class Overlap {
 public:
  Overlap(const SliceRecord& from, const Box& overlap, const BoxPiece& to, const ShardView& view)
      : overlap_(overlap),
        from_(from.box),
        to_(to.box),
        type_(from.dtype),
        item_(size_of(from.dtype)),
        to_item_(size_of(view.data.dtype)),
        offset_(from.offset),
        view_(&view),
        tensor_(from.tensor) {
    // Dimensions that both sides hold whole below the run's own are part of the run.
    size_t k = Shape::kMaxRank - 1;
    while (k > 0 && whole(k)) --k;
    outer_ = k;
    run_ = overlap.extent[k];
    for (size_t d = k + 1; d < Shape::kMaxRank; ++d) run_ *= overlap.extent[d];
    runs_ = overlap.numel() / run_;
    dst_base_ = view.data.data + to.at * to_item_;
    locate();
  }

  int64_t position() const { return src_; }  // in the file, of the next byte to copy
  int64_t tensor() const { return tensor_; }
  bool on_host() const { return view_->data.device.kind == DeviceKind::kCpu; }
  bool finished() const { return done_runs_ == runs_; }

  DType stored() const { return type_; }
  DType wanted() const { return view_->data.dtype; }

  // The next bytes of the file that lie before `end`: where their elements go, and how many bytes they are.
  std::pair<std::byte*, int64_t> take(int64_t end) {
    const int64_t n = std::min(left_, end - src_);
    GT_CHECK(n % item_ == 0, "an element of ", view_->name, " lies across two blocks");
    const std::pair<std::byte*, int64_t> out{dst_, n};
    src_ += n;
    dst_ += n / item_ * to_item_;
    left_ -= n;
    if (left_ == 0 && ++done_runs_ < runs_) locate();
    return out;
  }

 private:
  bool whole(size_t d) const { return overlap_.extent[d] == from_.extent[d] && overlap_.extent[d] == to_.extent[d]; }

  void locate() {
    int64_t rest = done_runs_, src = 0, dst = 0, src_stride = 1, dst_stride = 1;
    for (size_t d = Shape::kMaxRank; d-- > 0;) {
      int64_t x = overlap_.at[d];
      if (d < outer_) {
        x += rest % overlap_.extent[d];
        rest /= overlap_.extent[d];
      }
      src += (x - from_.at[d]) * src_stride;
      dst += (x - to_.at[d]) * dst_stride;
      src_stride *= from_.extent[d];
      dst_stride *= to_.extent[d];
    }
    src_ = offset_ + src * item_;
    dst_ = dst_base_ + dst * to_item_;
    left_ = run_ * item_;
  }

  Box overlap_, from_, to_;
  DType type_;
  int64_t item_, to_item_, offset_;
  const ShardView* view_;
  int64_t tensor_;
  size_t outer_ = 0;
  int64_t run_ = 0, runs_ = 0, done_runs_ = 0;
  std::byte* dst_base_ = nullptr;
  int64_t src_ = 0, left_ = 0;
  std::byte* dst_ = nullptr;
};

bool is_float(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

// Elements of one floating type as another: what a run of one precision kept for a run of another.
void convert(DType from, const std::byte* src, int64_t bytes, DType to, std::vector<std::byte>& out) {
  const int64_t n = bytes / size_of(from);
  out.resize(static_cast<size_t>(n * size_of(to)));
  for (int64_t i = 0; i < n; ++i) {
    float x = 0;
    uint16_t half = 0;
    std::memcpy(from == DType::kF32 ? static_cast<void*>(&x) : &half, src + i * size_of(from),
                static_cast<size_t>(size_of(from)));
    if (from != DType::kF32) x = from == DType::kBF16 ? f32_from_bf16(half) : f32_from_f16(half);
    if (to != DType::kF32) half = to == DType::kBF16 ? bf16_from(x) : f16_from(x);
    std::memcpy(out.data() + i * size_of(to), to == DType::kF32 ? static_cast<const void*>(&x) : &half,
                static_cast<size_t>(size_of(to)));
  }
}

struct Later {
  bool operator()(const Overlap* a, const Overlap* b) const { return a->position() > b->position(); }
};

// Reads one shard front to back, block by block, and hands out what the overlaps ask for.
void read_shard(const File& file, const ShardIndex& index, const std::vector<TensorShape>& tensors,
                std::vector<Overlap>& overlaps, const DeviceApi* api, Stream stream) {
  std::priority_queue<Overlap*, std::vector<Overlap*>, Later> queue;
  for (Overlap& o : overlaps) queue.push(&o);
  std::vector<std::byte> block(static_cast<size_t>(std::min(kBlockBytes, index.file_bytes)));
  int64_t held = -1;
  std::vector<std::byte> converted;
  bool in_flight = false;  // copies from `block` to a device
  while (!queue.empty()) {
    Overlap* o = queue.top();
    queue.pop();
    const int64_t b = o->position() / kBlockBytes, begin = b * kBlockBytes,
                  end = std::min(begin + kBlockBytes, index.file_bytes);
    if (b != held) {
      if (in_flight) api->synchronize(stream);
      in_flight = false;
      file.read(block.data(), end - begin, begin);
      GT_REQUIRE(crc32c(block.data(), static_cast<size_t>(end - begin)) == index.blocks[static_cast<size_t>(b)],
                 Exit::kDamaged, file.path(), ": checksum of block ", b, " (bytes ", begin, " to ", end - 1,
                 ") is wrong; it holds part of ", tensors[static_cast<size_t>(o->tensor())].name);
      held = b;
    }
    while (!o->finished() && o->position() < end) {
      const std::byte* src = block.data() + (o->position() - begin);
      auto [dst, n] = o->take(end);
      if (o->stored() != o->wanted()) {
        if (in_flight) api->synchronize(stream);  // perhaps from `converted`
        convert(o->stored(), src, n, o->wanted(), converted);
        src = converted.data();
        n = static_cast<int64_t>(converted.size());
      }
      if (o->on_host())
        std::memcpy(dst, src, static_cast<size_t>(n));
      else {
        api->copy(dst, src, n, stream);
        in_flight = true;
      }
    }
    if (!o->finished()) queue.push(o);
  }
  if (in_flight) api->synchronize(stream);
}

}  // namespace

bool may_hold(DType wanted, DType stored) { return wanted == stored || (is_float(wanted) && is_float(stored)); }

void clear_view(const ShardView& v, const DeviceApi* api, Stream stream) {
  if (v.data.bytes() == 0) return;  // a rank that holds nothing has no memory either
  if (v.data.device.kind == DeviceKind::kCpu) {
    std::memset(v.data.data, 0, static_cast<size_t>(v.data.bytes()));
    return;
  }
  api->zero(v.data.data, v.data.bytes(), stream);
  api->synchronize(stream);
}

namespace {

struct Want {
  const ShardView* view;
  BoxPiece piece;
};

// What the views want, by tensor; padding is cleared on the way.
std::map<uint32_t, std::vector<Want>> wants_of(const std::vector<TensorShape>& tensors,
                                               std::span<const ShardView> views, const DeviceApi* api, Stream stream) {
  std::map<std::string, uint32_t> ids;
  for (size_t k = 0; k < tensors.size(); ++k) ids[tensors[k].name] = static_cast<uint32_t>(k);
  std::map<uint32_t, std::vector<Want>> out;
  for (const ShardView& v : views) {
    if (v.data.numel() == 0) continue;
    const auto id = ids.find(v.name);
    GT_CHECK(id != ids.end() && tensors[id->second].shape == v.full &&
                 may_hold(v.data.dtype, tensors[id->second].dtype),
             v.name, ": not the tensor of the checkpoint");
    int64_t held = 0;
    for (const BoxPiece& p : pieces_of(v)) {
      out[id->second].push_back({&v, p});
      held += p.box.numel();
    }
    if (held < v.data.numel()) clear_view(v, api, stream);
  }
  return out;
}

// Every wanted element exactly once: the rectangles of a wanted tensor must be disjoint and fill it.
void check_coverage(const std::string& dir, const std::vector<TensorShape>& tensors,
                    const std::map<uint32_t, std::vector<Want>>& wants, const std::map<int, ShardIndex>& indexes) {
  std::map<uint32_t, std::vector<Box>> boxes;
  for (const auto& [file, index] : indexes)
    for (const SliceRecord& r : index.records)
      if (wants.count(r.tensor)) boxes[r.tensor].push_back(r.box);
  for (const auto& [id, list] : wants) {
    const std::string error = coverage_error(tensors[id].shape, boxes[id]);
    GT_REQUIRE(error.empty(), Exit::kDamaged, dir, ": ", tensors[id].name, ": ", error);
  }
}

}  // namespace

ShardIndex read_index(Vfs& vfs, const std::string& dir, const Manifest& m, int file,
                      std::span<const TensorShape> tensors) {
  const ShardFile& f = m.files[static_cast<size_t>(file)];
  const std::string path = dir + "/" + f.idx_name();
  const std::string bytes = read_file(vfs, path, f.idx_bytes);
  GT_REQUIRE(sha256_hex(bytes) == f.idx_sha256, Exit::kDamaged, path, ": hash is not the one in the manifest");
  ShardIndex x = decode_index(bytes, path, tensors);
  GT_REQUIRE(x.uuid == m.uuid && x.step == m.step && x.file_bytes == f.bytes, Exit::kDamaged, path, ": of attempt ",
             to_string(x.uuid), ", step ", x.step, ", ", x.file_bytes, " bytes; the manifest has ", to_string(m.uuid),
             ", ", m.step, ", ", f.bytes);
  return x;
}

void read_views(Vfs& vfs, const std::string& dir, const Manifest& m, std::span<const ShardView> views,
                const DeviceApi* api, Stream stream, std::map<int, ShardIndex>* cache) {
  const std::vector<TensorShape> tensors = m.shapes();
  const auto wants = wants_of(tensors, views, api, stream);
  std::map<int, ShardIndex> own;
  std::map<int, ShardIndex>& indexes = cache != nullptr ? *cache : own;
  for (const auto& [id, list] : wants)
    for (const auto& [first, last] : m.tensors[id].files)
      for (int f = first; f <= last; ++f)
        if (!indexes.count(f)) indexes.emplace(f, read_index(vfs, dir, m, f, tensors));
  check_coverage(dir, tensors, wants, indexes);
  for (const auto& [f, index] : indexes) {
    std::vector<Overlap> overlaps;
    for (const SliceRecord& r : index.records)
      if (const auto w = wants.find(r.tensor); w != wants.end())
        for (const Want& want : w->second)
          if (const Box b = intersect(r.box, want.piece.box); b.numel() > 0)
            overlaps.emplace_back(r, b, want.piece, *want.view);
    if (overlaps.empty()) continue;
    const File file = File::open(vfs, dir + "/" + m.files[static_cast<size_t>(f)].name);
    read_shard(file, index, tensors, overlaps, api, stream);
  }
}

}  // namespace gt
