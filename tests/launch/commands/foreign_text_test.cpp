// URLs as paths, configurations that are not JSON, folders of other programs: refused by what they are.
#include "launch/options/foreign_text.h"

#include <filesystem>

#include "kernels/core/check.h"
#include "launch/train/next_commands.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

TEST_CASE("URLs are distinguished from paths, and schemes from each other") {
  for (const char* path : {"runs", "/a/b", "a:b", "C:/x", "://x", "1s3://x", "a b://c", "host:port",
                           "file:configs/s.txt", "", "mock", "../x/://y"}) {
    INFO(path);
    CHECK_FALSE(url_problem(path));
  }
  for (const char* url : {"s3://bucket/runs", "gs://b", "az://c/d", "abfss://x@y/z", "hdfs://n/p", "S3://B", "hf://a/b",
                          "https://example.org/x.json", "file:///tmp/x", "git+ssh://h/r"}) {
    INFO(url);
    CHECK_THAT(url_problem(url).reason, Contains(std::string(url) + ": is a URL"));
    CHECK_FALSE(url_problem(url).fix.empty());
  }
  CHECK_THAT(url_problem("file:///tmp/x").fix, Contains("give the path, /tmp/x"));
  CHECK_THAT(url_problem("file://localhost/tmp/x").fix, Contains("give the path, /tmp/x"));
  CHECK_THAT(url_problem("hf://a/b").fix, Contains("hf download a/b --local-dir b, and give b"));
  CHECK_THAT(url_problem("gs://b/c").fix, Contains("mount the bucket"));
}

TEST_CASE("no option that takes a path takes a URL, and nothing is made") {
  TempDir dir;
  write_file(dir / "text.txt", "some text\n");
  for (const char* flag :
       {"--log.dir", "--checkpoint.dir", "--checkpoint.load_from", "--data.train", "--data.valid", "--data.tokenizer",
        "--log.samples_csv", "--log.flops_file", "--config", "--deepspeed_config", "--from", "--load", "--save"}) {
    INFO(flag);
    const std::string data = std::string(flag) == "--data.train" ? "" : " --data.train mock";
    const Outcome r = gpttrain("train " + std::string(flag) + " s3://bucket/x" + data, dir.path());
    INFO(r.out);
    CHECK(r.code == 2);
    CHECK(r.prints("s3://bucket/x: is a URL"));
  }
  for (const char* line : {"generate --load s3://bucket/x", "generate s3://bucket/x", "eval --load gs://b/run",
                           "export --load runs/x --output s3://b/out", "import --from hf://a/b --output out",
                           "tokenizer train --input https://example.org/t.txt --output t.model", "ckpt ls s3://b/run",
                           "data prepare --input s3://b/t.txt --tokenizer t.model --output x", "watch s3://b/run",
                           "report s3://b/run", "data inspect s3://b/tokens"}) {
    INFO(line);
    const Outcome r = gpttrain(line, dir.path());
    INFO(r.out);
    CHECK(r.code == 2);
    CHECK(r.prints("is a URL"));
  }
  for (const auto& e : std::filesystem::directory_iterator(dir.path())) CHECK(e.path().filename() == "text.txt");
}

TEST_CASE("YAML, TOML and Python are recognized by name or text") {
  const auto kind = [](const std::string& path, const std::string& text) {
    const std::string is = foreign_config(path, text);
    return is.substr(0, is.find(','));
  };
  CHECK(kind("c.yaml", "model:\n  layers: 2\n") == "is YAML");
  CHECK(kind("c", "# a comment\n\nmodel:\n  layers: 2\n") == "is YAML");
  CHECK(kind("c", "--- \nmodel: {}\n") == "is YAML");
  CHECK(kind("c.yml", "") == "is YAML");
  CHECK(kind("c.toml", "") == "is TOML");
  CHECK(kind("c", "# torchtitan\n[model]\nflavor = \"8B\"\n") == "is TOML");
  CHECK(kind("c", "learning_rate = 1e-3\n") == "is TOML");
  CHECK(kind("train.py", "") == "is Python");
  CHECK(kind("c", "import torch\n") == "is Python");
  for (const char* text : {"{\"model\": {}}", "// a comment\n{", "/* a */ {", "", "{'a': 1}", "[1, 2]", "12",
                           "\x7f"
                           "ELF"})
    CHECK(foreign_config("c.json", text).empty());
  TempDir dir;
  write_file(dir / "c.yaml", "# run\nmodel:\n  layers: 2\n");
  write_file(dir / "ds.toml", "[fp16]\nenabled = true\n");
  const Outcome yaml = gpttrain("train --config c.yaml --data.train mock", dir.path());
  INFO(yaml.out);
  CHECK((yaml.code == 2 && yaml.prints("c.yaml") && yaml.prints("is YAML, expected JSON; python3 -c")));
  const Outcome toml = gpttrain("train --deepspeed_config ds.toml --data.train mock", dir.path());
  INFO(toml.out);
  CHECK((toml.code == 2 && toml.prints("is TOML, expected JSON")));
}

TEST_CASE("a Hugging Face folder as a checkpoint names the import, and a run needs no flag") {
  TempDir dir;
  std::filesystem::create_directories(dir / "hf");
  write_file(dir / "hf/config.json", "{\"model_type\": \"llama\"}");
  write_file(dir / "hf/model.safetensors", "");
  for (const char* line : {"generate --load hf", "generate hf --prompt x", "eval --load hf",
                           "export --load hf --output y", "ckpt inspect hf"}) {
    const Outcome r = gpttrain(line, dir.path());
    INFO(line << "\n" << r.out);
    CHECK(r.code == 2);
    CHECK((r.prints("hf: is a Hugging Face folder, not a checkpoint; import it first:") &&
           r.prints("gpttrain import --from hf --output hf-imported")));
  }
  std::filesystem::remove(dir / "hf/model.safetensors");
  CHECK(gpttrain("generate hf", dir.path()).prints("holds no checkpoint"));
}

TEST_CASE("a run with adapters ends with the commands that export them") {
  Config c;
  c.log.name = "x";
  c.data.train = {{"corpus", 1}};
  const auto all = [&](Exit code, int64_t saved) {
    std::string out;
    for (const std::string& line : next_commands(c, code, saved)) out += line + "\n";
    return out;
  };
  CHECK_THAT(all(Exit::kOk, 7), Contains("gpttrain generate --load runs/x") && !Contains("export"));
  CHECK_THAT(all(Exit::kInterrupted, 7), Contains("resumes from step 7"));
  CHECK_THAT(all(Exit::kInterrupted, -1), Contains("there is no checkpoint") && !Contains("generate"));
  c.model.lora.rank = 4;
  CHECK_THAT(all(Exit::kOk, 7), Contains("gpttrain export --load runs/x --format peft --output FOLDER") &&
                                    Contains("the model with the adapters merged"));
  CHECK_THAT(all(Exit::kOk, -1), !Contains("export"));
}
