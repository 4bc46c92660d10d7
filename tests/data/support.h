// Shared by the tests of data/: temporary folder, generated text, token files, host device.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "data/tokens/files.h"
#include "data/tokens/token_file.h"
#include "kernels/core/device.h"
#include "tests/support/test.h"

namespace gt::test {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "gptdata-XXXXXX").string();
    GT_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::string& content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
}
inline std::string read_file(const std::string& path) { return read_whole_file(path); }

// Lines of generated words with a skewed distribution: enough structure to train a tokenizer.
inline std::string made_up_text(size_t lines, uint32_t seed = 1) {
  std::mt19937 r(seed), w(99);
  std::vector<std::string> words;
  for (int i = 0; i < 700; ++i) {
    std::string word;
    for (uint32_t k = 2 + w() % 7; k > 0; --k) word += "etaoinshrdlucmfwyp"[w() % 18];
    words.push_back(word);
  }
  std::string text;
  for (size_t i = 0; i < lines; ++i) {
    for (uint32_t k = 3 + r() % 12; k > 0; --k) {
      text += words[r() % 700 * (r() % 700) / 700];
      text += r() % 9 == 0 ? ", " : " ";
    }
    text += std::to_string(r() % 2000) + ".\n";
  }
  return text;
}

inline void write_documents(const std::string& prefix, const std::vector<std::vector<int32_t>>& documents,
                            TokenType type = TokenType::kU16) {
  TokenFileWriter w(prefix, type);
  for (const auto& d : documents) w.add(d);
  w.finish();
}

// Writes the format's fixture: documents of 5, 3 and 7 tokens; token k of document i is 10 (i + 1) + k.
inline void write_fixture(const std::string& prefix, TokenType type = TokenType::kU16) {
  std::vector<std::vector<int32_t>> documents;
  for (int i = 0; i < 3; ++i) {
    documents.emplace_back();
    for (int k = 0; k < (i == 0 ? 5 : i == 1 ? 3 : 7); ++k) documents.back().push_back(10 * (i + 1) + k);
  }
  write_documents(prefix, documents, type);
}

// Documents of 0 to 60 tokens below 1000, from a seeded generator.
inline std::vector<std::vector<int32_t>> made_up_documents(size_t count, uint32_t seed = 7) {
  std::mt19937 r(seed);
  std::vector<std::vector<int32_t>> documents(count);
  for (auto& d : documents) {
    d.resize(r() % 61);
    for (auto& t : d) t = static_cast<int32_t>(r() % 1000);
  }
  return documents;
}

// Runs `body`, expects an Error with this exit code whose text contains all parts; returns the text.
template <class F>
std::string expect_error(Exit code, const std::vector<std::string>& parts, F&& body) {
  try {
    body();
  } catch (const Error& e) {
    const std::string text = e.what();
    INFO(text);
    CHECK(static_cast<int>(e.code()) == static_cast<int>(code));
    for (const std::string& part : parts) {
      INFO("expected in the message: " << part);
      CHECK(text.find(part) != std::string::npos);
    }
    return text;
  }
  FAIL("no error, expected one with: " << (parts.empty() ? "" : parts[0]));
  return "";
}

// Host memory as a synchronous device.
inline const DeviceApi& host_device() {
  static const DeviceApi api = [] {
    DeviceApi d;
    d.name = "host";
    d.alloc = [](int, int64_t n) { return std::aligned_alloc(256, static_cast<size_t>((n + 255) / 256 * 256)); };
    d.free = [](int, void* p, int64_t) { std::free(p); };
    d.alloc_host = [](int64_t n) { return std::aligned_alloc(256, static_cast<size_t>((n + 255) / 256 * 256)); };
    d.free_host = [](void* p, int64_t) { std::free(p); };
    d.copy = [](void* a, const void* b, int64_t n, Stream) { std::memcpy(a, b, static_cast<size_t>(n)); };
    d.zero = [](void* a, int64_t n, Stream) { std::memset(a, 0, static_cast<size_t>(n)); };
    d.open_stream = [](int, int) { return Stream{}; };
    d.close_stream = [](Stream) {};
    d.synchronize = [](Stream) {};
    d.create_event = [](int) -> Event { return nullptr; };
    d.destroy_event = [](Event) {};
    d.record = [](Event, Stream) {};
    d.wait = [](Event, Stream) {};
    d.done = [](Event) { return true; };
    d.count = [] { return 1; };
    d.describe = [](int) { return std::string("host"); };
    d.memory = [](int, int64_t* f, int64_t* t) { *f = *t = int64_t{1} << 30; };
    return d;
  }();
  return api;
}

}  // namespace gt::test
