// Class names are unique within a namespace. Two classes of one name silently break the program: the linker keeps one
// of their inline functions and templates for both (one-definition rule).
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace fs = std::filesystem;

namespace {

// Classes at namespace level outside anonymous namespaces: "gt::cpu::ThreadPool".
std::set<std::string> classes_of(std::istream& in) {
  static const std::regex kSpace(R"(^namespace ([\w:]*) ?\{.*)"), kEnd(R"(^\}\s*// namespace ?.*)"),
      kClass(R"(^(?:struct|class|enum class) (?:alignas\(\w+\) )?(\w+)(?: final)?(?: : [^;{]*)?(?: ?\{.*)?$)");
  std::set<std::string> out;
  std::vector<std::string> inside;
  for (std::string line; std::getline(in, line);) {
    std::smatch m;
    if (std::regex_match(line, m, kSpace)) {
      inside.push_back(m[1]);
    } else if (std::regex_match(line, kEnd)) {
      if (!inside.empty()) inside.pop_back();
    } else if (std::regex_match(line, m, kClass)) {
      if (std::count(inside.begin(), inside.end(), "") > 0) continue;  // anonymous: internal linkage
      std::string name;
      for (const std::string& n : inside) name += n + "::";
      out.insert(name + m[1].str());
    }
  }
  return out;
}

}  // namespace

TEST_CASE("no two files define classes of the same name") {
  std::map<std::string, std::vector<std::string>> where;
  for (const char* folder : {"kernels", "autograd", "parallel", "model", "optim", "data", "checkpoint", "launch"})
    for (const auto& e : fs::recursive_directory_iterator(fs::path(gt::source_dir()) / folder)) {
      const std::string path = fs::relative(e.path(), gt::source_dir()).string(), end = e.path().extension().string();
      if ((end != ".h" && end != ".cpp") || path.rfind("kernels/cuda/", 0) == 0) continue;  // a separate library
      std::ifstream in(e.path());
      for (const std::string& name : classes_of(in)) where[name].push_back(path);
    }
  CHECK(where.size() > 200);
  for (const auto& [name, files] : where) {
    std::string list;
    for (const std::string& f : files) list += " " + f;
    INFO(name << " is defined in" << list);
    CHECK(files.size() == 1);
  }
}

TEST_CASE("classes of the same name are found, anonymous ones and declarations are not") {
  std::istringstream in(
      "namespace gt {\nstruct Declared;\nstruct Open {\n};\nclass Line { int x; };\nnamespace {\nstruct Hidden {\n};\n"
      "}  // namespace\nnamespace cpu {\nenum class Isa : int { kA };\n}  // namespace cpu\n}  // namespace gt\n");
  CHECK(classes_of(in) == std::set<std::string>{"gt::Open", "gt::Line", "gt::cpu::Isa"});
}
