#include "launch/tools/verify/rank_record.h"

#include <cstring>

#include "parallel/comm/host_values.h"
#include "parallel/zero/shard_copy.h"

namespace gt {
namespace {

// Binary serialization without conversion: sender and receiver run the same binary on the same architecture.
class Writer {
 public:
  std::vector<std::byte> bytes;
  void raw(const void* p, size_t n) {
    const auto* b = static_cast<const std::byte*>(p);
    bytes.insert(bytes.end(), b, b + n);
  }
  template <class T>
  void put(const T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    raw(&v, sizeof v);
  }
  template <class T>
  void put(const std::vector<T>& v) {
    put(v.size());
    raw(v.data(), v.size() * sizeof(T));
  }
  void put(const std::string& s) {
    put(s.size());
    raw(s.data(), s.size());
  }
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  void raw(void* p, size_t n) {
    GT_CHECK(n <= left_.size(), "a rank's record ends early");
    if (n > 0) std::memcpy(p, left_.data(), n);
    left_ = left_.subspan(n);
  }
  template <class T>
  void get(T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    raw(&v, sizeof v);
  }
  template <class T>
  void get(std::vector<T>& v) {
    v.resize(count(sizeof(T)));
    raw(v.data(), v.size() * sizeof(T));
  }
  void get(std::string& s) {
    s.resize(count(1));
    raw(s.data(), s.size());
  }
  size_t count(size_t item) {
    size_t n = 0;
    get(n);
    GT_CHECK(n <= left_.size() / item, "a rank's record ends early");
    return n;
  }

 private:
  std::span<const std::byte> left_;
};

// Lists the fields of a view; shared by writer and reader.
template <class Each>
void view_fields(ShardView& v, Each each) {
  each(v.name), each(v.full), each(v.local), each(v.shard), each(v.at), each(v.pad_rows);
  each(v.begin), each(v.save);
}

std::vector<std::byte> pack(const RankRecord& r) {
  Writer w;
  w.put(r.losses), w.put(r.norms), w.put(r.parts), w.put(r.eval_loss), w.put(r.eval_hits);
  w.put(r.pieces.size());
  for (const RecordedTensor& p : r.pieces) {
    ShardView view = p.view;
    w.put(p.step);
    view_fields(view, [&](auto& field) { w.put(field); });
    w.put(p.dtype), w.put(p.values);
  }
  w.put(r.activations.size());
  for (const auto& [key, prints] : r.activations) w.put(key.first), w.put(key.second), w.put(prints);
  w.put(r.module_order.size());
  for (const std::string& name : r.module_order) w.put(name);
  w.put(r.wrong_call), w.put(r.wrong_step), w.put(r.derived_calls);
  return std::move(w.bytes);
}

RankRecord unpack(std::span<const std::byte> bytes) {
  Reader in(bytes);
  RankRecord r;
  in.get(r.losses), in.get(r.norms), in.get(r.parts), in.get(r.eval_loss), in.get(r.eval_hits);
  r.pieces.resize(in.count(1));
  for (RecordedTensor& p : r.pieces) {
    in.get(p.step);
    view_fields(p.view, [&](auto& field) { in.get(field); });
    in.get(p.dtype), in.get(p.values);
  }
  for (size_t n = in.count(1); n > 0; --n) {
    std::pair<std::string, int64_t> key;
    in.get(key.first), in.get(key.second), in.get(r.activations[key]);
  }
  r.module_order.resize(in.count(1));
  for (std::string& name : r.module_order) in.get(name);
  in.get(r.wrong_call), in.get(r.wrong_step), in.get(r.derived_calls);
  return r;
}

}  // namespace

void record_views(RankRecord& out, int step, const std::vector<ShardView>& views, bool copies, const Backend& backend,
                  Stream stream) {
  for (const ShardView& v : views) {
    if (!v.save && !copies) continue;
    RecordedTensor p{step, v, v.data.dtype, std::vector<float>(static_cast<size_t>(v.data.numel()))};
    p.view.data = {};
    fetch_view(v, p.values.data(), backend, stream);
    out.pieces.push_back(std::move(p));
  }
}

std::vector<RankRecord> gather_records(ProcessGroup& world, const RankRecord& mine) {
  constexpr int kTag = 1;
  std::vector<RankRecord> all;
  if (world.rank() != 0) {
    std::vector<std::byte> bytes = pack(mine);
    int64_t size = static_cast<int64_t>(bytes.size());
    world.send(host_tensor(std::span(&size, 1)), 0, kTag, {}).wait({});
    world.send(host_tensor(std::span(bytes)), 0, kTag, {}).wait({});
    return all;
  }
  all.push_back(mine);
  for (int r = 1; r < world.size(); ++r) {
    int64_t size = 0;
    world.recv(host_tensor(std::span(&size, 1)), r, kTag, {}).wait({});
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    world.recv(host_tensor(std::span(bytes)), r, kTag, {}).wait({});
    all.push_back(unpack(bytes));
  }
  return all;
}

}  // namespace gt
