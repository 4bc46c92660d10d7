// Weight import and export: memory that does not depend on the model, interruption, and an accompanying tokenizer.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/weights/weights.h"
#include "launch/observe/work_progress.h"
#include "tests/launch/process.h"
#include "tests/support/goal.h"
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

// Memory that import and export may use beyond an idle process: ranges of weights, block buffers, indexes.
constexpr int64_t kMostBeyond = int64_t{96} << 20;

struct LlamaShape {
  int64_t vocab, hidden, ffn, layers, heads;
  bool tied;
};

// Writes a sharded Hugging Face folder in bf16, a file per block. Values fill each tensor, or only its first and last
// kEnds, with a hole between them that reads as zeros. Returns the bytes of the largest tensor.
int64_t write_llama(const std::string& folder, const LlamaShape& s, bool holes) {
  constexpr int64_t kEnds = 1024;
  fs::create_directories(folder);
  const nlohmann::json config{
      {"model_type", "llama"},          {"vocab_size", s.vocab},           {"hidden_size", s.hidden},
      {"intermediate_size", s.ffn},     {"num_hidden_layers", s.layers},   {"num_attention_heads", s.heads},
      {"num_key_value_heads", s.heads}, {"max_position_embeddings", 4096}, {"rms_norm_eps", 1e-5},
      {"hidden_act", "silu"},           {"tie_word_embeddings", s.tied}};
  write_file(folder + "/config.json", config.dump());
  using Tensors = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  std::vector<Tensors> files{{{"model.embed_tokens.weight", {s.vocab, s.hidden}}, {"model.norm.weight", {s.hidden}}}};
  if (!s.tied) files.push_back({{"lm_head.weight", {s.vocab, s.hidden}}});
  for (int64_t l = 0; l < s.layers; ++l) {
    Tensors& block = files.emplace_back();
    const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
      block.emplace_back("model.layers." + std::to_string(l) + "." + name + ".weight", shape);
    };
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add(norm, {s.hidden});
    for (const char* p : {"q", "k", "v", "o"}) add(std::string("self_attn.") + p + "_proj", {s.hidden, s.hidden});
    add("mlp.gate_proj", {s.ffn, s.hidden}), add("mlp.up_proj", {s.ffn, s.hidden}),
        add("mlp.down_proj", {s.hidden, s.ffn});
  }
  std::vector<uint16_t> pattern(1 << 16);
  for (size_t k = 0; k < pattern.size(); ++k) pattern[k] = static_cast<uint16_t>(0x3c00 + k * 7 % 509);  // 0.008 to 0.5
  nlohmann::json map;
  int64_t largest = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    const std::string name = "model-" + std::to_string(f) + ".safetensors";
    nlohmann::json header;
    int64_t at = 0;
    for (const auto& [tensor, shape] : files[f]) {
      const int64_t bytes = 2 * shape[0] * (shape.size() > 1 ? shape[1] : 1);
      header[tensor] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
      map[tensor] = name;
      at += bytes, largest = std::max(largest, bytes);
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream out(folder + "/" + name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8) << text;
    for (const auto& [tensor, shape] : files[f]) {
      const int64_t begin = header[tensor]["data_offsets"][0], end = header[tensor]["data_offsets"][1];
      const auto put = [&](int64_t from, int64_t to) {
        out.seekp(8 + static_cast<int64_t>(length) + from);
        for (; from < to; from += 2 << 16)
          out.write(reinterpret_cast<const char*>(pattern.data()), std::min<int64_t>(to - from, 2 << 16));
      };
      if (holes && end - begin > 4 * kEnds)
        put(begin, begin + 2 * kEnds), put(end - 2 * kEnds, end);
      else
        put(begin, end);
    }
    REQUIRE(out.good());
  }
  write_file(folder + "/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  return largest;
}

// Returns the number of tensors of two folders, which must have the same names, shapes, types and values.
size_t require_same(const std::string& a, const std::string& b) {
  Vfs vfs;
  const auto one = open_safetensors(vfs, a), two = open_safetensors(vfs, b);
  std::map<std::string, size_t> index_of;
  for (size_t k = 0; k < two->list().size(); ++k) index_of[two->list()[k].name] = k;
  REQUIRE(index_of.size() == one->list().size());
  for (size_t k = 0; k < one->list().size(); ++k) {
    const WeightInfo& t = one->list()[k];
    INFO(t.name);
    REQUIRE(index_of.count(t.name) == 1);
    const size_t other = index_of[t.name];
    REQUIRE((two->list()[other].shape == t.shape && two->list()[other].dtype == t.dtype));
    for (int64_t at = 0; at < t.numel(); at += kWindowValues) {
      const int64_t n = std::min(kWindowValues, t.numel() - at);
      REQUIRE(one->read(k, at, n) == two->read(other, at, n));
    }
  }
  return index_of.size();
}

// Returns the peak memory of `gpttrain <words>` in bytes. limit: of its data (RLIMIT_DATA); 0: none.
int64_t peak_of(const std::vector<std::string>& words, const TempDir& dir, int64_t limit = 0) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const rlimit most{static_cast<rlim_t>(limit), static_cast<rlim_t>(limit)};
    if (limit > 0 && ::setrlimit(RLIMIT_DATA, &most) != 0) ::_exit(9);
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

TEST_CASE("import and export hold a few MB, whatever the size of the model") {
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
  for (const int64_t peak : {import, hdf5, folder, back})
    if (!kSanitized) CHECK(peak < kMostBeyond);  // sanitizers keep freed memory
  CHECK(must("ckpt verify l", dir).prints("good"));
}

TEST_CASE("a sharded Llama is imported and exported under a memory limit below its largest tensor in FP32") {
  const char* size = std::getenv("GPT_TEST_IMPORT");
  const bool full = size != nullptr && std::string(size) == "7b";
  TempDir dir;
  if (full && fs::space(dir.path()).available < (uintmax_t{45} << 30)) GT_SKIP("45 GB of disk for a 7B are not free");
  const LlamaShape shape =
      full ? LlamaShape{32000, 4096, 11008, 32, 32, false} : LlamaShape{40000, 1024, 256, 2, 8, true};
  const int64_t largest = write_llama(dir / "hf", shape, full), limit = kSanitized ? 0 : largest + kMostBeyond;
  const int64_t import = peak_of({"import", "--from", "hf", "--output", "in"}, dir, limit);
  const int64_t back =
      peak_of({"export", "--load", "in", "--dtype", "bf16", "--max-shard", "60MB", "--output", "out"}, dir, limit);
  const auto mb = [](int64_t bytes) { return std::to_string(bytes / 1000000) + " MB"; };
  print_figure("import", "largest tensor " + mb(largest) + " in bf16, limit of data " + mb(limit) + ": import holds " +
                             mb(import) + ", export " + mb(back));
  if (!kSanitized) CHECK(std::max(import, back) < kMostBeyond + (24 << 20));
  CHECK(require_same(dir / "hf", dir / "out") == static_cast<size_t>(9 * shape.layers + (shape.tied ? 2 : 3)));
}

TEST_CASE("an export that is interrupted or killed leaves no folder that loads") {
  TempDir dir;
  write_llama(dir / "hf", {40000, 1024, 256, 1, 8, true}, false);
  must("import --from hf --output in", dir);
  const auto unfinished = [&] {
    std::vector<std::string> out;
    for (const auto& e : fs::directory_iterator(dir.path()))
      if (e.path().filename().string().rfind("out.tmp-", 0) == 0) out.push_back(e.path().string());
    return out;
  };
  const auto stopped_by = [&](int signal, const std::string& naming) {
    return gpttrain("export --load in --output out --naming " + naming, dir.path(), 60, [&](int pid) {
      for (int k = 0; k < 20000 && (unfinished().empty() || fs::is_empty(unfinished()[0])); ++k)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ::kill(-pid, signal);
    });
  };
  for (const std::string naming : {"hf", "native"}) {
    INFO(naming);
    const Outcome interrupted = stopped_by(SIGTERM, naming);
    INFO(interrupted.out);
    CHECK(interrupted.code == 75);
    CHECK(interrupted.prints("interrupted, nothing was exported"));
    CHECK(unfinished().empty());
    CHECK(stopped_by(SIGKILL, naming).code == 137);
    CHECK(!fs::exists(dir / "out"));
    REQUIRE(unfinished().size() == 1);
    const Outcome r = gpttrain("import --from " + unfinished()[0] + " --output x", dir.path());
    INFO(r.out);
    CHECK(r.prints("holds neither model.safetensors"));
    fs::remove_all(unfinished()[0]);
  }
}

TEST_CASE("progress of a copy is a line or a bar") {
  CHECK(progress_text(250'000'000, 1'000'000'000, 2, 0) == "250 MB of 1.0 GB  25 %  125 MB/s  eta 6.0 s");
  CHECK(progress_text(250'000'000, 1'000'000'000, 2, 60).find("250 MB of 1.0 GB  25% [") == 0);
  CHECK(progress_text(1200, 4800, 2, 0, "sequences") == "1,200 of 4,800 sequences  25 %  600/s  eta 6.0 s");
  CHECK(progress_text(1000, 1000, 1, 0) == "1.0 kB of 1.0 kB  100 %  1.0 kB/s");
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
  const auto generated = [&](const std::string& load) {
    const std::string out = must("generate --load " + load + how, dir).out;
    return out.substr(out.find("the cat"));
  };
  const std::string original = generated("runs/run");
  must("export --load runs/run --output hf", dir);
  must("import --from hf --output a", dir);
  CHECK(generated("a") == original);
  must("export --load runs/run --format hdf5 --output w.h5", dir);
  must("import --from w.h5 --output b --tokenizer tok.model", dir);
  CHECK(generated("b") == original);
  must("import --from w.h5 --output c", dir);
  CHECK(generated("c --tokenizer tok.model") == original);
  const Outcome none = gpttrain("generate --load c" + how, dir.path());
  CHECK(none.code == 2);
  CHECK(none.prints("--tokenizer"));
}
