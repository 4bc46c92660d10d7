#include "data/samples/cursor.h"

#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
using Json = nlohmann::ordered_json;

std::string to_json(const DataCursor& c) {
  Json windows = Json::array();
  for (const auto& [first, last] : c.skip_windows) windows.push_back({first, last});
  Json sources = Json::array();
  for (const SourceCursor& s : c.sources)
    sources.push_back({{"path", s.path},
                       {"bytes", s.bytes},
                       {"idx_sha256", s.idx_sha256},
                       {"weight", s.weight},
                       {"epoch", s.epoch},
                       {"cursor", s.cursor}});
  Json data = {{"seed", c.seed}, {"order", c.order}, {"seq", c.seq}, {"split", c.split}};
  if (c.num_samples > 0) data["num_samples"] = c.num_samples;
  data["sources"] = std::move(sources);
  const Json j = {
      {"consumed_samples", c.consumed_samples}, {"skip_windows", std::move(windows)}, {"data", std::move(data)}};
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

DataCursor data_cursor_from_json(const std::string& text) {
  const Json j = parse_json<Json>(text, "data cursor of the checkpoint");
  try {
    DataCursor c;
    c.consumed_samples = field<int64_t>(j, "consumed_samples");
    if (j.contains("skip_windows"))
      for (const Json& w : member(j, "skip_windows"))
        c.skip_windows.emplace_back(field<int64_t>(w, "0"), field<int64_t>(w, "1"));
    const Json& d = member(j, "data");
    c.seed = field<uint64_t>(d, "seed");
    c.order = field<std::string>(d, "order");
    c.seq = field<int64_t>(d, "seq");
    c.split = field<std::string>(d, "split");
    c.num_samples = field_or(d, "num_samples", int64_t{0});
    for (const Json& s : member(d, "sources"))
      c.sources.push_back({field<std::string>(s, "path"), field<int64_t>(s, "bytes"),
                           field<std::string>(s, "idx_sha256"), field<double>(s, "weight"), field<int64_t>(s, "epoch"),
                           field<int64_t>(s, "cursor")});
    GT_REQUIRE(c.consumed_samples >= 0, Exit::kUsage, "consumed_samples: expected 0 or more, found ",
               c.consumed_samples);
    return c;
  } catch (const Error& e) { fail(Exit::kUsage, "data cursor of the checkpoint: ", e.what()); }
}

std::vector<std::string> differences(const DataCursor& saved, const DataCursor& now) {
  std::vector<std::string> out;
  const auto check = [&](const std::string& key, const auto& a, const auto& b) {
    if (!(a == b)) out.push_back(cat(key, ": the checkpoint has ", a, ", this run has ", b));
  };
  check("data.seed", saved.seed, now.seed);
  check("data.order", saved.order, now.order);
  check("data.seq", saved.seq, now.seq);
  check("data.split", saved.split, now.split);
  check("number of samples of the run (data.order megatron; data.order epoch allows to change it)", saved.num_samples,
        now.num_samples);
  check("number of datasets", saved.sources.size(), now.sources.size());
  for (size_t i = 0; i < std::min(saved.sources.size(), now.sources.size()); ++i) {
    const SourceCursor &a = saved.sources[i], &b = now.sources[i];
    const std::string name = cat("dataset ", i + 1, " (", b.path, ")");
    check(name + " bytes of .bin", a.bytes, b.bytes);
    check(name + " SHA-256 of .idx (of headers and ends: llm.c's files)", a.idx_sha256, b.idx_sha256);
    check(name + " share", a.weight, b.weight);
    if (saved.consumed_samples != now.consumed_samples || !out.empty()) continue;
    check(name + " epoch", a.epoch, b.epoch);
    check(name + " cursor", a.cursor, b.cursor);
  }
  return out;
}

void require_same_stream(const DataCursor& saved, const DataCursor& now, bool allow_change) {
  const auto list = differences(saved, now);
  if (list.empty() || allow_change) return;
  std::string text = "this run's data differ from the checkpoint's:";
  for (const std::string& line : list) text += "\n  " + line;
  fail(Exit::kUsage, text, "\nrestore these settings, or go on at sample ", saved.consumed_samples,
       " of the new stream with --data.allow_change");
}

}  // namespace gt
