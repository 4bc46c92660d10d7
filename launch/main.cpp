// gpttrain: one binary with many subcommands. Parses, dispatches, and converts errors to one message and an exit code.
#include <fmt/format.h>

#include <string>
#include <system_error>

#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/commands/cli.h"
#include "launch/hosts/rank_env.h"
#include "launch/ranks/crash.h"
#include "launch/ranks/start/bundle.h"
#include "launch/ranks/start/launcher_output.h"
#include "launch/ranks/start/start_limits.h"

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

}  // namespace

int main(int argc, char** argv) {
  gt::install_crash_handlers();  // active before any subcommand runs
  try {
    gt::use_bundled_mpi();
    const gt::Command command = gt::parse_command(argc, argv);
    if (command.run != nullptr) return static_cast<int>(command.run(command));
    fmt::print("{}", command.text);
    return static_cast<int>(gt::Exit::kOk);
  } catch (const gt::Error& e) {
    print_error(e.what());
    return static_cast<int>(e.code());
  } catch (const std::system_error& e) {
    const bool limit = e.code() == std::errc::resource_unavailable_try_again;
    print_error(limit ? gt::no_thread_text() : gt::cat("internal error: ", e.what()));
    return static_cast<int>(limit ? gt::Exit::kUsage : gt::Exit::kInternal);
  } catch (const std::exception& e) {
    print_error(gt::cat("internal error: ", e.what()));
    return static_cast<int>(gt::Exit::kInternal);
  }
}
