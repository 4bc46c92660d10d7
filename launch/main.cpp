// gpttrain: one binary with many subcommands. Parses, dispatches, and converts errors to one message and an exit code.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "kernels/core/host.h"
#include "kernels/core/out_of_memory.h"
#include "kernels/core/text.h"
#include "launch/commands/cli.h"
#include "launch/hosts/rank_env.h"
#include "launch/ranks/crash.h"
#include "launch/ranks/start/bundle.h"
#include "launch/ranks/start/launcher_output.h"
#include "launch/ranks/start/own_process.h"
#include "launch/ranks/start/remote_ranks.h"
#include "launch/ranks/start/start_limits.h"

#ifndef GPT_SANITIZED  // sanitizers replace the allocator
// As those of the standard library, except that the exception has the size and the purpose.
void* operator new(size_t bytes) {
  for (;;) {
    if (void* p = std::malloc(bytes > 0 ? bytes : 1)) return p;
    const auto handler = std::get_new_handler();
    if (handler == nullptr) throw gt::OutOfMemory(bytes);
    handler();
  }
}
void* operator new(size_t bytes, std::align_val_t align) {
  const auto to = static_cast<size_t>(align), rounded = (std::max<size_t>(bytes, 1) + to - 1) / to * to;
  for (;;) {
    if (void* p = rounded < bytes ? nullptr : std::aligned_alloc(to, rounded)) return p;
    const auto handler = std::get_new_handler();
    if (handler == nullptr) throw gt::OutOfMemory(bytes);
    handler();
  }
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
#endif

namespace {

// Prints the error of a process that cannot continue; a rank names itself. If an external launcher started several
// ranks on a machine, only the first prints, because all of them read the same files.
void print_error(const std::string& text) {
  const std::string what = gt::printable_lines(text);
  gt::RankEnv env;
  try {
    env = gt::find_rank_env();
  } catch (const gt::Error&) {  // no valid rank: the error being reported
  }
  if (env.launched() && gt::report_failed(env.rank, what)) return;
  if (env.launched() && env.world > 1) {
    if (env.local_rank == 0) fmt::print(stderr, "gpttrain: rank {} ({}): {}\n", env.rank, gt::host_name(), what);
    return;
  }
  fmt::print(stderr, "{}{}\n", what.rfind("gpttrain ", 0) == 0 ? "" : "gpttrain: ", what);  // "gpttrain ckpt diff: ..."
}

// Without memory a message cannot be composed.
int out_of_memory(const char* what) {
  try {
    print_error(what);
  } catch (const std::exception&) {
    for (const char* part : {"gpttrain: ", what, "\n"})
      if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  return static_cast<int>(gt::Exit::kInternal);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    gt::prepare_process();
    gt::install_crash_handlers();  // active before any subcommand runs
    if (gt::is_host_agent()) return gt::run_host_agent(argc, argv);
    gt::use_bundled_mpi();
    const gt::Command command = gt::parse_command(argc, argv);
    if (command.run != nullptr) return static_cast<int>(command.run(command));
    fmt::print("{}", command.text);
    return static_cast<int>(gt::Exit::kOk);
  } catch (const gt::Error& e) {
    print_error(e.what());
    return static_cast<int>(e.code());
  } catch (const std::bad_alloc& e) { return out_of_memory(e.what()); } catch (const std::exception& e) {
    if (gt::is_no_thread(e)) {
      print_error(gt::no_thread_text());
      return static_cast<int>(gt::Exit::kUsage);
    }
    print_error(gt::cat("internal error: ", e.what()));
    return static_cast<int>(gt::Exit::kInternal);
  }
}
