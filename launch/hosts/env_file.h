// .deepspeed_env: environment variables for every rank, including ranks on other machines, where ssh does not forward
// the environment.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gt {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Parses lines NAME=VALUE. Whitespace around both is stripped, empty lines and lines starting with # are skipped, later
// lines win.
// Throws kUsage "name:line: …", also for variables other than settings of known libraries (NCCL_*, OMP_*, …) and for
// those of their variables that select code, programs or files: NCCL_NET_PLUGIN, LD_*, OMPI_*, PATH, ….
Variables parse_env_file(std::string_view text, const std::string& name);

struct EnvFiles {
  std::vector<std::string> files;  // those that exist
  Variables variables;
};
// Reads ~/.deepspeed_env, then ./.deepspeed_env, whose values win. Throws kUsage if a file belongs to, or is writable
// by, other users.
EnvFiles read_env_files();

}  // namespace gt
