// Weight import: at most one tensor in memory at a time, and an accompanying tokenizer.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;

struct Gpt2Shape {
  int32_t seq, vocab, layers, heads, width;
};

// Writes an llm.c GPT-2 with small values; returns its size in bytes.
int64_t write_llmc(const std::string& path, const Gpt2Shape& s) {
  std::ofstream out(path, std::ios::binary);
  int32_t head[256] = {20240326, 3, s.seq, s.vocab, s.layers, s.heads, s.width, s.vocab};
  out.write(reinterpret_cast<const char*>(head), sizeof head);
  const int64_t c = s.width;
  const int64_t n = s.vocab * c + s.seq * c + s.layers * (12 * c * c + 13 * c) + 2 * c;
  std::vector<float> row(1 << 16);
  for (size_t k = 0; k < row.size(); ++k) row[k] = static_cast<float>(k % 251) * 1e-3f;
  for (int64_t at = 0; at < n; at += static_cast<int64_t>(row.size()))
    out.write(reinterpret_cast<const char*>(row.data()),
              4 * std::min<int64_t>(n - at, static_cast<int64_t>(row.size())));
  return 4 * n;
}

// Returns the peak memory of `gpttrain <words>` in bytes.
int64_t peak_of(const std::vector<std::string>& words, const TempDir& dir) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::chdir(dir.path().c_str()) != 0 || std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(9);
    std::vector<char*> args{const_cast<char*>("gpttrain")};
    for (const std::string& w : words) args.push_back(const_cast<char*>(w.c_str()));
    args.push_back(nullptr);
    ::execv((binary_dir() + "/gpttrain").c_str(), args.data());
    ::_exit(9);
  }
  int status = 0;
  rusage used{};
  REQUIRE(::wait4(pid, &status, 0, &used) == pid);
  REQUIRE(status == 0);
  return int64_t{used.ru_maxrss} * 1024;
}

}  // namespace

TEST_CASE("import and export hold one tensor at a time, for any model size") {
  TempDir dir;
  const char* size = std::getenv("GPT_TEST_IMPORT");  // "124m": the size of GPT-2
  const bool full = size != nullptr && std::string(size) == "124m";
  const Gpt2Shape large = full ? Gpt2Shape{1024, 50257, 12, 12, 768} : Gpt2Shape{64, 20000, 20, 4, 256};
  write_llmc(dir / "small.bin", {8, 50, 1, 2, 16});
  const int64_t bytes = write_llmc(dir / "large.bin", large), largest = int64_t{4} * large.vocab * large.width;
  const int64_t base = peak_of({"import", "--from", "small.bin", "--output", "s"}, dir);
  const int64_t import = peak_of({"import", "--from", "large.bin", "--output", "l"}, dir) - base;
  const int64_t hdf5 = peak_of({"export", "--load", "l", "--format", "hdf5", "--output", "l.h5"}, dir) - base;
  const int64_t folder = peak_of({"export", "--load", "l", "--dtype", "bf16", "--output", "hf"}, dir) - base;
  const int64_t back = peak_of({"import", "--from", "hf", "--output", "m"}, dir) - base;
  WARN("model of " << bytes / 1000000 << " MB, largest tensor " << largest / 1000000
                   << " MB; memory beyond a small model's: "
                   << "import " << import / 1000000 << " MB, export hdf5 " << hdf5 / 1000000 << " MB, safetensors "
                   << folder / 1000000 << " MB, import of that " << back / 1000000 << " MB");
  // A tensor and its transposed copy, plus windows of 8 MiB.
  for (const int64_t peak : {import, hdf5, folder, back})
    if (!kSanitized) CHECK(peak < 2 * largest + (24 << 20));  // sanitizers keep freed memory
  CHECK(must("ckpt verify l", dir).says("good"));
}

TEST_CASE("a model exported as a Hugging Face folder or HDF5 is imported with its tokenizer and writes the same text") {
  TempDir dir;
  std::string text;
  for (int k = 0; k < 400; ++k) text += "the cat number " + std::to_string(k * 7 % 100) + " sat on a mat\n";
  write_file(dir / "t.txt", text);
  must("tokenizer train --input t.txt --vocab 300 --output tok.model", dir);
  must("data prepare --input t.txt --tokenizer tok.model --output d", dir);
  must(
      "--model.layers 2 --model.hidden 32 --model.heads 2 --model.vocab 300 --model.seq 32 --data.train d "
      "--data.tokenizer tok.model --train.steps 20 --train.global_batch 8 --train.micro_batch 4 --optim.lr 1e-2 "
      "--tp 2 --launch.ranks threads --device.kind cpu --log.tensorboard false --log.name run",
      dir);
  const std::string how = " --prompt \"the cat\" --max-tokens 12 --temperature 0 --device.kind cpu";
  const auto said = [&](const std::string& load) {
    const std::string out = must("generate --load " + load + how, dir).out;
    return out.substr(out.find("the cat"));
  };
  const std::string original = said("runs/run");
  must("export --load runs/run --output hf", dir);
  must("import --from hf --output a", dir);
  CHECK(said("a") == original);
  must("export --load runs/run --format hdf5 --output w.h5", dir);
  must("import --from w.h5 --output b --tokenizer tok.model", dir);
  CHECK(said("b") == original);
  must("import --from w.h5 --output c", dir);
  CHECK(said("c --tokenizer tok.model") == original);
  const Outcome none = gpttrain("generate --load c" + how, dir.path());
  CHECK(none.code == 2);
  CHECK(none.says("--tokenizer"));
}
