#include "data/tokenizer/model_trial.h"

#include <fcntl.h>
#include <poll.h>
#include <sentencepiece_processor.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <vector>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr size_t kTrialBytes = 16 << 10;
constexpr rlim_t kMoreMemory = rlim_t{2} << 30;  // beyond what the parent has mapped

std::string trial_text() {
  std::string text = "The quick  brown fox 0123\r\n\t\xE6\x97\xA5\xE6\x9C\xAC \xE2\x96\x81 \xEF\xAC\x81 \xC2\xBD ";
  for (int c = 1; c < 256; ++c) text += static_cast<char>(c);
  return text + std::string(3000, 'x');
}

rlim_t mapped_bytes() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

void limit(decltype(RLIMIT_AS) what, rlim_t most) {
  const rlimit r{most, most};
  ::setrlimit(what, &r);
}

// Body of the child. Also exits with 0 when the library rejects the model: it then does so in the parent, with its own
// message.
[[noreturn]] void try_model(const std::string& model, const std::string& given, rlim_t memory, int seconds) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGINT, SIGHUP}) ::signal(s, SIG_DFL);
  const int null = ::open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, static_cast<rlim_t>(seconds));
#ifdef GPT_SANITIZED
  (void)memory;  // shadow memory exceeds any limit
#else
  limit(RLIMIT_AS, memory);
#endif
  sentencepiece::SentencePieceProcessor library;
  if (library.LoadFromSerializedProto(model).ok()) {
    std::string text = given;
    std::string longest;  // text of such pieces costs most
    for (int id = 0; id < library.GetPieceSize(); ++id)
      if (const std::string& piece = library.IdToPiece(id); piece.size() > longest.size()) longest = piece;
    for (const size_t end = text.size() + kTrialBytes; text.size() < end;) text += longest;
    std::vector<int> ids;
    std::string back;
    if (library.Encode(text, &ids).ok()) (void)library.Decode(ids, &back);
  }
  ::_exit(0);
}

// Returns whether the other end was closed in time.
bool closes_within(int fd, double seconds) {
  pollfd p{fd, POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&p, 1, static_cast<int>(seconds * 1000));
  while (ready < 0 && errno == EINTR);
  return ready > 0;
}

void try_in_child(const std::string& model, const std::string& name, double seconds) {
  const std::string text = trial_text();
  const rlim_t memory = mapped_bytes() + kMoreMemory;
  int ends[2];  // the child writes nothing; its end closes when it exits, for any reason
  GT_REQUIRE(::pipe2(ends, O_CLOEXEC) == 0, Exit::kIo, name,
             ": no pipe to a child process to try this model in: ", std::strerror(errno));
  const pid_t child = ::fork();
  if (child == 0) try_model(model, text, memory, static_cast<int>(seconds) + 1);
  const int error = errno;
  ::close(ends[1]);
  if (child < 0) ::close(ends[0]);
  GT_REQUIRE(child >= 0, Exit::kIo, name, ": no child process to try this model in: ", std::strerror(error));
  const bool done = closes_within(ends[0], seconds);
  ::close(ends[0]);
  if (!done) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  GT_REQUIRE(done && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU), Exit::kUsage, name,
             ": loading this tokenizer model took more than ", seconds, " s; it is broken or hostile");
  GT_REQUIRE(!WIFSIGNALED(status), Exit::kUsage, name,
             ": this tokenizer model crashes the SentencePiece library (signal ", WTERMSIG(status),
             "); it is broken or hostile");
  GT_REQUIRE(WEXITSTATUS(status) == 0, Exit::kUsage, name,
             ": this tokenizer model ends the SentencePiece library (code ", WEXITSTATUS(status),
             "); it is broken or hostile");
}

}  // namespace

void try_model_in_child(const std::string& model, const std::string& sha256, const std::string& name, double seconds) {
  static std::mutex mutex;
  static std::set<std::string> harmless;
  const std::lock_guard lock(mutex);
  if (harmless.count(sha256) != 0) return;
  try_in_child(model, name, seconds);
  harmless.insert(sha256);
}

}  // namespace gt
