#include "checkpoint/format/shard_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <queue>

#include "checkpoint/format/shard_writer.h"
#include "checkpoint/step_reader.h"
#include "checkpoint/world.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {

// Overlap of a stored and a requested rectangle, as runs that are contiguous on both sides, in ascending file order.
class Overlap {
 public:
  Overlap(const SliceRecord& from, const Box& overlap, const BoxPart& to, const ShardView& view)
      : overlap_(overlap),
        from_(from.box),
        to_(to.box),
        type_(from.dtype),
        item_(size_of(from.dtype)),
        to_item_(size_of(view.data.dtype)),
        offset_(from.offset),
        view_(&view),
        tensor_(from.tensor) {
    // Inner dimensions that both rectangles span fully are merged into the run.
    size_t k = Shape::kMaxRank - 1;
    while (k > 0 && whole(k)) --k;
    outer_ = k;
    run_ = overlap.extent[k];
    for (size_t d = k + 1; d < Shape::kMaxRank; ++d) run_ *= overlap.extent[d];
    runs_ = overlap.numel() / run_;
    dst_base_ = view.data.data + to.at * to_item_;
    locate();
  }

  int64_t position() const { return src_; }  // file offset of the next byte to copy
  int64_t tensor() const { return tensor_; }
  bool on_host() const { return view_->data.device.kind == DeviceKind::kCpu; }
  bool finished() const { return done_runs_ == runs_; }

  DType stored() const { return type_; }
  DType requested() const { return view_->data.dtype; }

  // Consumes the file bytes before `end`: returns the destination of their elements, and the byte count.
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

float widened(DType t, const std::byte* from) {
  if (t == DType::kF32) {
    float x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return t == DType::kBF16 ? f32_from_bf16(bits) : f32_from_f16(bits);
}

void put_rounded(float x, DType t, std::byte* to) {
  if (t == DType::kF32) {
    std::memcpy(to, &x, sizeof x);
    return;
  }
  const uint16_t bits = t == DType::kBF16 ? bf16_from(x) : f16_from(x);
  std::memcpy(to, &bits, sizeof bits);
}

// Converts elements between floating types, for runs whose precision differs from the checkpoint's.
void convert(DType from, const std::byte* src, int64_t bytes, DType to, std::vector<std::byte>& out) {
  const int64_t n = bytes / size_of(from);
  out.resize(static_cast<size_t>(n * size_of(to)));
  for (int64_t i = 0; i < n; ++i) put_rounded(widened(from, src + i * size_of(from)), to, out.data() + i * size_of(to));
}

struct Later {
  bool operator()(const Overlap* a, const Overlap* b) const { return a->position() > b->position(); }
};

// Iterates over the requested bytes of one shard, front to back: reports the next block and copies out of it.
class ShardCursor {
 public:
  explicit ShardCursor(std::vector<Overlap> overlaps) : overlaps_(std::move(overlaps)) {
    for (Overlap& o : overlaps_) queue_.push(&o);
  }
  ShardCursor(ShardCursor&&) = delete;  // the queue points into the list

  int64_t next_block() const { return queue_.empty() ? -1 : queue_.top()->position() / kBlockBytes; }
  int64_t next_tensor() const { return queue_.top()->tensor(); }

  // `block`: bytes [begin, end) of the file; null: skip without copying. Returns true if device copies are pending.
  bool take(const std::byte* block, int64_t begin, int64_t end, const DeviceApi* api, Stream stream) {
    bool in_flight = false;
    while (!queue_.empty() && queue_.top()->position() < end) {
      Overlap* o = queue_.top();
      queue_.pop();
      while (!o->finished() && o->position() < end) {
        const int64_t from = o->position() - begin;
        auto [dst, n] = o->take(end);
        if (block == nullptr) continue;
        const std::byte* src = block + from;
        if (o->stored() != o->requested()) {
          if (in_flight) api->synchronize(stream);  // a pending copy may read `converted_`
          convert(o->stored(), src, n, o->requested(), converted_);
          src = converted_.data();
          n = static_cast<int64_t>(converted_.size());
        }
        if (o->on_host())
          std::memcpy(dst, src, static_cast<size_t>(n));
        else {
          api->copy(dst, src, n, stream);
          in_flight = true;
        }
      }
      if (!o->finished()) queue_.push(o);
    }
    return in_flight;
  }

 private:
  std::vector<Overlap> overlaps_;
  std::priority_queue<Overlap*, std::vector<Overlap*>, Later> queue_;
  std::vector<std::byte> converted_;
};

std::pair<int64_t, int64_t> bytes_of_block(const ShardIndex& index, int64_t b) {
  return {b * kBlockBytes, std::min((b + 1) * kBlockBytes, index.file_bytes)};
}

// Reads one block and checks its CRC32C.
void read_block(const File& file, const ShardIndex& index, int64_t b, const std::string& tensor, std::byte* to) {
  const auto [begin, end] = bytes_of_block(index, b);
  file.read(to, end - begin, begin);
  GT_REQUIRE(crc32c(to, static_cast<size_t>(end - begin)) == index.blocks[static_cast<size_t>(b)], Exit::kDamaged,
             file.path(), ": checksum of block ", b, " (bytes ", begin, " to ", end - 1,
             ") is wrong; it holds part of ", tensor);
}

// Starts readahead when blocks are read sequentially, to overlap disk with checksums and copies.
class ReadAhead {
 public:
  void before(const File& file, const ShardIndex& index, int64_t b) {
    const bool row = b == last_ + 1 && b > 0;
    last_ = b;
    if (!row) hinted_ = b + 1;
    if (!row || hinted_ > b + kBlocks / 2) return;
    const int64_t from = std::max(hinted_, b) * kBlockBytes, bytes = kBlocks * kBlockBytes;
    if (from < index.file_bytes) file.will_read(bytes, from);
    hinted_ = std::max(hinted_, b) + kBlocks;
  }

 private:
  static constexpr int64_t kBlocks = 8;
  int64_t last_ = -2, hinted_ = 0;
};

// Reads one shard front to back, block by block, and copies what the overlaps request.
void read_shard(const File& file, const ShardIndex& index, const std::vector<TensorShape>& tensors,
                std::vector<Overlap> overlaps, const DeviceApi* api, Stream stream) {
  ShardCursor cursor(std::move(overlaps));
  std::vector<std::byte> block(static_cast<size_t>(std::min(kBlockBytes, index.file_bytes)));
  ReadAhead ahead;
  for (int64_t b; (b = cursor.next_block()) >= 0;) {
    ahead.before(file, index, b);
    read_block(file, index, b, tensors[static_cast<size_t>(cursor.next_tensor())].name, block.data());
    const auto [begin, end] = bytes_of_block(index, b);
    if (cursor.take(block.data(), begin, end, api, stream)) api->synchronize(stream);
  }
}

}  // namespace

bool may_hold(DType requested, DType stored) {
  return requested == stored || (is_float(requested) && is_float(stored));
}

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

struct Request {
  const ShardView* view;
  BoxPart piece;
};

// Requested rectangles by tensor; clears vocabulary padding on the way.
std::map<uint32_t, std::vector<Request>> requests_of(const std::vector<TensorShape>& tensors,
                                                     std::span<const ShardView> views, const DeviceApi* api,
                                                     Stream stream) {
  std::map<std::string, uint32_t> ids;
  for (size_t k = 0; k < tensors.size(); ++k) ids[tensors[k].name] = static_cast<uint32_t>(k);
  std::map<uint32_t, std::vector<Request>> out;
  for (const ShardView& v : views) {
    if (v.data.numel() == 0) continue;
    const auto id = ids.find(v.name);
    GT_CHECK(
        id != ids.end() && tensors[id->second].shape == v.full && may_hold(v.data.dtype, tensors[id->second].dtype),
        v.name, ": not the tensor of the checkpoint");
    int64_t held = 0;
    for (const BoxPart& p : boxes_of(v)) {
      out[id->second].push_back({&v, p});
      held += p.box.numel();
    }
    if (held < v.data.numel()) clear_view(v, api, stream);
  }
  return out;
}

// Every requested element exactly once: the stored rectangles of a requested tensor must tile it.
void check_coverage(const std::string& dir, const std::vector<TensorShape>& tensors,
                    const std::map<uint32_t, std::vector<Request>>& requests,
                    const std::map<int, ShardIndex>& indexes) {
  std::map<uint32_t, std::vector<Box>> boxes;
  for (const auto& [file, index] : indexes)
    for (const SliceRecord& r : index.records)
      if (requests.count(r.tensor)) boxes[r.tensor].push_back(r.box);
  for (const auto& [id, list] : requests) {
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
  const std::string own = shard_name(x.rank, x.part);
  GT_REQUIRE(own == f.name, Exit::kDamaged, path, ": header names rank ", x.rank, ", part ", x.part, ", whose file is ",
             own);
  return x;
}

namespace {

// Data that a rank reads from a step, by shard.
struct Plan {
  std::vector<TensorShape> tensors;
  std::map<uint32_t, std::vector<Request>> requests;
  std::map<int, ShardIndex> own;  // indexes, unless the caller passes a cache
  std::map<int, std::vector<Overlap>> overlaps;
};

void make_plan(Plan& plan, Vfs& vfs, const std::string& dir, const Manifest& m, std::span<const ShardView> views,
               const DeviceApi* api, Stream stream, std::map<int, ShardIndex>& indexes) {
  plan.tensors = m.shapes();
  plan.requests = requests_of(plan.tensors, views, api, stream);
  for (const auto& [id, list] : plan.requests)
    for (const auto& [first, last] : m.tensors[id].files)
      for (int f = first; f <= last; ++f)
        if (!indexes.count(f)) indexes.emplace(f, read_index(vfs, dir, m, f, plan.tensors));
  check_coverage(dir, plan.tensors, plan.requests, indexes);
  for (const auto& [f, index] : indexes) {
    std::vector<Overlap> overlaps;
    for (const SliceRecord& r : index.records)
      if (const auto w = plan.requests.find(r.tensor); w != plan.requests.end())
        for (const Request& request : w->second)
          if (const Box b = intersect(r.box, request.piece.box); b.numel() > 0)
            overlaps.emplace_back(r, b, request.piece, *request.view);
    if (!overlaps.empty()) plan.overlaps.emplace(f, std::move(overlaps));
  }
}

}  // namespace

void read_views(Vfs& vfs, const std::string& dir, const Manifest& m, std::span<const ShardView> views,
                const DeviceApi* api, Stream stream, std::map<int, ShardIndex>* cache) {
  Plan plan;
  std::map<int, ShardIndex>& indexes = cache != nullptr ? *cache : plan.own;
  make_plan(plan, vfs, dir, m, views, api, stream, indexes);
  for (auto& [f, overlaps] : plan.overlaps) {
    const File file = File::open(vfs, dir + "/" + m.files[static_cast<size_t>(f)].name);
    read_shard(file, indexes.at(f), plan.tensors, std::move(overlaps), api, stream);
  }
}

namespace {

using BlockId = std::pair<int64_t, int64_t>;  // file, block

std::vector<BlockId> required_blocks(const Plan& plan) {
  std::vector<BlockId> out;
  for (const auto& [f, overlaps] : plan.overlaps) {
    ShardCursor cursor(overlaps);
    for (int64_t b; (b = cursor.next_block()) >= 0;) {
      out.emplace_back(f, b);
      cursor.take(nullptr, b * kBlockBytes, (b + 1) * kBlockBytes, nullptr, {});
    }
  }
  return out;
}

// Blocks that several ranks need, each with the rank that reads it, assigned round-robin.
std::map<BlockId, int> readers_of(ProcessGroup& group, const std::vector<BlockId>& mine) {
  const std::string text(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(BlockId));
  std::map<BlockId, std::vector<int>> all;
  const std::vector<std::string> lists = gather_bytes(group, text);
  for (size_t r = 0; r < lists.size(); ++r)
    for (size_t at = 0; at < lists[r].size(); at += sizeof(BlockId)) {
      int64_t p[2];
      static_assert(sizeof p == sizeof(BlockId));
      std::memcpy(p, lists[r].data() + at, sizeof p);
      all[{p[0], p[1]}].push_back(static_cast<int>(r));
    }
  std::map<BlockId, int> out;
  size_t turn = 0;
  for (const auto& [block, ranks] : all)
    if (ranks.size() > 1) out.emplace(block, ranks[turn++ % ranks.size()]);
  return out;
}

// This rank's part of a load that reads each shared block once. Errors are deferred to the end: other ranks depend on
// this rank's broadcasts.
class SharedRead {
 public:
  SharedRead(Vfs& vfs, const std::string& dir, const Manifest& m, const Plan& plan, const DeviceApi* api, Stream stream)
      : vfs_(vfs), dir_(dir), m_(m), plan_(plan), api_(api), stream_(stream), block_(kHead + kBlockBytes) {
    for (const auto& [f, overlaps] : plan.overlaps) cursors_.try_emplace(f, overlaps);
  }

  void run(ProcessGroup& group) {
    for (const auto& [block, reader] : readers_of(group, required_blocks(plan_))) share(group, block, reader);
    for (auto& [f, cursor] : cursors_) read_up_to(f, cursor, std::numeric_limits<int64_t>::max());
    if (failure_) throw *failure_;
  }

 private:
  static constexpr int64_t kHead = 8;  // message header: 0, or an exit code followed by its text instead of the block

  template <class Body>
  void keep_failure(const Body& body) {
    if (failure_) return;
    try {
      body();
    } catch (const Error& e) { failure_ = e; } catch (const std::exception& e) {
      failure_ = Error(e.what());
    }
  }

  void share(ProcessGroup& group, const BlockId& block, int reader) {
    const auto f = static_cast<int>(block.first);
    const auto at = cursors_.find(f);
    if (at != cursors_.end()) read_up_to(f, at->second, block.second);
    std::byte* bytes = block_.data() + kHead;
    std::memset(block_.data(), 0, kHead);
    if (group.rank() == reader) {
      keep_failure([&] { read(f, block.second, at->second.next_tensor(), bytes); });
      if (failure_) {
        block_[0] = static_cast<std::byte>(failure_->code());
        std::strncpy(reinterpret_cast<char*>(bytes), failure_->what(), static_cast<size_t>(kBlockBytes) - 1);
      }
    }
    group.broadcast({block_.data(), {kHead + kBlockBytes}, DType::kByte, {}}, reader, {}).wait({});
    if (block_[0] != std::byte{0})
      keep_failure([&] { throw Error(reinterpret_cast<const char*>(bytes), static_cast<Exit>(block_[0])); });
    if (at != cursors_.end() && at->second.next_block() == block.second) take(at->second, block.second, bytes);
  }

  // Reads the blocks that only this rank needs.
  void read_up_to(int f, ShardCursor& cursor, int64_t end) {
    for (int64_t b; (b = cursor.next_block()) >= 0 && b < end;) {
      std::byte* bytes = block_.data() + kHead;
      keep_failure([&] { read(f, b, cursor.next_tensor(), bytes); });
      take(cursor, b, bytes);
    }
  }

  void take(ShardCursor& cursor, int64_t b, const std::byte* bytes) {
    if (cursor.take(failure_ ? nullptr : bytes, b * kBlockBytes, (b + 1) * kBlockBytes, api_, stream_))
      api_->synchronize(stream_);
  }

  void read(int f, int64_t b, int64_t tensor, std::byte* to) {
    if (open_ != f) file_.reset(), file_.emplace(File::open(vfs_, dir_ + "/" + m_.files[static_cast<size_t>(f)].name));
    open_ = f;
    read_block(*file_, plan_.own.at(f), b, plan_.tensors[static_cast<size_t>(tensor)].name, to);
  }

  Vfs& vfs_;
  const std::string& dir_;
  const Manifest& m_;
  const Plan& plan_;
  const DeviceApi* api_;
  const Stream stream_;
  std::vector<std::byte> block_;
  std::map<int, ShardCursor> cursors_;
  std::optional<File> file_;
  int open_ = -1;
  std::optional<Error> failure_;
};

}  // namespace

void read_views_once(Vfs& vfs, const std::string& dir, const Manifest& m, std::span<const ShardView> views,
                     const DeviceApi* api, Stream stream, const Mesh& mesh, ProcessGroup& group) {
  Plan plan;
  all_or_none(mesh, [&] { make_plan(plan, vfs, dir, m, views, api, stream, plan.own); });
  all_or_none(mesh, [&] { SharedRead(vfs, dir, m, plan, api, stream).run(group); });
}

}  // namespace gt
