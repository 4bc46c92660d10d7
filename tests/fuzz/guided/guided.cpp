// Runs one target under libFuzzer, which is guided by branch coverage (preset fuzz, tests/nightly.sh guided):
//   fuzz_guided NAME FOLDER [libFuzzer's flags]
// Adds the target's seeds and past findings to FOLDER, beside inputs of earlier runs; writes its words to the
// dictionary FOLDER.dict. A finding is left in fuzz-NAME.input in the build folder.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/target.h"
#include "tests/fuzz/witness.h"

using namespace gt;
using namespace gt::fuzz;

namespace {

Target* target = nullptr;
CurrentInput* witness = nullptr;

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string dictionary(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    out += '"';
    for (const unsigned char c : word) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02X", c);
      out += hex;
    }
    out += "\"\n";
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Removes NAME and appends the dictionary, leaving libFuzzer its own arguments.
int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (const Target& t : all_targets())
    if (*argc > 2 && std::strcmp(t.name, (*argv)[1]) == 0) target = new Target(t);
  if (target == nullptr) {
    std::fprintf(stderr, "expected: %s NAME FOLDER [flags], NAME one of", (*argv)[0]);
    for (const Target& t : all_targets()) std::fprintf(stderr, " %s", t.name);
    std::fprintf(stderr, "\n");
    std::exit(2);
  }
  const std::string folder = (*argv)[2], dict = folder + ".dict";
  std::filesystem::create_directories(folder);
  int k = 0;
  for (const std::string& input : corpus(*target)) write(folder + "/seed-" + std::to_string(k++), input);
  write(dict, dictionary(target->words));
  static std::string dict_flag = "-dict=" + dict;
  static std::vector<char*> words{(*argv)[0]};
  words.insert(words.end(), *argv + 2, *argv + *argc);
  words.push_back(dict_flag.data());
  *argc = static_cast<int>(words.size());
  words.push_back(nullptr);
  *argv = words.data();
  witness = new CurrentInput(target->name);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  witness->begin(input);
  outcome() = {};
  try {
    target->run(input);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\nthe input is %s\n", target->name, e.what(), witness->keep().c_str());
    std::signal(SIGABRT, SIG_DFL);
    std::abort();
  }
  witness->end();
  return 0;
}
