#include "launch/commands/text_data.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <thread>

#include "data/tokenizer/tokenizer.h"
#include "data/tokens/files.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"
#include "launch/config/config_check.h"
#include "launch/observe/sinks/progress.h"
#include "launch/ranks/stop_flag.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

// Serializes the ranks of a machine in a run's data folder.
Fd lock_folder(const std::string& folder) {
  std::error_code ec;
  fs::create_directories(folder, ec);
  Fd lock = open_file(folder + "/.lock", O_RDWR | O_CREAT);
  GT_REQUIRE(::flock(lock.get(), LOCK_EX) == 0, Exit::kIo, folder, "/.lock: cannot be locked: ", std::strerror(errno));
  return lock;
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

// Hash of a text file. The first process hashes the text and records the result in `folder`; other ranks and later
// starts reuse the record while the file is unchanged.
std::string hash_of(const std::string& text, const std::string& folder) {
  const Fd lock = lock_folder(folder);
  const std::string record = cat(folder, "/.", fs::path(text).filename().string(), ".hash");
  const std::string stamp = stamp_text(text);
  std::error_code ec;
  if (!stamp.empty() && fs::is_regular_file(fs::symlink_status(record, ec))) {
    const std::string known = read_whole_file(record, 1 << 16);
    if (known.size() == stamp.size() + 33 && known.starts_with(stamp + "\n")) return known.substr(stamp.size() + 1);
  }
  const std::string hash = xxh3_128_file(text);
  if (!stamp.empty() && stamp == stamp_text(text)) write_file_atomically(record, stamp + "\n" + hash);
  return hash;
}

std::string prefix_for(const std::string& text, const std::string& folder, const Tokenizer& tokenizer) {
  // A tokenizer.json does not contain the end-of-document token.
  const std::string eod = tokenizer.sentence_piece() != nullptr ? "" : cat(' ', tokenizer.eod());
  const std::string hash = sha256_hex(cat("1 ", hash_of(text, folder), ' ', tokenizer.sha256(), eod)).substr(0, 16);
  return cat(folder, "/", fs::path(text).stem().string(), "-", hash);
}

// Rejects binary files: a token file taken for text would train silently. Gzip is unpacked.
void require_text(const std::string& path) {
  std::string head(4096, '\0');
  const Fd file = open_to_read(path);
  const ssize_t n = ::read(file.get(), head.data(), head.size());
  GT_REQUIRE(n >= 0, Exit::kIo, path, ": read failed: ", std::strerror(errno));
  head.resize(static_cast<size_t>(n));
  GT_REQUIRE(
      head.find('\0') == std::string::npos || head.starts_with("\x1f\x8b"), Exit::kUsage, path,
      ": neither text nor token files: it holds zero bytes; give text, JSON lines, or the prefix that gpttrain data "
      "prepare wrote");
}

void prepare_one(const std::string& text, const std::string& folder, const std::string& prefix,
                 const std::string& tokenizer) {
  require_text(text);
  const Fd lock = lock_folder(folder);
  std::error_code ec;
  if (fs::exists(prefix + ".idx", ec)) return;  // another process was faster
  fmt::print("prepare   {} with {}, once, as {}\n", text, tokenizer, prefix);
  std::fflush(stdout);
  const StopFlag stop;
  PrepareOptions o;
  o.inputs = {text};
  o.tokenizer = tokenizer;
  o.output = prefix;
  o.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 14U));
  o.stop = stop.get();
  WorkLine line;
  o.progress_seconds = line.seconds();
  prepare_data(o, [&](const PrepareProgress& p) { show_progress(p, line); });
}

template <class F>
void for_each_text(Config& c, F&& act) {
  for (auto* list : {&c.data.train, &c.data.valid})
    for (DataSource& s : *list)
      if (is_text_source(s.path)) act(s);
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
    const std::string folder = c.run_dir() + "/data", prefix = prefix_for(s.path, folder, *tokenizer);
    std::error_code ec;
    if (!fs::exists(prefix + ".idx", ec)) prepare_one(s.path, folder, prefix, c.data.tokenizer);
    s.path = prefix;
  });
}

bool replace_text_by_mock(Config& c) {
  bool any = false;
  for_each_text(c, [&](DataSource&) { any = true; });
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
