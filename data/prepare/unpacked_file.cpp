#include "data/prepare/unpacked_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/core/check.h"

namespace gt {

constexpr size_t kInput = 1 << 17;
constexpr int kGzip = 16 + MAX_WBITS;

UnpackedFile::UnpackedFile(Fd file, std::string name)
    : file_(std::move(file)), name_(std::move(name)), input_(kInput, '\0') {
  packed_ = in_member_ = begins_member();
  GT_CHECK(!packed_ || inflateInit2(&stream_, kGzip) == Z_OK);
}

UnpackedFile::~UnpackedFile() {
  if (packed_) inflateEnd(&stream_);
}

void UnpackedFile::damaged(const char* why) const {
  fail(Exit::kIo, name_, " byte ", disk_position(), ": read failed: ", why);
}

bool UnpackedFile::refill() {
  std::memmove(input_.data(), stream_.next_in, stream_.avail_in);
  ssize_t n = 0;
  while ((n = ::read(file_.get(), input_.data() + stream_.avail_in, kInput - stream_.avail_in)) < 0 && errno == EINTR) {
  }
  if (n < 0) damaged(std::strerror(errno));
  stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
  stream_.avail_in += static_cast<unsigned>(n);
  taken_ += n;
  return n > 0;
}

bool UnpackedFile::begins_member() {
  while (stream_.avail_in < 2 && refill()) {}
  return stream_.avail_in >= 2 && stream_.next_in[0] == 0x1F && stream_.next_in[1] == 0x8B;
}

size_t UnpackedFile::read(char* to, size_t size) {
  if (!packed_) {
    if (stream_.avail_in == 0 && !refill()) return 0;
    const size_t n = std::min<size_t>(size, stream_.avail_in);
    std::memcpy(to, stream_.next_in, n);
    stream_.next_in += n;
    stream_.avail_in -= static_cast<unsigned>(n);
    return n;
  }
  stream_.next_out = reinterpret_cast<Bytef*>(to);
  stream_.avail_out = static_cast<unsigned>(size);
  while (in_member_ && stream_.avail_out == size) {
    if (stream_.avail_in == 0 && !refill()) damaged("the compressed file ends too early");
    const int code = inflate(&stream_, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END) damaged(stream_.msg != nullptr ? stream_.msg : "damaged gzip data");
    if (code != Z_STREAM_END) continue;
    in_member_ = begins_member();
    GT_REQUIRE(in_member_ || stream_.avail_in == 0, Exit::kUsage, name_, " byte ", disk_position(),
               ": expected the end of the file or more gzip data, found other bytes after gzip data, which gzip leaves "
               "out; mend the file: gzip -dc FILE unpacks what is before them");
    if (in_member_) inflateReset(&stream_);
  }
  return size - stream_.avail_out;
}

bool UnpackedFile::seek(int64_t byte) {
  if (packed_ || ::lseek(file_.get(), byte, SEEK_SET) != byte) return false;
  stream_.avail_in = 0;
  taken_ = byte;
  return true;
}

}  // namespace gt
