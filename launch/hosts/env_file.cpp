#include "launch/hosts/env_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

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

// Prefixes and names of variables that set values of libraries, of this program and of its reports.
constexpr std::string_view kPrefixes[] = {"NCCL_", "CUDA_",    "CUBLAS_", "CUBLASLT_", "CUDNN_", "NVIDIA_", "OMP_",
                                          "GOMP_", "KMP_",     "MKL_",    "OPENBLAS_", "BLIS_",  "UCX_",    "FI_",
                                          "IBV_",  "MLX5_",    "RDMAV_",  "GLOO_",     "HWLOC_", "HDF5_",   "TORCH_",
                                          "HF_",   "PYTORCH_", "WANDB_",  "LC_"};
constexpr std::string_view kNames[] = {"LANG", "LANGUAGE", "TZ", "TERM", "NO_COLOR", "MALLOC_ARENA_MAX",
                                       "TOKENIZERS_PARALLELISM", "GPTTRAIN_JOB_SECRET",
                                       // settings whose names have one of the parts below
                                       "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "CUDA_CACHE_DISABLE", "CUDA_CACHE_MAXSIZE",
                                       "CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF",
                                       "HDF5_USE_FILE_LOCKING", "UCX_LOG_LEVEL", "FI_LOG_LEVEL", "FI_PROVIDER"};
// Parts of names that select code, programs or files to write.
constexpr std::string_view kSelects[] = {"PLUGIN", "PATH", "MODULE", "PRELOAD", "INJECTION", "PROVIDER",  "LIB",
                                         "FILE",   "_DIR", "LOG",    "CONF",    "EXEC",      "COMMAND",   "PROGRAM",
                                         "HOME",   "TOOL", "CACHE",  "DRIVER",  "DUMP",      "COMPONENT", "ENDPOINT"};

bool has_part(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

// Whether a file may set the variable: it is known to select neither the code that a process loads or runs, nor its
// launcher, nor files that it writes.
bool may_be_set(std::string_view name) {
  if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames)) return true;
  const bool known = std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                                 [&](std::string_view p) { return name.substr(0, p.size()) == p; });
  const bool selects = std::any_of(std::begin(kSelects), std::end(kSelects),
                                   [&](std::string_view part) { return has_part(name, part); });
  return known && !selects;
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
    GT_REQUIRE(may_be_set(variable), Exit::kUsage, name, ":", number, ": ", variable,
               " is not accepted in a file: it may select the code that ranks load, how they start or what they write; "
               "set it in the environment of the job. Accepted are settings of NCCL_, CUDA_, OMP_, MKL_, UCX_, FI_, ",
               "HDF5_ and similar libraries that name no plugin, path or file");
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
