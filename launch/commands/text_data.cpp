#include "launch/commands/text_data.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <thread>

#include "data/prepare/json_line.h"
#include "data/prepare/text_source.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/files.h"
#include "kernels/core/cache_files.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"
#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/config/config_check.h"
#include "launch/hosts/rank_env.h"
#include "launch/observe/sinks/progress.h"
#include "launch/ranks/stop_flag.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

// Serializes the ranks of a machine in a run's data folder. Nothing, after one warning, where the file system has no
// locks.
Fd lock_folder(const std::string& folder) {
  std::error_code ec;
  fs::create_directories(folder, ec);
  Fd lock = open_file(folder + "/.lock", O_RDWR | O_CREAT);
  int error = 0;
  while ((error = ::flock(lock.get(), LOCK_EX) == 0 ? 0 : errno) == EINTR) {}
  if (error == 0) return lock;
  GT_REQUIRE(error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK, Exit::kIo, folder,
             "/.lock: cannot be locked: ", std::strerror(error));
  static std::atomic<bool> warned{false};
  if (!started_by_launch_ranks() && find_rank_env().local_rank == 0 && !warned.exchange(true))
    fmt::print(stderr, "warning: {}/.lock: cannot be locked ({}): each process tokenizes the text for itself\n",
               printable(folder), std::strerror(error));
  return {};
}

int64_t nanoseconds(const timespec& t) { return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec; }

// Identifies file contents by file-system metadata; "" if the file changed too recently, because its next change might
// have the same timestamp.
std::string stamp_text(const std::string& path) {
  struct stat s {};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (::stat(path.c_str(), &s) != 0 || nanoseconds(now) - nanoseconds(s.st_ctim) < 100'000'000) return "";
  return cat(fs::absolute(path).string(), ' ', s.st_ino, ' ', s.st_size, ' ', nanoseconds(s.st_mtim), ' ',
             nanoseconds(s.st_ctim));
}

// While alive, no other user may write files that are made.
class PrivateFiles {
 public:
  PrivateFiles() : before_(::umask(022)) { ::umask(before_ | 022); }
  ~PrivateFiles() { ::umask(before_); }
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;

 private:
  const mode_t before_;
};

// Returns why a file of the data folder is not used: another user can have written it, or it is no regular file; "" if
// it is missing. Where the file system keeps no owners, all are used after one warning.
std::string problem_of(const std::string& path) {
  const CachedFile f = open_own(path);
  const std::string folder = fs::path(path).parent_path().string();
  if (!f.by_others || keeps_owners(folder)) return f.problem;
  static std::atomic<bool> warned{false};
  if (!started_by_launch_ranks() && find_rank_env().local_rank == 0 && !warned.exchange(true))
    fmt::print(stderr,
               "warning: {}: its file system keeps no owners and modes: whoever can write this folder decides what the "
               "run trains on\n",
               printable(folder));
  return "";
}

// Hash of a text file. The first process hashes the text and records the result in `folder`; other ranks and later
// starts reuse the record while the file is unchanged.
std::string hash_of(const std::string& text, const std::string& folder) {
  const Fd lock = lock_folder(folder);
  const std::string record = cat(folder, "/.", fs::path(text).filename().string(), ".hash");
  const std::string stamp = stamp_text(text);
  std::error_code ec;
  if (!stamp.empty() && fs::exists(record, ec) && problem_of(record).empty()) {
    const std::string known = read_whole_file(record, 1 << 16);
    if (known.size() == stamp.size() + 33 && known.starts_with(stamp + "\n")) return known.substr(stamp.size() + 1);
  }
  const std::string hash = xxh3_128_file(text);
  const PrivateFiles only_ours;
  if (!stamp.empty() && stamp == stamp_text(text)) write_file_atomically(record, stamp + "\n" + hash);
  return hash;
}

// What is written around each document, for the key of the token files; "" for nothing.
std::string frame_key(const Tokenizer& t, bool no_bos) {
  if (no_bos || (t.before_text().empty() && t.after_text().empty())) return "";
  return fmt::format(" bos {} eos {}", fmt::join(t.before_text(), ","), fmt::join(t.after_text(), ","));
}

std::string prefix_for(const std::string& text, const std::string& folder, const Tokenizer& tokenizer, bool no_bos) {
  // A tokenizer.json does not contain the end-of-document token.
  const std::string eod = tokenizer.sentence_piece() != nullptr ? "" : cat(' ', tokenizer.eod());
  const std::string hash =
      sha256_hex(cat("1 ", hash_of(text, folder), ' ', tokenizer.sha256(), eod, frame_key(tokenizer, no_bos)))
          .substr(0, 16);
  return cat(folder, "/", fs::path(text).stem().string(), "-", hash);
}

// Files of a preparation; text has no mask, which would leave out targets.
constexpr std::array kPrepared{".bin", ".meta.json", ".idx"};

// Whether a preparation that is there is used again: complete, and no other user can have written it.
bool is_prepared(const std::string& prefix, bool warns) {
  std::error_code ec;
  if (!fs::exists(prefix + ".idx", ec)) return false;
  std::string problem = fs::exists(fs::symlink_status(prefix + ".mask", ec)) ? prefix + ".mask: is not ours" : "";
  for (const char* suffix : kPrepared)
    if (problem.empty())
      problem = fs::exists(prefix + suffix, ec) ? problem_of(prefix + suffix) : cat(prefix, suffix, ": is missing");
  if (problem.empty()) return true;
  if (warns) fmt::print(stderr, "warning: {}; the text is tokenized again\n", printable(problem));
  return false;
}

// Overwrites what an interrupted run left in part, and what another user could have written; `problem_of` names the
// latter. Files of an earlier preparation of this user that are not complete are continued.
void prepare_as(const std::string& text, const std::string& prefix, const std::string& tokenizer, bool no_bos) {
  const StopFlag stop;
  PrepareOptions o;
  o.inputs = {text};
  o.tokenizer = tokenizer;
  o.output = prefix;
  o.bos = !no_bos;
  o.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 14U));
  o.stop = stop.get();
  std::error_code ec;
  for (const char* done : {".idx", ".bin", ".mask"}) o.force |= fs::exists(fs::symlink_status(prefix + done, ec));
  for (const char* part : {".progress.json", ".bin.part", ".len.part"})  // of an interrupted preparation
    o.force |= !problem_of(prefix + part).empty();
  WorkLine line;
  o.progress_seconds = line.seconds();
  const PrivateFiles only_ours;
  prepare_data(o, [&](const PrepareProgress& p) { show_progress(p, line); });
}

// Without locks: every process prepares files of its own, equal ones, and the first of each kind gets the name.
void prepare_unlocked(const std::string& text, const std::string& prefix, const std::string& tokenizer, bool no_bos) {
  const std::string own = cat(prefix, '-', host_name(), '-', ::getpid());
  const auto remove_own = [&] {
    std::error_code ec;
    for (const char* suffix : {".bin", ".meta.json", ".idx", ".bin.part", ".len.part", ".idx.part", ".progress.json"})
      fs::remove(own + suffix, ec);
  };
  try {
    prepare_as(text, own, tokenizer, no_bos);
    for (const char* suffix : kPrepared) {
      const std::string from = own + suffix, to = prefix + suffix;
      std::error_code ec;
      if (::link(from.c_str(), to.c_str()) != 0 && !fs::exists(to, ec)) rename_file(from, to);  // no links here
    }
  } catch (...) {
    remove_own();
    throw;
  }
  remove_own();
}

void prepare_one(const std::string& text, const std::string& folder, const std::string& prefix,
                 const std::string& tokenizer, bool no_bos) {
  const Fd lock = lock_folder(folder);
  if (is_prepared(prefix, true)) return;  // another process was faster
  fmt::print("prepare   {} with {}, once, as {}\n", text, tokenizer, prefix);
  std::fflush(stdout);
  if (lock) {
    prepare_as(text, prefix, tokenizer, no_bos);
    problem_of(prefix + ".idx");  // for its warning, by the process that does not run as a rank
    return;
  }
  std::error_code ec;
  for (const char* suffix : {".idx", ".bin", ".meta.json", ".mask"}) fs::remove(prefix + suffix, ec);  // of others
  prepare_unlocked(text, prefix, tokenizer, no_bos);
}

template <class F>
void for_each_text(Config& c, F&& act) {
  for (auto* list : {&c.data.train, &c.data.valid})
    for (DataSource& s : *list)
      if (is_text_source(s.path)) act(s);
}

// Refuses JSON lines whose first object has no text, which the run would refuse.
void require_text_key(const std::string& path) {
  LineReader reader(path, int64_t{1} << 20);
  LineReader::Line line;
  if (!is_json_lines(path, reader.head()) || !reader.next(&line) || !line.complete) return;
  std::string text, why;
  GT_REQUIRE(json_text(line.text, "text", &text, &why), Exit::kUsage, path, ": line 1: ", why);
}

std::unique_ptr<Tokenizer> load_tokenizer(const Config& c) {
  auto out = std::make_unique<Tokenizer>(Tokenizer::load(c.data.tokenizer));
  GT_REQUIRE(out->vocab() <= c.model.vocab, Exit::kUsage, "model.vocab: ", c.data.tokenizer, " has ", out->vocab(),
             " pieces, the model's vocabulary is ", c.model.vocab, "; give --model.vocab ", out->vocab(), " or more");
  return out;
}

}  // namespace

void tokenize_text_data(Config& c) {
  std::unique_ptr<Tokenizer> tokenizer;
  for_each_text(c, [&](DataSource& s) {
    if (!tokenizer) tokenizer = load_tokenizer(c);
    const std::string folder = c.run_dir() + "/data", prefix = prefix_for(s.path, folder, *tokenizer, c.data.no_bos);
    if (!is_prepared(prefix, false)) prepare_one(s.path, folder, prefix, c.data.tokenizer, c.data.no_bos);
    s.path = prefix;
  });
}

bool replace_text_by_mock(Config& c) {
  bool any = false;
  for_each_text(c, [&](const DataSource& s) {
    any = true;
    require_text(expand_inputs({s.path}));
    require_text_key(s.path);
  });
  if (!any) return false;
  load_tokenizer(c);
  c.data.train = {{.path = "mock"}};
  c.data.valid.clear();
  return true;
}

void show_progress(const PrepareProgress& p, WorkLine& line) {
  const auto done = static_cast<double>(p.input_done), all = static_cast<double>(p.input_bytes);
  const double seconds = std::max(p.seconds, 1e-9);
  std::vector<std::string> parts{format_bytes(static_cast<double>(p.text_bytes) / seconds) + "/s"};
  if (done > 0 && done < all) parts.push_back("eta " + format_duration(seconds * (all - done) / done));
  if (p.bad > 0) parts.push_back(format_thousands(p.bad) + " bad");
  parts.push_back(format_count(static_cast<double>(p.tokens)) + " tokens");
  parts.push_back(format_count(static_cast<double>(p.tokens) / seconds) + " tok/s");
  parts.push_back(format_thousands(p.documents) + (p.documents == 1 ? " document" : " documents"));
  const std::string size = format_bytes(static_cast<double>(p.text_bytes));
  if (line.terminal() && all > 0) return line.show(progress_bar(done / all, line.width(), size, parts));
  line.show(fmt::format("{}{}  {}", size, all > 0 ? fmt::format("  {:.0f} %", 100 * done / all) : "",
                        fmt::join(parts, "  ")));
}

}  // namespace gt
