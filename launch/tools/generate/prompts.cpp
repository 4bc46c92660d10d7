#include "launch/tools/generate/prompts.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "data/prepare/json_line.h"
#include "data/prepare/text_content.h"
#include "kernels/core/check.h"
#include "launch/options/near_path.h"

namespace gt {
namespace {

constexpr int64_t kMostBytes = 64 << 20;
constexpr size_t kMostArgument = 100'000;  // bytes per command-line argument: Linux limits it to 128 KiB

std::string read_all(std::istream& in, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer), in.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(in.gcount()));
    GT_REQUIRE(static_cast<int64_t>(text.size()) <= kMostBytes, Exit::kUsage, name, ": more than 64 MiB of prompts");
  }
  GT_REQUIRE(!in.bad(), Exit::kIo, name, ": cannot be read: ", std::strerror(errno));
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    if (!lines.back().empty() && lines.back().back() == '\r') lines.back().pop_back();
    at = end + 1;
  }
  return lines;
}

std::string prompt_of(const std::string& line, const std::string& where) {
  std::string text, why;
  for (const char* key : {"prompt", "text"})
    if (json_text(line, key, &text, &why)) return text;
  fail(Exit::kUsage, where, ": expected a JSON object with a text \"prompt\" or \"text\"");
}

}  // namespace

void take_standard_input(Command& c) {
  auto& args = std::any_cast<GenerateArgs&>(c.args);
  const bool processes =
      !c.env.launched() && c.loaded.config.world() > 1 && c.loaded.config.launch.ranks != RankKind::kThreads;
  GT_REQUIRE(args.prompt.empty() || args.prompt_file.empty(), Exit::kUsage,
             "--prompt and --prompt-file: give one of them");
  GT_REQUIRE(!(processes && args.prompt_file == "-"), Exit::kUsage,
             "--prompt-file -: ranks as processes have no standard input; give a file, or --launch.ranks threads");
  if (args.prompt != "-" || c.env.launched()) return;
  args.prompt = read_all(std::cin, "standard input");
  GT_REQUIRE(
      !processes || args.prompt.size() <= kMostArgument, Exit::kUsage, "--prompt -: ", args.prompt.size(),
      " bytes exceed the command-line limit of ranks as processes; use --prompt-file FILE, or --launch.ranks threads");
  for (size_t i = 0; i < c.words.size(); ++i) {
    if (c.words[i] == "--prompt=-") c.words[i] = "--prompt=" + args.prompt;
    if (c.words[i] == "--prompt" && i + 1 < c.words.size() && c.words[i + 1] == "-") {
      c.words[i] = "--prompt=" + args.prompt;
      c.words.erase(c.words.begin() + static_cast<ptrdiff_t>(i) + 1);
    }
  }
}

std::vector<std::string> read_prompts(const GenerateArgs& args) {
  if (args.prompt_file.empty()) return {args.prompt == "-" ? read_all(std::cin, "standard input") : args.prompt};
  const std::string& file = args.prompt_file;
  std::string text;
  if (file == "-") {
    text = read_all(std::cin, "standard input");
  } else {
    require_path("--prompt-file", file, "a file with a prompt a line");
    std::ifstream in(file, std::ios::binary);
    GT_REQUIRE(in.good(), Exit::kUsage, "--prompt-file: ", file, ": cannot be opened");
    text = read_all(in, file);
  }
  const NotText found = not_text(std::string_view(text).substr(0, size_t{1} << 16), file);
  GT_REQUIRE(!found, Exit::kUsage, "--prompt-file: ", file, ": expected text, found ", found.what, "; ", found.advice);
  const bool json = file.ends_with(".jsonl") || file.ends_with(".ndjson");
  std::vector<std::string> prompts, lines = lines_of(text);
  for (size_t i = 0; i < lines.size(); ++i)
    if (!json)
      prompts.push_back(lines[i]);
    else if (lines[i].find_first_not_of(" \t") != std::string::npos)
      prompts.push_back(prompt_of(lines[i], cat(file, ":", i + 1)));
  GT_REQUIRE(!prompts.empty(), Exit::kUsage, "--prompt-file: ", file, ": holds no prompt; expected one a line");
  return prompts;
}

std::string pack_prompts(const std::vector<std::string>& prompts) {
  std::string out;
  for (const std::string& p : prompts) out += std::to_string(p.size()) + ":" + p;
  return out;
}

std::vector<std::string> unpack_prompts(const std::string& packed) {
  std::vector<std::string> out;
  for (size_t at = 0; at < packed.size();) {
    const size_t colon = packed.find(':', at), size = std::stoull(packed.substr(at, colon - at));
    out.push_back(packed.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return out;
}

}  // namespace gt
