#include "kernels/core/file_kind.h"

#include <algorithm>
#include <cctype>

#include "kernels/core/check.h"
#include "kernels/core/text.h"

namespace gt {
namespace {

struct Kind {
  std::string_view magic;
  const char* text;
};

constexpr const char* kConvert =
    "which are not read, since reading them runs code; convert them with transformers' "
    "save_pretrained(safe_serialization=True)";

constexpr Kind kKinds[] = {
    {"version https://git-lfs.github.com/spec/",
     "is a Git LFS pointer, not the file itself: run git lfs pull in the folder that was cloned"},
    {"\x1f\x8b", "is compressed with gzip; unpack it with gunzip"},
    {"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it with unzstd"},
    {{"\xfd\x37zXZ\0", 6}, "is compressed with xz; unpack it with unxz"},
    {"BZh", "is compressed with bzip2; unpack it with bunzip2"},
    {"PK\x03\x04", "is a zip archive, which is how torch.save stores pickled Python objects"},
    {"GGUF", "is a GGUF file of llama.cpp, which is not read; give the Hugging Face folder that it was made from"},
    {"\x89HDF\r\n\x1a\n", "is an HDF5 file; gpttrain import --from reads one that is given alone"},
    {"\x93NUMPY", "is a NumPy array"},
};

bool is_printable(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) {
    return (static_cast<unsigned char>(c) >= 32 && c != 127) || c == '\n' || c == '\r' || c == '\t';
  });
}

std::string lower(std::string_view s) {
  std::string out(s);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

std::string other_kind(std::string_view beginning) {
  for (const Kind& k : kKinds)
    if (beginning.starts_with(k.magic)) return k.magic[0] == 'P' ? cat(k.text, ", ", kConvert) : k.text;
  if (beginning.size() > 2 && beginning[0] == '\x80' && beginning[1] >= 2 && beginning[1] <= 5)
    return cat("holds pickled Python objects, ", kConvert);
  const size_t first = std::min(beginning.find_first_not_of(" \t\r\n"), beginning.size());
  const std::string_view text = beginning.substr(first);
  const std::string small = lower(text.substr(0, 16));
  for (const char* tag : {"<!doctype", "<html", "<?xml", "<head"})
    if (small.starts_with(tag))
      return "is a web page, not the file itself: its download needs a login or another address (hf download logs in)";
  const std::string_view shown = text.substr(0, 80);
  if (!beginning.empty() && is_printable(shown))
    return cat("is a text that begins with \"", printable(std::string(shown)), "\"");
  if (beginning.size() > 16 && beginning.find_first_not_of('\0') == std::string_view::npos)
    return "begins with zeros, as an unfinished download does; download it again";
  return "";
}

}  // namespace gt
