// Untrusted text on its way to a terminal, a shell or a parser: manifest strings, names, and paths that are not regular
// files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/state_json.h"
#include "data/prepare/text_source.h"
#include "data/samples/cursor.h"
#include "data/tokens/files.h"
#include "data/tokens/mapped_file.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_meta.h"
#include "kernels/core/hash/sha256.h"
#include "kernels/core/json_field.h"
#include "launch/config/config.h"
#include "launch/config/values/schedule_file.h"
#include "launch/observe/peak_rates.h"
#include "launch/observe/sinks/console.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

std::string error_of(const std::function<void()>& body, Exit code = Exit::kUsage) {
  try {
    body();
  } catch (const Error& e) {
    CHECK(e.code() == code);
    return e.what();
  } catch (const std::exception& e) { return std::string("another exception: ") + e.what(); }
  return "no error";
}

}  // namespace

TEST_CASE("terminal control sequences in text are shown as text") {
  CHECK(printable("Ünïcode — 日本 🙂 ~") == "Ünïcode — 日本 🙂 ~");
  CHECK(printable("a\x1b[31mred\a\r\n\tb\x7f") == "a\\x1b[31mred\\x07\\x0d\\n\\tb\\x7f");
  CHECK(printable(std::string("nul\0end", 7)) == "nul\\x00end");
  CHECK(printable("csi \xC2\x9B bidi \xE2\x80\xAE line \xE2\x80\xA8") == "csi \\x9b bidi \\u202e line \\u2028");
  CHECK(printable("broken \xFF \xC3 \xE2\x82 \xED\xA0\x80 \xC0\x80") ==
        "broken \\xff \\xc3 \\xe2\\x82 \\xed\\xa0\\x80 \\xc0\\x80");
  CHECK(printable("\xF0\x9F\x99") == "\\xf0\\x9f\\x99");
  CHECK(printable_lines("two\n\tlines\x1b\r") == "two\n\tlines\\x1b\\x0d");
  std::string console;
  ConsoleOptions options;
  options.write = [&](std::string_view s) { console += s; };
  ConsoleSink(options).event(create_event(1, "from \x1b]0;a manifest\a", true));
  CHECK(console == "warning: from \\x1b]0;a manifest\\x07\n");
}

TEST_CASE("a word of a command is quoted where a shell would split it") {
  CHECK(shell_word("runs/a-b_c=1,2:3@4%.model") == "runs/a-b_c=1,2:3@4%.model");
  CHECK(shell_word("runs/a;b|c&d") == "'runs/a;b|c&d'");
  CHECK(shell_word("it's $HOME") == "'it'\\''s $HOME'");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("~") == "'~'");
}

TEST_CASE("a missing or malformed value of a manifest is named, with expected and found") {
  const auto manifest_error = [](const char* from, const char* to) {
    Manifest m;
    m.state.run_uuid = "run";
    std::string text = to_text(m);
    text.resize(text.size() - 78);
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), std::string(from).size(), to);
    text += ",\"sha256\":\"" + sha256_hex(text) + "\"}\n";
    return error_of([&] { parse_manifest(text, "m.json"); }, Exit::kDamaged);
  };
  CHECK(manifest_error("\"pp\":1", "\"pp\":[1]") ==
        "m.json: layout.pp: expected a whole number that is not too large, found [1]");
  CHECK(manifest_error("\"pp\":1", "\"pp\":3000000000") ==
        "m.json: layout.pp: expected a whole number that is not too large, found 3000000000");
  CHECK(manifest_error("\"seed\":", "\"sead\":") == "m.json: state: seed: is missing");
  CHECK(manifest_error("\"optim\":{", "\"optim\":{\"t\":7},\"was\":{") == "m.json: state: optim.type: is missing");
  CHECK(manifest_error("\"run_uuid\":\"run\"", "\"run_uuid\":7.5") ==
        "m.json: state: run_uuid: expected a string, found 7.5");
  CHECK(manifest_error("\"files\":[]", "\"files\":[{\"name\":1}]") ==
        "m.json: files.0: name: expected a string, found 1");
  CHECK(manifest_error("\"tensors\":[]", "\"tensors\":{}") == "m.json: tensors: expected a list, found {}");
  CHECK(manifest_error("\"version\":[1,0]", "\"version\":[1]") ==
        "m.json: version: expected more than 1 values, found 1");
  CHECK(manifest_error("\"writer\":{", "\"writer\":\"\\u001b[2J\",\"w\":{") ==
        "m.json: writer: expected an object, found \"\\u001b[2J\"");
  CHECK_THAT(manifest_error("\"tensors\":[]", "\"tensors\":[}"),
             Contains("expected a value, found '}'") && !Contains("json.exception"));
}

TEST_CASE("other modified JSON files of ours are reported by key, never by a library's error") {
  TempDir dir;
  const auto clean = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
    CHECK(text.find("json.exception") == std::string::npos);
  };
  clean(error_of([] { data_cursor_from_json("{\"consumed_samples\":[]}"); }),
        "data cursor of the checkpoint: consumed_samples: expected a whole number that is not too large, found []");
  clean(error_of([] { data_cursor_from_json("{"); }), "data cursor of the checkpoint:1:2: expected a key");
  write_file(dir / "x.meta.json", "{\"tokenizer_sha256\":\"\",\"vocab\":\"many\"}");
  clean(error_of([&] { read_token_meta(dir / "x"); }),
        "(vocab: expected a whole number that is not too large, found \"many\")");
  write_file(dir / "c.json", "{\"device\": 3}");
  clean(error_of([&] { read_ceilings(dir / "c.json", DType::kBF16); }), "device: expected a string, found 3");
}

TEST_CASE("a pipe, a device and a folder in place of a file are refused by name at once") {
  TempDir dir;
  const std::string pipe = dir / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::create_symlink(pipe, dir / "link");
  using Reader = std::function<void(const std::string&)>;
  const std::pair<const char*, Reader> readers[] = {
      {"a file of text", [](const std::string& p) { read_whole_file(p); }},
      {"--config", [](const std::string& p) { load_config({.file = p}); }},
      {"--launch.hostfile",
       [](const std::string& p) {
         load_config({.flags = {"--launch.hostfile", p}});
       }},
      {"a schedule", [](const std::string& p) { read_schedule_file("file:" + p, true); }},
      {"tokens", [](const std::string& p) { MappedFile m(p); }},
      {"text", [](const std::string& p) { LineReader r(p, 1 << 20); }},
      {"a hash", [](const std::string& p) { sha256_file_hex(p); }},
      {"another hash", [](const std::string& p) { xxh3_128_file(p); }},
      {"ceilings", [](const std::string& p) { read_ceilings(p, DType::kBF16); }},
  };
  for (const auto& [what, read] : readers) {
    INFO(what);
    CHECK_THAT(error_of([&, r = read] { r(pipe); }), Contains(pipe + ": is a pipe, expected a file"));
    CHECK_THAT(error_of([&, r = read] { r(dir / "link"); }), Contains("link: is a pipe, expected a file"));
    CHECK_THAT(error_of([&, r = read] { r("/dev/zero"); }), Contains("/dev/zero: is a device, expected a file"));
    CHECK_THAT(error_of([&, r = read] { r(dir.path()); }), Contains(dir.path() + ": is a folder, expected a file"));
  }
  CHECK(missing_token_files(pipe) == pipe + ": is a pipe, expected a file");
  CHECK(missing_token_files("/dev/zero") == "/dev/zero: is a device, expected a file");
  CHECK(missing_token_files("-") == "-: standard input, expected a file");
  write_file(dir / "victim", "precious");
  std::filesystem::create_symlink(dir / "victim", dir / "out.part");
  CHECK_THAT(error_of([&] { open_file(dir / "out.part", O_WRONLY | O_CREAT | O_TRUNC); }, Exit::kIo),
             Contains("out.part: cannot be opened: it is a symbolic link"));
  CHECK(read_file(dir / "victim") == "precious");
  write_file(dir / "large", std::string(200000, 'x'));
  CHECK(read_whole_file(dir / "large", 200000).size() == 200000);
  CHECK_THAT(error_of([&] { read_whole_file(dir / "large", 199999); }), Contains("expected at most 199999 bytes"));
  CHECK(read_whole_file("/proc/self/status").size() > 100);  // reports a size of 0
}

TEST_CASE("a run name that is not a valid folder name is refused, whatever its characters") {
  for (const char* name : {"a/b", "..", "a\nb", "tab\there", "\x1b[2J", "del\x7f", "\xFF"}) {
    INFO(printable(name));
    const std::string text = error_of([&] { load_config({.flags = {"--log.name", name}}); });
    CHECK_THAT(text, Contains("log.name") && Contains("is not the name of a folder"));
    CHECK(printable_lines(text) == text);
  }
  TempDir dir;
  write_file(dir / "c.json", R"({"log": {"name": "a\u0000b", "dir": "x\u0007"}})");
  CHECK_THAT(
      error_of([&] { load_config({.file = dir / "c.json"}); }),
      Contains("\"a\\x00b\" is not the name of a folder") && Contains("\"x\\x07\": expected a path without control"));
  CHECK(load_config({.flags = {"--log.name", "Ünï (1) & more"}}).config.log.name == "Ünï (1) & more");
}
