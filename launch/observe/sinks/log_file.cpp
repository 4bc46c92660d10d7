#include "launch/observe/sinks/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "kernels/core/check.h"
#include "launch/ranks/run_file.h"

namespace gt {
namespace {

constexpr size_t kMostBytes = size_t{64} << 20;  // limit of pending records
constexpr size_t kBatch = 64;                    // records per system call

}  // namespace

LogFile::LogFile(std::string path, std::string head, Form form)
    : path_(std::move(path)), head_(std::move(head)), form_(form) {
  if (!open()) {
    const int error = errno;
    GT_REQUIRE(error == ENOSPC || error == EDQUOT, Exit::kIo, path_, ": cannot be opened: ", open_error(error));
    failed(error);
  }
}

LogFile::~LogFile() {
  flush();
  if (fd_ >= 0) ::close(fd_);
}

// Opens or creates the file. A partially written record is written again as a whole.
bool LogFile::open() {
  fd_ = open_run_file(path_, O_RDWR | O_CREAT | O_APPEND);
  if (fd_ < 0) return false;
  char last = '\n';
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  began_empty_ = size <= 0;
  std::string first = began_empty_ ? head_ : "";
  if (form_ == Form::kLines && size > 0 && ::pread(fd_, &last, 1, size - 1) == 1 && last != '\n') first = "\n";
  done_ = 0;
  if (first.empty()) return true;
  bytes_ += first.size();
  records_.push_front(std::move(first));
  return true;
}

bool LogFile::is_gone() const {
  struct stat mine {
  }, there{};
  if (::fstat(fd_, &mine) != 0) return false;
  if (::stat(path_.c_str(), &there) != 0) return errno == ENOENT || errno == ENOTDIR;
  return mine.st_ino != there.st_ino || mine.st_dev != there.st_dev;
}

std::string LogFile::unwritten() const {
  const size_t left = records_.size() + lost_;
  return left == 0 ? "" : cat(path_, ": ", left, " records could not be written: ", open_error(error_));
}

void LogFile::failed(int error) {
  error_ = error;
  if (!std::exchange(failing_, true))
    notices_.push_back(cat(path_, ": cannot be written: ", open_error(error),
                           "; its records are kept in memory and the write is retried every second"));
}

void LogFile::add(std::string record) {
  if (bytes_ + record.size() > kMostBytes) return void(++lost_);
  bytes_ += record.size();
  records_.push_back(std::move(record));
}

void LogFile::flush() {
  if (records_.empty() && fd_ >= 0 && !failing_) return;
  if (fd_ >= 0 && is_gone()) {
    ::close(std::exchange(fd_, -1));
    notices_.push_back(cat(path_, ": was removed during the run; it is recreated without its previous contents"));
  }
  if (fd_ < 0) {
    std::error_code ec;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ec);
    if (!open()) return failed(errno);
  }
  while (!records_.empty()) {
    std::array<iovec, kBatch> batch;
    const size_t count = std::min(kBatch, records_.size());
    for (size_t k = 0; k < count; ++k) batch[k] = {records_[k].data(), records_[k].size()};
    batch[0] = {records_[0].data() + done_, records_[0].size() - done_};
    const ssize_t n = ::writev(fd_, batch.data(), static_cast<int>(count));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed(n < 0 ? errno : EIO);
    for (done_ += static_cast<size_t>(n); !records_.empty() && done_ >= records_.front().size();) {
      done_ -= records_.front().size();
      bytes_ -= records_.front().size();
      records_.pop_front();
    }
  }
  if (std::exchange(failing_, false))
    notices_.push_back(cat(path_, ": is writable again",
                           lost_ > 0 ? cat("; ", lost_, " records were lost: memory had no space for them") : ""));
  lost_ = 0;
}

}  // namespace gt
