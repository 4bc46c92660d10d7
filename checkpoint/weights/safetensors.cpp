// Reads the safetensors format (u64 length, JSON header, data), one file or several with an index. All input is
// untrusted.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/weights/source_file.h"
#include "checkpoint/weights/weights.h"
#include "kernels/core/file_kind.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kHeaderLimit = int64_t{16} << 20;  // the format allows 100 MB, far more than any model needs
constexpr size_t kNameLimit = 512, kTensorLimit = 20000, kMaxDims = 8;

// Format's dtype name -> bytes per element, and our dtype name where it can hold weights.
const std::map<std::string, std::pair<int64_t, const char*>> kTypes{
    {"F32", {4, "f32"}}, {"F16", {2, "f16"}}, {"BF16", {2, "bf16"}}, {"F64", {8, ""}},     {"BOOL", {1, ""}},
    {"U8", {1, ""}},     {"I8", {1, "i8"}},   {"I16", {2, ""}},      {"U16", {2, ""}},     {"I32", {4, ""}},
    {"U32", {4, ""}},    {"I64", {8, ""}},    {"U64", {8, ""}},      {"F8_E4M3", {1, ""}}, {"F8_E5M2", {1, ""}}};

struct Entry {
  std::string name, dtype;
  std::vector<int64_t> shape, offsets;
  bool has_shape = false, has_offsets = false;
};

// Builds entries while reading and keeps nothing else, so memory for a hostile header is bounded by its own size.
class HeaderReader : public JsonEvents {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  void null() override { bad("null"); }
  void boolean(bool) override { bad("true or false"); }
  void number(std::string_view text) override {
    const JsonNumber n = json_number_of(text);
    if (list_ == nullptr || !n.is_unsigned) bad(cat("the number ", text.substr(0, 40)));
    GT_REQUIRE(n.magnitude <= uint64_t{1} << 62, Exit::kDamaged, where_, ": ", name_, ": ", key_, " has ", n.magnitude);
    GT_REQUIRE(list_->size() < kMaxDims, Exit::kDamaged, where_, ": ", name_, ": ", key_, " has more than ", kMaxDims,
               " entries");
    list_->push_back(static_cast<int64_t>(n.magnitude));
  }
  void string(std::string&& s) override {
    if (depth_ == 2 && in_metadata_) {
      metadata[key_] = std::move(s);
    } else {
      if (depth_ != 2 || list_ != nullptr || key_ != "dtype") bad("the text \"" + shorten(s) + "\"");
      entries.back().dtype = std::move(s);
    }
  }
  void open(bool object) override {
    if (!object) return open_list();
    if (++depth_ > 2) bad("an object");
    if (depth_ == 2 && !in_metadata_) {
      entries.emplace_back();
      entries.back().name = name_;
    }
  }
  void close() override {
    if (list_ != nullptr) {
      list_ = nullptr;
    } else if (depth_-- == 2) {
      if (!in_metadata_) {
        const Entry& e = entries.back();
        GT_REQUIRE(!e.dtype.empty() && e.has_shape && e.has_offsets, Exit::kDamaged, where_, ": ", shorten(e.name),
                   ": expected dtype, shape and data_offsets");
      }
      in_metadata_ = false;
    }
  }
  void key(std::string&& k) override {
    if (depth_ == 1) {
      in_metadata_ = k == "__metadata__";
      check_name(k);
      name_ = std::move(k);
      return;
    }
    key_ = std::move(k);
    GT_REQUIRE(in_metadata_ || key_ == "dtype" || key_ == "shape" || key_ == "data_offsets", Exit::kDamaged, where_,
               ": ", name_, ": unknown key \"", shorten(key_), "\"");
  }

 private:
  static std::string shorten(const std::string& s) { return s.size() <= 200 ? s : s.substr(0, 200) + "…"; }
  [[noreturn]] void bad(const std::string& found) const {
    fail(Exit::kDamaged, where_, ": ", name_.empty() ? "header" : shorten(name_),
         key_.empty() ? "" : ", " + shorten(key_), ": unexpected ", found);
  }
  void open_list() {
    if (depth_ != 2 || in_metadata_ || list_ != nullptr || (key_ != "shape" && key_ != "data_offsets")) bad("a list");
    Entry& e = entries.back();
    (key_ == "shape" ? e.has_shape : e.has_offsets) = true;
    list_ = key_ == "shape" ? &e.shape : &e.offsets;
  }
  void check_name(const std::string& n) const {
    const bool plain =
        std::all_of(n.begin(), n.end(), [](char c) { return static_cast<unsigned char>(c) >= 32 && c != 127; });
    GT_REQUIRE(!n.empty() && n.size() <= kNameLimit && plain && n.find('/') == std::string::npos &&
                   n.find("..") == std::string::npos,
               Exit::kDamaged, where_, ": \"", plain ? shorten(n) : "…", "\" is not the name of a tensor");
  }

  const std::string& where_;
  std::string name_, key_;
  std::vector<int64_t>* list_ = nullptr;
  int depth_ = 0;
  bool in_metadata_ = false;
};

// Checks dtypes, sizes, and that the tensors tile the data region without holes or overlaps.
void check_entries(const std::string& where, std::vector<Entry>& entries, int64_t data_bytes) {
  std::vector<Entry*> by_offset;
  for (Entry& e : entries) {
    const auto type = kTypes.find(e.dtype);
    GT_REQUIRE(type != kTypes.end(), Exit::kDamaged, where, ": ", e.name, ": unknown dtype \"", e.dtype.substr(0, 40),
               "\"");
    GT_REQUIRE(e.offsets.size() == 2 && e.offsets[0] <= e.offsets[1] && e.offsets[1] <= data_bytes, Exit::kDamaged,
               where, ": ", e.name, ": data_offsets ", to_string(e.offsets), " in ", data_bytes, " bytes of data");
    int64_t capacity = (e.offsets[1] - e.offsets[0]) / type->second.first, n = 1;
    bool fits = (e.offsets[1] - e.offsets[0]) % type->second.first == 0;
    for (int64_t d : e.shape) {
      fits = fits && (d == 0 || n <= capacity / std::max<int64_t>(d, 1));
      n = fits ? n * d : n;
    }
    GT_REQUIRE(fits && n == capacity, Exit::kDamaged, where, ": ", e.name, ": ", e.dtype, " ", to_string(e.shape),
               " in ", e.offsets[1] - e.offsets[0], " bytes");
    by_offset.push_back(&e);
  }
  std::stable_sort(by_offset.begin(), by_offset.end(),
                   [](const Entry* a, const Entry* b) { return a->offsets < b->offsets; });
  int64_t at = 0;
  for (const Entry* e : by_offset) {
    GT_REQUIRE(e->offsets[0] == at, Exit::kDamaged, where, ": ", e->name, " begins at ", e->offsets[0],
               ", the tensor before it ends at ", at);
    at = e->offsets[1];
  }
  GT_REQUIRE(at == data_bytes, Exit::kDamaged, where, ": ", data_bytes - at, " bytes at the end belong to no tensor");
}

// A GPT-2 of 1024 layers has 14,000 tensors; as int8 with scales 16,000.
constexpr JsonLimits kLimits{.code = Exit::kDamaged, .bytes = kHeaderLimit, .depth = 8, .entries = kTensorLimit};

// Refuses a file by what it is instead, if that is known: an LFS pointer, a web page, a pickle.
void require_no_other_kind(const File& file, const std::string& path) {
  std::string head(static_cast<size_t>(std::min<int64_t>(file.size(), kKindBytes)), '\0');
  file.read(head.data(), static_cast<int64_t>(head.size()), 0);
  const std::string kind = other_kind(head);
  GT_REQUIRE(kind.empty(), Exit::kDamaged, path, ": no safetensors file: it ", kind);
}

class Safetensors : public WeightFile {
 public:
  Safetensors(Vfs& vfs, const std::string& path) : file_(open_source(vfs, path)) {
    const int64_t size = file_.size();
    uint64_t length = 0;
    if (size >= 10) file_.read(&length, sizeof length, 0);
    if (length < 2 || length > static_cast<uint64_t>(size) - 8) require_no_other_kind(file_, path);
    GT_REQUIRE(size >= 10, Exit::kDamaged, path, ": ", size, " bytes, no safetensors file");
    GT_REQUIRE(length >= 2 && length <= static_cast<uint64_t>(size) - 8, Exit::kDamaged, path, ": claims a header of ",
               length, " bytes in a file of ", size);
    GT_REQUIRE(length <= static_cast<uint64_t>(kHeaderLimit), Exit::kDamaged, path, ": header of ", length,
               " bytes, at most ", kHeaderLimit, " are read");
    std::string text(length, '\0');
    file_.read(text.data(), static_cast<int64_t>(length), 8);
    GT_REQUIRE(text[0] == '{', Exit::kDamaged, path, ": header begins with byte ",
               static_cast<int>(static_cast<unsigned char>(text[0])), ", expected {");
    HeaderReader header(path);
    read_json(text, path + ", header", kLimits, header);
    begin_ = 8 + static_cast<int64_t>(length);
    check_entries(path, header.entries, size - begin_);
    notes_ = std::move(header.metadata);
    for (Entry& e : header.entries) {
      const char* ours = kTypes.at(e.dtype).second;
      list_.push_back({e.name, *ours ? ours : e.dtype, e.shape});
      offsets_.push_back(e.offsets[0]);
    }
  }
  std::string note(const std::string& key) const override {
    const auto it = notes_.find(key);
    return it == notes_.end() ? "" : it->second;
  }
  std::vector<float> read(size_t k, int64_t first, int64_t count) override {
    const WeightInfo& w = list_[k];
    GT_REQUIRE(w.dtype == "f32" || w.dtype == "bf16" || w.dtype == "f16" || w.dtype == "i8", Exit::kDamaged,
               file_.path(), ": ", w.name, " is ", w.dtype, ", expected F32, BF16, F16 or I8");
    return read_values(file_, begin_ + offsets_[k] + w.item_bytes() * first, count, w.dtype);
  }

 private:
  File file_;
  int64_t begin_ = 0;
  std::vector<int64_t> offsets_;
  std::map<std::string, std::string> notes_;
};

// Several files with an index that maps tensors to files.
class ShardedSafetensors : public WeightFile {
 public:
  ShardedSafetensors(Vfs& vfs, const std::string& dir) {
    const std::string index = dir + "/model.safetensors.index.json";
    const std::string text = read_source(vfs, index, kHeaderLimit);
    std::map<std::string, std::string> where = weight_map(index, text);
    std::map<std::string, size_t> opened;
    for (const auto& [name, file] : where) {
      if (opened.count(file)) continue;
      GT_REQUIRE(file.find('/') == std::string::npos && file != ".." && file.size() > 12 &&
                     file.compare(file.size() - 12, 12, ".safetensors") == 0,
                 Exit::kDamaged, index, ": \"", file, "\" is not a safetensors file of this folder");
      GT_REQUIRE(is_there(dir + "/" + file), Exit::kDamaged, index, ": ", name, " is in ", file,
                 ", which is not there");
      opened[file] = files_.size();
      files_.push_back(std::make_unique<Safetensors>(vfs, dir + "/" + file));
    }
    for (const auto& [file, f] : opened)
      for (size_t k = 0; k < files_[f]->list().size(); ++k) {
        const WeightInfo& w = files_[f]->list()[k];
        const auto it = where.find(w.name);
        GT_REQUIRE(it != where.end() && it->second == file, Exit::kDamaged, index, ": does not map ", w.name, " to ",
                   file);
        where.erase(it);
        list_.push_back(w);
        location_.emplace_back(f, k);
      }
    GT_REQUIRE(where.empty(), Exit::kDamaged, index, ": ", where.begin()->first, " is not in ", where.begin()->second);
  }
  std::string note(const std::string& key) const override { return files_.empty() ? "" : files_[0]->note(key); }
  std::vector<float> read(size_t k, int64_t first, int64_t count) override {
    return files_[location_[k].first]->read(location_[k].second, first, count);
  }

 private:
  static std::map<std::string, std::string> weight_map(const std::string& index, const std::string& text) {
    std::map<std::string, std::string> out;
    const Json json = parse_json<Json>(text, index, kLimits);
    try {
      const Json& map = member(json, "weight_map");
      GT_REQUIRE(map.is_object(), Exit::kDamaged, "weight_map: expected an object, found ", found_json(map));
      for (const auto& [name, file] : map.items()) {
        GT_REQUIRE(file.is_string(), Exit::kDamaged, printable(name), ": expected a string, found ", found_json(file));
        out[name] = file.get<std::string>();
      }
    } catch (const Error& e) {
      fail(Exit::kDamaged, index, ": expected {\"weight_map\": {\"name\": \"file\"}}: ", e.what());
    }
    GT_REQUIRE(!out.empty(), Exit::kDamaged, index, ": names no tensor");
    return out;
  }

  std::vector<std::unique_ptr<Safetensors>> files_;
  std::vector<std::pair<size_t, size_t>> location_;
};

}  // namespace

std::unique_ptr<WeightFile> open_safetensors(Vfs& vfs, const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_directory(path, ec)) {
    GT_REQUIRE(is_there(path), Exit::kUsage, path, ": no such file");
    return std::make_unique<Safetensors>(vfs, path);
  }
  const std::string one = path + "/model.safetensors", index = one + ".index.json";
  if (is_there(one)) return std::make_unique<Safetensors>(vfs, one);
  GT_REQUIRE(is_there(index), Exit::kUsage, path,
             ": holds neither model.safetensors nor model.safetensors.index.json; files of pickled Python objects "
             "(pytorch_model.bin) are not read, convert them with save_pretrained(safe_serialization=True)");
  return std::make_unique<ShardedSafetensors>(vfs, path);
}

}  // namespace gt
