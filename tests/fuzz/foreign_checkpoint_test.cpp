// Checkpoints from untrusted sources: all hashes are valid, the contents need not be.
#include <sys/resource.h>

#include <chrono>

#include "checkpoint/store/steps.h"
#include "launch/commands/cli.h"
#include "launch/tools/weights/checkpoint_config.h"
#include "launch/tools/weights/loaded_model.h"
#include "launch/tools/weights/subcommands.h"
#include "tests/fuzz/sealed_step.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::fuzz;
using Catch::Contains;

namespace {

// Returns config.json with one value replaced: that of the first such key that is not a section.
std::string with(const std::string& config, const std::string& key, const std::string& value) {
  size_t at = config.find("\"" + key + "\": ");
  while (at != std::string::npos && config[at + key.size() + 4] == '{') at = config.find("\"" + key + "\": ", at + 1);
  REQUIRE(at != std::string::npos);
  const size_t begin = at + key.size() + 4, end = config.find_first_of(",\n", begin);
  return config.substr(0, begin) + value + config.substr(end);
}

Command command_of(const std::vector<std::string>& words) { return parse_command(words, RankEnv{}); }

void refused_as(Exit code, const std::vector<std::string>& words, const std::string& text) {
  INFO(words[0] << ", expected: " << text);
  const Command c = command_of(words);
  try {
    c.run(c);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.code() == code);
    CHECK_THAT(e.what(), Contains(text));
  }
}

int64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

}  // namespace

TEST_CASE("a config.json that contradicts its tensors is refused before anything is allocated") {
  SealedStep step;
  const std::string config = step.aux["config.json"];
  struct FalseClaim {
    const char *key, *value, *error;
  };
  const int64_t before = peak_memory();
  for (const FalseClaim& lie :
       {FalseClaim{"vocab", "4194304", "config.json requires [4194304, 8]"},
        FalseClaim{"seq", "1048576", "config.json requires [1048576, 8]"},
        FalseClaim{"layers", "1024", "model.layers is 1024, but the checkpoint holds 16 tensors in all"},
        FalseClaim{"ffn", "1000000", "config.json requires [1000000, 8]"},
        FalseClaim{"micro_batch", "1048576", "micro_batch"}, FalseClaim{"", "", "config.json requires [50257, 768]"}}) {
    step.aux["config.json"] = lie.key[0] != '\0' ? with(config, lie.key, lie.value) : "{}";
    step.seal();
    refused_as(Exit::kDamaged, {"generate", "--load", step.path(), "--prompt", "x"}, lie.error);
    refused_as(Exit::kDamaged, {"eval", "--load", step.path(), "--data.train", "mock"}, lie.error);
    refused_as(Exit::kDamaged, {"export", "--load", step.path(), "--output", step.path() + "-out"}, lie.error);
  }
  CHECK(peak_memory() - before < 64 << 20);
}

TEST_CASE("only the model of a foreign config.json is used, no path, host or launcher option") {
  SealedStep step;
  std::string config = step.aux["config.json"];
  config = with(config, "hostfile", "\"/etc/passwd\"");
  config = with(config, "train", "[\"/etc/shadow\"]");  // data.train
  config = with(config, "tokenizer", "\"/etc/hosts\"");
  config = with(config, "dir", "\"/nowhere\"");
  config = with(config, "ranks", "\"no such choice\"");
  config = with(config, "tp", "64");
  step.aux["config.json"] = config;
  step.seal();
  Vfs vfs;
  const StepReader reader(vfs, step.path());
  const Config taken = checkpoint_config(reader, {"--device.kind", "cpu"}), fresh;
  CHECK(taken.model.vocab == 300);
  CHECK(taken.train.micro_batch == 2);
  CHECK(taken.device.kind == DeviceChoice::kCpu);
  CHECK(taken.parallel.tp == 1);
  CHECK(taken.launch.hostfile.empty());
  CHECK(taken.launch.ranks == fresh.launch.ranks);
  CHECK(taken.data.train.empty());
  CHECK(taken.data.tokenizer.empty());
  CHECK(taken.checkpoint.dir == fresh.checkpoint.dir);
  const auto model = load_model(step.path(), {"--device.kind", "cpu"});
  CHECK(model->config.model.layers == 1);
  // Training data paths are shown for copying, never opened.
  refused_as(Exit::kUsage, {"eval", "--load", step.path(), "--steps", "2"},
             "gpttrain eval --load " + step.path() + " --steps 2 --data.train /etc/shadow");
  step.aux["config.json"] = with(config, "train", "[\"a b'c;d\x01\"]");
  step.seal();
  refused_as(Exit::kDamaged, {"eval", "--load", step.path()}, "control characters in strings must be escaped");
  step.aux["config.json"] = with(config, "train", "[\"a b'c;d\\u001b\"]");
  step.seal();
  refused_as(Exit::kUsage, {"eval", "--load", step.path()}, "--data.train 'a b'\\''c;d\\x1b'");
}

TEST_CASE("import refuses a bad tokenizer model, in the folder or given by name, and writes nothing") {
  SealedStep step;
  const std::string folder = step.path() + "-hf", to = step.path() + "-to";
  run_export(command_of({"export", "--load", step.path(), "--output", folder}));
  Vfs vfs;
  for (const char* bad : {"endless-number", "trie-root-outside", "trie-leaf-outside"}) {
    const std::string model = source_dir() + "/tests/fuzz/corpus/tokenizer_model/" + bad;
    vfs.unlink(folder + "/tokenizer.model");
    refused_as(Exit::kUsage, {"import", "--from", folder, "--output", to, "--tokenizer", model}, model + " byte ");
    write_synced(vfs, folder + "/tokenizer.model", read_file(vfs, model, 1 << 20));
    refused_as(Exit::kUsage, {"import", "--from", folder, "--output", to}, folder + "/tokenizer.model byte ");
    CHECK(list_steps(to).empty());
  }
  vfs.unlink(folder + "/tokenizer.model");
  CHECK(run_import(command_of({"import", "--from", folder, "--output", to})) == Exit::kOk);
}

TEST_CASE("a manifest with 100,000 tensors is refused, 60,000 tensors and 70,000 unknown keys take linear time") {
  SealedStep step;
  const auto seconds = [](const auto& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  TensorEntry t;
  t.shape = {4};
  t.files = {{0, 0}};
  const size_t own = step.manifest.tensors.size();
  for (int k = 0; k < 100000; ++k) {
    t.name = cat("zz/", 100000 + k);
    step.manifest.tensors.push_back(t);
  }
  step.seal();
  const std::string why = ": a list or an object of more than 65536 entries";
  refused_as(Exit::kDamaged, {"generate", "--load", step.path(), "--prompt", "x"}, why);
  refused_as(Exit::kDamaged, {"export", "--load", step.path(), "--output", step.path() + "-out"}, why);
  step.manifest.tensors.resize(own + 60000);
  step.seal();
  // 49 s for 100,000 when the manifest parser was quadratic.
  CHECK(seconds([&] { load_model(step.path(), {"--device.kind", "cpu"}); }) < (kSanitized ? 100 : 20));

  std::string config = "{\"model\": {";
  for (int k = 0; k < 70000; ++k) config += cat(k ? ", " : "", "\"k", k, "\": 1");
  step.manifest.tensors.resize(own);
  step.aux["config.json"] = config + "}}";
  step.seal();
  // 35 s when each had its own suggestion.
  CHECK(seconds([&] {
          refused_as(Exit::kDamaged, {"generate", "--load", step.path(), "--prompt", "x"}, "70000 problems");
        }) < (kSanitized ? 50 : 10));
}
