// Runs every target on its seeds, on corpus/<target>/ (all past findings), and on mutations of both. An input that is
// refused with a new message joins the pool. GPT_FUZZ_FACTOR=50 multiplies the number of inputs; GPT_TEST_SEED changes
// them. A finding is left in fuzz-<target>.input in the build folder, even when the process dies.
#include <sys/resource.h>

#include <algorithm>
#include <set>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/target.h"
#include "tests/fuzz/witness.h"
#include "tests/support/environment.h"
#include "tests/support/test.h"

namespace gt::fuzz {
namespace {

constexpr size_t kLongest = 1 << 16, kPool = 2000;

// Error messages with the input's numbers and names removed.
std::string kind_of(const std::string& text) {
  std::string out;
  bool quoted = false;
  for (const char c : text.substr(0, 600)) {
    if (c == '"' || c == '\'') quoted = !quoted;
    if (!quoted && (std::isalpha(static_cast<unsigned char>(c)) || c == ' ')) out += c;
  }
  return out;
}

// A size claimed by a file must never be allocated: parsers stay within this limit beyond the program itself.
void limit_memory() {
  if (kSanitized) return;  // shadow memory is larger than any limit
  rlimit r{};
  ::getrlimit(RLIMIT_AS, &r);
  r.rlim_cur = rlim_t{1} << 30;
  ::setrlimit(RLIMIT_AS, &r);
}

void holds(const Target& t) {
  limit_memory();
  CurrentInput witness(t.name);
  const auto run = [&](const std::string& input) {
    witness.begin(input);
    outcome() = {};
    try {
      t.run(input);
    } catch (const std::exception& e) { FAIL(t.name << ": " << e.what() << "\nthe input is " << witness.keep()); }
    witness.end();
  };
  std::vector<std::string> pool = corpus(t);
  std::set<std::string> kinds;
  int accepted = 0;
  for (const std::string& input : pool) {
    run(input);
    accepted += outcome().accepted;
    kinds.insert(kind_of(outcome().refusals));
  }
  CHECK(accepted > 0);
  std::erase_if(pool, [](const std::string& s) { return s.size() > kLongest; });
  Mutator mutator(from_environment("GPT_TEST_SEED", 1), t.words);
  const int64_t inputs = t.inputs * static_cast<int64_t>(from_environment("GPT_FUZZ_FACTOR", 1)) / (kSanitized ? 4 : 1);
  for (int64_t k = 0; k < inputs; ++k) {
    const std::string input = mutator.next(pool, kLongest);
    run(input);
    if (pool.size() < kPool && kinds.insert(kind_of(outcome().refusals)).second) pool.push_back(input);
  }
  std::printf("%s: %lld inputs, %zu kinds of refusal, no finding\n", t.name, static_cast<long long>(inputs),
              kinds.size());
  CHECK(kinds.size() > 3);
}

}  // namespace

TEST_CASE("generate, eval and export accept a foreign checkpoint whole or refuse it with one error") {
  holds(fuzz::checkpoint());
}
TEST_CASE("import accepts a foreign folder whole or refuses it with one error") { holds(import_folder()); }
TEST_CASE("the config of a foreign checkpoint is accepted whole or refused with one error") {
  holds(fuzz::checkpoint_config());
}
TEST_CASE("a shard's index is accepted whole or refused with one error") { holds(ckpt_index()); }
TEST_CASE("a checkpoint's manifest is accepted whole or refused with one error") { holds(ckpt_manifest()); }
TEST_CASE("a config file is accepted whole or refused with one error") { holds(config_json()); }
TEST_CASE("a DeepSpeed file is accepted whole or refused with one error") { holds(deepspeed_json()); }
TEST_CASE("conversations and chat templates are accepted whole or refused with one error") { holds(chat()); }
TEST_CASE("the metadata of token files is accepted whole or refused with one error") { holds(data_json()); }
TEST_CASE("a foreign HDF5 file is accepted whole or refused with one error") { holds(hdf5_gate()); }
TEST_CASE("settings of a PEFT adapter are accepted whole or refused with one error") { holds(adapter_config()); }
TEST_CASE("a Hugging Face config is accepted whole or refused with one error") { holds(hf_config()); }
TEST_CASE("an llm.c checkpoint is accepted whole or refused with one error") { holds(llmc_header()); }
TEST_CASE("a token file of llm.c is accepted whole or refused with one error") { holds(llmc_tokens()); }
TEST_CASE("a pattern of a tokenizer.json searches a text within its time limit or is refused with one error") {
  holds(pattern_time());
}
TEST_CASE("a run folder of any content becomes a report within its bounds") { holds(run_log()); }
TEST_CASE("a safetensors file is accepted whole or refused with one error") { holds(safetensors_header()); }
TEST_CASE("an index of safetensors files is accepted whole or refused with one error") { holds(safetensors_index()); }
TEST_CASE("a schedule's text is accepted whole or refused with one error") { holds(schedule_text()); }
TEST_CASE("a stored order of samples is used only if it is one") { holds(stored_order_file()); }
TEST_CASE("text and JSON lines are read whole or refused with one error") { holds(text_lines()); }
TEST_CASE("a token index is accepted whole or refused with one error") { holds(token_index()); }
TEST_CASE("files that add to a tokenizer are accepted whole or refused with one error") { holds(tokenizer_folder()); }
TEST_CASE("a tokenizer.json is accepted whole or refused with one error") { holds(tokenizer_json()); }
TEST_CASE("a tokenizer model is accepted whole or refused with one error") { holds(tokenizer_model()); }
TEST_CASE("a cached verdict on token files never leads out of them") { holds(verdict()); }
TEST_CASE("vocab.txt and tekken.json are accepted whole or refused with one error") { holds(older_vocabularies()); }
TEST_CASE("vocab.json and merges.txt are accepted whole or refused with one error") { holds(vocab_merges()); }

}  // namespace gt::fuzz
