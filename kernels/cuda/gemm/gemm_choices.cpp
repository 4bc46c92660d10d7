#include "kernels/cuda/gemm/gemm_choices.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/core/cache_files.h"
#include "kernels/core/check.h"

namespace gt::cuda {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTitle = "gpttrain gemm plans 1";

// Default plan file in the user's cache, named after device and library versions; empty without a cache folder.
std::string default_file(const std::string& identity) {
  std::string name = "gemm-plans-" + identity + ".txt";
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.') c = '-';
  const std::string folder = cache_folder();
  return folder.empty() ? "" : cat(folder, '/', name);
}

std::string hex(const GemmChoice& c) {
  std::string out;
  char word[17];
  for (const uint64_t w : c.algo) {
    std::snprintf(word, sizeof word, "%016llx", static_cast<unsigned long long>(w));
    out += word;
  }
  return out;
}

bool from_hex(const std::string& text, GemmChoice& c) {
  if (text.size() != 128 || text.find_first_not_of("0123456789abcdef") != std::string::npos) return false;
  for (size_t i = 0; i < 8; ++i) c.algo[i] = std::strtoull(text.substr(16 * i, 16).c_str(), nullptr, 16);
  return true;
}

// Parses "KEY | INDEX US HEX".
bool parse_line(const std::string& line, std::string& key, GemmChoice& c) {
  const size_t bar = line.find(" | ");
  if (bar == std::string::npos || bar == 0) return false;
  key = line.substr(0, bar);
  std::istringstream in(line.substr(bar + 3));
  std::string algo, more;
  return in >> c.index >> c.us >> algo && !(in >> more) && from_hex(algo, c) && c.index >= 0 && c.us >= 0 &&
         c.us < 1e12;
}

}  // namespace

GemmChoices& GemmChoices::instance() {
  static GemmChoices& table = *new GemmChoices;  // never destroyed: streams may outlive static objects
  return table;
}

std::string GemmChoices::use(const GemmTuning& tuning, const std::string& identity) {
  const std::lock_guard lock(mutex_);
  GemmTuning requested = tuning;
  if (requested.time && requested.file.empty()) requested.file = default_file(identity);
  const bool on = requested.time || !requested.file.empty();
  if (on == on_ && requested.time == tuning_.time && requested.file == tuning_.file && identity == identity_) return "";
  tuning_ = requested;
  identity_ = identity;
  on_ = on;
  settled_ = false;
  table_.clear();
  may_write_ = on && requested.time && !requested.file.empty();
  return on ? read() : "";
}

// Fills `into`, or returns why not. `ours`: the file was written by this program and may be replaced.
std::string GemmChoices::parse(std::istream& in, Table& into, bool& ours) const {
  std::string line;
  ours = false;
  if (!std::getline(in, line) || line != kTitle) return cat("its first line is not \"", kTitle, '"');
  if (!std::getline(in, line) || line != identity_)
    return cat("it was made for ", line.substr(0, 200), "; this is ", identity_);
  ours = true;
  for (int64_t n = 3; std::getline(in, line); ++n) {
    if (line == cat("end ", into.size())) return "";
    std::string key;
    GemmChoice c;
    if (!parse_line(line, key, c)) return cat("line ", n, " is broken");
    into[key] = c;
  }
  return "its end is missing";
}

// Fills the table, or leaves it empty and returns why.
std::string GemmChoices::read() {
  std::error_code ec;
  if (tuning_.file.empty()) return "device.gemm_tune: no HOME and no XDG_CACHE_HOME: what is timed now is not kept";
  const bool there = fs::exists(tuning_.file, ec);
  if (!there && tuning_.time) return "";
  Table table;
  bool ours = true;
  std::string why = there ? "" : "there is no such file";
  if (there && in_cache()) {
    std::istringstream in(read_cached(tuning_.file, 64 << 20, &why));
    if (why.empty()) why = parse(in, table, ours);
  } else if (there) {
    std::ifstream in(tuning_.file);
    why = parse(in, table, ours);
  }
  if (why.empty()) {
    table_ = std::move(table);
    return "";
  }
  may_write_ = may_write_ && ours;
  return cat("device.gemm_plans: ", tuning_.file, " is not used: ", why,
             tuning_.time ? (may_write_ ? "; it is written anew" : "; what is timed now is not kept")
                          : "; cuBLASLt's first suggestions are");
}

bool GemmChoices::in_cache() const { return fs::path(tuning_.file).parent_path() == cache_folder(); }

std::string GemmChoices::text() const {
  const std::lock_guard lock(mutex_);
  return written();
}

std::string GemmChoices::take(const std::string& text, bool settled) {
  const std::lock_guard lock(mutex_);
  std::istringstream in(text);
  Table table;
  bool ours = false;
  const std::string why = parse(in, table, ours);
  if (why.empty()) {
    table.merge(table_);
    table_ = std::move(table);
  }
  settled_ = settled;
  return why;
}

std::string GemmChoices::written() const {
  std::ostringstream out;
  out << kTitle << '\n' << identity_ << '\n';
  for (const auto& [key, c] : table_) out << key << " | " << c.index << ' ' << c.us << ' ' << hex(c) << '\n';
  out << "end " << table_.size() << '\n';
  return out.str();
}

// Writes a temporary file and renames it: readers see the old or the new file, never a part. An unwritable cache is not
// an error.
void GemmChoices::write() const {
  if (in_cache()) {
    write_cached(tuning_.file, written());
    return;
  }
  std::error_code ec;
  const fs::path file = tuning_.file, aside = cat(tuning_.file, '.', getpid());
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), ec);
  std::ofstream out(aside);
  out << written();
  out.close();
  if (out.good()) fs::rename(aside, file, ec);
  if (!out.good() || ec) fs::remove(aside, ec);
}

std::optional<GemmChoice> GemmChoices::choose(const std::string& key, const std::string& identity,
                                              const std::function<bool(const GemmChoice&)>& fits,
                                              const std::function<std::optional<GemmChoice>()>& time) {
  const std::lock_guard lock(mutex_);  // while one thread times, the others wait for its result
  if (!on_ || identity != identity_) return {};
  if (const auto it = table_.find(key); it != table_.end() && fits(it->second)) return it->second;
  if (!times()) return {};
  const std::optional<GemmChoice> found = time();
  if (!found) return {};
  table_[key] = *found;
  if (may_write_) write();
  return found;
}

}  // namespace gt::cuda
