#include "parallel/proof/op_types.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace gt::proof {
namespace {

using Names = std::vector<std::string_view>;

struct OperandRule {
  std::string_view name, letters, same;  // same: letters over which it is equal although they are split
  std::vector<Names> terms;              // products
  bool linear = false, sums = false;
};
struct Rule {
  std::vector<OperandRule> read, written;
};

Names parts_of(std::string_view text, char at) {
  Names out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(at), text.size());
    if (end > 0) out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

OperandRule operand_rule(std::string_view word) {
  OperandRule r;
  r.name = word.substr(0, word.find(':'));
  word.remove_prefix(r.name.size() + 1);
  r.letters = word.substr(0, word.find_first_of("=#!"));
  word.remove_prefix(r.letters.size());
  if (word.empty()) return r;
  r.linear = word[0] == '=', r.sums = word[0] == '#';
  if (word[0] == '!') r.same = word.substr(1);
  if (r.linear)
    for (const std::string_view term : parts_of(word.substr(1), '+')) r.terms.push_back(parts_of(term, '*'));
  return r;
}

Rule parse(std::string_view text) {
  Rule rule;
  bool behind = false;
  for (const std::string_view word : parts_of(text, ' ')) {
    if (word == ">")
      behind = true;
    else
      (behind ? rule.written : rule.read).push_back(operand_rule(word));
  }
  return rule;
}

const Rule& parsed(std::string_view text) {
  thread_local std::map<const char*, Rule> rules;
  const auto [it, added] = rules.try_emplace(text.data());
  if (added) it->second = parse(text);
  return it->second;
}

const OperandRule* find(const std::vector<OperandRule>& list, std::string_view name) {
  const auto it = std::find_if(list.begin(), list.end(), [&](const OperandRule& r) { return r.name == name; });
  return it == list.end() ? nullptr : &*it;
}

bool elementwise(const OperandRule& r) { return r.letters == "."; }
// Letter of a dimension; of operands of any shape its number.
char letter(const OperandRule& r, int dim) {
  if (elementwise(r)) return static_cast<char>('0' + dim);
  return static_cast<size_t>(dim) < r.letters.size() ? r.letters[static_cast<size_t>(dim)] : '_';
}

// One axis of one call.
class AxisCall {
 public:
  AxisCall(std::string_view op, const Rule& rule, const std::vector<Operand>& read, Along a)
      : op_(op), rule_(rule), read_(read), along_(a) {
    for (const Operand& x : read)
      if (const OperandRule* r = find(rule.read, x.name)) take(x, *r);
    for (const Operand& x : read)
      if (const OperandRule* r = find(rule.read, x.name)) require_alike(x, *r), require_owned(x, *r);
  }

  AxisType result(const Operand& out, bool (*created)(const Operand&, Along, int)) const {
    const OperandRule* r = find(rule_.written, out.name);
    if (r == nullptr) return varies_ ? AxisType{Kind::kVaries} : kSame;  // statistics of quantizers
    AxisType type = of_inputs(*r);
    if (type.kind == Kind::kSame)
      for (int d = 0; d < static_cast<int>(r->letters.size()); ++d)
        if (is_new(letter(*r, d)) && created(out, along_, d)) type = split(d);
    if (!out.adds) return type;
    const AxisType before = out.type[along_];
    if (before.kind == Kind::kZero) return type;
    if (type.kind == Kind::kZero) return before;
    if (before.kind != type.kind || before.dim != type.dim)
      fail(out.name, ": ", to_string(type), " are added to what is ", to_string(before));
    type.sequences = type.sequences || before.sequences;
    return type;
  }

 private:
  template <class... T>
  [[noreturn]] void fail(T... text) const {
    throw Violation{cat(op_, ": ", text..., ", along ", name_of(along_))};
  }

  void take(const Operand& x, const OperandRule& r) {
    const AxisType t = x.type[along_];
    switch (t.kind) {
      case Kind::kZero: zero_ = true; return;
      case Kind::kSame: return;
      case Kind::kVaries: varies_ = true; return;
      case Kind::kPartial: partial_.push_back(x.name); return;
      case Kind::kShard:
        if (!elementwise(r)) fail(x.name, " is ", to_string(t));
        shard_ = true;
        return;
      case Kind::kSplit: break;
    }
    const char l = letter(r, t.dim);
    if (l == 'e') return;  // require_owned
    if (l == '_' || std::isupper(static_cast<unsigned char>(l)) || (l == 's' && !t.sequences))
      fail(x.name, " is ", to_string(t), ", the op reads all of it");
    split_[l] = split_[l] || t.sequences;  // operands have the same rows
    by_experts_ = by_experts_ || t.experts;
    first_[l] = x.name;
  }

  // Another operand with a split dimension must be split too.
  void require_alike(const Operand& x, const OperandRule& r) const {
    const AxisType t = x.type[along_];
    if (t.kind == Kind::kZero || x.tensor.numel() == 0) return;
    if (shard_ && t.kind != Kind::kShard)
      fail(x.name, " is ", to_string(t), ", another operand is ", to_string(kShard));
    for (const auto& [l, sequences] : split_) {
      const bool has = elementwise(r) || r.letters.find(l) != std::string_view::npos;
      if (has && !(t.kind == Kind::kSplit && letter(r, t.dim) == l))
        fail(x.name, " is ", to_string(t), ", ", first_.at(l), " is split over the same dimension");
    }
  }

  // Rows of a rank's experts meet the matrices of these alone, and each other.
  void require_owned(const Operand& x, const OperandRule& r) const {
    const AxisType t = x.type[along_];
    if (t.kind == Kind::kZero || x.tensor.numel() == 0) return;
    const bool split = t.kind == Kind::kSplit, of_experts = r.letters[0] == 'e';
    if (of_experts && (split && t.dim == 0) != by_experts_)
      fail(x.name, " is ", to_string(t),
           by_experts_ ? ", the rows are those of each rank's experts"
                       : ", the rows are not those of each rank's experts");
    if (by_experts_ && split && !of_experts && letter(r, t.dim) == 't' && !t.experts)
      fail(x.name, " is ", to_string(t), ", other rows are those of each rank's experts");
  }

  bool is_partial(std::string_view name) const {
    return std::find(partial_.begin(), partial_.end(), name) != partial_.end();
  }
  const Operand* operand(std::string_view name) const {
    const auto it = std::find_if(read_.begin(), read_.end(), [&](const Operand& o) { return o.name == name; });
    return it == read_.end() ? nullptr : &*it;
  }
  bool is_new(char l) const {
    if (!std::islower(static_cast<unsigned char>(l))) return false;
    return std::none_of(rule_.read.begin(), rule_.read.end(),
                        [&](const OperandRule& r) { return r.letters.find(l) != std::string_view::npos; });
  }
  bool has_letter(const Names& term, char l) const {
    return std::any_of(term.begin(), term.end(), [&](std::string_view name) {
      const OperandRule* r = find(rule_.read, name);
      return r != nullptr && (elementwise(*r) || r->letters.find(l) != std::string_view::npos);
    });
  }
  // Terms whose operands are there.
  std::vector<Names> terms(const OperandRule& r) const {
    std::vector<Names> out;
    for (const Names& term : r.terms)
      if (std::all_of(term.begin(), term.end(), [&](std::string_view n) { return operand(n) != nullptr; }))
        out.push_back(term);
    return out;
  }

  AxisType of_inputs(const OperandRule& r) const {
    if (varies_) return {Kind::kVaries};
    if (shard_) return kShard;
    const bool sums = summed(r), partial = takes_partial(r);
    if (sums && partial) fail(r.name, " sums partial sums over a split dimension");
    AxisType held = kSame;
    if (gathers_experts(r)) held = split(static_cast<int>(r.letters.find('e')));
    for (const auto& [l, sequences] : split_)
      for (int d = 0; d < 4; ++d)
        if (elementwise(r) ? l == letter(r, d) : static_cast<size_t>(d) < r.letters.size() && letter(r, d) == l) {
          if (held.kind == Kind::kSplit) fail(r.name, " has two dimensions that are split");
          held = split(d, sequences);
          held.experts = by_experts_;
        }
    if (!sums && !partial) return zero_ && split_.empty() && all_zero(r) ? kZero : held;
    if (held.kind == Kind::kSplit) fail(r.name, " is both ", to_string(held), " and partial sums");
    return kPartial;
  }

  bool all_zero(const OperandRule& r) const {
    const std::vector<Names> all = terms(r);
    return !all.empty() && std::all_of(all.begin(), all.end(), [&](const Names& term) {
      return std::any_of(term.begin(), term.end(),
                         [&](std::string_view n) { return operand(n)->type[along_].kind == Kind::kZero; });
    });
  }

  // Each rank's rows add up to what its experts have.
  bool gathers_experts(const OperandRule& r) const {
    return by_experts_ && r.letters.find('e') != std::string_view::npos;
  }
  // Whether the result sums over a dimension that ranks split.
  bool summed(const OperandRule& r) const {
    bool any = false;
    for (const auto& [l, unused] : split_) {
      if (elementwise(r) || r.letters.find(l) != std::string_view::npos || r.same.find(l) != std::string_view::npos ||
          gathers_experts(r))
        continue;
      if (r.sums) {
        any = true;
        continue;
      }
      const std::vector<Names> all = terms(r);
      const auto with = std::count_if(all.begin(), all.end(), [&](const Names& term) { return has_letter(term, l); });
      if (r.linear && with == 0) continue;
      if (with != static_cast<ptrdiff_t>(all.size()) || all.empty())
        fail(r.name,
             all.empty() ? " is no sum over a dimension of " : " adds what is whole to a sum over a dimension of ",
             first_.at(l), " that is split");
      any = true;
    }
    return any;
  }

  bool takes_partial(const OperandRule& r) const {
    const std::vector<Names> all = terms(r);
    for (const std::string_view p : partial_) {
      const bool linear = std::any_of(rule_.written.begin(), rule_.written.end(), [&](const OperandRule& o) {
        return std::any_of(o.terms.begin(), o.terms.end(),
                           [&](const Names& t) { return std::find(t.begin(), t.end(), p) != t.end(); });
      });
      if (!linear || !r.linear) fail(p, " is ", to_string(kPartial), ", in which ", r.name, " is not linear");
    }
    size_t with = 0, zeros = 0;
    for (const Names& term : all) {
      const auto n = std::count_if(term.begin(), term.end(), [&](std::string_view x) { return is_partial(x); });
      if (n > 1) fail(r.name, " multiplies partial sums by partial sums");
      with += n == 1;
      zeros += n == 0 && std::any_of(term.begin(), term.end(),
                                     [&](std::string_view x) { return operand(x)->type[along_].kind == Kind::kZero; });
    }
    if (with == 0) return false;
    if (with + zeros != all.size()) fail(r.name, " adds what every rank has to partial sums of ", partial_.front());
    return true;
  }

  std::string_view op_;
  const Rule& rule_;
  const std::vector<Operand>& read_;
  const Along along_;
  bool varies_ = false, shard_ = false, zero_ = false, by_experts_ = false;
  Names partial_;
  std::map<char, bool> split_;  // letters, and whether into whole sequences
  std::map<char, std::string_view> first_;
};

}  // namespace

std::vector<LayoutType> result_types(std::string_view op, std::string_view rule, const std::vector<Operand>& read,
                                     const std::vector<Operand>& written, const std::vector<Along>& along,
                                     bool (*created)(const Operand&, Along, int dim)) {
  std::vector<LayoutType> out(written.size());
  const Rule& r = parsed(rule);
  for (const Along a : along) {
    const AxisCall call(op, r, read, a);
    for (size_t k = 0; k < written.size(); ++k) out[k][a] = call.result(written[k], created);
  }
  return out;
}

}  // namespace gt::proof
