#include "launch/tools/weights/hub_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "checkpoint/weights/source_file.h"
#include "kernels/core/files.h"
#include "kernels/core/text.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

// Where the cache of the Hugging Face hub holds the model; "": not there.
std::string in_hub_cache(const std::string& model) {
  const auto variable = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  std::string cache = variable("HF_HUB_CACHE");
  if (cache.empty() && !variable("HF_HOME").empty()) cache = variable("HF_HOME") + "/hub";
  if (cache.empty()) cache = variable("HOME") + "/.cache/huggingface/hub";
  std::string name = "models--" + model;
  name.replace(name.find('/'), 1, "--");
  std::string revision = read_if_there(cache + "/" + name + "/refs/main", 256);
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back()))) revision.pop_back();
  const std::string path = cache + "/" + name + "/snapshots/" + revision;
  return !revision.empty() && is_there(path + "/config.json") ? path : "";
}

}  // namespace

std::string snapshot_in(const std::string& folder) {
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(folder + "/snapshots", ec))
    if (is_there(e.path().string() + "/config.json")) return e.path().string();
  return "";
}

std::string without_config(const std::string& folder) {
  const std::string snapshot = snapshot_in(folder);
  if (snapshot.empty()) return "; give the whole Hugging Face folder";
  return "; it is a model in the cache of the Hugging Face hub: give " + shell_word(snapshot);
}

// What to do where `from` is no folder or file of this machine.
std::string how_to_get(const std::string& from) {
  std::string model = from;
  for (const char* host : {"hf.co/", "huggingface.co/"})
    if (model.starts_with(host)) model = model.substr(std::string_view(host).size());
  const auto of_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  const size_t slash = model.find('/');
  const bool id = slash != std::string::npos && slash > 0 && slash + 1 < model.size() && model[0] != '.' &&
                  std::all_of(model.begin(), model.end(), [&](char c) { return c == '/' || of_name(c); }) &&
                  model.find('/', slash + 1) == std::string::npos;
  if (!id) return "; give a Hugging Face folder";
  if (const std::string path = in_hub_cache(model); !path.empty())
    return "; the cache of the Hugging Face hub holds that model: give " + shell_word(path);
  const std::string folder = model.substr(slash + 1);
  return fmt::format(
      "; if it is a model of the Hugging Face hub, download it first: hf download {} --local-dir {}, and "
      "give {}",
      model, folder, folder);
}

}  // namespace gt
