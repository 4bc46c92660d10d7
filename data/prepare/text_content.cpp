#include "data/prepare/text_content.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"
#include "kernels/core/text.h"

namespace gt {
namespace {

using namespace std::string_view_literals;

struct Magic {
  size_t at;
  std::string_view bytes;
  const char *what, *advice;  // FILE stands for the path
  bool textual = false;       // what follows may be letters
};

constexpr const char* kMedia = "it holds no text; leave it out";
constexpr const char* kPrepared = "give its prefix as data.train; it needs no preparation";
constexpr const char* kPandas =
    "write its text column as JSON lines: python3 -c \"import pandas as pd; pd.read_parquet('FILE')"
    ".to_json('FILE.jsonl', orient='records', lines=True)\"";
constexpr const char* kFeather =
    "write its text column as JSON lines: python3 -c \"import pandas as pd; pd.read_feather('FILE')"
    ".to_json('FILE.jsonl', orient='records', lines=True)\"";
constexpr const char* kOffice = "convert it: pandoc -t plain FILE -o FILE.txt";
constexpr const char* kOldOffice = "convert it: libreoffice --headless --convert-to txt FILE";

constexpr Magic kMagics[] = {
    // compressed
    {0, "\x28\xB5\x2F\xFD"sv, "zstd data", "unpack it: zstd -d FILE"},
    {1, "\x2A\x4D\x18"sv, "zstd or lz4 data", "unpack it: zstd -d FILE"},
    {0, "\xFD\x37zXZ\0"sv, "xz data", "unpack it: xz -dk FILE"},
    {0, "\x04\x22\x4D\x18"sv, "lz4 data", "unpack it: lz4 -d FILE"},
    {0, "\x02\x21\x4C\x18"sv, "lz4 data", "unpack it: lz4 -d FILE"},
    {0, "\x5D\0\0"sv, "lzma data", "unpack it: xz -dk --format=lzma FILE"},
    {0, "LZIP\1"sv, "lzip data", "unpack it: lzip -dk FILE"},
    {0, "\x89LZO\0"sv, "lzop data", "unpack it: lzop -d FILE"},
    {0, "\x1F\x9D"sv, "data of compress", "unpack it: gzip -dk FILE"},
    {0, "\x1F\x8B"sv, "gzip data", "unpack it: gzip -dk FILE"},  // inside of gzip data, which is unpacked once
    {0, "\xFF\x06\0\0sNaPpY"sv, "snappy data", "unpack it: python3 -m snappy -d FILE FILE.txt"},
    // archives
    {0, "7z\xBC\xAF\x27\x1C"sv, "a 7z archive", "unpack it: 7z x FILE"},
    {0, "Rar!\x1A\x07"sv, "a rar archive", "unpack it: unrar x FILE"},
    {257, "ustar"sv, "a tar archive", "unpack it: tar xf FILE"},
    {0, "070701"sv, "a cpio archive", "unpack it: cpio -id < FILE"},
    {0, "070707"sv, "a cpio archive", "unpack it: cpio -id < FILE"},
    {0, "!<arch>\n"sv, "an ar archive", "unpack it: ar x FILE"},
    {0, "\xED\xAB\xEE\xDB"sv, "an rpm package", kMedia},
    // tables and arrays
    {0, "PAR1"sv, "a parquet table", kPandas},
    {0, "PARE"sv, "an encrypted parquet table", kPandas},
    {0, "ARROW1\0\0"sv, "an arrow (feather) table", kFeather},
    {0, "FEA1"sv, "a feather table", kFeather},
    {0, "ORC\x0A"sv, "an ORC table",
     "write its text column as JSON lines: python3 -c \"import pandas as pd; "
     "pd.read_orc('FILE').to_json('FILE.jsonl', orient='records', lines=True)\""},
    {0, "Obj\1"sv, "an avro file", "write its text column as JSON lines: avro-tools tojson FILE > FILE.jsonl"},
    {0, "SQLite format 3\0"sv, "an SQLite database",
     "write its text: sqlite3 FILE 'select text from TABLE' > FILE.txt"},
    {0, "\x93NUMPY"sv, "a numpy array", "text is expected; for tokens write PREFIX.bin and PREFIX.idx"},
    {0, "\x89HDF\r\n\x1A\n"sv, "an HDF5 file", "write its text: h5dump -d /text FILE"},
    {0, "MMIDIDX\0"sv, "the index of token files", kPrepared},
    {0, "GGUF"sv, "a GGUF model", "it holds no text; leave it out"},
    {0, "%PDF-"sv, "a PDF document", "convert it: pdftotext FILE FILE.txt", true},
    {0, "%!PS"sv, "a PostScript document", "convert it: ps2ascii FILE FILE.txt", true},
    {0, "{\\rtf"sv, "an RTF document", kOffice, true},
    {0, "\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, "an old Office document", kOldOffice},
    {0, "AT&TFORM"sv, "a DjVu document", "convert it: djvutxt FILE FILE.txt"},
    {0, "version https://git-lfs.github.com/spec/"sv, "a Git LFS pointer, not the file itself",
     "fetch it: git lfs pull", true},
    // media and programs
    {0, "\x89PNG\r\n\x1A\n"sv, "a PNG image", kMedia},
    {0, "\xFF\xD8\xFF"sv, "a JPEG image", kMedia},
    {0, "GIF87a"sv, "a GIF image", kMedia},
    {0, "GIF89a"sv, "a GIF image", kMedia},
    {0, "II*\0"sv, "a TIFF image", kMedia},
    {0, "MM\0*"sv, "a TIFF image", kMedia},
    {0, "OggS\0"sv, "an Ogg file", kMedia},
    {0, "fLaC"sv, "a FLAC file", kMedia},
    {0, "ID3"sv, "an MP3 file", kMedia},
    {4, "ftyp"sv, "an MP4 file", kMedia},
    {0, "\x1A\x45\xDF\xA3"sv, "a Matroska file", kMedia},
    {0,
     "\x7F"
     "ELF"sv,
     "a program", kMedia},
    {0, "\0asm"sv, "a program", kMedia},
    {0, "\xCA\xFE\xBA\xBE"sv, "a program", kMedia},
    {0, "\xCF\xFA\xED\xFE"sv, "a program", kMedia},
};

bool at(std::string_view head, size_t where, std::string_view bytes) {
  return head.size() >= where + bytes.size() && head.substr(where, bytes.size()) == bytes;
}

// The file in a shell command, and in the name of what it writes.
std::string for_file(std::string advice, const std::string& path) {
  const std::string word = path == "-" ? "FILE" : path;
  for (size_t k = 0; (k = advice.find("FILE", k)) != std::string::npos;) {
    const bool quoted = k > 0 && advice[k - 1] == '\'';
    const bool suffixed = k + 4 < advice.size() && advice[k + 4] == '.';
    size_t length = 4;
    std::string put = word;
    if (suffixed)
      length = std::min(advice.find_first_of(" '", k), advice.size()) - k, put += advice.substr(k + 4, length - 4);
    if (!quoted && word != "FILE") put = shell_word(put);
    advice.replace(k, length, put);
    k += put.size();
  }
  return advice;
}

// A zip archive by what is in it.
NotText zip_archive(std::string_view head) {
  const auto holds = [&](std::string_view name) { return head.find(name) != std::string_view::npos; };
  if (holds("mimetypeapplication/")) return {"an e-book or Office document (zip)", kOffice};
  if (holds("[Content_Types].xml") || holds("word/") || holds("xl/"))
    return {"an Office document (zip)", holds("xl/") ? kOldOffice : kOffice};
  if (holds(".npy")) return {"a numpy archive (npz)", "text is expected; for tokens write PREFIX.bin and PREFIX.idx"};
  if (holds("data.pkl")) return {"a PyTorch file", "text is expected; write what it holds as text"};
  return {"a zip archive", "unpack it: unzip FILE"};
}

// A tar archive of before POSIX has no magic, but a checksum of its header.
bool is_old_tar(std::string_view head) {
  if (head.size() < 512 || head[0] == 0) return false;
  int64_t sum = 0, given = 0;
  for (size_t k = 0; k < 512; ++k) sum += k >= 148 && k < 156 ? ' ' : static_cast<unsigned char>(head[k]);
  bool digits = false;
  for (size_t k = 148; k < 156 && (head[k] == ' ' || (head[k] >= '0' && head[k] <= '7')); ++k)
    if (head[k] != ' ') given = 8 * given + (head[k] - '0'), digits = true;
  return digits && sum == given;
}

NotText by_magic(std::string_view head) {
  if (at(head, 0, "PK\3\4") || at(head, 0, "PK\5\6") || at(head, 0, "PK\7\x08")) return zip_archive(head);
  if (at(head, 0, "BZh") && head.size() > 9 && head[3] >= '1' && head[3] <= '9' &&
      (at(head, 4, "1AY&SY") || at(head, 4, "\x17\x72\x45\x38\x50\x90")))
    return {"bzip2 data", "unpack it: bunzip2 -k FILE"};
  // A text may begin with the letters of a magic, but it goes on as text.
  const ByteCounts begin = count_bytes(head.substr(0, 512));
  const bool like_text = begin.control + begin.invalid == 0;
  for (const Magic& m : kMagics)
    if (at(head, m.at, m.bytes) && (!like_text || m.textual)) return {m.what, m.advice};
  if (is_old_tar(head)) return {"a tar archive", "unpack it: tar xf FILE"};
  if (at(head, 0, "\xFF\xFF\xFF\xFF") && head.size() > 8 && head[6] == 0 && head[7] == 0)
    return {"an arrow stream",
            "write its text column as JSON lines: python3 -c \"from datasets import Dataset; "
            "Dataset.from_file('FILE').to_json('FILE.jsonl')\""};
  if (head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5)
    return {"a Python pickle", "write what it holds as text or JSON lines"};
  if (at(head, 0, "RIFF") && (at(head, 8, "WAVE") || at(head, 8, "WEBP") || at(head, 8, "AVI ")))
    return {"a sound, image or film (RIFF)", kMedia};
  if (head.size() > 16 && at(head, 8, "{\"") && head[6] == 0 && head[7] == 0)
    return {"a safetensors file", "it holds weights, no text"};
  return {};
}

constexpr const char* kUtf16 = "convert it: iconv -f UTF-16 -t UTF-8 FILE > FILE.utf8";
constexpr const char* kUtf32 = "convert it: iconv -f UTF-32 -t UTF-8 FILE > FILE.utf8";

NotText by_byte_order(std::string_view head) {
  if (at(head, 0, "\xFF\xFE\0\0"sv) || at(head, 0, "\0\0\xFE\xFF"sv)) return {"text in UTF-32", kUtf32};
  if (at(head, 0, "\xFF\xFE") || at(head, 0, "\xFE\xFF")) return {"text in UTF-16", kUtf16};
  // Without a byte order mark: zeros at fixed places between the letters of Western text.
  std::array<size_t, 4> zeros{};
  for (size_t k = 0; k < head.size(); ++k) zeros[k % 4] += head[k] == 0 ? 1 : 0;
  const size_t most = head.size() / 4, many = most * 7 / 10, few = most / 5;
  if (most < 4) return {};
  if ((zeros[1] > many && zeros[2] > many) && (zeros[0] < few) != (zeros[3] < few))
    return {"text in UTF-32", zeros[0] < few ? "convert it: iconv -f UTF-32LE -t UTF-8 FILE > FILE.utf8"
                                             : "convert it: iconv -f UTF-32BE -t UTF-8 FILE > FILE.utf8"};
  const bool odd = zeros[1] > many && zeros[3] > many, even = zeros[0] > many && zeros[2] > many;
  if (odd && zeros[0] + zeros[2] < 2 * few)
    return {"text in UTF-16", "convert it: iconv -f UTF-16LE -t UTF-8 FILE > FILE.utf8"};
  if (even && zeros[1] + zeros[3] < 2 * few)
    return {"text in UTF-16", "convert it: iconv -f UTF-16BE -t UTF-8 FILE > FILE.utf8"};
  return {};
}

NotText by_shares(std::string_view head) {
  const ByteCounts c = count_bytes(head);
  // A few such bytes, as in a terminal's log or after an error of a crawler, do not make a file binary.
  if ((c.control >= 8 && c.control * 50 > c.bytes) || c.zeros * 50 > c.bytes)
    return {cat("binary data: its first ", c.bytes, " bytes hold ", c.zeros, " zero bytes and ", c.control - c.zeros,
                " other control characters"),
            "give text, JSON lines, or as data.train the prefix that gpttrain data prepare wrote"};
  if (c.invalid < 3 || c.invalid * 100 <= c.bytes) return {};
  int64_t high = 0;
  for (const char b : head) high += static_cast<unsigned char>(b) >= 0x80 ? 1 : 0;
  // Letters with accents are few among Latin ones; other scripts have two or more such bytes a character.
  const bool latin = high * 3 < c.bytes;
  return {
      cat("text that is not UTF-8 (", c.invalid, " of its first ", c.bytes, " bytes are invalid)"),
      cat("convert it from its encoding, ",
          latin ? "probably: iconv -f WINDOWS-1252"
                : "such as GB18030, BIG5, SHIFT_JIS, EUC-KR, WINDOWS-1251 or KOI8-R: iconv -f GB18030",
          " -t UTF-8 FILE > FILE.utf8 - or leave out what is invalid: iconv -c -f UTF-8 -t UTF-8 FILE > FILE.utf8")};
}

}  // namespace

NotText not_text(std::string_view head, const std::string& path) {
  NotText found = by_magic(head);
  if (!found) found = by_byte_order(head);
  if (!found) found = by_shares(head);
  found.advice = for_file(found.advice, path);
  return found;
}

ByteCounts count_bytes(std::string_view s) {
  ByteCounts c{.bytes = static_cast<int64_t>(s.size())};
  for (const char b : s) {
    c.zeros += b == 0 ? 1 : 0;
    c.control += (static_cast<unsigned char>(b) < 32 && !(b >= 8 && b <= 13) && b != 27) || b == 127 ? 1 : 0;
  }
  s.remove_suffix(utf8_open_suffix(s));
  for (;;) {
    s.remove_prefix(utf8_valid_prefix(s));
    if (s.empty()) return c;
    ++c.invalid;
    s.remove_prefix(1);
  }
}

bool is_binary_block(const ByteCounts& c) { return c.bytes >= 4096 && 10 * (c.control + c.invalid) > c.bytes; }

}  // namespace gt
