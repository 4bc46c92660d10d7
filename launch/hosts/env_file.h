// .deepspeed_env: variables that every rank shall have, on other machines too, where ssh brings none.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gt {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Lines NAME=VALUE; blanks around both go, empty lines and those that begin with # are skipped, a later line wins.
// Throws kUsage "name:line: …", also for variables that choose code or belong to launchers: LD_*, OMPI_*, PATH, ….
Variables parse_env_file(std::string_view text, const std::string& name);

struct EnvFiles {
  std::vector<std::string> files;  // that were found
  Variables variables;
};
// ~/.deepspeed_env, then ./.deepspeed_env, whose values win. kUsage: a file that others own or may write.
EnvFiles read_env_files();

}  // namespace gt
