#include "launch/tools/translate/deepspeed_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <optional>

#include "kernels/core/check.h"
#include "kernels/core/hash/base64.h"
#include "launch/options/foreign_text.h"
#include "launch/options/near_word.h"

namespace gt {
namespace {

using Kind = JsonValue::Kind;

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Converts integers written as 5e8 to plain digits, as the option registry requires.
void spell_out(JsonValue& v) {
  double x;
  int64_t n;
  constexpr double kExact = 9007199254740992;  // 2^53: largest range in which doubles represent every integer
  if (v.kind != Kind::kNumber || parse_int(v.text, n) || !parse_double(v.text, x)) return;
  if (x == std::floor(x) && std::fabs(x) <= kExact) v.text = fmt::format("{:.0f}", x);
}

std::string check_pair(const DsKey& key, const JsonValue& v) {
  std::vector<double> out(2);
  return set_from_json({"", std::string(key.name()), &out, std::string(key.domain), ""}, v);
}

std::string check_ints(const DsKey& key, JsonValue& v) {
  if (v.kind != Kind::kArray) return fmt::format("expected a list of whole numbers, found {}", kind_name(v.kind));
  for (JsonValue& item : v.items) {
    spell_out(item);
    int64_t x = 0;
    const Option each{"", std::string(key.name()), &x, std::string(key.domain), ""};
    if (std::string wrong = set_from_json(each, item); !wrong.empty()) return wrong;
  }
  return "";
}

// Returns the error of a value, "" if valid; domain syntax is that of the option registry.
std::string check_value(const DsKey& key, JsonValue& v) {
  const auto checked = [&](auto fresh) {
    return set_from_json({"", std::string(key.name()), &fresh, std::string(key.domain), ""}, v);
  };
  switch (key.type) {
    case DsType::kBool: return checked(false);
    case DsType::kInt:
      spell_out(v);
      if (key.path == "pipeline.stages" && v.kind == Kind::kString) return "expected a whole number or \"auto\"";
      return checked(int64_t{0});
    case DsType::kNumber: return checked(0.0);
    case DsType::kPair: return check_pair(key, v);
    case DsType::kInts: return check_ints(key, v);
    case DsType::kScalar:
      if (v.kind == Kind::kBool || v.kind == Kind::kNumber || v.kind == Kind::kString) return "";
      return fmt::format("expected true, false, a number or a string, found {}", kind_name(v.kind));
    case DsType::kText:
      if (v.kind != Kind::kString) return fmt::format("expected a string, found {}", kind_name(v.kind));
      if (key.domain.find('|') == std::string_view::npos || key.path.substr(0, 4) == "amp.")
        return checked(std::string());
      v.text = lower(v.text);
      return checked(std::string());
    case DsType::kBlock:
    case DsType::kOpaque: return "";
  }
  return "";
}

class Walker {
 public:
  Walker(DsFile& file, bool allow_unknown, Problems& problems)
      : file_(file), allow_unknown_(allow_unknown), problems_(problems) {}

  void block(const std::string& path, const JsonValue& object) {
    for (size_t i = 0; i < object.keys.size(); ++i) {
      const std::string name(path.empty() ? deepspeed_block(object.keys[i]) : object.keys[i]);
      member(path.empty() ? name : deepspeed_path(path + "." + name), object.items[i]);
    }
  }

 private:
  std::string at(const JsonValue& v) const { return fmt::format("{}:{}:{}", file_.name, v.line, v.column); }

  void member(const std::string& path, const JsonValue& v) {
    const DsKey* key = find_deepspeed_key(path);
    if (!key) return unknown(path, v);
    if (v.kind == Kind::kNull) return;  // in DeepSpeed, null means not given
    if (file_.find(path) != nullptr)
      return add_deepspeed_problem(problems_, at(v), path, "given twice, under two spellings", "keep one of them");
    DsValue out{key, v, at(v), false};
    if (key->type == DsType::kBlock) return walk(std::move(out));
    if (v.kind == Kind::kString && v.text == "auto" && key->type != DsType::kOpaque && path != "pipeline.partition") {
      if (!key->may_be_auto)
        return add_deepspeed_problem(problems_, at(v), path, "\"auto\" is not allowed here", "give a value");
      out.is_auto = true;
    } else if (const std::string wrong = check_value(*key, out.value); !wrong.empty()) {
      return add_deepspeed_problem(problems_, at(v), path, wrong);
    }
    file_.values.push_back(std::move(out));
  }

  // A block is an object; zero_optimization may also be a boolean, as in old DeepSpeed versions.
  void walk(DsValue&& out) {
    const JsonValue v = out.value;
    const std::string path(out.key->path);
    const bool bare = path == "zero_optimization" && v.kind == Kind::kBool;
    if (v.kind != Kind::kObject && !bare)
      return add_deepspeed_problem(problems_, at(v), path,
                                   fmt::format("expected an object, found {}", kind_name(v.kind)));
    out.value.items.clear(), out.value.keys.clear();
    file_.values.push_back(std::move(out));
    if (!bare) block(path, v);
  }

  void unknown(const std::string& path, const JsonValue& v) {
    const std::string where = at(v);
    const std::string name = where + ": " + path.substr(0, 200);
    if (allow_unknown_) return file_.unknown.push_back(name + ": unknown key, ignored (--allow_unknown_keys)");
    if (path.find('.') == std::string::npos) {
      const std::string guess = file_.unknown.size() < Problems::kListed ? guess_of(path) : "";
      return file_.unknown.push_back(
          fmt::format("{}: unknown key, ignored, as by DeepSpeed{}", name, guess.empty() ? "" : "; " + guess));
    }
    add_deepspeed_problem(problems_, where, path.substr(0, 200), "unknown key",
                          problems_.full() ? "" : suggestion(path));
  }

  static std::string suggestion(const std::string& path) {
    const std::string guess = guess_of(path);
    return guess.empty() ? "leave it out, or pass --allow_unknown_keys to ignore it" : guess;
  }

  // Returns a key of the same block within edit distance 2, else the same name in another block; "" if there is none.
  static std::string guess_of(const std::string& path) {
    const size_t dot = path.rfind('.');
    const std::string block = dot == std::string::npos ? "" : path.substr(0, dot), name = path.substr(dot + 1);
    const DsKey *best = nullptr, *elsewhere = nullptr;
    int distance = 3;
    for (const DsKey& k : deepspeed_keys()) {
      const size_t end = k.path.rfind('.');
      const bool same_block = (end == std::string_view::npos ? "" : k.path.substr(0, end)) == block;
      if (!same_block && k.name() == name && !elsewhere) elsewhere = &k;
      if (!same_block || name.size() > 100) continue;
      if (const int d = edit_distance(name, k.name()); d < distance) best = &k, distance = d;
    }
    if (!best && elsewhere) return fmt::format("did you mean {}?", elsewhere->path);
    if (!best) return "";
    const size_t space = best->domain.find(' ');
    std::string about = space == std::string_view::npos ? "" : fmt::format("in {}", best->domain.substr(space + 1));
    if (!best->standard.empty()) about += fmt::format("{}default {}", about.empty() ? "" : ", ", best->standard);
    if (!about.empty()) about = " (" + about + ")";
    return fmt::format("did you mean {}?{}", best->name(), about);
  }

  DsFile& file_;
  const bool allow_unknown_;
  Problems& problems_;
};

}  // namespace

const DsValue* DsFile::find(std::string_view path) const {
  for (const DsValue& v : values)
    if (v.key->path == path) return &v;
  return nullptr;
}

namespace {

std::string decoded(std::string_view text) {
  std::optional<std::string> json = decode_base64(text);
  GT_REQUIRE(json.has_value(), Exit::kUsage,
             "--deepspeed_config base64: expected base64 (letters, digits, + and /, or - "
             "and _), found another character or a truncated text");
  return *std::move(json);
}

}  // namespace

DsText read_deepspeed_text(const std::string& source) {
  if (source.rfind("base64:", 0) == 0) return {"<base64>", decoded(std::string_view(source).substr(7))};
  if (source.rfind("stdin:", 0) == 0) return {"<stdin>", decoded(std::string_view(source).substr(6))};
  if (source != "-") return {source, read_json_file(source)};
  std::string text(kMaxJsonBytes + 1, '\0');
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::cin.gcount()));
  return {"<stdin>", std::move(text)};
}

DsFile read_deepspeed(const DsText& text, bool allow_unknown, Problems& problems) {
  DsFile file;
  file.name = text.name;
  JsonValue root;
  try {
    root = parse_json(text.text, text.name, JsonDialect::kHashComments);
  } catch (const Error& e) {
    const std::string foreign = foreign_config(text.name, text.text);
    problems.add(foreign.empty() ? "" : text.name, "", foreign.empty() ? e.what() : foreign);
    return file;
  }
  if (root.kind != Kind::kObject)
    problems.add(fmt::format("{}:{}:{}", text.name, root.line, root.column), "",
                 fmt::format("expected an object, found {}", kind_name(root.kind)));
  else
    Walker(file, allow_unknown, problems).block("", root);
  return file;
}

void add_deepspeed_problem(Problems& problems, const std::string& where, std::string_view path, std::string reason,
                           const std::string& fix) {
  if (!fix.empty()) reason += "\n  " + fix;
  problems.add(where + ":", std::string(path), std::move(reason));
}

std::string shown(const JsonValue& v) {
  std::string out = v.text;
  if (v.kind == Kind::kBool) out = v.boolean ? "true" : "false";
  if (v.kind == Kind::kString && v.text.empty()) out = "\"\"";
  if (v.kind == Kind::kArray) {
    for (const JsonValue& item : v.items) out += (out.empty() ? "[" : ", ") + shown(item);
    out += out.empty() ? "[]" : "]";
  }
  if (v.kind == Kind::kObject) out = "{...}";
  return out.size() > 80 ? out.substr(0, 77) + "..." : out;
}

}  // namespace gt
