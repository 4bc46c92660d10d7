// Untrusted files are data: reading, exporting and importing them starts no program and opens no connection and no
// files beside the named ones.
#include <algorithm>

#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/reliability/call_trace.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

bool below(const std::string& path, std::initializer_list<std::string> folders) {
  return path.find("..") == std::string::npos &&
         std::any_of(folders.begin(), folders.end(), [&](const std::string& f) { return path.rfind(f, 0) == 0; });
}

}  // namespace

TEST_CASE("inspecting, verifying, exporting and importing start nothing and open only the named files", "[R22]") {
  if (kSanitized) return print_skip("R22", "run-time libraries of sanitizers start programs of their own");
  TempDir dir;
  const Outcome trained = gpttrain(
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --train.steps 2 "
      "--log.name x",
      dir.path());
  INFO(trained.out);
  REQUIRE(trained.code == 0);
  const std::string program = binary_dir() + "/gpttrain";
  const std::vector<std::vector<std::string>> subcommands = {
      {"ckpt", "inspect", "runs/x", "--stats"},
      {"ckpt", "verify", "runs/x"},
      {"export", "--load", "runs/x", "--output", "hf"},
      {"export", "--load", "runs/x", "--format", "hdf5", "--output", "x.h5"},
      {"import", "--from", "hf", "--output", "imported"}};
  int traced = 0, files = 0;
  for (const auto& subcommand : subcommands) {
    std::vector<std::string> words = {program};
    words.insert(words.end(), subcommand.begin(), subcommand.end());
    const CallTrace t = trace_calls(words, dir.path());
    if (!t.possible || t.code == 126) return print_skip("R22", "ptrace is not allowed here");
    INFO(subcommand[0] << " " << subcommand[1] << ": exit code " << t.code);
    CHECK(t.code == 0);
    CHECK(t.programs == 1);  // the program itself
    CHECK(t.connections == 0);
    for (const std::string& path : t.read) {
      INFO("reads " << path);
      CHECK((path[0] != '/' || below(path, {dir.path(), binary_dir(), "/lib", "/usr/lib", "/usr/share/zoneinfo",
                                            "/etc/", "/proc/", "/sys/", "/dev/"})));
    }
    for (const std::string& path : t.written) {
      INFO("writes " << path);
      CHECK((path[0] != '/' || below(path, {dir.path(), "/dev/"})));
    }
    CHECK(t.read.size() > 3);
    files += static_cast<int>(t.read.size() + t.written.size());
    ++traced;
  }
  print_figure(
      "R22", cat(traced, " subcommands, ", files, " files opened: no program started, no connection, none elsewhere"));
}
