#include "launch/ranks/start/sbatch.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/text.h"
#include "launch/ranks/start/own_process.h"

namespace gt {
namespace {

constexpr int kSecondsToSave = 300;

// Drops the subcommand and flags that only a parent of ranks handles.
std::string train_words(const std::vector<std::string>& words) {
  static const std::set<std::string> kAnomalous{"--print-sbatch", "--max-restarts", "--launch.max_restarts",
                                                "--hostfile", "--launch.hostfile"};
  std::string out;
  for (size_t i = !words.empty() && (words[0] == "launch" || words[0] == "train") ? 1 : 0; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    if (words[i] == "--" || words[i] == "train") continue;
    if (kAnomalous.count(words[i].substr(0, equals)) == 0)
      out += " " + shell_word(words[i]);
    else if (equals == std::string::npos)
      ++i;
  }
  return out;
}

}  // namespace

std::string sbatch_script(const JobRequest& job, int64_t nodes) {
  const Config& c = job.loaded.config;
  const int64_t world = c.world(), tp = c.parallel.tp;
  GT_REQUIRE(world % nodes == 0, Exit::kUsage, "--print-sbatch ", nodes, ": ", world, " ranks (tp ", tp, " x pp ",
             c.parallel.pp, " x dp ", c.parallel.dp, ") do not divide evenly over ", nodes, " nodes");
  const int64_t tasks = world / nodes;
  GT_REQUIRE(tasks % tp == 0, Exit::kUsage, "--print-sbatch ", nodes, ": ", tasks,
             " ranks per node split a tensor-parallel group of ", tp, "; use fewer nodes, or a smaller tp");
  const std::string program = own_program();
  const std::string run = std::filesystem::absolute(c.run_dir()).string();
  std::string out =
      fmt::format("#!/bin/bash\n#SBATCH --job-name={}\n#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}\n",
                  shell_word(c.log.name), nodes, tasks);
  if (c.device.threads > 0) out += fmt::format("#SBATCH --cpus-per-task={}\n", c.device.threads);
  if (c.device.kind != DeviceChoice::kCpu) out += fmt::format("#SBATCH --gpus-per-node={}\n", tasks);
  out += fmt::format(
      "#SBATCH --time=24:00:00            # change to your limit\n"
      "#SBATCH --signal=USR1@{}           # this many seconds earlier, ranks save and exit with 75\n"
      "#SBATCH --requeue\n"
      "#SBATCH --open-mode=append\n"
      "#SBATCH --output={}/slurm-%j.log\n"
      "\n"
      "cd {} || exit\n"
      "srun --mpi=pmix --kill-on-bad-exit=1 --distribution=block {}{} --launch.ranks processes\n"
      "code=$?\n"
      "# 75: interrupted, a checkpoint is committed. The same job resumes from it.\n"
      "[ $code = 75 ] && scontrol requeue \"$SLURM_JOB_ID\"\n"
      "exit $code\n",
      kSecondsToSave, shell_word(run), shell_word(std::filesystem::current_path().string()), shell_word(program),
      train_words(job.words));
  return out;
}

}  // namespace gt
