#include "checkpoint/store/dir_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "checkpoint/store/vfs.h"
#include "kernels/core/files.h"
#include "kernels/core/host.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// Scope in which a pid is meaningful: this boot of the machine and, in containers, this PID namespace.
std::string boot_id() {
  char space[64] = "";
  const ssize_t n = ::readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return first_line("/proc/sys/kernel/random/boot_id") + "/" + std::string(space, n > 0 ? static_cast<size_t>(n) : 0);
}

// Start time of a process in ticks after boot, "" when there is none. Pids are reused; (pid, start time) pairs are not.
std::string start_time(int64_t pid) {
  const std::string stat = first_line("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');  // the name may contain spaces and parentheses
  if (name_end == std::string::npos) return "";
  std::istringstream in(stat.substr(name_end + 1));
  std::string field;
  for (int k = 3; k <= 22 && in >> field; ++k)
    if (k == 3 && (field == "Z" || field == "X")) return "";  // dead, not yet reaped
  return field;
}

struct Owner {
  std::string text, host, boot, start, token;
  int64_t pid = 0, counter = 0;
  bool readable = false, absent = false;
};

Owner read_owner(const std::string& path) {
  Owner o;
  try {
    o.text = read_whole_file(path, 4096);
  } catch (const Error&) {
    o.absent = ::access(path.c_str(), F_OK) != 0;
    return o;
  }
  const Json j = parse_json_if_valid<Json>(o.text);
  if (!j.is_object()) return o;
  try {
    o.host = j.at("host").get<std::string>();
    o.boot = j.at("boot").get<std::string>();
    o.pid = field<int64_t>(j, "pid");
    o.start = j.at("start").get<std::string>();
    o.token = j.at("token").get<std::string>();
    o.counter = field<int64_t>(j, "counter");
    o.readable = true;
  } catch (const nlohmann::json::exception&) {
  } catch (const Error&) {  // truncated by a dying writer, or not our file: stale by time
  }
  return o;
}

bool is_local(const Owner& o) { return o.readable && o.host == host_name() && o.boot == boot_id(); }
bool is_dead_here(const Owner& o) { return is_local(o) && start_time(o.pid) != o.start; }
std::string describe(const Owner& o) {
  return o.readable ? cat("host ", o.host, ", pid ", o.pid) : std::string("an unknown owner");
}

[[noreturn]] void refuse(const std::string& path, const Owner& o) {
  fail(Exit::kUsage, path, ": another job uses this folder: ", describe(o),
       ". Two jobs would delete each other's checkpoints: wait for it, end it, or give another --log.name or "
       "--checkpoint.dir");
}

}  // namespace

DirLock::DirLock(const std::string& dir, LockTimes times) : path_(dir + "/.lock"), times_(times) {
  Vfs vfs;
  make_directory(vfs, dir);
  std::random_device random;
  token_ = cat(host_name(), "/", ::getpid(), "/", random(), random());
  if (!create()) take_over();
  beat_ = std::thread([this] { touch_until_stopped(); });
}

DirLock::~DirLock() {
  {
    const std::lock_guard guard(mutex_);
    stop_ = true;
  }
  stop_signal_.notify_all();
  if (beat_.joinable()) beat_.join();
  if (read_owner(path_).token == token_) ::unlink(path_.c_str());
}

void DirLock::write(const std::string& path) const {
  const Json j{{"host", host_name()}, {"boot", boot_id()}, {"pid", ::getpid()}, {"start", start_time(::getpid())},
               {"counter", counter_}, {"token", token_}};
  Vfs vfs;
  write_synced(vfs, path, j.dump() + "\n");
}

// link() of a complete file either succeeds or fails because the name exists: no reader sees a partial lock.
bool DirLock::create() {
  const std::string mine = cat(path_, ".", ::getpid(), "-", std::hash<std::string>()(token_));
  write(mine);
  const int r = ::link(mine.c_str(), path_.c_str());
  const int error = errno;
  ::unlink(mine.c_str());
  if (r != 0 && error != EEXIST) fail_io("creation of " + path_, -error);
  return r == 0;
}

void DirLock::take_over() {
  using Clock = std::chrono::steady_clock;
  const Owner first = read_owner(path_);
  const auto begin = Clock::now();
  Owner now = first;
  for (auto pause = std::chrono::milliseconds(10);;) {
    if (now.absent) {
      if (create()) return;
    } else if (is_dead_here(now)) {
      break;
    } else if (is_local(now) || now.text != first.text) {  // a live local process, or a lock that is still touched
      if (!is_local(now) || Clock::now() - begin > times_.settle) refuse(path_, now);
    } else if (Clock::now() - begin > times_.stale) {
      break;
    }
    std::this_thread::sleep_for(pause);
    now = read_owner(path_);
  }
  const std::string mine = cat(path_, ".", ::getpid(), "-", std::hash<std::string>()(token_));
  write(mine);
  Vfs vfs;
  rename_file(vfs, mine, path_);
  // Two takers: the later rename wins and the earlier one detects it. On one machine both act within milliseconds.
  std::this_thread::sleep_for(is_local(now) ? times_.settle / 10 : times_.settle);
  if (const Owner winner = read_owner(path_); winner.token != token_) refuse(path_, winner);
}

void DirLock::touch_until_stopped() {
  std::unique_lock lock(mutex_);
  while (!stop_signal_.wait_for(lock, times_.beat, [&] { return stop_; })) {
    ++counter_;
    const std::string mine = cat(path_, ".", ::getpid(), "-", std::hash<std::string>()(token_));
    try {
      const Owner now = read_owner(path_);
      if (now.readable && now.token != token_) return;  // taken over: writing would steal it back
      write(mine);
      ::rename(mine.c_str(), path_.c_str());
    } catch (const Error&) {  // a full disk must not end training; local owners are identified by their process
      ::unlink(mine.c_str());
    }
  }
}

void DirLock::require_mine() const {
  const Owner now = read_owner(path_);
  GT_REQUIRE(
      !now.readable || now.token == token_, Exit::kIo, path_,
      ": another job has taken this folder over: ", describe(now), ". This job did not refresh its lock for ",
      times_.stale.count() / 1000,
      " s; two jobs would delete each other's checkpoints, so it saves nothing more. Its last checkpoint is whole");
}

std::string DirLock::living_owner(const std::string& dir) {
  const Owner o = read_owner(dir + "/.lock");
  return o.absent || is_dead_here(o) ? "" : describe(o);
}

}  // namespace gt
