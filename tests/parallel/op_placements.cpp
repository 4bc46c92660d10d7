#include "tests/parallel/op_placements.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "parallel/proof/op_rules.h"

namespace gt::placements {

using namespace proof;

namespace {

constexpr int kRanks = 4;
constexpr Along kAxes[] = {Along::kDp, Along::kTp};

template <class T>
T load(const std::byte* at) {
  T x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

bool is_float(DType t) { return t == DType::kF32 || t == DType::kF64; }

thread_local bool split_created = false;
bool created(const Operand&, Along, int) { return split_created; }

std::string letters_in(std::string_view rule, std::string_view name) {
  for (size_t at = 0; at < rule.size();) {
    const size_t end = std::min(rule.find(' ', at), rule.size());
    const std::string_view word = rule.substr(at, end - at);
    if (word.substr(0, word.find(':')) == name && word.size() > name.size()) {
      const std::string_view letters = word.substr(name.size() + 1);
      return std::string(letters.substr(0, letters.find_first_of("=#!")));
    }
    at = end + 1;
  }
  return "";
}

}  // namespace

double Values::at(int64_t i) const {
  const std::byte* p = bytes.data() + i * size_of(dtype);
  switch (dtype) {
    case DType::kF32: return static_cast<double>(load<float>(p));
    case DType::kF64: return load<double>(p);
    case DType::kI32: return load<int32_t>(p);
    case DType::kBF16: {
      const uint32_t bits = uint32_t{load<uint16_t>(p)} << 16;
      return static_cast<double>(load<float>(reinterpret_cast<const std::byte*>(&bits)));
    }
    default: return static_cast<double>(static_cast<int8_t>(*p));
  }
}

void Values::set(int64_t i, double x) {
  std::byte* p = bytes.data() + i * size_of(dtype);
  const auto put = [&](auto v) { std::memcpy(p, &v, sizeof v); };
  switch (dtype) {
    case DType::kF32: return put(static_cast<float>(x));
    case DType::kF64: return put(x);
    case DType::kI32: return put(static_cast<int32_t>(x));
    case DType::kBF16: {
      const auto f = static_cast<float>(x);
      return put(static_cast<uint16_t>(load<uint32_t>(reinterpret_cast<const std::byte*>(&f)) >> 16));
    }
    default: return put(static_cast<int8_t>(x));
  }
}

Values empty_values(Shape s, DType t, std::vector<int64_t> sections) {
  return {s, t, std::vector<std::byte>(static_cast<size_t>(s.numel() * size_of(t))), std::move(sections)};
}

int64_t Cut::parts(char letter) const {
  int64_t n = 1;
  for (const std::string& s : split)
    if (s.find(letter) != std::string::npos) n *= 2;
  return n;
}
int64_t Cut::index(char letter) const {
  int64_t i = 0;
  for (size_t k = 0; k < split.size(); ++k)
    if (split[k].find(letter) != std::string::npos) i = 2 * i + at[k];
  return i;
}

Field make_field(const FieldSpec& f, std::string_view rule, OperandRole role, uint64_t key) {
  const size_t behind = rule.find(" > ");
  const std::string read = letters_in(rule.substr(0, behind), f.name),
                    written = letters_in(rule.substr(behind + 2), f.name);
  Field out{
      .name = f.name, .letters = read.empty() ? written : read, .value = empty_values(f.shape, f.dtype, f.sections)};
  out.read = !read.empty(), out.written = !written.empty();
  out.may_be_zero = f.draw == Draw::kNormal;
  out.adds = role == OperandRole::kInOut && out.written && !out.read;
  if (out.letters == ".") out.letters = std::string("0123").substr(0, static_cast<size_t>(f.shape.rank));
  if (out.letters.empty()) out.letters = f.letters != nullptr ? f.letters : "____";
  std::mt19937_64 random(key + 1);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < f.shape.numel(); ++i) {
    const double x = normal(random);
    const uint64_t bits = random();
    out.value.set(i, f.dtype == DType::kF8E4M3   ? static_cast<double>(static_cast<int8_t>((bits & 0x80) | bits % 0x60))
                     : f.draw == Draw::kIds      ? static_cast<double>(random() % static_cast<uint64_t>(f.ids))
                     : f.draw == Draw::kPositive ? 0.5 + std::fabs(x)
                     : is_float(f.dtype)         ? x
                                                 : 20 * x);
  }
  return out;
}

std::string to_string(const OpCase& c, const Placement& p) {
  std::string out = cat(c.op, c.name.empty() ? "" : " ", c.name, ":");
  size_t r = 0, b = 0;
  for (const Field& f : c.fields) {
    if (f.read) out += cat(" ", f.name, " ", proof::to_string(p.read[r++]), ",");
    if (f.adds) out += cat(" ", f.name, " before ", proof::to_string(p.before[b++]), ",");
  }
  return out + (p.created ? " new dimensions split" : "");
}

std::vector<AxisType> derive(const OpCase& c, std::string_view rule, const Placement& p) {
  std::vector<Operand> read, written;
  size_t r = 0, b = 0;
  for (const Field& f : c.fields) {
    Operand o{f.name, f.value.tensor(), {}, f.adds};
    if (f.read) o.type[Along::kDp] = p.read[r++], read.push_back(o);
    o.type = {};
    if (f.adds) o.type[Along::kDp] = p.before[b++];
    if (f.written) written.push_back(o);
  }
  split_created = p.created;
  std::vector<AxisType> out;
  for (const LayoutType& t : result_types(c.op, rule, read, written, {Along::kDp}, created))
    out.push_back(t[Along::kDp]);
  return out;
}

namespace {

std::vector<AxisType> placements_of(const OpCase& c, const Field& f) {
  std::vector<AxisType> out{kSame, kPartial};
  for (int d = 0; d < f.value.shape.rank; ++d)
    if (f.value.shape[d] % 4 == 0 || f.one_each) out.push_back(split(d));
  if (f.letters[0] == 's') out.push_back(split(0, true));
  if (c.flat && c.rule.find(":.") != std::string_view::npos && f.letters[0] == '0') out.push_back(kShard);
  return out;
}

size_t letters_split(const OpCase& c, const Placement& p) {
  std::string letters;
  size_t r = 0;
  for (const Field& f : c.fields) {
    if (!f.read) continue;
    const AxisType t = p.read[r++];
    if (t.kind != Kind::kSplit) continue;
    const char l = f.letters[static_cast<size_t>(t.dim)];
    if (letters.find(l) == std::string::npos) letters += l;
  }
  return letters.size();
}

// Calls f(placement) for every placement of the operands that are read; of 0 and of values of their own ranks one at
// most is among them. Without these, ops of many operands have one letter split at most.
template <class F>
void each_placement(const OpCase& c, bool others, F f) {
  std::vector<std::vector<AxisType>> choices;
  std::vector<bool> zeros;
  size_t adds = 0;
  bool creates = false;
  std::string read;
  for (const Field& field : c.fields)
    if (field.read)
      choices.push_back(placements_of(c, field)), zeros.push_back(field.may_be_zero), read += field.letters;
  for (const Field& field : c.fields) {
    adds += field.adds;
    for (const char l : field.written ? field.letters : "")
      creates = creates || (std::islower(static_cast<unsigned char>(l)) && read.find(l) == std::string::npos);
  }
  for (const bool split : {false, true}) {
    if (split && !creates) break;
    Placement p{
        .read = std::vector<AxisType>(choices.size()), .before = std::vector<AxisType>(adds, kZero), .created = split};
    const auto fill = [&](auto& self, size_t k, bool other) -> void {
      if (k == choices.size()) {
        if (others || choices.size() < 5 || letters_split(c, p) <= 1) f(p);
        return;
      }
      for (const AxisType& t : choices[k]) p.read[k] = t, self(self, k + 1, other);
      if (other || !others) return;
      if (zeros[k]) p.read[k] = kZero, self(self, k + 1, true);
      p.read[k] = {Kind::kVaries}, self(self, k + 1, true);
    };
    fill(fill, 0, false);
  }
}

}  // namespace

std::vector<Placement> accepted(const OpCase& c, std::string_view rule, const Extent& extent, Count& n) {
  std::vector<Placement> out;
  const auto attempt = [&](const Placement& p) -> std::vector<AxisType> {
    ++n.placements;
    try {
      return derive(c, rule, p);
    } catch (const Violation&) {
      ++n.refused;
      return {};
    }
  };
  each_placement(c, extent.others, [&](Placement p) {
    const std::vector<AxisType> types = attempt(p);
    if (types.empty()) return;
    if (std::any_of(p.read.begin(), p.read.end(), [](AxisType t) { return t.kind == Kind::kVaries; })) {
      ++n.varying;
      if (std::any_of(types.begin(), types.end(), [](AxisType t) { return t.kind != Kind::kVaries; }))
        n.wrong.push_back(to_string(c, p) + " a result is not of its own rank");
      return;
    }
    out.push_back(p);
    if (p.before.empty()) return;
    std::vector<AxisType> right;
    std::vector<const Field*> fields;
    size_t w = 0;
    for (const Field& f : c.fields) {
      if (f.adds) right.push_back(types[w]), fields.push_back(&f);
      w += f.written;
    }
    for (size_t k = 0; k < fields.size(); ++k)
      for (const AxisType& t : placements_of(c, *fields[k])) {
        p.before = right, p.before[k] = t;
        if (k > 0 && t == right[k]) continue;  // once: all as they are derived
        if (!attempt(p).empty()) out.push_back(p);
      }
  });
  return out;
}

namespace {

// Half `part` of a dimension.
Values half(const Values& v, int dim, int part) {
  int64_t outer = 1, inner = size_of(v.dtype);
  for (int d = 0; d < dim; ++d) outer *= v.shape[d];
  for (int d = dim + 1; d < v.shape.rank; ++d) inner *= v.shape[d];
  const bool last = dim == v.shape.rank - 1;
  const std::vector<int64_t> sections = last && !v.sections.empty() ? v.sections : std::vector{v.shape[dim]};
  Values out{v.shape, v.dtype, {}, v.sections};
  out.shape.dim[static_cast<size_t>(dim)] /= 2;
  if (last)
    for (int64_t& s : out.sections) s /= 2;
  for (int64_t o = 0; o < outer; ++o) {
    const std::byte* at = v.bytes.data() + o * v.shape[dim] * inner;
    for (const int64_t s : sections) {
      const std::byte* from = at + part * (s / 2) * inner;
      out.bytes.insert(out.bytes.end(), from, from + s / 2 * inner);
      at += s * inner;
    }
  }
  return out;
}

// Rows of every second number, which are no whole sequences.
Values every_second_row(const Values& v, int part) {
  Values out{v.shape, v.dtype, {}, v.sections};
  out.shape.dim[0] /= 2;
  const auto row = static_cast<ptrdiff_t>(v.bytes.size()) / v.shape[0];
  for (int64_t r = part; r < v.shape[0]; r += 2)
    out.bytes.insert(out.bytes.end(), v.bytes.begin() + r * row, v.bytes.begin() + (r + 1) * row);
  return out;
}

Values flattened(Values v) {
  v.shape = {v.shape.numel()};
  v.sections.clear();
  return v;
}

// What the rank `at` of an axis has of a tensor.
Values part_of(const Field& f, Values v, AxisType t, int axis, int at, const std::string& split) {
  if (t.kind == Kind::kZero) {
    std::fill(v.bytes.begin(), v.bytes.end(), std::byte{0});
    if (split == ".") return half(flattened(v), 0, at);
    for (int d = 0; d < v.shape.rank; ++d)
      if (split.find(f.letters[static_cast<size_t>(d)]) != std::string::npos) v = half(v, d, at);
    return v;
  }
  if (t.kind == Kind::kShard) return half(flattened(v), 0, at);
  if (t.kind == Kind::kSplit && f.one_each && t.dim == 0) return v;
  if (t.kind == Kind::kSplit && t.dim == 0 && f.letters[0] == 's' && !t.sequences) return every_second_row(v, at);
  if (t.kind == Kind::kSplit) return half(v, t.dim, at);
  if (t.kind != Kind::kPartial) return v;
  std::mt19937_64 random(static_cast<uint64_t>(axis) * 7919 + f.name.size() * 31 + static_cast<uint64_t>(f.name[0]));
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < v.shape.numel(); ++i) {
    const double other = is_float(v.dtype) ? normal(random) : 0;
    v.set(i, at == 1 ? other : v.at(i) - other);
  }
  return v;
}

Values joined(const Values& a, const Values& b, int dim, const std::vector<int64_t>& sections) {
  int64_t outer = 1, inner = size_of(a.dtype);
  for (int d = 0; d < dim; ++d) outer *= a.shape[d];
  for (int d = dim + 1; d < a.shape.rank; ++d) inner *= a.shape[d];
  const bool last = dim == a.shape.rank - 1;
  const std::vector<int64_t> halves = last && !sections.empty() ? sections : std::vector{a.shape[dim]};
  Values out{a.shape, a.dtype, {}, a.sections};
  out.shape.dim[static_cast<size_t>(dim)] *= 2;
  if (last)
    for (int64_t& s : out.sections) s *= 2;
  for (int64_t o = 0; o < outer; ++o) {
    int64_t at = o * a.shape[dim] * inner;
    for (const int64_t s : halves) {
      for (const Values* v : {&a, &b})
        out.bytes.insert(out.bytes.end(), v->bytes.begin() + at, v->bytes.begin() + at + s * inner);
      at += s * inner;
    }
  }
  return out;
}

// The tensor that two ranks of an axis have; throws what does not fit. shape: of what the other axis leaves of it.
Values whole(const Field& f, const Values& a, const Values& b, AxisType t, const Shape& shape) {
  switch (t.kind) {
    case Kind::kSame:
      if (a.bytes != b.bytes) throw Violation{cat(f.name, " is not equal on every rank")};
      return a;
    case Kind::kSplit: return joined(a, b, t.dim, a.sections);
    case Kind::kShard: {
      Values v = joined(a, b, 0, {});
      if (shape.numel() == v.shape.numel()) v.shape = shape;
      return v;
    }
    case Kind::kPartial: {
      Values sum = a;
      for (int64_t i = 0; i < a.shape.numel(); ++i) sum.set(i, a.at(i) + b.at(i));
      return sum;
    }
    case Kind::kZero:
      for (const Values* v : {&a, &b})
        for (int64_t i = 0; i < v->shape.numel(); ++i)
          if (v->at(i) != 0) throw Violation{cat(f.name, " is not 0")};
      return a;
    default: throw Violation{cat(f.name, " is ", proof::to_string(t))};
  }
}

struct Run {
  const Placement* on[2];
  std::vector<AxisType> types[2];  // of the results
};

// Letters split over an axis; ".": shards. Throws if an operand has one of them whole, so that shapes do not fit.
std::string split_letters(const OpCase& c, const Placement& p, const std::vector<AxisType>& types) {
  std::string split;
  std::vector<std::pair<const Field*, AxisType>> all;
  size_t r = 0, b = 0, w = 0;
  for (const Field& f : c.fields) {
    if (f.read) all.emplace_back(&f, p.read[r++]);
    if (f.adds) all.emplace_back(&f, p.before[b++]);
    if (f.written) all.emplace_back(&f, types[w++]);
  }
  for (const auto& [f, t] : all) {
    if (t.kind == Kind::kShard) split = ".";
    if (t.kind != Kind::kSplit) continue;
    const char l = f->letters[static_cast<size_t>(t.dim)];
    if (split != "." && split.find(l) == std::string::npos) split += l;
  }
  for (const auto& [f, t] : all) {
    if (t.kind == Kind::kZero || f->letters[0] == '_') continue;
    if ((split == ".") != (t.kind == Kind::kShard)) throw Violation{cat(f->name, " does not fit: shards")};
    for (size_t d = 0; split != "." && d < static_cast<size_t>(f->value.shape.rank); ++d)
      if (split.find(f->letters[d]) != std::string::npos && !(t.kind == Kind::kSplit && t.dim == static_cast<int>(d)))
        throw Violation{cat(f->name, " does not fit: ", f->letters[d], " is split")};
  }
  return split;
}

// Inputs and results of a call on one rank.
std::vector<Values> tensors_of(const OpCase& c, const Run& run, const Cut& cut) {
  std::vector<Values> out;
  size_t r = 0, b = 0, w = 0;
  for (const Field& f : c.fields) {
    Values v = f.value;
    const auto type_along = [&](int axis) {
      if (f.read) return run.on[axis]->read[r];
      if (f.adds) return run.on[axis]->before[b];
      return f.written ? run.types[axis][w] : kZero;
    };
    const bool shards_last = cut.split[0] == "." && cut.split[1] != ".";
    for (const int axis : shards_last ? std::array{1, 0} : std::array{0, 1}) {
      const auto k = static_cast<size_t>(axis);
      const std::string& split = cut.split[k];
      const AxisType t = type_along(axis);
      const bool control = !f.read && !f.written;
      if (control || (f.written && !f.read && !f.adds) || (f.adds && t.kind == Kind::kZero)) {
        // Of a result or a control the shape and, of the latter, the values that its letters give it.
        for (int d = 0; d < v.shape.rank; ++d)
          if (split.find(f.letters[static_cast<size_t>(d)]) != std::string::npos && !(f.one_each && d == 0))
            v = half(v, d, cut.at[k]);
        if (split == "." && !control) v = half(flattened(v), 0, cut.at[k]);
        if (f.adds) std::fill(v.bytes.begin(), v.bytes.end(), std::byte{0});
        continue;
      }
      v = part_of(f, std::move(v), t, axis, cut.at[k], split);
    }
    if (f.written && !f.read && !f.adds) std::fill(v.bytes.begin(), v.bytes.end(), std::byte{0x7F});
    r += f.read, b += f.adds, w += f.written;
    out.push_back(std::move(v));
  }
  return out;
}

std::vector<Values> call(const OpCase& c, std::vector<Values> values, const Cut& cut) {
  std::vector<Tensor> tensors;
  for (const Values& v : values) tensors.push_back(v.tensor());
  c.call(tensors, cut);
  return values;
}

// One rank's results, of operands that are 0 on some axis too.
class OneRank {
 public:
  explicit OneRank(const OpCase& c) : c_(c) {}
  const std::vector<Values>& of(const Run& run) {
    std::vector<bool> zero;
    size_t r = 0, b = 0;
    for (const Field& f : c_.fields) {
      const auto is = [&](const std::vector<AxisType> Placement::*list, size_t k) {
        return (run.on[0]->*list)[k].kind == Kind::kZero || (run.on[1]->*list)[k].kind == Kind::kZero;
      };
      zero.push_back(f.read ? is(&Placement::read, r) : f.adds && is(&Placement::before, b));
      r += f.read, b += f.adds;
    }
    const auto [it, added] = results_.try_emplace(zero);
    if (!added) return it->second;
    std::vector<Values> values;
    for (size_t k = 0; k < c_.fields.size(); ++k) {
      values.push_back(c_.fields[k].value);
      if (zero[k]) std::fill(values[k].bytes.begin(), values[k].bytes.end(), std::byte{0});
    }
    return it->second = call(c_, std::move(values), {});
  }

 private:
  const OpCase& c_;
  std::map<std::vector<bool>, std::vector<Values>> results_;
};

// Shards are of what the other axis leaves, so they are joined first.
Values of_ranks(const Field& f, const std::vector<Values> (&ranks)[kRanks], size_t k, AxisType outer, AxisType inner) {
  const Values *a = &ranks[0][k], *b = &ranks[1][k], *c = &ranks[2][k], *d = &ranks[3][k];
  if (outer.kind == Kind::kShard && inner.kind != Kind::kShard) std::swap(outer, inner), std::swap(b, c);
  Shape left = f.value.shape;
  if (outer.kind == Kind::kSplit) left.dim[static_cast<size_t>(outer.dim)] /= 2;
  return whole(f, whole(f, *a, *b, inner, left), whole(f, *c, *d, inner, left), outer, f.value.shape);
}

// Returns what of the ranks' results is not that of one rank.
std::string difference(const OpCase& c, const Run& run, const std::vector<Values> (&ranks)[kRanks],
                       const std::vector<Values>& one) {
  size_t w = 0;
  for (size_t k = 0; k < c.fields.size(); ++k) {
    const Field& f = c.fields[k];
    if (!f.written) continue;
    const AxisType outer = run.types[0][w], inner = run.types[1][w];
    ++w;
    Values is;
    try {
      is = of_ranks(f, ranks, k, outer, inner);
    } catch (const Violation& v) { return v.text; }
    if (f.one_each && c.combine) is = c.combine(is);
    if (outer.kind == Kind::kZero || inner.kind == Kind::kZero) continue;
    if (is.shape.numel() != one[k].shape.numel()) return cat(f.name, " has ", is.shape.numel(), " elements");
    double most = 0, size = 1e-3;
    for (int64_t i = 0; i < is.shape.numel(); ++i) {
      const double a = is.at(i), b = one[k].at(i);
      if (std::isfinite(b)) size = std::max(size, std::fabs(b));
      if (a != b) most = std::max(most, std::isfinite(a - b) ? std::fabs(a - b) : HUGE_VAL);
    }
    if (most > c.tolerance * size) return cat(f.name, " differs by ", most / size);
  }
  return "";
}

bool any_zero(const Placement& p) {
  const auto zero = [](AxisType t) { return t.kind == Kind::kZero; };
  return std::any_of(p.read.begin(), p.read.end(), zero);
}

}  // namespace

Count check(const OpCase& c, std::string_view rule, const Extent& extent) {
  Count n;
  const std::vector<Placement> all = accepted(c, rule, extent, n);
  std::vector<std::vector<AxisType>> types;
  std::vector<std::string> split;
  std::vector<const Placement*> fit;
  for (const Placement& p : all) {
    try {
      const std::vector<AxisType> t = derive(c, rule, p);
      split.push_back(split_letters(c, p, t));
      types.push_back(t), fit.push_back(&p);
    } catch (const Violation& v) {  // zeros of another shape than the others' do not exist
      if (!any_zero(p)) n.wrong.push_back(to_string(c, p) + " " + v.text);
    }
    if (n.wrong.size() >= extent.most_wrong) return n;
  }
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t i = 0; i < fit.size(); ++i)
    for (size_t j = 0; j < fit.size(); ++j)
      if (extent.two_axes || i == j) pairs.emplace_back(i, j);
  const auto run_of = [&](const std::pair<size_t, size_t>& p) {
    return Run{{fit[p.first], fit[p.second]}, {types[p.first], types[p.second]}};
  };
  std::vector<std::vector<Values>> results[kRanks];
  std::vector<std::string> errors[kRanks];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const auto k = static_cast<size_t>(rank);
      for (const auto& p : pairs) {
        const Cut cut{{split[p.first], split[p.second]}, {rank / 2, rank % 2}};
        results[k].emplace_back(), errors[k].emplace_back();
        try {
          results[k].back() = call(c, tensors_of(c, run_of(p), cut), cut);
        } catch (const std::exception& e) { errors[k].back() = e.what(); }
      }
    });
  for (std::thread& t : threads) t.join();
  OneRank one(c);
  for (size_t i = 0; i < pairs.size() && n.wrong.size() < extent.most_wrong; ++i) {
    const Run run = run_of(pairs[i]);
    std::string text;
    for (const auto& e : errors)
      if (text.empty()) text = e[i];
    const std::vector<Values> ranks[kRanks] = {results[0][i], results[1][i], results[2][i], results[3][i]};
    if (text.empty()) text = difference(c, run, ranks, one.of(run));
    if (text.empty())
      ++n.equal;
    else
      n.wrong.push_back(cat(to_string(c, *run.on[0]), " along the other axis ", to_string(c, *run.on[1]), " ", text));
  }
  return n;
}

}  // namespace gt::placements
