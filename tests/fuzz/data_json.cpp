// The three readers of our own JSON files: each gets the same input.
#include "data/prepare/prepare_journal.h"
#include "data/samples/cursor.h"
#include "data/tokens/token_meta.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  static const ScratchFile meta("x.meta.json"), journal("x.progress.json");
  meta.put(input);
  std::optional<TokenMeta> m;
  if (!refused([&] { m = read_token_meta(meta.path().substr(0, meta.path().size() - 10)); })) {
    meta.put(to_json(*m));
    GT_CHECK(to_json(*read_token_meta(meta.path().substr(0, meta.path().size() - 10))) == to_json(*m));
  }
  journal.put(input);
  std::optional<PrepareJournal> j;
  if (!refused([&] { j = read_journal(journal.path()); })) require_same_work(journal.path(), *j, *j);
  DataCursor c;
  if (!refused([&] { c = data_cursor_from_json(std::string(input)); })) {
    GT_CHECK(data_cursor_from_json(to_json(c)) == c && differences(c, c).empty());
  }
}

std::vector<std::string> seeds() {
  TokenMeta m{.tokenizer_sha256 = std::string(64, 'd'), .version = "0.1.0", .vocab = 512, .eod = 4};
  m.options = "{\"append_eod\":true}";
  m.inputs = {"a.txt"};
  DataCursor c{.consumed_samples = 96, .seed = 7, .order = "epoch", .seq = 32, .split = "969,30,1"};
  c.skip_windows = {{3, 9}};
  c.sources = {{"a", 1000, std::string(64, 'e'), 1, 0, 96}};
  const ScratchFile file("seed.progress.json");
  PrepareJournal j{.options = "{\"append_eod\":true}", .bin_bytes = 100, .document_tokens = 3};
  j.inputs = {{"a.txt", 5000, 123456789}};
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  Vfs vfs;
  write_journal(file.path(), j);
  return {to_json(m),
          to_json(c),
          read_file(vfs, file.path(), 1 << 20),
          deep,
          "{\"version\":2,\"options\":" + deep + "}",
          "{\"tokenizer_sha256\":\"\",\"vocab\":1,\"eod\":0,\"options\":" + deep + "}"};
}

}  // namespace

Target data_json() {
  return {"data_json",
          run,
          seeds,
          {"\"options\"", "\"inputs\"", "\"sources\"", "null", "[", "]", "{}", "-1", "18446744073709551615", "1e400",
           "\"\""},
          3000};
}

}  // namespace gt::fuzz
