#include "checkpoint/verify.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>

#include "checkpoint/format/h5_gate.h"
#include "checkpoint/format/shard_reader.h"
#include "checkpoint/store/steps.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {

std::string hex(uint32_t v) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", v);
  return text;
}

// Rows (indices of dimension 0) of the logical tensor affected by bytes [begin, end) of the shard.
std::pair<int64_t, int64_t> rows_hit(const SliceRecord& r, int64_t begin, int64_t end) {
  const int64_t row = r.bytes / r.box.extent[0];
  const int64_t first = (std::max(begin, r.offset) - r.offset) / row,
                last = (std::min(end, r.offset + r.bytes) - r.offset - 1) / row;
  return {r.box.at[0] + first, r.box.at[0] + last};
}

std::string tensors_in(const ShardIndex& x, const std::vector<TensorShape>& shapes, int64_t begin, int64_t end) {
  std::string out;
  int shown = 0;
  for (const SliceRecord& r : x.records) {
    if (r.offset >= end || r.offset + r.bytes <= begin) continue;
    if (++shown > 8) return out + ", …";
    const auto [first, last] = rows_hit(r, begin, end);
    out += cat(out.empty() ? "" : ", ", shapes[r.tensor].name, last > first ? " rows " : " row ", first);
    if (last > first) out += cat("-", last);
  }
  return out.empty() ? "no tensor: metadata of the HDF5 file, or padding" : out;
}

std::string description(const H5Set& s) {
  const auto list = [](const std::vector<int64_t>& v) {
    std::string out = "[";
    for (size_t k = 0; k < v.size() && k < 32; ++k) out += cat(k ? " " : "", v[k]);
    return out + (v.size() > 32 ? " …]" : "]");
  };
  return cat(s.dtype, " ", list(s.shape), " at byte ", s.offset, ", global_shape ", list(s.global_shape), ", rects ",
             list(s.rects), ", hash ", hex(crc32c(s.rects.data(), s.rects.size() * sizeof(int64_t))));
}

// Appends one rectangle to a data set. Records come in file order.
void merge(H5Set& set, const SliceRecord& r, const TensorShape& t) {
  const auto n = static_cast<size_t>(r.box.ndim);
  if (set.offset < 0) {
    set = {t.name, name_of(t.dtype), r.offset, {r.box.extent.begin(), r.box.extent.begin() + r.box.ndim}, {}, {}};
    set.global_shape.assign(t.shape.dim.begin(), t.shape.dim.begin() + t.shape.rank);
  } else {
    const int64_t before = std::accumulate(set.shape.begin(), set.shape.end(), int64_t{1}, std::multiplies<int64_t>());
    set.shape = {before + r.box.numel()};
  }
  set.rects.insert(set.rects.end(), r.box.at.begin(), r.box.at.begin() + static_cast<std::ptrdiff_t>(n));
  set.rects.insert(set.rects.end(), r.box.extent.begin(), r.box.extent.begin() + static_cast<std::ptrdiff_t>(n));
}

class Verification {
 public:
  Verification(Vfs& vfs, std::string path, const StepVerifyOptions& o) : vfs_(vfs), options_(o) {
    out_.path = std::move(path);
  }

  VerifyReport run() {
    if (!manifest()) return out_;
    for (size_t k = 0; k < m_.files.size(); ++k) index(static_cast<int>(k));
    coverage();
    for (const AuxEntry& a : m_.aux) aux(a);
    for (const auto& [k, x] : indexes_) {
      payload(m_.files[static_cast<size_t>(k)], x);
      if (options_.deep) structure(m_.files[static_cast<size_t>(k)], x);
    }
    return out_;
  }

 private:
  void add(Finding f) { out_.findings.push_back(std::move(f)); }

  // Runs a check that throws; its error becomes a finding.
  bool good(const std::string& file, const std::function<void()>& check) {
    try {
      check();
      return true;
    } catch (const IoError& e) {
      if (e.errno_value() != ENOENT) throw;
      add({.file = file, .expected = "a file", .found = "none of that name"});
    } catch (const Error& e) {
      if (e.code() != Exit::kDamaged) throw;
      add({.file = file, .expected = "", .found = e.what()});
    }
    return false;
  }

  bool manifest() {
    return good("manifest.json", [&] {
      const std::string file = out_.path + "/manifest.json", text = read_file(vfs_, file, kManifestLimit);
      m_ = parse_manifest(text, file);
      shapes_ = m_.shapes();
      out_.step = m_.step;
      out_.tensors = static_cast<int64_t>(m_.tensors.size());
      count(static_cast<int64_t>(text.size()));
      const auto named = step_number(std::filesystem::path(out_.path).filename().string());
      GT_REQUIRE(!named || *named == m_.step, Exit::kDamaged, out_.path, ": holds step ", m_.step);
    });
  }

  void count(int64_t bytes) {
    ++out_.files;
    out_.bytes += bytes;
  }

  void index(int k) {
    const ShardFile& f = m_.files[static_cast<size_t>(k)];
    good(f.idx_name(), [&] {
      ShardIndex x = read_index(vfs_, out_.path, m_, k, shapes_);
      count(f.idx_bytes);
      indexes_.emplace_back(k, std::move(x));
    });
  }

  void coverage() {
    if (indexes_.size() != m_.files.size()) return;  // the missing index is already reported
    std::vector<std::vector<Box>> boxes(shapes_.size());
    for (const auto& [k, x] : indexes_)
      for (const SliceRecord& r : x.records) boxes[r.tensor].push_back(r.box);
    for (size_t t = 0; t < boxes.size(); ++t)
      if (const std::string error = coverage_error(shapes_[t].shape, boxes[t]); !error.empty())
        add({.file = "manifest.json",
             .tensors = shapes_[t].name,
             .expected = "rectangles that fill " + to_string(shapes_[t].shape) + " once",
             .found = error});
  }

  void aux(const AuxEntry& a) {
    good(a.name, [&] {
      const File file = open(a.name);
      std::string bytes(static_cast<size_t>(std::min<int64_t>(file.size(), kManifestLimit)), '\0');
      file.read(bytes.data(), static_cast<int64_t>(bytes.size()), 0);
      count(file.size());
      if (file.size() != a.bytes)
        return add({.file = a.name, .expected = cat(a.bytes, " bytes"), .found = cat(file.size(), " bytes")});
      if (const std::string h = sha256_hex(bytes); h != a.sha256)
        add({.file = a.name, .begin = 0, .end = a.bytes, .expected = "SHA-256 " + a.sha256, .found = h});
    });
  }

  File open(const std::string& name) {
    File file = File::open(vfs_, out_.path + "/" + name);
    if (options_.fresh) file.drop_cache();
    return file;
  }

  // Reads every block once. Slices have their own checksums, computed from training memory before anything was written.
  void payload(const ShardFile& f, const ShardIndex& x) {
    good(f.name, [&] {
      const File file = open(f.name);
      const int64_t size = file.size();
      if (size != f.bytes) add({.file = f.name, .expected = cat(f.bytes, " bytes"), .found = cat(size, " bytes")});
      count(size);
      std::vector<uint32_t> slices(x.records.size(), 0);
      std::vector<bool> doubtful(x.records.size(), size != f.bytes);
      std::string block(static_cast<size_t>(std::min(kBlockBytes, f.bytes)), '\0');
      size_t first = 0;  // first unfinished record
      Sha256 sha;
      for (size_t b = 0; b < x.blocks.size(); ++b) {
        const int64_t begin = static_cast<int64_t>(b) * kBlockBytes, end = std::min(begin + kBlockBytes, f.bytes);
        if (end > size) break;
        file.read(block.data(), end - begin, begin);
        const uint32_t crc = crc32c(block.data(), static_cast<size_t>(end - begin));
        if (!f.sha256.empty()) sha.update(block.data(), static_cast<size_t>(end - begin));
        const bool bad = crc != x.blocks[b];
        if (bad) add({f.name, begin, end, tensors_in(x, shapes_, begin, end), "CRC32C " + hex(x.blocks[b]), hex(crc)});
        while (first < x.records.size() && x.records[first].offset + x.records[first].bytes <= begin) ++first;
        for (size_t r = first; r < x.records.size() && x.records[r].offset < end; ++r) {
          const int64_t from = std::max(begin, x.records[r].offset),
                        to = std::min(end, x.records[r].offset + x.records[r].bytes);
          slices[r] = crc32c(block.data() + (from - begin), static_cast<size_t>(to - from), slices[r]);
          if (bad) doubtful[r] = true;
        }
      }
      if (const Sha256::Digest digest = sha.finish(); !f.sha256.empty() && size == f.bytes)
        if (const std::string h = to_hex(digest.data(), digest.size()); h != f.sha256)
          add({.file = f.name, .begin = 0, .end = f.bytes, .expected = "SHA-256 " + f.sha256, .found = h});
      for (size_t r = 0; r < slices.size(); ++r)
        if (!doubtful[r] && slices[r] != x.records[r].crc)
          add({f.name, x.records[r].offset, x.records[r].offset + x.records[r].bytes,
               tensors_in(x, shapes_, x.records[r].offset, x.records[r].offset + x.records[r].bytes),
               "CRC32C of the tensor in memory " + hex(x.records[r].crc),
               hex(slices[r]) + ": changed before it was written"});
    });
  }

  // Compares the tensors that libhdf5, and so any other reader, finds with those of the index.
  void structure(const ShardFile& f, const ShardIndex& x) {
    good(f.name, [&] {
      std::map<std::string, std::string> present;
      for (const H5Set& s : list_h5(out_.path + "/" + f.name)) present[s.name] = description(s);
      std::map<std::string, H5Set> expected;
      for (const SliceRecord& r : x.records) merge(expected[shapes_[r.tensor].name], r, shapes_[r.tensor]);
      for (const auto& [name, set] : expected) {
        const auto it = present.find(name);
        const std::string found = it == present.end() ? "no such data set" : it->second;
        if (found != description(set))
          add({.file = f.name, .tensors = name, .expected = "in HDF5 " + description(set), .found = found});
        present.erase(name);
      }
      for (const auto& [name, found] : present)
        add({.file = f.name, .tensors = name, .expected = "no data set of that name", .found = found});
    });
  }

  Vfs& vfs_;
  const StepVerifyOptions options_;
  Manifest m_;
  std::vector<TensorShape> shapes_;
  std::vector<std::pair<int, ShardIndex>> indexes_;  // of files with a valid index
  VerifyReport out_;
};

}  // namespace

std::string to_string(const Finding& f) {
  std::string out = f.file;
  if (f.begin >= 0) out += cat(", bytes ", f.begin, " to ", f.end - 1);
  out += ": ";
  if (!f.expected.empty()) out += "expected " + f.expected + ", found ";
  out += f.found;
  if (!f.tensors.empty()) out += "\n    hits " + f.tensors;
  return out;
}

VerifyReport verify_step(Vfs& vfs, const std::string& step_dir, const StepVerifyOptions& options) {
  return Verification(vfs, step_dir, options).run();
}

}  // namespace gt
