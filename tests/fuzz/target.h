// Fuzz targets: one parser of untrusted bytes each, in tests/fuzz/<name>.cpp. An input is accepted, and then what was
// read is walked and written again, or it is refused with one error of its reader; anything else is a finding.
// Knows no engine: fuzz_test.cpp brings the inputs.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/vfs.h"
#include "kernels/core/check.h"

namespace gt::fuzz {

struct Target {
  const char* name;
  void (*run)(std::string_view input);  // throws for a finding
  std::vector<std::string> (*seeds)();  // inputs that are accepted, or nearly, made by our own writers
  std::vector<std::string> words;       // what a mutation may insert: keywords of the format
  int inputs;                           // mutated inputs of a normal test run: a second or two
};

Target checkpoint();         // a whole folder: generate, eval and export
Target checkpoint_config();  // config.json of a foreign checkpoint
Target ckpt_index();         // rank-00000.idx, its checksums repaired
Target ckpt_manifest();      // manifest.json, sealed again
Target config_json();        // --config
Target data_json();          // what lies beside token files, and the loader's cursor in a checkpoint
Target deepspeed_json();     // --deepspeed_config
Target hdf5_gate();          // .h5 of import: the reader is a child process
Target hf_config();          // config.json of Hugging Face
Target import_folder();      // a Hugging Face folder: import, then generate
Target llmc_header();        // llm.c's models
Target llmc_tokens();        // llm.c's tokens
Target safetensors_header();
Target safetensors_index();  // model.safetensors.index.json of a folder of several
Target schedule_text();      // --parallel.schedule file:
Target token_index();        // .idx beside a .bin
Target tokenizer_model();    // SentencePiece models: the walker, then the library

std::vector<Target> all_targets();
// Its seeds, and what is kept in corpus/<target>/.
std::vector<std::string> corpus(const Target& t);

// What became of the current input: the texts of the errors that refused it (every rule has a text of its own, so a new
// text says that a mutation got somewhere new), and how many readers took it.
struct Outcome {
  std::string refusals;
  int accepted = 0;
};
Outcome& outcome();

// Runs `read`; true when it refused its input as a reader may. Other errors go on: they are findings.
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

// A file in memory whose bytes are replaced for every input; its folder goes with the process.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name);
  void put(std::string_view bytes) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Serves these bytes for whatever is opened: parsers that read through a Vfs need no file at all.
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
constexpr const char* kAnyPath = "/dev/null";  // exists, and OneFile is asked for it

std::string number_bytes(uint64_t value, size_t width);  // little-endian

}  // namespace gt::fuzz
