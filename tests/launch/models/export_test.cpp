// Export and import: a GPT-2 written by transformers has the same predictions here, transformers reads our exports, and
// exported bytes do not depend on the layout.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/weights/int8_rows.h"
#include "checkpoint/weights/weights.h"
#include "kernels/core/hash/sha256.h"
#include "launch/tools/weights/loaded_model.h"
#include "tests/launch/models/hf_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;

const std::string kFixture = source_dir() + "/tests/golden/hf_gpt2";  // created by make_hf_gpt2.py

std::vector<Prompt> fixture_prompts() { return prompts_of(kFixture); }

// Copies the fixture with a modified header or config.
void copy_fixture(const TempDir& dir, const std::string& from, const std::string& to) {
  fs::create_directories(dir / "hf");
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::string bytes = read_file(kFixture + "/" + name);
    const size_t at = bytes.find(from);
    if (at != std::string::npos && from.size() == to.size()) bytes.replace(at, from.size(), to);
    if (at != std::string::npos && from.size() != to.size() && std::string(name) == "config.json")
      bytes.replace(at, from.size(), to);
    write_file(dir / (std::string("hf/") + name), bytes);
  }
}

}  // namespace

TEST_CASE("a GPT-2 written by transformers predicts the same here") {
  TempDir dir;
  const Outcome r = must("import --from " + kFixture + " --output in", dir);
  CHECK(r.prints("step-000000000: 28 tensors"));
  const auto model = load_model(dir / "in", {"--device.kind", "cpu"});
  CHECK(model->config.model.heads == 4);
  for (const Prompt& p : fixture_prompts()) {
    INFO("prompt of " << p.tokens.size());
    CHECK(largest_difference(logits_of(*model, p.tokens), p.logits) < 2e-5);
  }
  CHECK(must("ckpt verify in", dir).prints("good"));
  CHECK(gpttrain("import --from " + kFixture + " --output in", dir.path()).prints("holds step 0 of a run already"));
}

TEST_CASE("export returns what was imported, bitwise, and its export the same bytes, in every format") {
  TempDir dir;
  must("import --from " + kFixture + " --output a", dir);
  must("export --load a --output hf", dir);
  CHECK(tensors_of(dir / "hf") == tensors_of(kFixture));
  const auto config = nlohmann::json::parse(read_file(dir / "hf/config.json"));
  const auto original = nlohmann::json::parse(read_file(kFixture + "/config.json"));
  for (const char* key :
       {"activation_function", "architectures", "model_type", "n_embd", "n_head", "n_layer", "n_positions",
        "vocab_size", "layer_norm_epsilon", "tie_word_embeddings", "eos_token_id", "attn_pdrop"}) {
    INFO(key);
    CHECK(config[key] == original[key]);
  }
  must("import --from hf --output b", dir);
  must("export --load b --output hf2", dir);
  for (const char* name : {"model.safetensors", "config.json"})
    CHECK(read_file(dir / (std::string("hf/") + name)) == read_file(dir / (std::string("hf2/") + name)));
  CHECK(must("ckpt diff a b", dir).prints("28 of them bitwise equal"));
  // Native formats.
  must("export --load a --format hdf5 --output w.h5", dir);
  must("import --from w.h5 --output c", dir);
  must("export --load c --format hdf5 --output w2.h5", dir);
  CHECK(read_file(dir / "w.h5") == read_file(dir / "w2.h5"));
  must("export --load a --naming native --max-shard 10KB --output native", dir);
  must("import --from native --output d", dir);
  CHECK(must("ckpt diff a c", dir).prints("equal"));
  CHECK(must("ckpt diff a d", dir).prints("equal"));
  // Rounded, then imported again.
  must("export --load a --dtype bf16 --output bf", dir);
  CHECK(nlohmann::json::parse(read_file(dir / "bf/config.json"))["dtype"] == "bfloat16");
  must("import --from bf --output e", dir);
  const auto model = load_model(dir / "e", {"--device.kind", "cpu"});
  const Prompt p = fixture_prompts()[5];
  const double rounded = largest_difference(logits_of(*model, p.tokens), p.logits);
  CHECK(rounded > 1e-5);
  CHECK(rounded < 0.1);
}

// Perplexity over all next tokens of the fixture's prompts.
double perplexity(LoadedModel& m) {
  double loss = 0;
  int64_t count = 0;
  for (const Prompt& p : fixture_prompts()) {
    for (size_t n = 1; n < p.tokens.size(); ++n, ++count) {
      const std::vector<float> z = logits_of(m, {p.tokens.begin(), p.tokens.begin() + static_cast<int64_t>(n)});
      double sum = 0;
      for (const float x : z) sum += std::exp(static_cast<double>(x));
      loss += std::log(sum) - static_cast<double>(z[static_cast<size_t>(p.tokens[n])]);
    }
  }
  return std::exp(loss / static_cast<double>(count));
}

TEST_CASE("an int8 export keeps every matrix within half a step of its row's scale, and can be imported") {
  TempDir dir;
  must("import --from " + kFixture + " --output in", dir);
  CHECK(must("export --load in --dtype int8 --output q", dir).prints("as int8, native names"));
  must("export --load in --naming native --output f", dir);
  must("export --load in --dtype int8 --format hdf5 --output q.h5", dir);
  CHECK(gpttrain("export --load in --dtype int8 --naming hf --output x", dir.path()).code == 2);
  const auto exact = tensors_of(dir / "f"), stored = tensors_of(dir / "q");
  size_t matrices = 0;
  for (const auto& [name, w] : exact) {
    INFO(name);
    const auto scale = stored.find(name + ".scale");
    if (scale == stored.end()) {
      CHECK(stored.at(name) == w);
      continue;
    }
    ++matrices;
    const size_t rows = scale->second.size(), cols = w.size() / rows;
    const std::vector<float> back = restore_rows({stored.at(name), scale->second});
    size_t wrong = 0;
    for (size_t k = 0; k < w.size(); ++k) wrong += std::fabs(back[k] - w[k]) > 0.5001f * scale->second[k / cols];
    CHECK(wrong == 0);
  }
  CHECK(matrices == 2 + 2 * 4);  // two embeddings, four linears a block
  CHECK(stored.size() == exact.size() + matrices);
  must("import --from q --output a", dir);
  must("import --from q.h5 --output b", dir);
  CHECK(must("ckpt diff a b", dir).prints("equal"));
  const auto before = load_model(dir / "in", {"--device.kind", "cpu"}),
             after = load_model(dir / "a", {"--device.kind", "cpu"});
  CHECK(perplexity(*after) == Approx(perplexity(*before)).epsilon(0.01));
}

TEST_CASE("rows of zeros and rows of very different magnitude have independent int8 scales") {
  const Int8Rows q = quantize_rows({0, 0, 0, 1e-3f, -5e-4f, 254e-3f / 254, 127, -63.5f, 62.5f}, 3);
  CHECK(q.scale == std::vector<float>{1, 1e-3f / 127, 1});
  CHECK(q.values == std::vector<float>{0, 0, 0, 127, -64, 127, 127, -64, 62});  // ties to even
  CHECK(restore_rows(q)[6] == 127);
  CHECK(quantize_rows({}, 0).values.empty());
}

TEST_CASE("one export, whichever layout wrote the checkpoint, and training resumes from imported weights") {
  TempDir dir;
  must("import --from " + kFixture + " --output in", dir);
  must("export --load in --output hf", dir);
  must("export --load in --format hdf5 --output w.h5", dir);
  const std::string hf = sha256_hex(read_file(dir / "hf/model.safetensors")), h5 = sha256_hex(read_file(dir / "w.h5"));
  // A step too small to change any weight, under other layouts: other shards, same weights.
  const std::string step =
      "--config in/step-000000000/config.json --data.train mock --train.steps 1 --train.global_batch 4 "
      "--train.micro_batch 1 "
      "--optim.lr 1e-60 --optim.weight_decay 0 --launch.ranks threads --device.kind cpu --log.tensorboard false ";
  int k = 0;
  for (const char* layout : {"--tp 1", "--tp 2", "--pp 2", "--dp 2 --zero.stage 0", "--dp 2", "--tp 2 --pp 2 --dp 2",
                             "--pp 2 --vpp 2 --parallel.schedule interleaved", "--tp 4 --dp 2"}) {
    INFO(layout);
    const std::string run = "c" + std::to_string(k++);
    fs::copy(dir / "in", dir / run, fs::copy_options::recursive);
    const Outcome r = must(step + layout + " --log.name " + run + " --checkpoint.dir " + run, dir);
    CHECK(r.prints("from step 0"));
    must("export --load " + run + "/step-000000001 --output " + run + "-hf", dir);
    must("export --load " + run + " --step 1 --format hdf5 --output " + run + ".h5", dir);
    CHECK(sha256_hex(read_file(dir / (run + "-hf/model.safetensors"))) == hf);
    CHECK(sha256_hex(read_file(dir / (run + ".h5"))) == h5);
  }
}

TEST_CASE("an unsupported import is refused with all its problems") {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& why, int code = 65) {
    TempDir dir;
    copy_fixture(dir, from, to);
    const Outcome r = gpttrain("import --from hf --output in", dir.path());
    INFO(r.out);
    CHECK(r.code == code);
    CHECK(r.prints(why));
    CHECK_FALSE(fs::exists(dir / "in/step-000000000"));
  };
  refused("\"n_head\": 4", "\"n_head\": 5", "does not divide n_embd 16");
  refused("\"gelu_new\"", "\"relu\"", "activation_function: \"relu\"");
  refused("\"scale_attn_by_inverse_layer_idx\": false", "\"scale_attn_by_inverse_layer_idx\": true", "inverse_layer");
  refused("\"model_type\": \"gpt2\"", "\"model_type\": \"t5\"", "expected gpt2");
  refused("\"n_layer\": 2", "\"n_layer\": 3", "transformer.h.2.attn.c_attn.weight: missing");
  refused("\"n_layer\": 2", "\"n_layer\": 1", "unknown");
  refused("\"vocab_size\": 61", "\"vocab_size\": 62", "[61, 16], expected [62, 16]");
  refused("\"vocab_size\": 61", "\"vocab_size\": -1", "vocab_size");
  refused("h.1.ln_2.bias", "h.1.ln_3.bias", "ln_3.bias: unknown");
  refused("\"n_embd\": 16", "\"n_embd\": 16, \"n_embd\": 16", "n_embd");
  TempDir dir;
  write_file(dir / "x.bin", "hello");
  CHECK(gpttrain("import --from x.bin --output in", dir.path()).code == 65);
  CHECK(gpttrain("import --from nowhere --output in", dir.path()).code == 2);
  fs::create_directories(dir / "empty");
  CHECK(gpttrain("import --from empty --output in", dir.path()).prints("neither model.safetensors"));
}

TEST_CASE("export overwrites nothing unless forced, and never anything but an export") {
  TempDir dir;
  must("import --from " + kFixture + " --output in", dir);
  must("export --load in --output hf", dir);
  CHECK(gpttrain("export --load in --output hf", dir.path()).code == 2);
  must("export --load in --output hf --force", dir);
  write_file(dir / "hf/thesis.tex", "mine");
  CHECK(gpttrain("export --load in --output hf --force", dir.path()).prints("thesis.tex"));
  CHECK(read_file(dir / "hf/thesis.tex") == "mine");
  CHECK(gpttrain("export --load in --format hdf5 --naming hf --output w.h5", dir.path()).code == 2);
  CHECK(gpttrain("export --load in --step 7 --output x", dir.path()).prints("holds no step 7"));
  CHECK(gpttrain("export --load in --max-shard lots --output x", dir.path()).code == 2);
  CHECK(gpttrain("export --load nowhere --output x", dir.path()).code == 2);
  for (const auto& e : fs::directory_iterator(dir.path()))
    CHECK(e.path().filename().string().find(".tmp-") == std::string::npos);
}

TEST_CASE("transformers loads an exported folder unchanged and predicts the same") {
  const std::string python = source_dir() + "/build/hf/bin/python";
  if (!fs::exists(python)) { GT_SKIP("no " + python + "; tests/readers/setup.sh makes it"); }
  TempDir dir;
  must(
      "--model.layers 3 --model.hidden 48 --model.heads 6 --model.vocab 101 --model.seq 32 --train.micro_batch 2 "
      "--train.global_batch 8 --train.steps 8 --optim.lr 1e-2 --data.train mock --log.name run --device.kind cpu --tp "
      "2 --pp 2 "
      "--launch.ranks threads --log.tensorboard false",
      dir);
  must("export --load runs/run --output hf", dir);
  const auto model = load_model(dir / "runs/run", {"--device.kind", "cpu"});
  std::string text;
  std::vector<std::vector<float>> ours;
  uint32_t random = 3;
  for (size_t k = 0; k < 8; ++k) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < 4 * k + 1; ++i) {
      random = random * 1664525 + 1013904223;
      tokens.push_back(static_cast<int32_t>((random >> 8) % 101));
      text += std::to_string(tokens.back()) + " ";
    }
    text += "\n";
    ours.push_back(logits_of(*model, tokens));
  }
  write_file(dir / "prompts.txt", text);
  const Outcome r =
      shell(python + " " + source_dir() + "/tests/readers/hf_logits.py hf prompts.txt out.f32", dir.path(), 300);
  INFO(r.out);
  REQUIRE(r.code == 0);
  const std::string bytes = read_file(dir / "out.f32");
  REQUIRE(bytes.size() == 8 * 101 * 4);
  double most = 0;
  for (size_t k = 0; k < 8; ++k) {
    std::vector<float> theirs(101);
    std::memcpy(theirs.data(), bytes.data() + k * 101 * 4, 101 * 4);
    most = std::max(most, largest_difference(ours[k], theirs));
  }
  CHECK(most < 1e-4);
  WARN(r.out << "largest difference of a logit " << most);
}

TEST_CASE("AutoTokenizer and AutoModelForCausalLM return our ids and our text from an exported folder") {
  const std::string python = source_dir() + "/build/hf/bin/python", readers = source_dir() + "/tests/readers/";
  if (!fs::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  TempDir dir;
  const std::string text = "/usr/share/common-licenses/GPL-3";
  REQUIRE(shell(python + " " + readers + "mixed_lines.py 1500 7 " + text + " >lines.txt", dir.path()).code == 0);
  for (const std::string type : {"bpe", "unigram"}) {
    INFO(type);
    must("tokenizer train --input " + text + " --vocab 500 --special '<x1>' --output tok.model --type " + type, dir);
    must("data prepare --input " + text + " --split-docs blank-line --tokenizer tok.model --force --output tok", dir);
    must(
        "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 512 --model.seq 64 --train.micro_batch 8 "
        "--train.global_batch 8 --train.steps 25 --optim.lr 1e-2 --data.train tok --data.tokenizer tok.model "
        "--log.name " +
            type + " --device.kind cpu --log.tensorboard false",
        dir);
    must("export --load runs/" + type + " --output hf --force", dir);
    CHECK(fs::exists(dir / "hf/tokenizer.model"));
    REQUIRE(
        shell(binary_dir() + "/gpttrain tokenizer encode --tokenizer tok.model --input lines.txt >ids.txt", dir.path())
            .code == 0);
    const std::string prompt = "You may <s> not";
    const Outcome r = shell(python + " " + readers + "hf_tokens.py hf lines.txt ids.txt '" + prompt + "' 30 out.txt",
                            dir.path(), 300);
    INFO(r.out);
    REQUIRE(r.code == 0);
    CHECK(r.prints("1500 lines, ids and text equal"));
    REQUIRE(shell(binary_dir() + "/gpttrain generate --load runs/" + type + " --prompt '" + prompt +
                      "' --max-tokens 30 --temperature 0 >ours.txt",
                  dir.path())
                .code == 0);
    CHECK(read_file(dir / "out.txt") == read_file(dir / "ours.txt"));
  }
}

TEST_CASE("an exported tokenizer.model that no tokenizer.json can stand for gives transformers 5 the run's ids") {
  const std::string python = source_dir() + "/build/hf5/bin/python",
                    script = " " + source_dir() + "/tests/readers/hf_folders.py ";
  if (!fs::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  TempDir dir;
  const auto reader = [&](const std::string& args) {
    const Outcome o = shell(python + script + args, dir.path(), 300);
    INFO(o.out);
    REQUIRE(o.code == 0);
  };
  for (const std::string kind : {"llama2", "unigram"})
    for (const std::string arch : {"gpt2", "llama", "gemma2", "qwen2"}) {
      const std::string name = kind + "-" + arch;
      INFO(name);
      if (!fs::exists(dir / kind)) reader("alone " + kind + " /usr/share/common-licenses/GPL-3 " + kind);
      const std::string model = kind + "/tokenizer.model";
      must("--model.arch " + arch +
               " --model.layers 1 --model.hidden 16 --model.heads 2 --model.ffn 32 --model.vocab 400 --model.seq 16 "
               "--train.steps 1 --train.global_batch 2 --train.micro_batch 2 --device.kind cpu --device.threads 1 "
               "--log.tensorboard false --data.train mock --data.tokenizer " +
               model + " --log.name " + name,
           dir);
      const Outcome o = must("export --load runs/" + name + " --output out/" + name, dir);
      CHECK(fs::exists(dir / "out/" + name + "/tokenizer_config.json") == (arch != "qwen2"));
      CHECK(o.prints(arch == "qwen2" ? "AutoTokenizer would make other ids" : "transformers 5 reads tokenizer.model"));
      const auto config = nlohmann::json::parse(read_file(dir / "out/" + name + "/config.json"));
      const auto ends = nlohmann::json::parse(read_file(dir / "out/" + name + "/generation_config.json"));
      CHECK((config["bos_token_id"] == 1 && config["eos_token_id"] == 2));
      CHECK((ends["bos_token_id"] == 1 && ends["eos_token_id"] == 2 && !ends.contains("pad_token_id")));
      if (arch == "qwen2") continue;
      const std::string encode = " tokenizer encode --tokenizer " + model + " --input " + kind + "/lines.txt";
      REQUIRE(shell(binary_dir() + "/gpttrain" + encode + " >" + kind + "/ids.txt", dir.path()).code == 0);
      reader("ids out/" + name + " " + kind);
    }
}
