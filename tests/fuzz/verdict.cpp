// The cached result of the checks of token files. An accepted result never leads to a read outside of the files.
#include <sys/stat.h>

#include <filesystem>

#include "data/tokens/token_check.h"
#include "data/tokens/token_file.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

namespace fs = std::filesystem;

struct Files {
  ScratchFile anchor{"verdict-files"};
  std::string folder = fs::path(anchor.path()).parent_path().string() + "/verdict";
  std::string prefix = folder + "/tokens";
  std::string file, good;
  Files() {
    fs::create_directories(folder);
    fs::permissions(folder, fs::perms::owner_all);
    TokenFileWriter w(prefix, TokenType::kU16);
    for (const std::vector<int32_t>& d : {std::vector<int32_t>{1, 2, 3}, {4}, {5, 6, 7, 8, 9}}) w.add(d);
    w.finish();
    const MappedFile idx(prefix + ".idx"), bin(prefix + ".bin");
    file = CheckCache(folder, idx, bin).file();
    TokenFile::open(prefix, {.cache_dir = folder, .rehash_bytes = 0});
    Vfs vfs;
    good = read_file(vfs, file, 1 << 20);
  }
};

const Files& files() {
  static const Files f;
  return f;
}

void run(std::string_view input) {
  fs::remove(files().file);
  Vfs vfs;
  write_synced(vfs, files().file, input);
  ::chmod(files().file.c_str(), 0600);
  const MappedFile idx(files().prefix + ".idx"), bin(files().prefix + ".bin");
  int64_t tokens = 0;
  std::string hash, why;
  if (CheckCache(files().folder, idx, bin).load(&tokens, &hash, &why))
    ++outcome().accepted;
  else
    outcome().refusals += why;
  TokenFile f;
  if (refused([&] { f = TokenFile::open(files().prefix, {.cache_dir = files().folder, .rehash_bytes = 0}); })) return;
  GT_CHECK(f.sequences() == 3 && f.tokens() >= 1 && f.tokens() <= 18);
  for (int64_t s = 0; s < f.sequences(); ++s) {
    std::vector<int32_t> out(static_cast<size_t>(f.length(s)));
    f.read(s, 0, out);
  }
}

std::vector<std::string> seeds() {
  return {files().good, R"({"key": "2 ", "tokens": 9, "idx_sha256": ""})", "{}", "[" + std::string(100000, '[')};
}

}  // namespace

Target verdict() {
  return {
      "verdict", run, seeds, {"\"tokens\"", "\"key\"", "\"idx_sha256\"", "-1", "18446744073709551615", "1e300"}, 3000};
}

}  // namespace gt::fuzz
