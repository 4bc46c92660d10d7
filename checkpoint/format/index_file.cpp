#include "checkpoint/format/index_file.h"

#include <cstring>

#include "kernels/core/hash/crc32c.h"
#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {

constexpr char kMagic[] = "\x89GTI\r\n\x1a\n";
constexpr int64_t kHeader = 128, kRecord = 96;
constexpr uint16_t kMajor = 1;

class Writer {
 public:
  template <class T>
  void put(T v) {
    char raw[sizeof(T)];
    std::memcpy(raw, &v, sizeof(T));
    out.append(raw, sizeof(T));
  }
  void zeros(size_t n) { out.append(n, '\0'); }
  std::string out;
};

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  template <class T>
  T get() {
    T v;
    std::memcpy(&v, bytes_.data() + at_, sizeof(T));  // the caller has checked the size of the whole file
    at_ += sizeof(T);
    return v;
  }
  template <class T>
  void expect(T expected, const char* what) {
    const size_t at = at_;
    const T found = get<T>();
    GT_REQUIRE(found == expected, Exit::kDamaged, where_, ": ", what, " at byte ", at, " is ", +found, ", expected ",
               +expected);
  }
  void expect_zeros(size_t n) {
    for (size_t k = 0; k < n; ++k) expect<uint8_t>(0, "reserved field");
  }
  size_t at() const { return at_; }
  void seek(size_t at) { at_ = at; }

 private:
  std::string_view bytes_;
  const std::string& where_;
  size_t at_ = 0;
};

void encode_record(Writer& w, const SliceRecord& r) {
  w.put<uint32_t>(r.tensor);
  w.put<uint8_t>(static_cast<uint8_t>(r.dtype));
  w.put<uint8_t>(static_cast<uint8_t>(r.box.ndim));
  w.put<uint16_t>(0);
  w.put<int64_t>(r.offset);
  w.put<int64_t>(r.bytes);
  w.put<uint32_t>(r.crc);
  w.put<uint32_t>(0);
  for (int64_t v : r.box.at) w.put(v);
  for (int64_t v : r.box.extent) w.put(v);
}

// Checks every field against its tensor; factors are bounded before they are multiplied.
SliceRecord decode_record(Reader& in, const std::string& where, std::span<const TensorShape> tensors,
                          int64_t file_bytes, int64_t from) {
  const size_t start = in.at();
  SliceRecord r;
  r.tensor = in.get<uint32_t>();
  GT_REQUIRE(r.tensor < tensors.size(), Exit::kDamaged, where, ": record at byte ", start, " is of tensor ", r.tensor,
             ", the manifest has ", tensors.size());
  const TensorShape& t = tensors[r.tensor];
  in.expect<uint8_t>(static_cast<uint8_t>(t.dtype), "dtype");
  in.expect<uint8_t>(static_cast<uint8_t>(t.shape.rank), "number of dimensions");
  in.expect<uint16_t>(0, "reserved field");
  r.dtype = t.dtype;
  r.box.ndim = t.shape.rank;
  r.offset = in.get<int64_t>();
  r.bytes = in.get<int64_t>();
  r.crc = in.get<uint32_t>();
  in.expect<uint32_t>(0, "reserved field");
  for (int64_t& v : r.box.at) v = in.get<int64_t>();
  for (int64_t& v : r.box.extent) v = in.get<int64_t>();
  for (size_t d = 0; d < Shape::kMaxRank; ++d) {
    const bool used = static_cast<int>(d) < r.box.ndim;
    const int64_t full = used ? t.shape.dim[d] : 1, at = r.box.at[d], extent = r.box.extent[d];
    GT_REQUIRE(at >= 0 && extent >= 1 && extent <= full && at <= full - extent, Exit::kDamaged, where,
               ": record at byte ", start, " of ", t.name, " claims ", at, "+", extent, " in dimension ", d,
               ", the tensor has ", full);
  }
  GT_REQUIRE(r.bytes == r.box.numel() * size_of(r.dtype), Exit::kDamaged, where, ": record at byte ", start, " of ",
             t.name, " has ", r.bytes, " bytes for ", r.box.numel(), " elements");
  GT_REQUIRE(r.offset >= from && r.offset <= file_bytes - r.bytes, Exit::kDamaged, where, ": record at byte ", start,
             " of ", t.name, " lies at ", r.offset, " for ", r.bytes, " bytes; the previous one ends at ", from,
             ", the file at ", file_bytes);
  return r;
}

}  // namespace

std::string to_string(const Uuid& u) {
  const std::string h = to_hex(u.data(), u.size());
  return h.substr(0, 8) + "-" + h.substr(8, 4) + "-" + h.substr(12, 4) + "-" + h.substr(16, 4) + "-" + h.substr(20);
}

Uuid uuid_from(std::string_view s) {
  Uuid u{};
  size_t n = 0;
  bool good = s.size() == 36;
  for (size_t k = 0; good && k < s.size(); ++k) {
    if (k == 8 || k == 13 || k == 18 || k == 23) {
      good = s[k] == '-';
      continue;
    }
    const int v = s[k] >= '0' && s[k] <= '9' ? s[k] - '0' : s[k] >= 'a' && s[k] <= 'f' ? s[k] - 'a' + 10 : -1;
    good = v >= 0;
    if (good) u[n / 2] = static_cast<uint8_t>(u[n / 2] << 4 | v);
    ++n;
  }
  GT_REQUIRE(good, Exit::kDamaged, "uuid \"", s, "\" is not of the form 00112233-4455-8677-8899-aabbccddeeff");
  return u;
}

std::string encode(const ShardIndex& x) {
  const auto n = static_cast<int64_t>(x.records.size()), b = static_cast<int64_t>(x.blocks.size());
  GT_CHECK(b == (x.file_bytes + kBlockBytes - 1) / kBlockBytes, "one CRC per block");
  Writer w;
  w.out.append(kMagic, 8);
  w.put<uint16_t>(kMajor);
  w.put<uint16_t>(0);
  w.put<uint32_t>(kHeader);
  w.out.append(reinterpret_cast<const char*>(x.uuid.data()), x.uuid.size());
  w.put<int64_t>(x.step);
  w.put<uint32_t>(static_cast<uint32_t>(x.rank));
  w.put<uint32_t>(static_cast<uint32_t>(x.part));
  w.put<int64_t>(x.file_bytes);
  w.put<uint8_t>(1);
  w.put<uint8_t>(kBlockBits);
  w.put<uint16_t>(0);
  w.put<uint32_t>(kRecord);
  w.put<int64_t>(n);
  w.put<int64_t>(kHeader);
  w.put<int64_t>(kHeader + kRecord * n);
  w.put<int64_t>(b);
  w.put<int64_t>(kHeader + kRecord * n + 4 * b + 4);
  w.zeros(20);
  w.put<uint32_t>(crc32c(w.out.data(), w.out.size()));
  for (const SliceRecord& r : x.records) encode_record(w, r);
  for (uint32_t c : x.blocks) w.put(c);
  w.put<uint32_t>(crc32c(w.out.data() + kHeader, w.out.size() - kHeader));
  return std::move(w.out);
}

ShardIndex decode_index(std::string_view bytes, const std::string& where, std::span<const TensorShape> tensors) {
  const auto size = static_cast<int64_t>(bytes.size());
  GT_REQUIRE(size >= kHeader + 4, Exit::kDamaged, where, ": ", size, " bytes, an index has at least ", kHeader + 4);
  GT_REQUIRE(std::memcmp(bytes.data(), kMagic, 8) == 0, Exit::kDamaged, where, ": does not begin like a shard index");
  Reader in(bytes, where);
  in.seek(124);
  in.expect(crc32c(bytes.data(), 124), "header checksum");
  in.seek(static_cast<size_t>(size) - 4);
  in.expect(crc32c(bytes.data() + kHeader, static_cast<size_t>(size - kHeader - 4)), "table checksum");

  ShardIndex x;
  in.seek(8);
  const auto major = in.get<uint16_t>();
  GT_REQUIRE(major <= kMajor, Exit::kUsage, where, ": index version ", major, ", this program reads up to ", kMajor,
             "; use a newer one");
  GT_REQUIRE(major >= 1, Exit::kDamaged, where, ": index version 0, the first one is 1");
  in.expect<uint16_t>(0, "minor version");
  in.expect<uint32_t>(kHeader, "header size");
  for (uint8_t& v : x.uuid) v = in.get<uint8_t>();
  x.step = in.get<int64_t>();
  x.rank = static_cast<int>(in.get<uint32_t>());
  x.part = static_cast<int>(in.get<uint32_t>());
  x.file_bytes = in.get<int64_t>();
  in.expect<uint8_t>(1, "kind of checksum");
  in.expect<uint8_t>(kBlockBits, "block size");
  in.expect<uint16_t>(0, "reserved field");
  in.expect<uint32_t>(kRecord, "record size");
  const auto n = in.get<int64_t>();
  GT_REQUIRE(n >= 0 && n <= size / kRecord, Exit::kDamaged, where, ": ", n, " records do not fit into ", size,
             " bytes");
  in.expect<int64_t>(kHeader, "offset of the records");
  in.expect<int64_t>(kHeader + kRecord * n, "offset of the block checksums");
  const auto b = in.get<int64_t>();
  GT_REQUIRE(x.file_bytes >= 0 && b == (x.file_bytes >> kBlockBits) + ((x.file_bytes & (kBlockBytes - 1)) != 0),
             Exit::kDamaged, where, ": ", b, " block checksums for a shard of ", x.file_bytes, " bytes");
  GT_REQUIRE(b <= size / 4, Exit::kDamaged, where, ": ", b, " block checksums do not fit into ", size, " bytes");
  in.expect<int64_t>(size, "size of the index");
  GT_REQUIRE(size == kHeader + kRecord * n + 4 * b + 4, Exit::kDamaged, where, ": ", size, " bytes, ", n,
             " records and ", b, " checksums need ", kHeader + kRecord * n + 4 * b + 4);
  in.expect_zeros(20);
  in.seek(static_cast<size_t>(kHeader));
  int64_t from = 0;
  for (int64_t k = 0; k < n; ++k) {
    x.records.push_back(decode_record(in, where, tensors, x.file_bytes, from));
    from = x.records.back().offset + x.records.back().bytes;
  }
  for (int64_t k = 0; k < b; ++k) x.blocks.push_back(in.get<uint32_t>());
  return x;
}

}  // namespace gt
