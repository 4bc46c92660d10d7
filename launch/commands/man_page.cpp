// gpttrain man: the manual page gpttrain(1), made from the tables of subcommands and options.
#include <fmt/format.h>

#include "launch/commands/flag_list.h"
#include "launch/options/version.h"

namespace gt {
namespace {

// Text that roff prints as it is.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\'')
      out += "\\(aq";
    else if (c == '|')
      out += "|\\:";  // a line may break here
    else if (c == '\n')
      out += ' ';
    else
      out += c;
  }
  return out.starts_with('.') ? "\\&" + out : out;
}

std::string entries(const std::vector<ListedFlag>& flags) {
  std::string out;
  for (const ListedFlag& f : flags)
    out += fmt::format(".TP\n\\fB\\-\\-{}\\fR {}\n{}\n", roff(f.name), roff(f.value), roff(f.meaning));
  return out;
}

std::string subcommand_text(const Subcommand& v) {
  std::string out = fmt::format(".SS gpttrain {}\n{}.\n.PP\n.EX\ngpttrain {} {}\n.EE\n", roff(v.name), roff(v.meaning),
                                roff(v.name), roff(v.example));
  out += entries(own_flags(v));
  if (v.config == ConfigFlags::kNone) return out;
  if (v.keys.empty()) return out + ".PP\nTakes every setting below.\n";
  std::string keys;
  for (const std::string& k : v.keys) keys += (keys.empty() ? "" : ", ") + (k.back() == '.' ? k + "*" : k);
  return out + ".PP\nTakes these settings: " + roff(keys) + ".\n";
}

std::string settings_text() {
  const Subcommand& train = subcommands()[0];
  std::string out, section;
  std::vector<ListedFlag> part;
  for (const ListedFlag& f : setting_flags(train)) {
    if (f.section != section) out += entries(part) + ".SS " + f.section + "\n", part.clear(), section = f.section;
    part.push_back(f);
  }
  return out + entries(part) + ".SH SHORT FORMS\n" + entries(alias_flags(train));
}

constexpr std::pair<Exit, const char*> kExits[] = {
    {Exit::kOk, "the command is complete, and its result is on disk"},
    {Exit::kDifferent, "a subcommand that compares found a difference"},
    {Exit::kUsage, "bad configuration or usage, a path that does not exist, bad data found before the first step"},
    {Exit::kHardware, "a hardware fault is suspected"},
    {Exit::kNumerical, "numerical failure"},
    {Exit::kDamaged, "a file is damaged or hostile"},
    {Exit::kInternal, "internal error"},
    {Exit::kIo, "input or output failed: no checkpoint could be written, or data could not be read"},
    {Exit::kInterrupted, "interrupted; everything is saved, and the same command continues"},
    {Exit::kHang, "a rank did not answer, or ranks did not start in time"},
};

}  // namespace

Exit run_man(const Command&) {
  std::string out = fmt::format(
      ".TH GPTTRAIN 1 \"\" \"gpttrain {}\"\n"
      ".ad l\n"
      ".SH NAME\n"
      "gpttrain \\- train Transformer language models with tensor, pipeline and data parallelism\n"
      ".SH SYNOPSIS\n"
      ".B gpttrain\n[\\fIsubcommand\\fR] [\\fIflags\\fR]\n"
      ".SH DESCRIPTION\n"
      "Without a subcommand, gpttrain trains. Every setting has a key, section.name, which is a flag on the command "
      "line "
      "and a member of the JSON file given with \\fB\\-\\-config\\fR; flags win. Results do not depend on the layout.\n"
      ".SH SUBCOMMANDS\n",
      roff(program_version()));
  for (const Subcommand& v : subcommands()) out += subcommand_text(v);
  out += ".SH SETTINGS\n" + settings_text() + ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : kExits)
    out += fmt::format(".TP\n.B {}\n{}\n", static_cast<int>(code), roff(meaning));
  out +=
      ".SH FILES\n"
      ".TP\n.I runs/NAME\n"
      "folder of a run: config.json, log.jsonl, report.html, TensorBoard's event files and checkpoints/\n"
      ".SH SEE ALSO\nREADME.md and docs/ of the source\n";
  fmt::print("{}", out);
  return Exit::kOk;
}

}  // namespace gt
