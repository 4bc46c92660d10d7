// Nothing that a file says is ever run, connected to, or opened outside of the folders that were named.
#include <filesystem>
#include <sstream>

#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

bool begins(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

// What a traced program did that it must not: one line each.
std::string forbidden(const std::string& trace, const std::string& home) {
  const std::vector<std::string> readable = {home,     "/lib",  "/usr/lib", "/usr/share", "/etc/",
                                             "/proc/", "/sys/", "/dev/",    binary_dir(), "/usr/local/lib"};
  std::string out;
  int programs = 0;
  std::istringstream in(trace);
  for (std::string line; std::getline(in, line);) {
    const size_t result = line.rfind(" = ");
    if (result == std::string::npos || line.compare(result, 4, " = -") == 0) continue;  // it failed
    if (line.find("execve(") != std::string::npos) {
      if (++programs > 1) out += line + "\n";
      continue;
    }
    if (line.find("connect(") != std::string::npos || line.find("socket(") != std::string::npos) {
      out += line + "\n";
      continue;
    }
    const size_t from = line.find('"'), to = line.find('"', from + 1);
    if (from == std::string::npos || to == std::string::npos) continue;
    const std::string path = line.substr(from + 1, to - from - 1);
    const bool writes = line.find("O_WRONLY") != std::string::npos || line.find("O_RDWR") != std::string::npos;
    bool allowed = path.empty() || path[0] != '/' || begins(path, home) || begins(path, "/dev/shm/gpttrain-") ||
                   path == "/dev/null";
    for (const std::string& r : readable) allowed = allowed || (!writes && begins(path, r));
    if (!allowed) out += line + "\n";
  }
  return out;
}

}  // namespace

TEST_CASE("looking at, exporting and importing checkpoints starts no program and opens nothing that was not named",
          "[R22]") {
#ifdef GPT_SANITIZED
  WARN("SKIPPED: a sanitized program looks into itself at its end, which strace forbids");
#else
  TempDir dir;
  if (shell("strace -f -o x.txt true", dir.path()).code != 0) {
    WARN("SKIPPED: no strace, or it may not trace here (apt-get install strace)");
    return;
  }
  const std::string hf = source_dir() + "/tests/golden/hf_gpt2";
  std::filesystem::copy(hf, dir / "hf");
  for (const std::string verb :
       {"import --from hf --output a", "ckpt inspect a --stats", "ckpt verify a --deep", "export --load a --output b",
        "export --load a --format hdf5 --output c.h5", "import --from c.h5 --output d", "ckpt diff a d"}) {
    const Outcome r = shell("strace -f -qq -e trace=execve,execveat,socket,connect,open,openat,openat2 -o trace.txt " +
                                binary_dir() + "/gpttrain " + verb,
                            dir.path());
    INFO(verb << "\n" << r.out);
    REQUIRE(r.code == 0);
    CHECK(forbidden(read_file(dir / "trace.txt"), dir.path()) == "");
  }
  CHECK(forbidden("1 execve(\"/x\") = 0\n1 execve(\"/y\") = 0\n1 openat(AT_FDCWD, \"/root/k\", O_RDONLY) = 3\n"
                  "1 connect(3, {}) = 0\n1 openat(AT_FDCWD, \"/etc/x\", O_RDWR) = 4\n",
                  dir.path())
            .size() > 130);
#endif
}
