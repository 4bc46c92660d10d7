// Hugging Face folders that come and go: what a run does not change is exported as it was, files are read through
// links, and a file that is no model is named as what it is.
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoint/weights/weights.h"
#include "launch/tools/weights/exported_config.h"
#include "launch/tools/weights/model_weights.h"
#include "launch/tools/weights/origin.h"
#include "tests/data/byte_level_json.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kRun =
    "--data.train mock --train.steps 1 --train.global_batch 2 --train.micro_batch 2 --device.kind cpu "
    "--device.threads 1 --log.tensorboard false --schedule.type constant --checkpoint.every 1 ";

// Files of a folder that an export writes as they were.
const std::map<std::string, std::string> kFiles{
    {"generation_config.json", "{\n \"eos_token_id\": [257, 260],\n \"temperature\": 0.6}\n"},
    {"tokenizer.json", test::byte_level_json().dump(1)},
    {"tokenizer_config.json", R"({"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"})"},
    {"special_tokens_map.json", R"({"eos_token": {"content": "<|endoftext|>"}})"},
    {"vocab.txt", "[PAD]\na\n"},
    {"tekken.json", "{}"},
    {"chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}"}};

// Makes a Llama of a hub's folder: `folder`, in bf16, with kFiles and keys that this program does not write.
void make_folder(const TempDir& dir, const std::string& folder) {
  must(
      "--model.arch llama --model.layers 1 --model.hidden 16 --model.heads 2 --model.ffn 32 --model.vocab 272 "
      "--model.seq 64 --log.name seed " +
          std::string(kRun),
      dir);
  must("export --load runs/seed --dtype bf16 --output " + folder, dir);
  Json config = Json::parse(read_file(dir / folder + "/config.json"));
  config.update({{"max_position_embeddings", 131072},
                 {"bos_token_id", 256},
                 {"eos_token_id", {257, 260}},
                 {"pad_token_id", 258},
                 {"rope_theta", 500000.0},
                 {"pretraining_tp", 1},
                 {"transformers_version", "4.43.0"},
                 {"use_cache", true},
                 {"unsloth_fixed", true},
                 {"rope_scaling",
                  {{"factor", 8.0},
                   {"low_freq_factor", 1.0},
                   {"high_freq_factor", 4.0},
                   {"original_max_position_embeddings", 8192},
                   {"rope_type", "llama3"}}}});
  config.erase("mlp_bias");
  write_file(dir / folder + "/config.json", config.dump(4));
  for (const auto& [name, text] : kFiles) write_file(dir / folder + "/" + name, text);
}

void change_config(const std::string& folder, const Json& keys) {
  Json config = Json::parse(read_file(folder + "/config.json"));
  config.update(keys);
  write_file(folder + "/config.json", config.dump());
}

Json config_of(const std::string& folder) { return Json::parse(read_file(folder + "/config.json")); }

void require_files_of(const std::string& base, const std::string& folder) {
  for (const auto& [name, text] : kFiles) {
    INFO(folder << " " << name);
    CHECK(read_file(folder + "/" + name) == text);
  }
  CHECK(config_of(folder).dump(1) == config_of(base).dump(1));
}

std::set<std::string> dtypes_of(const std::string& folder) {
  Vfs vfs;
  const auto file = open_safetensors(vfs, folder);
  std::set<std::string> out;
  for (const WeightInfo& w : file->list()) out.insert(w.dtype);
  return out;
}

}  // namespace

TEST_CASE("an imported folder is exported with its own files, keys and dtype, after training and a resume too") {
  TempDir dir;
  make_folder(dir, "base");
  must("import --from base --output in", dir);
  CHECK(must("export --load in --output out", dir).prints("as bf16"));
  require_files_of(dir / "base", dir / "out");
  CHECK(read_file(dir / "out/model.safetensors") == read_file(dir / "base/model.safetensors"));

  // A run with a shorter context, resumed from its own step and config, which name neither folder nor tokenizer.
  must("--from base --model.seq 16 --log.name a " + std::string(kRun), dir);
  fs::rename(dir / "base", dir / "moved");
  Json saved = Json::parse(read_file(dir / "runs/a/checkpoints/step-000000001/config.json"));
  saved["data"].erase("tokenizer");
  write_file(dir / "again.json", saved.dump());
  must("--config again.json --train.steps 3", dir);
  must("ckpt verify runs/a/checkpoints", dir);
  must("export --load runs/a --output trained", dir);
  require_files_of(dir / "moved", dir / "trained");
  CHECK(dtypes_of(dir / "trained") == std::set<std::string>{"bf16"});
  CHECK(read_file(dir / "trained/model.safetensors") != read_file(dir / "moved/model.safetensors"));
  must("export --load runs/a --dtype f32 --output wide", dir);
  CHECK(config_of(dir / "wide")["torch_dtype"] == "float32");
  CHECK(dtypes_of(dir / "wide") == std::set<std::string>{"f32"});
}

TEST_CASE("an export states what the run changed, and a tokenizer that took the place of the folder's") {
  TempDir dir;
  make_folder(dir, "base");
  must("--from base --model.seq 16 --model.attn_dropout 0.25 --log.name a " + std::string(kRun), dir);
  must("export --load runs/a --output out", dir);
  Json expected = config_of(dir / "base");
  expected["attention_dropout"] = 0.25;
  CHECK(config_of(dir / "out") == expected);

  test::Json other = test::byte_level_json({{"m", "o"}});
  write_file(dir / "other.json", other.dump());
  CHECK(must("import --from base --tokenizer other.json --output in", dir).prints("the weights were trained with"));
  must("export --load in --output replaced", dir);
  const Json config = config_of(dir / "replaced");
  CHECK(config["eos_token_id"] == 257);
  CHECK(config["pad_token_id"].is_null());
  CHECK(config["max_position_embeddings"] == 131072);
  CHECK(read_file(dir / "replaced/tokenizer.json") == other.dump());
  CHECK_FALSE(fs::exists(dir / "replaced/chat_template.jinja"));
  CHECK_FALSE(fs::exists(dir / "replaced/generation_config.json"));
}

TEST_CASE("generated texts end at the ids of the folder's generation_config.json") {
  TempDir dir;
  make_folder(dir, "base");
  Json ends = Json::array();
  for (int64_t id = 0; id < config_of(dir / "base")["vocab_size"].get<int64_t>(); ++id) ends.push_back(id);
  const std::string generate = "generate --prompt a --max-tokens 5 --temperature 0 --json --load ";
  for (const bool all : {false, true}) {
    write_file(dir / "base/generation_config.json", Json{{"eos_token_id", all ? ends : Json::array()}}.dump());
    fs::remove_all(dir / "in");
    must("import --from base --output in", dir);
    INFO(all);
    CHECK(must(generate + "in", dir).prints(all ? "\"tokens\":0,\"ended\":\"eod\"" : "\"ended\":\"length\""));
  }
}

TEST_CASE("the config.json of every family comes back as it was, in the form of transformers 5 too") {
  int folders = 0;
  const auto comes_back = [](const Json& config) {
    const std::string text = config.dump();
    INFO(text);
    const ModelConfig m = checked_model(parse_hf_config(text, "config.json").model, "config.json");
    const DType dtype = stated_dtype(text).value_or(DType::kF32);
    CHECK(Json::parse(exported_config(m, text, -1, dtype)).dump(1) == config.dump(1));
    ModelConfig shorter = m;
    if (m.position == PositionKind::kRotary) shorter.seq = m.seq / 2;
    CHECK(Json::parse(exported_config(shorter, text, -1, dtype)).dump(1) == config.dump(1));
    return m;
  };
  for (const auto& e : fs::directory_iterator(source_dir() + "/tests/golden")) {
    if (!fs::exists(e.path() / "config.json")) continue;
    INFO(e.path());
    comes_back(config_of(e.path().string()));
    ++folders;
  }
  CHECK(folders >= 17);
  Json newer = config_of(source_dir() + "/tests/golden/hf_llama31");
  newer["rope_parameters"] = newer["rope_scaling"];
  newer["rope_parameters"]["rope_theta"] = newer["rope_theta"];
  newer["dtype"] = "bfloat16";
  for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype"}) newer.erase(key);
  newer["layer_types"] = std::vector<std::string>(newer["num_hidden_layers"].get<size_t>(), "full_attention");
  ModelConfig m = comes_back(newer);
  // What the run changed is written, in the form that every version reads.
  m.rope_theta = 7e5, m.init_std = 0.5, m.vocab = 99;
  Json changed = Json::parse(exported_config(m, newer.dump(), -1, DType::kF16));
  CHECK((changed["rope_theta"] == 7e5 && changed["rope_scaling"]["rope_type"] == "llama3"));
  CHECK_FALSE(changed.contains("rope_parameters"));
  CHECK((changed["vocab_size"] == 99 && changed["initializer_range"] == 0.5 && changed["dtype"] == "float16"));
  CHECK(changed["layer_types"] == newer["layer_types"]);
}

TEST_CASE("a tokenizer that cannot be read, or is read in another form, is exported as it came") {
  TempDir dir;
  make_folder(dir, "base");
  const std::string foreign = R"({"model": {"type": "Unheard", "vocab": {"a": 0}}})";
  write_file(dir / "base/tokenizer.json", foreign);
  const Outcome imported = must("import --from base --output in", dir);
  CHECK(imported.prints("imported without a tokenizer, whose files are kept"));
  must("--from base --model.seq 16 --log.name a " + std::string(kRun), dir);
  for (const char* load : {"in", "runs/a"}) {
    must(std::string("export --force --output out --load ") + load, dir);
    CHECK(read_file(dir / "out/tokenizer.json") == foreign);
    CHECK(read_file(dir / "out/chat_template.jinja") == kFiles.at("chat_template.jinja"));
  }
  CHECK(gpttrain("generate --load in --prompt a", dir.path()).prints("holds no tokenizer"));

  fs::remove(dir / "base/tokenizer.json");
  const test::Json j = test::byte_level_json();
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : j["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  test::Json whole = j["model"]["vocab"];
  whole["<|endoftext|>"] = whole.size();
  const std::string vocab = whole.dump();
  write_file(dir / "base/vocab.json", vocab), write_file(dir / "base/merges.txt", merges);
  const std::string names = R"({"eos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"})";
  write_file(dir / "base/tokenizer_config.json", names);
  must("import --from base --output pair", dir);
  must("export --force --load pair --output out", dir);
  CHECK((read_file(dir / "out/vocab.json") == vocab && read_file(dir / "out/merges.txt") == merges));
  CHECK_FALSE(fs::exists(dir / "out/tokenizer.json"));
  CHECK(read_file(dir / "out/tokenizer_config.json") == names);
  must("generate --load pair --prompt the --max-tokens 2 --device.kind cpu", dir);
}

TEST_CASE("named chat templates of a folder are exported as they came, whether or not its tokenizer can be read") {
  TempDir dir;
  make_folder(dir, "base");
  const std::string templates = "additional_chat_templates", tools = templates + "/tool_use.jinja",
                    rag = templates + "/rag-2.jinja";
  fs::create_directories(dir / "base/" + templates);
  write_file(dir / "base/" + tools, "{{ tools }}"), write_file(dir / "base/" + rag, "{{ documents }}");
  write_file(dir / "base/" + templates + "/notes.txt", "no template");
  const auto exported = [&](const std::string& load) {
    INFO(load);
    must("export --force --output out --load " + load, dir);
    CHECK((read_file(dir / "out/" + tools) == "{{ tools }}" && read_file(dir / "out/" + rag) == "{{ documents }}"));
    CHECK_FALSE(fs::exists(dir / "out/" + templates + "/notes.txt"));
  };
  must("import --from base --output in", dir);
  exported("in");
  must("--from base --model.seq 16 --log.name a " + std::string(kRun), dir);
  exported("runs/a");
  write_file(dir / "base/tokenizer.json", R"({"model": {"type": "Unheard", "vocab": {"a": 0}}})");
  must("import --from base --output unread", dir);
  exported("unread");
  write_file(dir / "base/" + templates + "/a b.jinja", "x");
  CHECK(gpttrain("import --from base --output x", dir.path())
            .prints("a b.jinja: expected a name of at most 100 characters of a-z"));
}

TEST_CASE("folders of five families give transformers the same ids, settings and weights after import and export") {
  const std::string python = source_dir() + "/build/hf/bin/python",
                    script = source_dir() + "/tests/readers/hf_folders.py";
  if (!fs::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  TempDir dir;
  const auto run = [&](const std::string& args) {
    const Outcome o = shell(python + " " + script + " " + args, dir.path(), 300);
    INFO(o.out);
    REQUIRE(o.code == 0);
    return o;
  };
  const std::string names = "llama2 llama3 gemma mistral qwen llama2_bare gemma_bare";
  run("make base /usr/share/common-licenses/GPL-3");
  std::istringstream list(names);
  for (std::string name; list >> name;) {
    INFO(name);
    must("import --from base/" + name + " --output in/" + name, dir);
    must("export --load in/" + name + " --output out/" + name, dir);
  }
  CHECK(run("compare base out " + names).count("the same") == 7);
}

TEST_CASE("import reports how many of the source's tensors it read") {
  TempDir dir;
  CHECK(must("import --from " + source_dir() + "/tests/golden/hf_llama --output in", dir)
            .prints("read 21 of 21 tensors of "));
  make_folder(dir, "base");
  CHECK(
      must("--from base --model.seq 16 --log.name a " + std::string(kRun), dir).prints("base: read 12 of 12 tensors"));
}

TEST_CASE("weights and files that the user names are read through links") {
  TempDir dir;
  make_folder(dir, "base");
  // As the hub's cache stores a model: names in snapshots, contents in blobs.
  const std::string cache = dir / "hub/models--org--tiny", snapshot = cache + "/snapshots/abc";
  fs::create_directories(snapshot), fs::create_directories(cache + "/blobs"), fs::create_directories(cache + "/refs");
  write_file(cache + "/refs/main", "abc");
  int n = 0;
  for (const auto& e : fs::directory_iterator(dir / "base")) {
    const std::string blob = "blob" + std::to_string(n++);
    fs::copy_file(e.path(), cache + "/blobs/" + blob);
    fs::create_symlink("../../blobs/" + blob, snapshot + "/" + e.path().filename().string());
  }
  must("import --from " + snapshot + " --output in", dir);
  must("export --load in --output out", dir);
  require_files_of(dir / "base", dir / "out");
  must("--from " + snapshot + " --model.seq 16 --log.name a " + kRun, dir);
  fs::create_directory_symlink(snapshot, dir / "tiny");
  must("import --from tiny --output through", dir);
  CHECK(gpttrain("import --from " + cache + " --output x", dir.path()).prints("give " + snapshot));
  const Outcome named =
      shell("HF_HUB_CACHE=" + dir / "hub" + " " + binary_dir() + "/gpttrain --from org/tiny " + kRun, dir.path());
  CHECK((named.code == 2 && named.prints("holds that model: give " + snapshot)));

  // Shards, adapters, HDF5 and llm.c.
  must("export --load in --naming hf --max-shard 3KB --output shards", dir);
  fs::create_directories(dir / "linked");
  for (const auto& e : fs::directory_iterator(dir / "shards"))
    fs::create_symlink(e.path(), dir / "linked/" + e.path().filename().string());
  CHECK(fs::exists(dir / "linked/model.safetensors.index.json"));
  must("import --from linked --output d", dir);
  must("export --load in --format hdf5 --output w.h5", dir);
  fs::create_symlink("w.h5", dir / "link.h5");
  must("import --from link.h5 --output e", dir);
  CHECK(must("ckpt diff d e", dir).prints("equal"));
  fs::create_symlink(source_dir() + "/tests/golden/llmc/small.bin", dir / "link.bin");
  must("import --from link.bin --output f", dir);
}

TEST_CASE("a link that leads nowhere or in a circle, a pipe and a folder in a file's place are refused by name") {
  TempDir dir;
  make_folder(dir, "base");
  const std::string weights = dir / "base/model.safetensors";
  const auto refused = [&](const std::string& what) {
    const Outcome o = gpttrain("import --from base --output in", dir.path(), 20);
    INFO(o.out);
    CHECK((o.code == 2 || o.code == 65));
    CHECK(o.prints(what));
    CHECK_FALSE(fs::exists(dir / "in/step-000000000"));
    fs::remove_all(weights);
  };
  fs::remove(weights);
  fs::create_symlink("../blobs/gone", weights);
  refused("model.safetensors: is a symbolic link to ../blobs/gone, which is not there");
  fs::create_symlink("model.safetensors", weights);
  refused("which cannot be followed: Too many levels of symbolic links");
  REQUIRE(::mkfifo(weights.c_str(), 0600) == 0);
  refused("is not a regular file");
  fs::create_directories(weights);
  refused("is not a regular file");
  fs::create_symlink("/dev/zero", weights);
  refused("is not a regular file");
  fs::create_symlink("gone", dir / "nowhere");
  CHECK(gpttrain("import --from nowhere --output in", dir.path()).prints("nowhere: is a symbolic link to gone"));
}

TEST_CASE("a file in the place of weights is named as what it is") {
  TempDir dir;
  make_folder(dir, "base");
  const auto refused = [&](const std::string& file, const std::string& bytes, const std::string& what) {
    const std::string kept = read_file(dir / "base/" + file);
    write_file(dir / "base/" + file, bytes);
    const Outcome o = gpttrain("import --from base --output in", dir.path());
    INFO(o.out);
    CHECK(o.code == 65);
    CHECK(o.prints(what));
    write_file(dir / "base/" + file, kept);
  };
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n";
  const std::string page = "\n<!DOCTYPE html>\n<html lang=\"en\"><head><title>Sign in</title></head></html>";
  const std::string zip = std::string("PK\x03\x04\0\0\x08\x08\0\0", 10) + std::string(300, 'x');
  const std::string pickle = std::string("\x80\x02}q\0(X\x06\0\0\0weight", 17) + std::string(300, '\1');
  const char* weights = "model.safetensors";
  refused(weights, pointer, "it is a Git LFS pointer, not the file itself: run git lfs pull");
  refused(weights, page, "it is a web page, not the file itself");
  refused(weights, "\x1f\x8b\x08" + std::string(300, '\3'), "it is compressed with gzip");
  refused(weights, zip, "it is a zip archive, which is how torch.save stores pickled Python objects");
  refused(weights, pickle, "it holds pickled Python objects");
  refused(weights, "GGUF\3" + std::string(300, '\0'), "it is a GGUF file of llama.cpp");
  refused(weights, "Entry not found", "it is a text that begins with \"Entry not found\"");
  refused(weights, std::string(300, '\0'), "it begins with zeros, as an unfinished download does");
  refused("config.json", pointer, "config.json: no JSON: it is a Git LFS pointer");
  refused("config.json", page, "config.json: no JSON: it is a web page");
  const std::string json = read_file(dir / "base/tokenizer.json");
  write_file(dir / "base/tokenizer.json", pointer);
  CHECK(must("import --from base --output lfs", dir).prints("expected a tokenizer.json; it is a Git LFS pointer"));
  fs::remove(dir / "base/tokenizer.json");
  write_file(dir / "base/vocab.json", pointer), write_file(dir / "base/merges.txt", "#version: 0.2\n");
  CHECK(must("import --from base --output pair", dir).prints("found broken or other text; it is a Git LFS pointer"));
  fs::remove(dir / "base/vocab.json"), fs::remove(dir / "base/merges.txt");
  write_file(dir / "base/tokenizer.model", pointer);
  CHECK(gpttrain("import --from base --output x", dir.path()).prints("found 6; it is a Git LFS pointer"));
  fs::remove(dir / "base/tokenizer.model");
  write_file(dir / "base/tokenizer.json", json);
  write_file(dir / "pytorch_model.bin", zip);
  CHECK(gpttrain("import --from pytorch_model.bin --output in", dir.path()).prints("is a zip archive"));
}

TEST_CASE("a prefix before the names of all tensors is reported once") {
  TempDir dir;
  make_folder(dir, "base");
  const std::string bytes = read_file(dir / "base/model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  for (const std::string prefix : {"_orig_mod.", "module.", "base_model.model.", "model."}) {
    INFO(prefix);
    Json header = Json::object();
    const Json old = Json::parse(bytes.substr(8, length));
    for (const auto& [name, value] : old.items()) header[name == "__metadata__" ? name : prefix + name] = value;
    const std::string text = header.dump();
    const uint64_t size = text.size();
    write_file(dir / "base/model.safetensors",
               std::string(reinterpret_cast<const char*>(&size), 8) + text + bytes.substr(8 + length));
    const Outcome o = gpttrain("import --from base --output in", dir.path());
    CHECK(o.code == 65);
    CHECK(o.prints("all 12 tensors have the prefix \"" + prefix + "\""));
    CHECK_FALSE(o.prints("missing"));
  }
}

TEST_CASE("metadata of a foreign file is no note of ours, and config.json decides") {
  TempDir dir;
  make_folder(dir, "base");
  const std::string bytes = read_file(dir / "base/model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const auto with = [&](const Json& metadata) {
    Json header = Json::parse(bytes.substr(8, length));
    header["__metadata__"] = metadata;
    const std::string text = header.dump();
    const uint64_t size = text.size();
    write_file(dir / "base/model.safetensors",
               std::string(reinterpret_cast<const char*>(&size), 8) + text + bytes.substr(8 + length));
  };
  const std::string ours = R"({"layers":7,"hidden":8,"heads":1,"ffn":8,"vocab":9,"seq":4})";
  int n = 0;
  for (const char* key : {"model", "gpttrain.model"})
    for (const std::string& text : {std::string("tiny-llama"), std::string("{}"), ours}) {
      INFO(key << " " << text);
      with({{"format", "pt"}, {key, text}});
      must("import --from base --output in" + std::to_string(n++), dir);
    }
  with({{"format", "pt"}, {"model", "tiny-llama"}});
  fs::remove(dir / "base/config.json");
  CHECK(gpttrain("import --from base --output x", dir.path()).prints("holds no config.json"));
  // Exports of earlier versions describe themselves under that key.
  must("export --load in0 --naming native --output native", dir);
  std::string native = read_file(dir / "native/model.safetensors");
  const size_t at = native.find("gpttrain.model");
  REQUIRE(at != std::string::npos);
  std::memcpy(&length, native.data(), 8);
  native.replace(at, 14, "model"), native.insert(8 + length - 9, 9, ' ');
  write_file(dir / "native/model.safetensors", native);
  must("import --from native --output old", dir);
  CHECK(must("ckpt diff in0 old", dir).prints("equal"));
}

TEST_CASE("quantized weights and families that are not imported are refused by their names first") {
  TempDir dir;
  make_folder(dir, "base");
  const std::string config = read_file(dir / "base/config.json");
  const auto refused = [&](const Json& keys, const std::string& what) {
    change_config(dir / "base", keys);
    const Outcome o = gpttrain("import --ignore-unknown --from base --output in", dir.path());
    INFO(o.out);
    CHECK(o.code == 65);
    CHECK(o.prints(what));
    CHECK(o.count("\n") == 1);
    write_file(dir / "base/config.json", config);
  };
  for (const char* method : {"gptq", "awq", "bitsandbytes", "fp8"})
    refused({{"quantization_config", {{"quant_method", method}, {"bits", 4}}}},
            "quantization_config: the weights are quantized by " + std::string(method));
  refused({{"model_type", "phi3"}}, "model_type: \"phi3\", expected gpt2 or llama");
  refused({{"model_type", nullptr}}, "model_type: missing, expected gpt2 or llama");
}

TEST_CASE("keys of real folders without effect are no obstacle, and those with one are checked") {
  TempDir dir;
  make_folder(dir, "base");
  const std::string config = read_file(dir / "base/config.json");
  const auto import = [&](const Json& keys) {
    change_config(dir / "base", keys);
    fs::remove_all(dir / "in");
    const Outcome o = gpttrain("import --from base --output in", dir.path());
    write_file(dir / "base/config.json", config);
    return o;
  };
  const Json without_effect{{"is_llama_config", true},
                            {"rope_interleaved", false},
                            {"_num_labels", 1},
                            {"unsloth_version", "2025.1.5"},
                            {"unsloth_fixed", true},
                            {"auto_map", {{"AutoModelForCausalLM", "modeling_tiny.TinyForCausalLM"}}},
                            {"attn_implementation", "sdpa"},
                            {"_attn_implementation", "flash_attention_2"},
                            {"_flash_attn_2_enabled", true},
                            {"transformers.js_config", {{"dtype", "q4"}}},
                            {"model_max_length", 2048},
                            {"layer_types", {"full_attention"}},
                            {"dtype", "bfloat16"}};
  const Outcome all = import(without_effect);
  INFO(all.out);
  CHECK(all.code == 0);
  CHECK(all.prints("auto_map: the folder's own code is not read"));
  CHECK(import({{"layer_types", {"sliding_attention"}}}).prints("layer_types"));
  CHECK(import({{"rope_interleaved", true}}).prints("rope_interleaved"));
  CHECK(import({{"residual_multiplier", 0.22}}).prints("residual_multiplier: not known"));
}

TEST_CASE("a Gemma whose layers all have full attention is written as transformers can run it, and read again") {
  for (const char* arch : {"gemma2", "gemma3"}) {
    INFO(arch);
    ModelConfig m;
    static_cast<TransformerConfig&>(m) = find_family(arch)->defaults;
    m.arch = arch;
    m.layers = 3, m.hidden = 16, m.heads = 2, m.kv_heads = 1, m.ffn = 32, m.vocab = 60, m.seq = 16;
    m.window = m.global_every = 0;
    m.rope_local_theta = 0;
    const std::string text = hf_config_json(m, -1, "float32");
    CHECK(Json::parse(text)["sliding_window"].is_number_integer());
    CHECK(Json::parse(text)["layer_types"] == Json({"full_attention", "full_attention", "full_attention"}));
    CHECK(parse_hf_config(text, "config.json").model.window == 0);
    CHECK(lost_in_hf_config(m, text).empty());
  }
}

TEST_CASE("a name of the hub, and a Hugging Face folder in the place of a checkpoint, are answered with what to do") {
  TempDir dir;
  const Outcome from = gpttrain("--from meta-llama/Llama-3.2-1B " + std::string(kRun), dir.path());
  INFO(from.out);
  CHECK(from.code == 2);
  CHECK(from.prints("hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B"));
  CHECK(gpttrain("import --from https://huggingface.co/org/tiny --output in", dir.path())
            .prints("hf download org/tiny --local-dir tiny"));
  CHECK_FALSE(gpttrain("--from ./nowhere " + std::string(kRun), dir.path()).prints("hf download"));
  make_folder(dir, "base");
  for (const char* words :
       {"generate --prompt a --load base", "eval --data.train mock --load base", "export --output x --load base"})
    CHECK(gpttrain(words, dir.path()).prints("gpttrain import --from base --output "));
}

TEST_CASE("text that cannot be read ends a run from a folder before its weights are copied") {
  TempDir dir;
  make_folder(dir, "base");
  write_file(dir / "chat.jsonl", R"({"messages": [{"role": "user", "content": "hi"}]})"
                                 "\n");
  std::string flags = kRun;
  flags.replace(flags.find("mock"), 4, "chat.jsonl");
  const Outcome o = gpttrain("--from base --model.seq 16 --log.name a " + flags, dir.path());
  INFO(o.out);
  CHECK(o.code == 2);
  CHECK(o.prints("has no key \"text\""));
  CHECK_FALSE(o.prints("from      base"));
  CHECK_FALSE(fs::exists(dir / "runs/a/checkpoints/step-000000000"));
  const Outcome dry = gpttrain("--from base --model.seq 16 --dry-run " + flags, dir.path());
  INFO(dry.out);
  CHECK((dry.code == 2 && dry.prints("has no key \"text\"") && dry.prints("data prepare --format chat")));
}
