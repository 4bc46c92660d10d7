#include "checkpoint/format/block_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "checkpoint/format/index_file.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/out_of_memory.h"

namespace gt {
namespace {
constexpr int64_t kSector = 4096;  // alignment of direct writes: memory, offset and length
}

void BlockStream::Free::operator()(std::byte* p) const { std::free(p); }

BlockStream::BlockStream(Vfs& vfs, const std::string& path, int64_t total, const WriteOptions& options)
    : total_(total), computes_sha_(options.hash == ShardHash::kSha256), file_(File::create(vfs, path)) {
  file_.reserve(total);
  if (options.direct_io == DirectIo::kAuto && total >= kWindow)
    if (auto file = File::open_direct(vfs, path)) direct_.emplace(std::move(*file));
  buffered_ = !direct_;
  const auto windows = static_cast<size_t>((total + kWindow - 1) / kWindow);
  most_threads_ = std::clamp<size_t>(windows, 1, static_cast<size_t>(std::max(options.threads, 1))) - 1;
  // One spare beyond the writers and the window being filled, so one late writer does not stall the others.
  const size_t count = most_threads_ == 0 ? 1 : std::min(windows, most_threads_ + 2);
  const auto bytes = static_cast<size_t>((std::min(total, kWindow) + kSector - 1) / kSector * kSector);
  for (size_t k = 0; k < count; ++k) {
    free_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kSector, std::max<size_t>(bytes, kSector))));
    if (free_.back() == nullptr) throw OutOfMemory(bytes);
  }
  window_ = std::move(free_.back());
  free_.pop_back();
}

BlockStream::~BlockStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  change_.notify_all();
  for (std::thread& t : helpers_) t.join();
}

std::span<std::byte> BlockStream::buffer(int64_t offset, int64_t bytes) {
  while (offset >= base_ + kWindow) flush();
  const int64_t in = offset - base_;
  zero_to(in);
  const int64_t n = std::min(bytes, std::min(kWindow, total_ - base_) - in);
  buffer_begin_ = in;
  used_ = in + n;
  return {window_.get() + in, static_cast<size_t>(n)};
}

void BlockStream::set_crc(uint32_t crc) {
  checksum_to(buffer_begin_);
  if (summed_ != buffer_begin_ || buffer_begin_ == used_ || buffer_begin_ / kBlockBytes != (used_ - 1) / kBlockBytes)
    return;
  finish_block(crc32c_join(block_, crc, static_cast<size_t>(used_ - buffer_begin_)), used_);
}

std::vector<uint32_t> BlockStream::finish() {
  while (base_ < total_) flush();
  {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [&] { return failure_ || (full_.empty() && in_flight_ == 0); });
  }
  rethrow();
  file_.sync();
  if (direct_) direct_->close();
  file_.close();
  return std::move(blocks_);
}

std::string BlockStream::sha256_hex() {
  if (!computes_sha_) return "";
  const Sha256::Digest digest = sha_.finish();
  return to_hex(digest.data(), digest.size());
}

void BlockStream::zero_to(int64_t end) {
  GT_CHECK(end >= used_, "extents overlap at byte ", base_ + end);
  std::memset(window_.get() + used_, 0, static_cast<size_t>(end - used_));
  used_ = end;
}

// Updates block checksums with the final bytes of the window, up to `end`.
void BlockStream::checksum_to(int64_t end) {
  while (summed_ < end) {
    const int64_t n = std::min(end, (summed_ / kBlockBytes + 1) * kBlockBytes) - summed_;
    finish_block(crc32c(window_.get() + summed_, static_cast<size_t>(n), block_), summed_ + n);
  }
}

void BlockStream::finish_block(uint32_t block, int64_t end) {
  block_ = block;
  summed_ = end;
  if (end % kBlockBytes != 0 && base_ + end != total_) return;
  blocks_.push_back(block_);
  block_ = 0;
}

void BlockStream::flush() {
  const int64_t n = std::min(kWindow, total_ - base_);
  zero_to(n);
  checksum_to(n);
  if (computes_sha_) sha_.update(window_.get(), static_cast<size_t>(n));
  Full full{std::move(window_), n, base_};
  base_ += n;
  used_ = summed_ = buffer_begin_ = 0;
  if (most_threads_ == 0) {
    write(full);
    window_ = std::move(full.data);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    full_.push_back(std::move(full));
  }
  change_.notify_all();
  if (helpers_.size() < most_threads_) helpers_.emplace_back([this] { help(); });
  next_window();
}

void BlockStream::next_window() {
  {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [&] { return failure_ || !free_.empty(); });
    if (!failure_) {
      window_ = std::move(free_.back());
      free_.pop_back();
    }
  }
  rethrow();
}

void BlockStream::rethrow() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

// Writes whole sectors with O_DIRECT where that works; the partial sector at the end of the file is buffered.
void BlockStream::write(const Full& w) {
  int64_t done = 0;
  bool direct;
  {
    const std::lock_guard lock(mutex_);
    direct = !buffered_;
  }
  if (direct) {
    const int64_t whole = w.bytes / kSector * kSector;
    try {
      if (whole > 0) direct_->write(w.data.get(), whole, w.base);
      done = whole;
    } catch (const IoError& e) {
      if (e.errno_value() != EINVAL) throw;  // accepted by open, rejected here: stricter alignment, or FUSE
      const std::lock_guard lock(mutex_);
      buffered_ = true;
    }
  }
  if (done < w.bytes) file_.write(w.data.get() + done, w.bytes - done, w.base + done);
}

// Worker thread. After a failure nothing more is written; the filling thread rethrows it.
void BlockStream::help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    change_.wait(lock, [&] { return stop_ || (!full_.empty() && !failure_); });
    if (stop_) return;
    Full w = std::move(full_.front());
    full_.pop_front();
    ++in_flight_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      write(w);
    } catch (...) { failure = std::current_exception(); }
    lock.lock();
    --in_flight_;
    free_.push_back(std::move(w.data));
    if (failure && !failure_) failure_ = failure;
    change_.notify_all();
  }
}

}  // namespace gt
