#include "launch/options/version.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <CLI/Version.hpp>
#include <array>
#include <vector>

#include "kernels/backend.h"
#include "parallel/comm/gpu/nccl_api.h"

#if __has_include("launch/git_hash.h")
#include "launch/git_hash.h"  // written by the build (launch/git_hash.cmake)
#endif
#ifndef GPT_GIT_HASH
#define GPT_GIT_HASH "unknown"
#endif
#ifndef GPT_VERSION
#define GPT_VERSION "unknown"
#endif
#ifndef GPT_SENTENCEPIECE_VERSION
#define GPT_SENTENCEPIECE_VERSION "unknown"
#endif

namespace gt {
namespace {

constexpr const char* kNotLinked = "not in this program";

template <class F>
F* symbol(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_DEFAULT, name));
}

// int MPI_Get_library_version(char*, int*): may be called before MPI_Init. MPI-4 allows up to 8192 characters.
std::string mpi_version() {
  auto* query = symbol<int(char*, int*)>("MPI_Get_library_version");
  if (!query) return kNotLinked;
  std::array<char, 8192> text{};
  int n = 0;
  if (query(text.data(), &n) != 0) return "unknown";
  const std::string s = text.data();
  return s.substr(0, s.find_first_of(",\n"));
}

std::string hdf5_version() {
  auto* query = symbol<int(unsigned*, unsigned*, unsigned*)>("H5get_libversion");
  unsigned major = 0, minor = 0, release = 0;
  if (!query) return kNotLinked;
  return query(&major, &minor, &release) == 0 ? fmt::format("{}.{}.{}", major, minor, release) : "unknown";
}

std::string onednn_version() {
  struct Version {  // prefix of dnnl_version_t, unchanged since oneDNN 1.0
    int major, minor, patch;
  };
  auto* query = symbol<const Version*()>("dnnl_version");
  if (!query) return kNotLinked;
  const Version* v = query();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

std::string zlib_version() {
  auto* query = symbol<const char*()>("zlibVersion");
  return query ? query() : kNotLinked;
}

// The Unicode version determines which characters are letters, and which compose.
std::string pcre2_version() {
  auto* query = symbol<int(uint32_t, void*)>("pcre2_config_8");
  constexpr uint32_t kUnicodeVersion = 10, kVersion = 11;  // of pcre2.h
  std::array<char, 64> version{}, unicode{};
  if (!query) return kNotLinked;
  if (query(kVersion, version.data()) < 0 || query(kUnicodeVersion, unicode.data()) < 0) return "unknown";
  return fmt::format("{}, Unicode {}", version.data(), unicode.data());
}

std::string utf8proc_version_text() {
  auto *version = symbol<const char*()>("utf8proc_version"),
       *unicode = symbol<const char*()>("utf8proc_unicode_version");
  return version && unicode ? fmt::format("{}, Unicode {}", version(), unicode()) : kNotLinked;
}

std::string cuda_devices() {
  std::string why;
  const Backend* b = cuda_backend(&why);
  if (!b) return why;
  std::string out;
  for (int d = 0; d < b->device->count(); ++d) out += (d ? "\n" : "") + b->device->describe(d);
  return out;
}

std::string attention_library() {
  const Backend* b = cuda_backend(nullptr);
  return b && b->attention_library != nullptr ? b->attention_library() : "no CUDA backend in use";
}

std::string nccl_library() {
  std::string why;
  const auto api = nccl::load("", &why);
  return api ? fmt::format("{} ({})", nccl::version_text(api->version), api->path) : why;
}

}  // namespace

const char* program_version() { return GPT_VERSION; }
const char* git_hash() { return GPT_GIT_HASH; }

Rows library_versions() {
#if defined(__clang__)
  const char* compiler = "clang " __clang_version__;
#else
  const char* compiler = "g++ " __VERSION__;
#endif
  Rows rows{{"compiler", compiler},
            {"MPI", mpi_version()},
            {"HDF5", hdf5_version()},
            {"oneDNN", onednn_version()},
            {"SentencePiece", GPT_SENTENCEPIECE_VERSION},
            {"PCRE2", pcre2_version()},
            {"utf8proc", utf8proc_version_text()},
            {"zlib", zlib_version()},
            {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
            {"CLI11", CLI11_VERSION},
            {"CPU", cpu_isa()},
            {"CUDA", cuda_devices()}};
  if (const Backend* b = cuda_backend(nullptr); b && b->libraries != nullptr)
    for (const auto& [name, version] : b->libraries()) rows.push_back({name, version});
  rows.push_back({"cuDNN", attention_library()});
  rows.push_back({"NCCL", nccl_library()});
  return rows;
}

std::string version_text() {
  return fmt::format("gpttrain {} (git {})\n", program_version(), git_hash()) + block(library_versions());
}

}  // namespace gt
