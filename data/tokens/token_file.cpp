#include "data/tokens/token_file.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "data/tokens/files.h"
#include "data/tokens/token_check.h"
#include "data/tokens/token_meta.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"

namespace gt {

std::string token_prefix(const std::string& path) {
  for (const char* suffix : {".bin", ".idx"})
    if (path.size() > 4 && path.ends_with(suffix)) return path.substr(0, path.size() - 4);
  return path;
}

std::string missing_token_files(const std::string& given) {
  const std::string prefix = token_prefix(given), bin = prefix + ".bin", idx = prefix + ".idx";
  std::error_code ec;
  const bool has_bin = std::filesystem::exists(bin, ec), has_idx = std::filesystem::exists(idx, ec);
  if (has_bin && has_idx) return "";
  if (has_bin || has_idx) return cat(has_bin ? idx : bin, ": no such file beside ", has_bin ? bin : idx);
  if (std::filesystem::is_directory(given, ec)) return given + ": is a folder";
  if (given == "-") return "-: standard input, expected a file";
  if (std::filesystem::exists(given, ec)) try {
      open_to_read(given);
    } catch (const Error& e) { return e.what(); }  // a pipe, a device
  return cat(given, ": no such file, and no token files ", bin, " and ", idx);
}

TokenFile TokenFile::open(const std::string& path, const TokenFileOptions& options) {
  TokenFile f;
  f.prefix_ = token_prefix(path);
  require_token_pair(path, f.prefix_);
  f.idx_ = MappedFile(f.prefix_ + ".idx");
  f.bin_ = MappedFile(f.prefix_ + ".bin");
  const TokenHeader h = check_token_header(f.idx_, options.warn);
  f.type_ = h.type;
  f.sequences_ = h.sequences;
  f.documents_ = h.entries - 1;
  // A large pair found valid and unchanged since is not walked or hashed again.
  const CheckCache cache(f.idx_.size() > options.rehash_bytes ? options.cache_dir : "", f.idx_, f.bin_);
  std::string hash;
  const bool known = cache.load(&f.tokens_, &hash);
  if (!known) f.tokens_ = check_token_tables(f.idx_, f.bin_, h);
  f.fingerprint_ = fingerprint_of(f.idx_, f.bin_, hash);
  if (!known && options.remembers) cache.store(f.tokens_, f.fingerprint_.idx_sha256);
  f.open_mask();
  return f;
}

// A mask that was lost in copying would turn prompts into targets unnoticed, so meta.json records that there is one.
void TokenFile::open_mask() {
  const std::string path = prefix_ + ".mask";
  if (!std::filesystem::exists(path)) {
    const auto meta = read_token_meta(prefix_);
    GT_REQUIRE(!meta || meta->mask_xxh3_128.empty(), Exit::kUsage, path, ": missing, but ", prefix_,
               ".meta.json records a loss mask; copy it too, or prepare the data again");
    return;
  }
  mask_ = LossMask(path, bin_.size() / width());
  GT_REQUIRE(position(0) % width() == 0, Exit::kUsage, idx_.path(), " byte ", 34 + 4 * sequences_,
             ": position of sequence 0, after which the others follow: expected a multiple of ", width(), " bytes (",
             name_of(type_), "), because ", path, " has a byte for each token; found ", position(0));
}

bool TokenFile::unchanged() const {
  return bin_.unchanged() && idx_.unchanged() && (!mask_ || mask_.file().unchanged());
}

void TokenFile::read_mask(int64_t sequence, int64_t begin, std::span<uint8_t> out) const {
  if (!mask_) return TokenStore::read_mask(sequence, begin, out);
  tokens_at(sequence, begin, static_cast<int64_t>(out.size()));  // the mask has a byte for each token of the .bin
  mask_.read(position(sequence) / width() + begin, out);
}

int64_t TokenFile::position(int64_t s) const { return load_at<int64_t>(idx_.data() + 34 + 4 * sequences_ + 8 * s); }
int64_t TokenFile::document_begin(int64_t d) const {
  GT_CHECK(d >= 0 && d <= documents_, "document ", d, " of ", documents_);
  const int64_t at = 34 + 12 * sequences_ + 8 * d, first = load_at<int64_t>(idx_.data() + at);
  GT_REQUIRE(first >= 0 && first <= sequences_, Exit::kIo, idx_.path(), " byte ", at, ": document ", d,
             ": expected a sequence of 0 to ", sequences_, ", found ", first,
             "; the file changed since it was checked");
  return first;
}

// The tables were checked at opening or, of a large file, when its cached result was made. This check holds whatever
// they contain now.
const uint8_t* TokenFile::tokens_at(int64_t sequence, int64_t begin, int64_t count) const {
  GT_CHECK(sequence >= 0 && sequence < sequences_, "sequence ", sequence, " of ", sequences_);
  const int64_t at = position(sequence), most = bin_.size() / width();
  GT_REQUIRE(begin >= 0 && count >= 0 && begin <= most && count <= most - begin && at >= 0 &&
                 at <= bin_.size() - (begin + count) * width(),
             Exit::kIo, idx_.path(), ": tokens ", begin, " to ", begin + count, " of sequence ", sequence, " at byte ",
             at, " are not in ", bin_.path(), " of ", bin_.size(), " bytes; the file changed since it was checked");
  return bin_.data() + at + begin * width();
}

int64_t TokenFile::document_of(int64_t sequence) const {
  int64_t low = 0, high = documents_ + 1;  // finds the last document that begins at or before the sequence
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= sequence ? low : high) = middle;
  }
  return low;
}

uint64_t TokenFile::read(int64_t sequence, int64_t begin, std::span<int32_t> out) const {
  return gather_tokens(tokens_at(sequence, begin, static_cast<int64_t>(out.size())), type_, out);
}

std::string TokenFile::locate(int64_t sequence, int64_t index) const {
  const int64_t document = document_of(sequence);
  int64_t before = index;
  for (int64_t s = document_begin(document); s < sequence; ++s) before += length(s);
  return cat(prefix_, ".bin: document ", document, ", position ", before, " (byte ",
             position(sequence) + index * width(), ")");
}

void TokenFile::will_need(int64_t sequence, int64_t begin, int64_t count) const {
  bin_.will_need(position(sequence) + begin * width(), count * width());
}

// ---- writing

namespace {
class BufferedFile {
 public:
  explicit BufferedFile(std::string path)
      : path_(std::move(path)), fd_(open_file(path_, O_WRONLY | O_CREAT | O_TRUNC)) {}
  void put(const void* p, size_t n) {
    if (held_.size() + n > (1 << 20)) flush();
    held_.append(static_cast<const char*>(p), n);
  }
  template <class T>
  void put_value(T v) {
    put(&v, sizeof v);
  }
  void close() {
    flush();
    sync_and_close(fd_.release(), path_);
  }

 private:
  void flush() {
    write_all(fd_.get(), held_.data(), held_.size(), path_);
    held_.clear();
  }
  std::string path_;
  Fd fd_;
  std::string held_;
};
}  // namespace

void write_token_index(const std::string& path, TokenType type, int64_t count, const std::function<void()>& rewind,
                       const std::function<int32_t()>& next) {
  BufferedFile out(path);
  out.put("MMIDIDX\0\0", 9);
  out.put_value(uint64_t{1});
  out.put_value(static_cast<uint8_t>(type));
  out.put_value(static_cast<uint64_t>(count));
  out.put_value(static_cast<uint64_t>(count + 1));
  rewind();
  for (int64_t i = 0; i < count; ++i) out.put_value(next());
  rewind();
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    out.put_value(at);
    at += next() * width_of(type);
  }
  for (int64_t i = 0; i <= count; ++i) out.put_value(i);
  out.close();
}

void pack_tokens(std::span<const int32_t> ids, TokenType type, uint8_t* out) {
  const auto put = [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto v = static_cast<T>(ids[i]);
      std::memcpy(out + i * sizeof(T), &v, sizeof(T));
    }
  };
  switch (type) {
    case TokenType::kU8: return put(uint8_t{});
    case TokenType::kI16: return put(int16_t{});
    case TokenType::kU16: return put(uint16_t{});
    case TokenType::kI32: return put(int32_t{});
    case TokenType::kI64: return put(int64_t{});
  }
}

struct TokenFileWriter::Impl {
  std::string prefix;
  TokenType type;
  BufferedFile bin;
  std::vector<int32_t> lengths;
  std::vector<uint8_t> packed;
};

TokenFileWriter::TokenFileWriter(const std::string& prefix, TokenType type)
    : impl_(new Impl{prefix, type, BufferedFile(prefix + ".bin"), {}, {}}) {}
TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::add(std::span<const int32_t> ids) {
  const int64_t top = impl_->type == TokenType::kU8    ? 255
                      : impl_->type == TokenType::kI16 ? 32767
                      : impl_->type == TokenType::kU16 ? 65535
                                                       : INT32_MAX;
  for (int32_t id : ids)
    GT_REQUIRE(id >= 0 && id <= top, Exit::kUsage, impl_->prefix, ".bin: token ", id, " does not fit ",
               name_of(impl_->type));
  impl_->packed.resize(ids.size() * static_cast<size_t>(width_of(impl_->type)));
  pack_tokens(ids, impl_->type, impl_->packed.data());
  impl_->bin.put(impl_->packed.data(), impl_->packed.size());
  impl_->lengths.push_back(static_cast<int32_t>(ids.size()));
}

void TokenFileWriter::finish() {
  impl_->bin.close();
  size_t at = 0;
  write_token_index(
      impl_->prefix + ".idx", impl_->type, static_cast<int64_t>(impl_->lengths.size()), [&] { at = 0; },
      [&] { return impl_->lengths[at++]; });
}

}  // namespace gt
