#include "data/prepare/prepare_journal.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/tokens/files.h"
#include "kernels/core/check.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
using Json = nlohmann::json;

void write_journal(const std::string& path, const PrepareJournal& j) {
  Json inputs = Json::array();
  for (const TextInput& i : j.inputs) inputs.push_back({i.path, i.size, i.mtime_ns});
  const ReadState& s = j.state;
  const PrepareResult& r = j.sums;
  const Json out = {{"version", 2},
                    {"options", parse_json<Json>(j.options, "options", kOwnJson)},
                    {"inputs", inputs},
                    {"state", {s.input, s.byte, s.line, s.open, s.skipping}},
                    {"bin_bytes", j.bin_bytes},
                    {"document_tokens", j.document_tokens},
                    {"sums",
                     {r.documents, r.tokens, r.text_bytes, r.longest, r.dropped, r.bad, r.replaced, r.targets,
                      r.truncated, r.unanswered}},
                    {"seconds", r.seconds},
                    {"done", j.done}};
  write_file_atomically(path, out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<PrepareJournal> read_journal(const std::string& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::string text = read_whole_file(path, 256 << 20);
  try {
    const Json in = parse_json<Json>(text, "", {.bytes = SIZE_MAX});
    PrepareJournal j;
    GT_REQUIRE(field<int>(in, "version") == 2, Exit::kUsage, "expected version 2, found ", found_json(in["version"]));
    j.options = member(in, "options").dump();
    for (const Json& i : member(in, "inputs"))
      j.inputs.push_back({field<std::string>(i, "0"), field<int64_t>(i, "1"), field<int64_t>(i, "2")});
    const Json& s = member(in, "state");
    j.state = {field<int64_t>(s, "0"), field<int64_t>(s, "1"), field<int64_t>(s, "2"), field<bool>(s, "3"),
               field<bool>(s, "4")};
    j.bin_bytes = field<int64_t>(in, "bin_bytes");
    j.document_tokens = field<int64_t>(in, "document_tokens");
    int64_t* const sums[] = {&j.sums.documents, &j.sums.tokens,    &j.sums.text_bytes, &j.sums.longest,
                             &j.sums.dropped,   &j.sums.bad,       &j.sums.replaced,   &j.sums.targets,
                             &j.sums.truncated, &j.sums.unanswered};
    for (size_t i = 0; i < std::size(sums); ++i) *sums[i] = field<int64_t>(in, cat("sums.", i));
    j.sums.seconds = field<double>(in, "seconds");
    j.done = field<bool>(in, "done");
    return j;
  } catch (const Error& e) {
    fail(Exit::kUsage, path, ": not the journal of a preparation (", e.what(), "); --force starts over");
  }
}

void require_same_work(const std::string& path, const PrepareJournal& before, const PrepareJournal& now) {
  std::string list;
  const Json a = parse_json<Json>(before.options, "options", kOwnJson),
             b = parse_json<Json>(now.options, "options", kOwnJson);
  for (const auto& [key, value] : b.items())
    if (!a.contains(key) || a.at(key) != value)
      list += cat("\n  ", key, ": it had ", a.contains(key) ? a.at(key).dump() : "nothing", ", this call has ",
                  value.dump());
  if (before.inputs.size() != now.inputs.size())
    list += cat("\n  inputs: it had ", before.inputs.size(), ", this call has ", now.inputs.size());
  for (size_t i = 0; i < std::min(before.inputs.size(), now.inputs.size()); ++i) {
    const TextInput &x = before.inputs[i], &y = now.inputs[i];
    if (x.path != y.path)
      list += cat("\n  input ", i + 1, ": it had ", x.path, ", this call has ", y.path);
    else if (x.size != y.size || x.mtime_ns != y.mtime_ns)
      list += cat("\n  input ", x.path, ": changed on disk since");
    else if (x.path == "-")
      list += "\n  standard input cannot be read again";
  }
  GT_REQUIRE(list.empty(), Exit::kUsage, path,
             ": an interrupted preparation is here that cannot go on with this call:", list,
             "\ngive the same options and inputs, or --force to start over");
}

}  // namespace gt
