// TensorBoard event files byte for byte, and CRC-32C.
#include "launch/observe/sinks/tensorboard.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/core/hash/crc32c.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const unsigned char c : bytes) out += "0123456789abcdef"[c >> 4], out += "0123456789abcdef"[c & 15];
  return out;
}

struct TempFolder {
  TempFolder() : path(std::filesystem::temp_directory_path() / ("gpt_tb_test_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path);
  }
  ~TempFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns the number of records with valid checksums before the first invalid or truncated one.
size_t count_records(const std::string& file) {
  size_t n = 0;
  const auto masked = [](uint32_t c) { return ((c >> 15) | (c << 17)) + 0xA282EAD8u; };
  for (size_t at = 0; at + 12 <= file.size(); ++n) {
    uint64_t length;
    uint32_t crc;
    std::memcpy(&length, &file[at], 8);
    std::memcpy(&crc, &file[at + 8], 4);
    if (crc != masked(crc32c(&file[at], 8)) || at + 16 + length > file.size()) break;
    std::memcpy(&crc, &file[at + 12 + length], 4);
    if (crc != masked(crc32c(&file[at + 12], length))) break;
    at += 16 + length;
  }
  return n;
}

}  // namespace

TEST_CASE("event records are byte-compatible with TensorBoard") {
  CHECK(hex(tfrecord(event_file_version(1700000000.25))) ==
        "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9");
  CHECK(hex(tfrecord(event_session_start(1700000000.25, 11))) ==
        "0f000000000000006d532b090900001040fc54d941100b3a0208014a072f61");
  CHECK(hex(tfrecord(event_scalar(1700000001.5, 11, "train/loss", 2.5f))) ==
        "200000000000000029eda9500900006040fc54d941100b2a130a110a0a747261696e2f6c6f7373150000204064b93c14");
  CHECK(hex(tfrecord(event_text(2.0, 0, "run/command", "gpttrain --tp 2"))) ==
        "410000000000000000a9c2ab0900000000000000402a360a340a0b72756e2f636f6d6d616e644219080712041202080142"
        "0f677074747261696e202d2d747020324a0a0a060a047465787420028607ad19");
}

TEST_CASE("a scalar of 0, NaN or infinity is written unchanged") {
  const auto value_of = [](float x) {
    const std::string e = event_scalar(1, 1, "t", x);
    float y;
    std::memcpy(&y, e.data() + e.size() - 4, 4);
    return y;
  };
  CHECK(value_of(0) == 0);
  CHECK(std::isnan(value_of(NAN)));
  CHECK(value_of(-INFINITY) == -INFINITY);
}

TEST_CASE("a file truncated at any byte loses only its last records") {
  TempFolder folder;
  std::string path;
  {
    TensorBoardFile file(folder.path, 1, 1700000000);
    path = file.path();
    for (int i = 1; i <= 5; ++i) file.scalar("train/loss", i, i, 1700000000 + i);
  }
  CHECK_THAT(std::filesystem::path(path).filename().string(), Catch::StartsWith("events.out.tfevents.1700000000."));
  const std::string all = read_file(path);
  REQUIRE(count_records(all) == 7);
  size_t last = 0;
  for (size_t n = 0; n <= all.size(); ++n) {
    const size_t now = count_records(all.substr(0, n));
    REQUIRE((now == last || now == last + 1));
    last = now;
  }
}

TEST_CASE("a host whose clock is behind the event files goes on with their names and times") {
  const TempFolder dir;
  constexpr double kAhead = 2'000'000'000.5, kBehind = 1'700'000'000.25;
  std::vector<std::string> paths;
  for (const double clock : {kAhead, kBehind, kBehind + 5, kAhead + 100}) {
    TensorBoardFile file(dir.path, 1, clock);
    file.scalar("train/loss", 1, 1, clock);
    file.scalar("train/loss", 1, 2, clock - 50);  // the clock is set back
    file.scalar("train/loss", 1, 3, clock + 2);
    file.flush();
    if (!paths.empty()) CHECK(file.path() > paths.back());
    paths.push_back(file.path());
  }
  CHECK(last_event_time(paths[0]) == kAhead + 2);
  CHECK(last_event_time(paths[1]) == kAhead + 4);  // seconds between events stay as they were
  CHECK(last_event_time(paths[2]) == kAhead + 6);
  CHECK(last_event_time(paths[3]) == kAhead + 102);
}

TEST_CASE("a damaged event file counts up to its first invalid length") {
  const TempFolder dir;
  const std::string whole = tfrecord(event_file_version(1000)) + tfrecord(event_scalar(2000, 1, "x", 1));
  for (size_t n = 0; n <= whole.size(); ++n) {
    std::ofstream(dir.path + "/f", std::ios::binary) << whole.substr(0, n);
    const double time = last_event_time(dir.path + "/f");
    CHECK((time == 0 || time == 1000 || time == 2000));
  }
  CHECK(last_event_time(dir.path + "/f") == 2000);
  std::string wrong = whole;
  wrong[7] = '\x7f';  // a length beyond the file
  std::ofstream(dir.path + "/f", std::ios::binary) << wrong;
  CHECK(last_event_time(dir.path + "/f") == 0);
  CHECK(last_event_time(dir.path + "/missing") == 0);
  CHECK(last_event_time(dir.path) == 0);
  std::ofstream(dir.path + "/events.out.tfevents.99999999999999999999.h.1.0") << "no number";
  std::ofstream(dir.path + "/events.out.tfevents.") << "nothing";
  CHECK(TensorBoardFile(dir.path, 1, 1234.5).path().find("tfevents.0000001234.") != std::string::npos);
}

TEST_CASE("an unwritable file is reported with name and reason") {
  CHECK_THROWS_WITH(TensorBoardFile("/no/such/folder", 1, 1),
                    Catch::Contains("/no/such/folder/events.out.tfevents") && Catch::Contains("No such file"));
}

TEST_CASE("a million scalars take seconds, not minutes") {
  TempFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  TensorBoardFile file(folder.path, 1, 1700000000);
  for (int i = 0; i < 1'000'000; ++i) file.scalar("train/loss", i, i, 1700000000);
  file.flush();
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
        15);  // about 1 s on a quiet core
}
