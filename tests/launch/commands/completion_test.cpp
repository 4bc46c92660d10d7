// Completion scripts and the manual page, read by the shells and by groff.
#include <fmt/format.h>

#include <sstream>

#include "launch/commands/flag_list.h"
#include "tests/launch/process.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

// The words that bash offers for `line`, a command line whose last word is completed.
std::string offered(const TempDir& dir, const std::string& line) {
  write_file(dir / "line.sh", "source ./script\nread -r -a COMP_WORDS <<<" + line +
                                  "\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                                  "[ \"${COMP_WORDS[COMP_CWORD]}\" != _ ] || COMP_WORDS[COMP_CWORD]=''\n"
                                  "_gpttrain\necho \" ${COMPREPLY[*]} \"\n");
  const Outcome r = shell("bash --norc line.sh", dir.path());
  INFO(line << "\n" << r.out);
  REQUIRE(r.code == 0);
  return r.out;
}

bool has(const std::string& program) { return shell("command -v " + program, ".").code == 0; }

}  // namespace

TEST_CASE("bash completes subcommands, the flags of each, and their values") {
  TempDir dir;
  write_file(dir / "script", must("completion bash", dir).out);
  const auto words = [&](const std::string& line) { return offered(dir, "'" + line + "'"); };
  CHECK_THAT(words("gpttrain _"), Contains(" train ") && Contains(" tokenizer ") && Contains(" completion "));
  CHECK(words("gpttrain data _") == " prepare inspect \n");
  CHECK(words("gpttrain ck") == " ckpt \n");
  CHECK(words("gpttrain data prepare --format _") == " auto jsonl text chat instruct \n");
  CHECK(words("gpttrain --schedule.type c") == " cosine constant \n");
  CHECK(words("gpttrain export --format p") == " peft \n");
  CHECK_THAT(words("gpttrain --"), Contains(" --optim.lr ") && Contains(" --tp ") && Contains(" --version "));
  CHECK_THAT(words("gpttrain eval --"), Contains(" --load ") && Contains(" --parallel.tp ") &&
                                            !Contains(" --optim.lr ") && !Contains(" --version "));
  CHECK_THAT(words("gpttrain bench ops --"), Contains(" --optim.lr ") && !Contains(" --prompt "));
  CHECK(words("gpttrain generate --load _") == "  \n");  // bash then offers files
  for (const Subcommand& v : subcommands()) {            // nothing that help shows is missing
    const std::string offers = words(fmt::format("gpttrain {} --", v.name));
    std::string missing;
    for (const auto& flags : {own_flags(v), setting_flags(v), alias_flags(v)})
      for (const ListedFlag& f : flags)
        if (offers.find(" --" + f.name + " ") == std::string::npos) missing += cat(v.name, " --", f.name, "\n");
    CHECK(missing == "");
  }
}

TEST_CASE("zsh and fish read their scripts, and fish completes flags and values") {
  TempDir dir;
  write_file(dir / "_gpttrain", must("completion zsh", dir).out);
  write_file(dir / "script.fish", must("completion fish", dir).out);
  for (const char* program : {"zsh", "fish"})
    if (!has(program)) GT_SKIP(cat("no ", program, " (Debian package ", program, ")"));
  CHECK(shell("zsh -n _gpttrain", dir.path()).out == "");
  // The completion system is loaded and called through a stand-in for the function that prints what is offered.
  write_file(dir / "line.zsh",
             "_describe() { local -a list; eval \"list=(\\\"\\${${@[-1]}[@]}\\\")\"; print -l -- $list }\n"
             "compadd() { shift; print -l -- $@ }\n_files() { print FILES }\n"
             "words=(gpttrain \"$@\"); CURRENT=$#words; source ./_gpttrain\n");
  const auto zsh = [&](const std::string& line) { return shell("zsh -f line.zsh " + line, dir.path()).out; };
  CHECK_THAT(zsh("''"), Contains("train:train a model (default)") && Contains("ckpt:ls, inspect"));
  CHECK_THAT(zsh("data ''"), Contains("prepare:tokenize text or JSON lines into token files"));
  CHECK(zsh("data prepare --format ''") == "auto\njsonl\ntext\nchat\ninstruct\n");
  CHECK(zsh("generate --load ''") == "FILES\n");
  CHECK_THAT(zsh("eval --"), Contains("--load:") && !Contains("--optim.lr:"));
  const auto fish = [&](const std::string& line) {
    return shell("HOME=$PWD fish -N -c \"source script.fish; complete -C '" + line + "'\"", dir.path()).out;
  };
  CHECK_THAT(fish("gpttrain ck"), Contains("ckpt\tls, inspect"));
  CHECK_THAT(fish("gpttrain data "), Contains("prepare\ttokenize text or JSON lines") && Contains("inspect"));
  CHECK_THAT(fish("gpttrain data prepare --format "), Contains("jsonl\t") && Contains("instruct\t"));
  CHECK_THAT(fish("gpttrain --optim.l"), Contains("--optim.lr\t"));
  CHECK_THAT(fish("gpttrain eval --op"), !Contains("--optim.lr"));
}

TEST_CASE("groff reads the manual page without a warning, and it has every subcommand, setting and exit code") {
  TempDir dir;
  write_file(dir / "gpttrain.1", must("man", dir).out);
  if (!has("groff")) GT_SKIP("no groff (Debian package groff-base)");
  CHECK(shell("groff -man -ww -z gpttrain.1", dir.path()).out == "");
  const std::string page = shell("groff -man -Tascii -P-bcou -rLL=200n gpttrain.1", dir.path()).out;
  for (const Subcommand& v : subcommands()) CHECK_THAT(page, Contains(cat("gpttrain ", v.name)));
  for (const ListedFlag& f : setting_flags(subcommands()[0])) CHECK_THAT(page, Contains("--" + f.name + " "));
  for (const char* code : {"   75   ", "   124  "}) CHECK_THAT(page, Contains(code));
}
