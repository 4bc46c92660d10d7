#include "launch/train/kept_files.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "checkpoint/step_reader.h"
#include "checkpoint/weights/source_file.h"
#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/files.h"
#include "launch/train/kept_tokenizer.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBase = "hf-";
constexpr const char *kModel = "tokenizer.model", *kJson = "tokenizer.json";
// Files of a tokenizer that are carried but not read here: templates, and forms of other libraries.
constexpr const char* kCarried[] = {"chat_template.jinja", "chat_template.json", "vocab.txt", "tekken.json",
                                    "tokenizer.model.v3"};
// Folder of named chat templates. A checkpoint is flat: its files are kept as "additional_chat_templates-NAME.jinja".
constexpr std::string_view kTemplates = "additional_chat_templates";
constexpr size_t kMaxTemplateName = 100;

// The names that a manifest may hold.
bool is_template(std::string_view name) {
  return name.ends_with(".jinja") && name.size() <= kMaxTemplateName &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._-") == std::string_view::npos;
}

bool is_kept_template(std::string_view name) {
  return name.starts_with(kTemplates) && name.substr(kTemplates.size()).starts_with('-') &&
         is_template(name.substr(kTemplates.size() + 1));
}

bool defines_ids(std::string_view name) {
  return std::find(kTokenizerFileNames.begin(), kTokenizerFileNames.end(), name) != kTokenizerFileNames.end();
}

bool of_tokenizer(std::string_view name) {
  return defines_ids(name) || is_kept_template(name) ||
         std::find(std::begin(kCarried), std::end(kCarried), name) != std::end(kCarried);
}

bool of_base_tokenizer(std::string_view name) {
  return name.starts_with(kBase) && of_tokenizer(name.substr(kBase.size()));
}

std::vector<std::string> tokenizer_names() {
  std::vector<std::string> out(kTokenizerFileNames.begin(), kTokenizerFileNames.end());
  out.insert(out.end(), std::begin(kCarried), std::end(kCarried));
  return out;
}

bool has(const std::vector<AuxFile>& files, std::string_view name) {
  return std::any_of(files.begin(), files.end(), [&](const AuxFile& f) { return f.name == name; });
}

AuxFile read_as(const std::string& name, const std::string& path) {
  return {.name = name, .path = "", .text = read_whole_file(path, kMaxTokenizerFile)};
}

// The chat templates of a folder besides its first, by name.
std::vector<AuxFile> named_templates(const std::string& folder) {
  std::vector<AuxFile> out;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(fs::path(folder) / kTemplates, ec)) {
    const std::string name = e.path().filename().string();
    if (!name.ends_with(".jinja") || name.front() == '.') continue;  // transformers reads no others
    GT_REQUIRE(is_template(name), Exit::kUsage, e.path().string(), ": expected a name of at most ", kMaxTemplateName,
               " characters of a-z, 0-9, '.', '_' and '-'; rename it");
    out.push_back({.name = cat(kTemplates, '-', name),
                   .path = "",
                   .text = read_whole_file(e.path().string(), kMaxTokenizerConfig)});
  }
  std::sort(out.begin(), out.end(), [](const AuxFile& a, const AuxFile& b) { return a.name < b.name; });
  return out;
}

// The files of a step with their contents, whose hashes the reader checks.
std::vector<AuxFile> files_of(const std::string& step, bool (*requested)(std::string_view)) {
  std::vector<AuxFile> out;
  if (step.empty()) return out;
  Vfs vfs;
  const StepReader reader(vfs, step);
  for (const AuxEntry& a : reader.manifest().aux)
    if (requested(a.name))
      out.push_back({.name = a.name, .path = "", .text = read_file(vfs, cat(reader.path(), "/", a.name), a.bytes)});
  return out;
}

}  // namespace

std::vector<AuxFile> whole_tokenizer(const std::string& path) {
  std::vector<AuxFile> out = tokenizer_aux(path);
  if (out.empty()) return out;
  const bool converted = out.front().path.empty();
  for (AuxFile& f : out)
    if (!f.path.empty()) f = read_as(f.name, f.path);
  std::error_code ec;
  const fs::path file(path);
  const bool folder = fs::is_directory(path, ec);
  if (!folder && !defines_ids(file.filename().string())) return out;
  for (const std::string& name : tokenizer_names()) {
    const std::string beside = ((folder ? file : file.parent_path()) / name).string();
    const bool other = defines_ids(name) && (converted || (!folder && name == kModel && out.front().name == kJson));
    if (!other && !has(out, name) && is_there(beside)) out.push_back(read_as(name, beside));
  }
  for (AuxFile& f : named_templates((folder ? file : file.parent_path()).string())) out.push_back(std::move(f));
  return out;
}

std::vector<AuxFile> base_configs(const std::string& folder) {
  std::vector<AuxFile> out;
  for (const char* kept : {kBaseConfig, kBaseGeneration})
    if (const std::string path = cat(folder, "/", kept + kBase.size()); is_there(path))
      out.push_back({.name = kept, .path = "", .text = read_json_file(path)});
  return out;
}

std::vector<AuxFile> base_tokenizer(const std::string& folder) {
  std::vector<AuxFile> out;
  for (const std::string& name : tokenizer_names())
    if (const std::string path = cat(folder, "/", name); is_there(path)) out.push_back(read_as(cat(kBase, name), path));
  for (AuxFile& f : named_templates(folder)) {
    f.name.insert(0, kBase);
    out.push_back(std::move(f));
  }
  return out;
}

std::vector<AuxFile> files_to_keep(const Config& c, const std::string& step) {
  std::vector<AuxFile> out =
      c.data.tokenizer.empty() ? files_of(step, of_tokenizer) : whole_tokenizer(c.data.tokenizer);
  std::vector<AuxFile> base = files_of(step, [](std::string_view name) { return name.starts_with(kBase); });
  // A folder's tokenizer that could not be read is replaced by the one that the run was given.
  if (!c.data.tokenizer.empty() && files_of(step, defines_ids).empty())
    std::erase_if(base, [](const AuxFile& f) { return of_base_tokenizer(f.name); });
  out.insert(out.end(), base.begin(), base.end());
  return out;
}

std::vector<AuxFile> exported_tokenizer(const std::string& step) {
  std::vector<AuxFile> out = files_of(step, of_base_tokenizer);
  for (AuxFile& f : out) f.name.erase(0, kBase.size());
  if (out.empty()) out = files_of(step, of_tokenizer);
  for (AuxFile& f : out)
    if (is_kept_template(f.name)) f.name[kTemplates.size()] = '/';
  return out;
}

bool is_folder_file(const std::string& name) {
  constexpr std::string_view kOthers[] = {"config.json", "generation_config.json", "adapter_config.json",
                                          "adapter_model.safetensors", kTemplates};
  return of_tokenizer(name) || std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

}  // namespace gt
