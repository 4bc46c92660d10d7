#include "tests/fuzz/target.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/paths.h"

namespace gt::fuzz {
namespace fs = std::filesystem;
namespace {

struct Folder {
  std::string path = cat(fs::exists("/dev/shm") ? "/dev/shm" : "/tmp", "/gpttrain-fuzz-", ::getpid());
  Folder() {
    fs::create_directories(path);
    fs::permissions(path, fs::perms::owner_all);  // whatever the umask: caches are in it
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

}  // namespace

Outcome& outcome() {
  static Outcome last;
  return last;
}

std::vector<Target> all_targets() {
  return {adapter_config(),    chat(),          checkpoint(),         checkpoint_config(), ckpt_index(),
          ckpt_manifest(),     config_json(),   data_json(),          deepspeed_json(),    hdf5_gate(),
          hf_config(),         import_folder(), llmc_header(),        llmc_tokens(),       older_vocabularies(),
          pattern_time(),      run_log(),       safetensors_header(), safetensors_index(), schedule_text(),
          stored_order_file(), text_lines(),    token_index(),        tokenizer_folder(),  tokenizer_json(),
          tokenizer_model(),   verdict(),       vocab_merges()};
}

std::vector<std::string> corpus(const Target& t) {
  std::vector<std::string> out = t.seeds();
  const fs::path dir = fs::path(source_dir()) / "tests/fuzz/corpus" / t.name;
  std::vector<fs::path> files;
  if (fs::exists(dir))
    for (const auto& e : fs::directory_iterator(dir)) files.push_back(e.path());
  std::sort(files.begin(), files.end());
  Vfs vfs;
  for (const fs::path& f : files) out.push_back(read_file(vfs, f.string(), 1 << 20));
  return out;
}

ScratchFile::ScratchFile(const std::string& name) {
  static const Folder folder;
  path_ = folder.path + "/" + name;
}

void ScratchFile::put(std::string_view bytes) const {
  std::ofstream out(path_, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  GT_CHECK(out, "cannot write ", path_);
}

int64_t OneFile::pread(int, void* data, int64_t bytes, int64_t offset) {
  const auto size = static_cast<int64_t>(bytes_.size());
  const int64_t n = std::clamp<int64_t>(size - offset, 0, bytes);
  if (n > 0) std::memcpy(data, bytes_.data() + offset, static_cast<size_t>(n));
  return n;
}

std::string number_bytes(uint64_t value, size_t width) {
  std::string out(width, '\0');
  std::memcpy(out.data(), &value, width);
  return out;
}

}  // namespace gt::fuzz
