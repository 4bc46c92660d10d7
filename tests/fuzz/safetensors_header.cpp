#include "checkpoint/weights/weights.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

// On acceptance, every weight tensor must be readable.
void run(std::string_view input) {
  OneFile vfs(input);
  std::unique_ptr<WeightFile> f;
  if (refused([&] { f = open_safetensors(vfs, kAnyPath); })) return;
  int64_t values = 0;
  for (size_t k = 0; k < f->list().size(); ++k) refused([&] { values += static_cast<int64_t>(f->read(k).size()); });
  GT_CHECK(2 * values <= static_cast<int64_t>(input.size()), "tensors hold more than the file");
}

std::string file(const std::string& header, size_t data) {
  return number_bytes(header.size(), 8) + header + std::string(data, '\x3f');
}

std::vector<std::string> seeds() {
  return {
      file(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
           R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}}   )",
           32),
      file(
          R"({"a":{"dtype":"F16","shape":[],"data_offsets":[0,2]},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[2,2]},)"
          R"("i":{"dtype":"I64","shape":[1],"data_offsets":[2,10]}})",
          10),
      file("{}", 0),
      number_bytes(~0ull, 8) + "{}",
      file(std::string(100000, '{'), 0),
      file(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0]}})", 0)};
}

}  // namespace

Target safetensors_header() {
  return {"safetensors_header",
          run,
          seeds,
          {"\"dtype\":\"F32\"", "\"shape\":", "\"data_offsets\":", "__metadata__", "4611686018427387904", "[0,0]", "-1",
           "..", "\"", "F8_E4M3", "18446744073709551615", "\\u0000", "1.5"},
          30000};
}

}  // namespace gt::fuzz
