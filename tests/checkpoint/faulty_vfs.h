// A file system that crashes or fails at the n-th modifying call. Shared by the ranks of a thread world.
#pragma once
#include <atomic>
#include <cerrno>
#include <exception>

#include "checkpoint/store/vfs.h"

namespace gt::ckpt {

struct Crash : std::exception {
  const char* what() const noexcept override { return "simulated crash"; }
};

class FaultyVfs : public Vfs {
 public:
  enum class Fault { kCrash, kTornCrash, kError, kShort };
  // At call number `at` (from 1): kCrash: throws before the call and at every later call of any rank; kTornCrash: the
  // same, but a write completes by half; kError: only this call returns -error; kShort: only this write is short.
  // at = 0: only counts.
  FaultyVfs(int at, Fault fault, int error = EIO) : at_(at), fault_(fault), error_(error) {}

  int calls() const { return calls_; }
  bool committed() const { return committed_; }
  std::string hit() const { return hit_; }  // the faulty call

  int open(const std::string& p, int flags, int mode) override {
    const bool changes = mode != 0;
    return changes ? guarded("open", [&] { return Vfs::open(p, flags, mode); })
                   : alive([&] { return Vfs::open(p, flags, mode); });
  }
  int close(int fd) override {
    return guarded(
        "close", [&] { return Vfs::close(fd); }, [&] { Vfs::close(fd); });
  }
  int64_t pwrite(int fd, const void* d, int64_t n, int64_t o) override {
    const auto write_half = [&] { return Vfs::pwrite(fd, d, n / 2, o); };
    const bool mine = count("pwrite");
    if (!mine) return Vfs::pwrite(fd, d, n, o);
    if (fault_ == Fault::kTornCrash) write_half();
    if (fault_ == Fault::kShort) return n > 1 ? write_half() : Vfs::pwrite(fd, d, n, o);
    return strike();
  }
  int fsync(int fd) override {
    return guarded("fsync", [&] { return Vfs::fsync(fd); });
  }
  int fallocate(int fd, int64_t n) override {
    return guarded("fallocate", [&] { return Vfs::fallocate(fd, n); });
  }
  int rename(const std::string& from, const std::string& to) override {
    const bool commit = from.find("/.tmp-") != std::string::npos;
    return guarded("rename", [&] {
      const int r = Vfs::rename(from, to);
      if (commit && r == 0) committed_ = true;
      return r;
    });
  }
  int unlink(const std::string& p) override {
    return guarded("unlink", [&] { return Vfs::unlink(p); });
  }
  int mkdir(const std::string& p, int mode) override {
    return guarded("mkdir", [&] { return Vfs::mkdir(p, mode); });
  }
  int rmdir(const std::string& p) override {
    return guarded("rmdir", [&] { return Vfs::rmdir(p); });
  }

 private:
  bool count(const char* what) {
    if (dead_) throw Crash();
    if (++calls_ != at_) return false;
    hit_ = what;
    return true;
  }
  int strike() {
    if (fault_ == Fault::kError) return -error_;
    dead_ = true;
    throw Crash();
  }
  template <class Call>
  int alive(const Call& call) {
    if (dead_) throw Crash();
    return call();
  }
  template <class Call, class Always = void (*)()>
  int guarded(
      const char* what, const Call& call, const Always& always = [] {}) {
    if (!count(what) || fault_ == Fault::kShort) return call();
    always();  // close releases the descriptor even when it fails
    return strike();
  }

  const int at_;
  const Fault fault_;
  const int error_;
  std::atomic<int> calls_{0};
  std::atomic<bool> dead_{false}, committed_{false};
  std::string hit_;
};

}  // namespace gt::ckpt
