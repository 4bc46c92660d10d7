// Fuzz targets: one parser of untrusted bytes each, in tests/fuzz/<name>.cpp. Every input is either accepted, then
// walked and written back, or refused with one error of its reader; anything else is a finding. Independent of the
// fuzzing engine: fuzz_test.cpp supplies the inputs.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/vfs.h"
#include "kernels/core/check.h"

namespace gt::fuzz {

struct Target {
  const char* name;
  void (*run)(std::string_view input);  // throws on a finding
  std::vector<std::string> (*seeds)();  // accepted or nearly accepted inputs, made by our own writers
  std::vector<std::string> words;       // words that a mutation may insert: keywords of the format
  int inputs;                           // mutated inputs in a normal test run: a second or two
};

Target adapter_config();      // adapter_config.json of PEFT
Target chat();                // lines of conversations, chat templates
Target checkpoint();          // a whole folder: generate, eval and export
Target checkpoint_config();   // config.json of a foreign checkpoint
Target ckpt_index();          // rank-00000.idx, its checksums repaired
Target ckpt_manifest();       // manifest.json, resealed
Target config_json();         // --config
Target data_json();           // JSON files beside token files, and the loader's cursor in a checkpoint
Target deepspeed_json();      // --deepspeed_config
Target hdf5_gate();           // .h5 of import: the reader is a child process
Target hf_config();           // config.json of Hugging Face
Target import_folder();       // a Hugging Face folder: import, then generate
Target llmc_header();         // llm.c's models
Target llmc_tokens();         // llm.c's tokens
Target older_vocabularies();  // BERT's vocab.txt and Mistral's tekken.json
Target pattern_time();        // patterns of a tokenizer.json and a text: within the time limit, or refused
Target run_log();             // log.jsonl and traces of a run folder: report, watch
Target safetensors_header();
Target safetensors_index();  // model.safetensors.index.json of a sharded model
Target schedule_text();      // --parallel.schedule file:
Target stored_order_file();  // an order of samples in the cache folder, its hash repaired
Target text_lines();         // text and JSON lines of data prepare and tokenizer train
Target token_index();        // .idx beside a .bin
Target tokenizer_folder();   // files beside a SentencePiece model that add tokens to it
Target tokenizer_json();     // tokenizer.json of any kind, with its tokenizer_config.json
Target tokenizer_model();    // SentencePiece models: the walker, then the library
Target verdict();            // the cached result of the checks of token files
Target vocab_merges();       // GPT-2's vocab.json and merges.txt, with the names of its special tokens

std::vector<Target> all_targets();
// Returns the target's seeds and the inputs in corpus/<target>/.
std::vector<std::string> corpus(const Target& t);

// Result of the current input: the messages of the errors that refused it, and how many readers accepted it. Every rule
// has its own message, so a new message means new coverage.
struct Outcome {
  std::string refusals;
  int accepted = 0;
};
Outcome& outcome();

// Runs `read`; returns true when it refused its input properly. Other errors propagate: they are findings.
template <class Read>
bool refused(const Read& read) {
  try {
    read();
  } catch (const Error& e) {
    if (e.code() != Exit::kUsage && e.code() != Exit::kDamaged) throw;
    outcome().refusals += e.what();
    return true;
  }
  ++outcome().accepted;
  return false;
}

// A memory-backed file whose contents are replaced for every input; its folder is removed with the process.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name);
  void put(std::string_view bytes) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Serves these bytes for any path, so that parsers using a Vfs need no file.
class OneFile : public Vfs {
 public:
  explicit OneFile(std::string_view bytes) : bytes_(bytes) {}
  int open(const std::string&, int, int) override { return 1000; }
  int close(int) override { return 0; }
  int64_t pread(int, void* data, int64_t bytes, int64_t offset) override;
  int64_t size(int) override { return static_cast<int64_t>(bytes_.size()); }
  void drop_cache(int) override {}

 private:
  std::string_view bytes_;
};
constexpr const char* kAnyPath = "/dev/null";  // exists; OneFile serves it

std::string number_bytes(uint64_t value, size_t width);  // little-endian

}  // namespace gt::fuzz
