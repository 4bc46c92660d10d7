#include "launch/hosts/env_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "kernels/core/check.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

constexpr const char* kName = ".deepspeed_env";

std::string_view trimmed(std::string_view s) {
  constexpr const char* kBlank = " \t\r";
  const size_t first = s.find_first_not_of(kBlank);
  return first == std::string_view::npos ? "" : s.substr(first, s.find_last_not_of(kBlank) - first + 1);
}

bool is_variable(std::string_view name) {
  const auto good = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), good);
}

// Variables that select the code a process loads or runs, or control its launcher. They are rejected in files.
bool chooses_code(std::string_view name) {
  for (const std::string_view prefix :
       {"LD_", "DYLD_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "OPAL_", "GLIBC_", "GCONV_"})
    if (name.substr(0, prefix.size()) == prefix) return true;
  for (const std::string_view exact :
       {"PATH", "CUDA_INJECTION64_PATH", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"})
    if (name == exact) return true;
  return false;
}

// ./.deepspeed_env is read from whatever directory the job starts in: a file that another user could have written is
// rejected.
void require_own(const std::string& path) {
  struct stat s {};
  GT_REQUIRE(::stat(path.c_str(), &s) == 0, Exit::kIo, path, ": ", std::strerror(errno));
  GT_REQUIRE(s.st_uid == ::geteuid() || s.st_uid == 0, Exit::kUsage, path, ": belongs to user ", s.st_uid,
             ", and its variables would be set in every rank; make it yours (chown), or remove it");
  GT_REQUIRE((s.st_mode & (S_IWGRP | S_IWOTH)) == 0, Exit::kUsage, path,
             ": writable by others, and its variables would be set in every rank; chmod go-w ", path);
}

void set_variable(Variables& out, std::string_view name, std::string_view value) {
  for (auto& [n, v] : out)
    if (n == name) return void(v = value);
  out.emplace_back(name, value);
}

}  // namespace

Variables parse_env_file(std::string_view text, const std::string& name) {
  Variables out;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const size_t eq = line.find('=');
    const std::string_view variable = trimmed(line.substr(0, eq));
    GT_REQUIRE(eq != std::string_view::npos && is_variable(variable) && line.find('\0') == std::string_view::npos,
               Exit::kUsage, name, ":", number, ": expected NAME=VALUE, found \"", line.substr(0, 60), "\"");
    GT_REQUIRE(!chooses_code(variable), Exit::kUsage, name, ":", number, ": ", variable,
               " selects the code that ranks load or how they start, and is not accepted in a file; set it in the "
               "environment of the job");
    set_variable(out, variable, trimmed(line.substr(eq + 1)));
  }
  return out;
}

EnvFiles read_env_files() {
  namespace fs = std::filesystem;
  EnvFiles out;
  const char* home = std::getenv("HOME");
  std::error_code ec;
  for (const std::string& folder : {std::string(home ? home : ""), std::string(".")}) {
    const std::string path = folder + "/" + kName;
    if (folder.empty() || !fs::is_regular_file(path, ec)) continue;
    if (!out.files.empty() && fs::equivalent(path, out.files[0], ec)) continue;
    require_own(path);
    for (const auto& [name, value] : parse_env_file(read_json_file(path), path))
      set_variable(out.variables, name, value);
    out.files.push_back(path);
  }
  return out;
}

}  // namespace gt
