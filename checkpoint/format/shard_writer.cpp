#include "checkpoint/format/shard_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "kernels/core/hash/crc32c.h"

namespace gt {
namespace {

// A range of the file: metadata, or a rectangle with its record.
struct Extent {
  int64_t offset, bytes;
  const std::byte* data;
  bool on_host;
  SliceRecord* record;
  const Shape* global;  // global shape of the tensor; null: metadata
};

// Index of the first NaN or infinity (all exponent bits set); -1: none.
template <class Bits>
int64_t first_not_finite(const std::byte* data, int64_t bytes, Bits exponent) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof exponent);
  Bits bits, any = 0;
  for (int64_t k = 0; k < count; ++k) {
    std::memcpy(&bits, data + k * static_cast<int64_t>(sizeof bits), sizeof bits);
    any |= (bits & exponent) == exponent;
  }
  if (!any) return -1;
  for (int64_t k = 0;; ++k) {
    std::memcpy(&bits, data + k * static_cast<int64_t>(sizeof bits), sizeof bits);
    if ((bits & exponent) == exponent) return k;
  }
}

int64_t first_not_finite(DType t, std::span<const std::byte> x) {
  const auto bytes = static_cast<int64_t>(x.size());
  if (t == DType::kF32) return first_not_finite<uint32_t>(x.data(), bytes, 0x7f800000);
  if (t == DType::kBF16) return first_not_finite<uint16_t>(x.data(), bytes, 0x7f80);
  return t == DType::kF16 ? first_not_finite<uint16_t>(x.data(), bytes, 0x7c00) : -1;
}

// Chunk size of host copies: small enough that a copied chunk is still in cache when it is checksummed. A chunk never
// crosses a block boundary.
constexpr int64_t kHostChunk = int64_t{256} << 10;

std::string name_of_record(const SliceRecord& r, const ShardJob& job) {
  for (const auto& [name, id] : job.ids)
    if (id == r.tensor) return name;
  return "?";
}

// Values that are not in memory, fetched range by range as they are written.
class Fetched {
 public:
  explicit Fetched(const ShardJob& job) : job_(job) {}

  // Returns bytes [at, at + bytes) of a rectangle, valid until the next call. Requires: the rectangle is contiguous in
  // the tensor; rectangles of whole tensors, split at fused blocks, are.
  const std::byte* data(const SliceRecord& r, const Shape& global, int64_t at, int64_t bytes) {
    int64_t begin = 0;
    for (int d = 0; d < global.rank; ++d) begin = begin * global[d] + r.box.at[static_cast<size_t>(d)];
    const int64_t item = sizeof(float), first = begin + at / item, end = first + bytes / item;
    if (tensor_ != r.tensor || first < first_ || end > first_ + static_cast<int64_t>(values_.size())) {
      std::vector<float>().swap(values_);  // freed before the next range is made
      const std::string name = name_of_record(r, job_);
      const int64_t count = std::max(end - first, std::min(kRange, begin + r.bytes / item - first));
      values_ = job_.fetch(name, first, count);
      tensor_ = r.tensor, first_ = first;
      GT_CHECK(static_cast<int64_t>(values_.size()) == count, name, ": fetched ", values_.size(), " of ", count,
               " values");
    }
    return reinterpret_cast<const std::byte*>(values_.data() + (first - first_));
  }

 private:
  static constexpr int64_t kRange = int64_t{4} << 20;  // values: 16 MiB
  const ShardJob& job_;
  int64_t tensor_ = -1, first_ = 0;
  std::vector<float> values_;
};

uint32_t put(BlockStream& out, const Extent& e, Fetched& fetched, bool require_finite, const DeviceApi& api,
             Stream stream) {
  uint32_t crc = 0;
  for (int64_t done = 0; done < e.bytes;) {
    const int64_t left = e.bytes - done, at = e.offset + done;
    const auto dst = out.buffer(at, e.on_host ? std::min(left, kHostChunk - at % kHostChunk) : left);
    if (e.data == nullptr)
      std::memcpy(dst.data(), fetched.data(*e.record, *e.global, done, static_cast<int64_t>(dst.size())), dst.size());
    else if (e.on_host)
      std::memcpy(dst.data(), e.data + done, dst.size());
    else {
      api.copy(dst.data(), e.data + done, static_cast<int64_t>(dst.size()), stream);
      api.synchronize(stream);
    }
    const uint32_t piece = crc32c(dst.data(), dst.size());
    out.set_crc(piece);
    crc = crc32c_join(crc, piece, dst.size());
    if (require_finite && e.record != nullptr) {
      const int64_t bad = first_not_finite(e.record->dtype, dst);
      GT_REQUIRE(bad < 0, Exit::kNumerical, "element ", done / size_of(e.record->dtype) + bad, " of a rectangle at ",
                 to_string(e.record->box), " is not finite");
    }
    done += static_cast<int64_t>(dst.size());
  }
  return crc;
}

std::vector<SliceRecord> plan_records(const Skeleton& skeleton, const std::vector<StoredTensor>& tensors,
                                      const ShardJob& job) {
  std::vector<SliceRecord> out;
  for (size_t k = 0; k < tensors.size(); ++k) {
    int64_t offset = skeleton.offsets[k];
    for (const Box& b : tensors[k].set.boxes) {
      const int64_t bytes = b.numel() * size_of(tensors[k].set.dtype);
      out.push_back({job.ids.at(tensors[k].set.name), tensors[k].set.dtype, b, offset, bytes, 0});
      offset += bytes;
    }
  }
  return out;
}

// Re-reads the shard from disk, bypassing the page cache.
void read_back(Vfs& vfs, const std::string& path, const ShardIndex& index) {
  const File file = File::open(vfs, path);
  file.drop_cache();
  std::vector<std::byte> block(static_cast<size_t>(kBlockBytes));
  for (size_t b = 0; b < index.blocks.size(); ++b) {
    const int64_t at = static_cast<int64_t>(b) * kBlockBytes, n = std::min(kBlockBytes, index.file_bytes - at);
    file.read(block.data(), n, at);
    GT_REQUIRE(crc32c(block.data(), static_cast<size_t>(n)) == index.blocks[b], Exit::kIo, path, ": bytes ", at, " to ",
               at + n - 1, " came back different from what was written");
  }
}

}  // namespace

std::vector<StoredTensor> stored_tensors(std::span<const ShardView> views) {
  struct Part {
    Box box;
    const std::byte* data;
  };
  std::map<std::string, std::pair<StoredTensor, std::vector<Part>>> by_name;
  for (const ShardView& v : views) {
    if (!v.save || v.data.numel() == 0) continue;
    auto& [tensor, parts] = by_name[v.name];
    if (parts.empty() && tensor.set.name.empty()) {
      tensor.set = {v.name, v.data.dtype, v.full, {}};
      tensor.blocks = v.shard.tp().blocks;
      tensor.device = v.data.device;
    }
    GT_CHECK(tensor.set.global == v.full && tensor.set.dtype == v.data.dtype, v.name, ": views of ", to_string(v.full),
             " and of ", to_string(tensor.set.global));
    for (const BoxPart& p : boxes_of(v))
      parts.push_back({p.box, v.data.data == nullptr ? nullptr : v.data.data + p.at * size_of(v.data.dtype)});
  }
  std::vector<StoredTensor> out;
  for (auto& [name, entry] : by_name) {
    auto& [tensor, parts] = entry;
    if (parts.empty()) continue;  // padding only
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.box.at < b.box.at; });
    for (const Part& p : parts) {
      tensor.set.boxes.push_back(p.box);
      tensor.data.push_back(p.data);
    }
    out.push_back(std::move(tensor));
  }
  return out;
}

std::vector<std::vector<StoredTensor>> cut_into_parts(std::vector<StoredTensor> tensors, int64_t part_bytes) {
  // Metadata: at most 2 x 16 KiB plus 1 KiB per data set (skeleton.cpp); payload begins on a page boundary.
  constexpr int64_t kPage = 4096, kHead = 10 * kPage, kSet = 2 * 1024 + kPage;
  std::vector<std::vector<StoredTensor>> parts(1);
  int64_t used = kHead;
  for (StoredTensor& t : tensors) {
    const auto begin_set = [&] {
      StoredTensor s = t;
      s.set.boxes.clear();
      s.data.clear();
      parts.back().push_back(std::move(s));
      used += kSet;
    };
    begin_set();
    for (size_t k = 0; k < t.set.boxes.size(); ++k) {
      const int64_t bytes = t.set.boxes[k].numel() * size_of(t.set.dtype);
      if (used > kHead + kSet && used + bytes > part_bytes) {
        if (parts.back().back().data.empty()) parts.back().pop_back();
        parts.emplace_back();
        used = kHead;
        begin_set();
      }
      used += bytes;
      parts.back().back().set.boxes.push_back(t.set.boxes[k]);
      parts.back().back().data.push_back(t.data[k]);
    }
  }
  GT_REQUIRE(parts.size() <= kMostParts, Exit::kUsage, "checkpoint.part_bytes ", part_bytes, ": a rank would write ",
             parts.size(), " files, at most ", kMostParts, " have names; make it larger");
  return parts;
}

std::string shard_name(int rank, int part) {
  char name[48];
  if (part == 0)
    std::snprintf(name, sizeof name, "rank-%05d.h5", rank);
  else
    std::snprintf(name, sizeof name, "rank-%05d.%03d.h5", rank, part);
  return name;
}

std::string write_shard(Vfs& vfs, const ShardJob& job, const std::vector<StoredTensor>& tensors, const DeviceApi& api,
                        Stream stream) {
  std::vector<DataSet> sets;
  for (const StoredTensor& t : tensors) sets.push_back(t.set);
  const Skeleton skeleton = make_skeleton(sets, job.head, job.dir);

  ShardIndex index{
      job.uuid, job.head.step, job.head.rank, job.head.part, skeleton.file_bytes, plan_records(skeleton, tensors, job),
      {}};
  std::vector<Extent> extents;
  size_t k = 0;
  for (const StoredTensor& t : tensors)
    for (const std::byte* data : t.data) {
      SliceRecord& r = index.records[k++];
      extents.push_back(
          {r.offset, r.bytes, data, data == nullptr || t.device.kind == DeviceKind::kCpu, &r, &t.set.global});
    }
  for (const auto& [offset, bytes] : skeleton.metadata)
    extents.push_back({offset, static_cast<int64_t>(bytes.size()), reinterpret_cast<const std::byte*>(bytes.data()),
                       true, nullptr, nullptr});
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.offset < b.offset; });

  const std::string name = shard_name(job.head.rank, job.head.part), path = job.dir + "/" + name;
  BlockStream out(vfs, path, skeleton.file_bytes, job.how);
  Fetched fetched(job);
  for (const Extent& e : extents) {
    try {
      const uint32_t crc = put(out, e, fetched, job.require_finite, api, stream);
      if (e.record != nullptr) e.record->crc = crc;
    } catch (const Error& error) {
      if (error.code() != Exit::kNumerical) throw;
      throw Error(cat(name_of_record(*e.record, job), ": ", error.what(), ": a checkpoint never holds NaN or infinity"),
                  error.code());
    }
  }
  index.blocks = out.finish();
  std::sort(index.records.begin(), index.records.end(),
            [](const SliceRecord& a, const SliceRecord& b) { return a.offset < b.offset; });
  write_synced(vfs, job.dir + "/" + name.substr(0, name.size() - 3) + ".idx", encode(index));
  if (job.how.readback) read_back(vfs, path, index);
  return out.sha256_hex();
}

}  // namespace gt
