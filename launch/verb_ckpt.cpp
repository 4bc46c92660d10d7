// gpttrain ckpt ls and inspect.
#include <fmt/format.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "launch/progress.h"
#include "launch/verbs.h"

namespace gt {
namespace {

// A run directory stands for its checkpoints.
std::string checkpoints_of(const std::string& dir) {
  std::error_code ec;
  GT_REQUIRE(std::filesystem::is_directory(dir, ec), Exit::kUsage, dir,
             ": no such folder; give a run directory or its checkpoints folder");
  return std::filesystem::is_directory(dir + "/checkpoints", ec) ? dir + "/checkpoints" : dir;
}

}  // namespace

Exit run_ckpt_ls(const Command& command) {
  const std::string dir = checkpoints_of(command.get<CkptArgs>().dir);
  const auto list = list_checkpoints(dir);
  fmt::print("{}: {} checkpoint{}\n", dir, list.size(), list.size() == 1 ? "" : "s");
  for (const CheckpointInfo& c : list)
    fmt::print("  {:<24} {:>10}  {:<22} {:<28} {}\n", c.name, format_bytes(static_cast<double>(c.bytes)), c.created,
               c.layout, c.status);
  return Exit::kOk;
}

Exit run_ckpt_inspect(const Command& command) {
  const auto& args = command.get<CkptInspectArgs>();
  fmt::print("{}", inspect_checkpoint(resolve_step(args.dir), {.tensor = args.tensor, .stats = args.stats}));
  return Exit::kOk;
}

}  // namespace gt
