// The typing rules of the static proof of layouts are those of the kernels: see op_placements.h.
#include "tests/parallel/op_placements.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <iostream>
#include <set>
#include <thread>

#include "tests/support/test.h"

using namespace gt;
using namespace gt::placements;
using proof::AxisType, proof::Kind;

namespace {

const OpCase& case_of(std::string_view op, std::string_view name) {
  for (const OpCase& c : op_cases())
    if (c.op == op && c.name == name) return c;
  FAIL("no case " << op << ' ' << name);
  return op_cases().front();
}

// Rules that a proof has parsed live as long as the program.
std::string_view kept(std::string rule) {
  static std::deque<std::string> all;
  return all.emplace_back(std::move(rule));
}

// Of one axis, the placements of an op's operands and how many of them its rule refuses; pairs of the others, of two
// axes, that were run. A rule that gets stricter or laxer changes its line.
struct Line {
  const char* op;
  int64_t placements, refused, varying, equal;
};
constexpr Line kTable[] = {
    {"activate", 12, 2, 2, 32},
    {"activate_grad", 64, 34, 8, 242},
    {"add", 45, 26, 4, 225},
    {"add_bias", 26, 10, 5, 121},
    {"add_position", 32, 16, 5, 121},
    {"attention", 1500, 1431, 45, 288},
    {"attention_grad", 59375, 59160, 192, 529},
    {"axpy", 37, 20, 1, 256},
    {"balance_loss", 106, 87, 13, 36},
    {"cached_attention", 160, 133, 16, 121},
    {"cast", 7, 0, 1, 36},
    {"column_sums", 27, 8, 2, 169},
    {"copy", 7, 0, 1, 36},
    {"cross_entropy", 68, 49, 13, 36},
    {"cross_entropy_grad", 228, 175, 45, 64},
    {"cross_entropy_stats", 22, 12, 5, 25},
    {"dequantize_int8", 6, 1, 1, 16},
    {"dropout", 6, 0, 1, 25},
    {"embedding", 22, 8, 7, 49},
    {"embedding_grad", 136, 74, 20, 1044},
    {"fake_quant", 12, 2, 2, 32},
    {"fake_quant_grad", 32, 17, 4, 121},
    {"gelu", 7, 1, 1, 25},
    {"gelu_grad", 160, 106, 8, 1037},
    {"gemm", 1134, 782, 132, 4913},
    {"gemm_fp8", 128, 91, 18, 361},
    {"layer_norm", 608, 529, 57, 174},
    {"layer_norm_grad", 9249, 8886, 307, 1049},
    {"normalize", 19, 9, 6, 16},
    {"position_grad", 6, 0, 1, 25},
    {"qk_norm", 102, 72, 20, 100},
    {"qk_norm_grad", 2160, 2029, 88, 1681},
    {"qk_row_norm", 90, 67, 14, 81},
    {"qk_row_norm_grad", 1584, 1479, 85, 400},
    {"qk_row_sums", 134, 104, 14, 160},
    {"quantize_fp8", 65, 36, 5, 377},
    {"quantize_int8", 6, 1, 1, 16},
    {"rope", 6, 0, 1, 25},
    {"route", 53, 30, 7, 118},
    {"route_grad", 212, 161, 24, 353},
    {"scale", 7, 0, 1, 36},
    {"soft_cap", 7, 1, 1, 25},
    {"stochastic_round", 6, 1, 1, 16},
    {"store_kv", 74, 58, 4, 144},
    {"sum", 5, 0, 1, 16},
};

constexpr Extent kQuick{.two_axes = false, .others = false, .most_wrong = 1};

std::string replaced(std::string rule, std::string_view from, std::string_view to) {
  const size_t at = rule.find(from);
  return at == std::string::npos ? rule : rule.replace(at, from.size(), to);
}

struct Words {
  std::vector<std::string> read, written;
  explicit Words(std::string_view rule) {
    const size_t behind = rule.find(" > ");
    read = split(rule.substr(0, behind)), written = split(rule.substr(behind + 3));
  }
  std::string text() const {
    std::string out;
    for (const std::string& r : read) out += (out.empty() ? "" : " ") + r;
    out += " >";
    for (const std::string& w : written) out += " " + w;
    return out;
  }

 private:
  static std::vector<std::string> split(std::string_view text) {
    std::vector<std::string> out;
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
      end = std::min(text.find(' ', at), text.size());
      out.emplace_back(text.substr(at, end - at));
    }
    return out;
  }
};

std::string name_in(const std::string& word) { return word.substr(0, word.find(':')); }

// Rules that accept more than this one: an operand that is not read, a whole dimension that may be split, a result that
// is linear in another operand, or in fewer factors, or equal on every rank.
std::set<std::string> laxer_rules(std::string_view rule) {
  std::set<std::string> out;
  const Words words(rule);
  const auto add = [&](auto change) {
    Words w = words;
    change(w);
    if (w.text() != rule && !w.read.empty()) out.insert(w.text());
  };
  for (size_t k = 0; words.read.size() > 1 && k < words.read.size(); ++k) {
    const std::string name = name_in(words.read[k]);
    const auto used = [&](const std::string& w) {
      return w.find('=') != w.npos && w.find(name, w.find('=')) != w.npos;
    };
    if (std::none_of(words.written.begin(), words.written.end(), used))
      add([&](Words& w) { w.read.erase(w.read.begin() + static_cast<ptrdiff_t>(k)); });
  }
  for (const char upper : std::string("CDPVS"))
    add([&](Words& w) {
      for (auto* list : {&w.read, &w.written})
        for (std::string& word : *list)
          std::replace(word.begin() + static_cast<ptrdiff_t>(word.find(':')), word.end(), upper,
                       static_cast<char>(std::tolower(upper)));
    });
  for (size_t k = 0; k < words.written.size(); ++k) {
    const std::string& word = words.written[k];
    for (const std::string& read : words.read) {
      const std::string x = name_in(read);
      if (word.find('=') == word.npos)
        add([&](Words& w) { w.written[k] = word.substr(0, word.find_first_of("!#")) + "=" + x; });
      if (word.find('=') != word.npos) add([&](Words& w) { w.written[k] += "*" + x; });
      if (word.find('=') != word.npos) add([&](Words& w) { w.written[k] += "+" + x; });
    }
    for (const char separator : {'+', '*'})
      if (word.rfind(separator) != word.npos)
        add([&](Words& w) { w.written[k] = word.substr(0, word.rfind(separator)); });
    if (word.find('*') != word.npos) add([&](Words& w) { w.written[k][word.find('*')] = '+'; });
    for (const char letter : std::string("mnktcvsh"))
      if (word.substr(word.find(':')).find(letter) == word.npos && words.text().find(letter) != std::string::npos &&
          word.find('!') == word.npos)
        add([&](Words& w) { w.written[k] = cat(word.substr(0, word.find_first_of("=#")), "!", letter); });
  }
  return out;
}

}  // namespace

TEST_CASE("every placement of an op's operands on a mesh of 2 x 2 is refused by its rule or equal to one rank") {
  std::map<std::string, Count> table;
  std::vector<std::string> wrong;
  for (const OpCase& c : op_cases()) {
    const Count n = check(c, c.rule);
    Count& row = table[c.op];
    row.placements += n.placements, row.refused += n.refused, row.varying += n.varying, row.equal += n.equal;
    wrong.insert(wrong.end(), n.wrong.begin(), n.wrong.end());
    INFO(c.op << ' ' << c.name);
    CHECK(n.equal > 0);
  }
  CHECK(wrong == std::vector<std::string>{});
  const auto text = [](std::string_view op, const auto& n) {
    return cat("{\"", op, "\", ", n.placements, ", ", n.refused, ", ", n.varying, ", ", n.equal, "}");
  };
  std::vector<std::string> is, expected;
  for (const auto& [op, n] : table) is.push_back(text(op, n));
  for (const Line& line : kTable) expected.push_back(text(line.op, line));
  CHECK(is == expected);
}

TEST_CASE("every op whose rule has letters has a case of its placements") {
  std::set<std::string> cases, ops;
  for (const OpCase& c : op_cases()) cases.insert(c.op);
  // Their rows are in the order of the experts of a rank's own tokens, so that no result is a part of one rank's.
  // Layouts of routed models equal one rank (layout_matrix_test).
  for (const char* routed : {"group_rows", "send_rows", "receive_rows", "grouped_gemm", "grouped_gemm_grad",
                             "expert_activate", "expert_activate_grad", "combine_rows"})
    cases.insert(routed);
#define X(entry, Args, ...)                                                                                    \
  if (const std::string_view rule = proof::rule_of(Args{}); rule != proof::kTables && rule != proof::kScalars) \
    ops.insert(#entry);
  GT_OPS(X)
#undef X
  CHECK(cases == ops);
}

TEST_CASE("wrong typing rules are noticed by the values of their ops") {
  struct Wrong {
    const char *what, *op, *name, *from, *to;
  };
  const Wrong all[] = {
      {"a matmul of two partial sums", "gemm", "", "=a*b", "=a+b"},
      {"gelu of partial sums", "gelu", "", "out:.", "out:.=x"},
      {"a fused gelu of partial sums", "gemm", "gelu", "out:mn aux:mn", "out:mn=a*b aux:mn=a*b"},
      {"a norm split along what it normalizes", "layer_norm", "",
       "x:tC delta:tC gamma:C beta:C > sum:tC=x+delta out:tC mean:t rstd:t",
       "x:tc delta:tc gamma:c beta:c > sum:tc=x+delta out:tc mean:t!c rstd:t!c"},
      {"gamma's gradient equal though tokens are split", "layer_norm_grad", "", "dgamma:C=dout", "dgamma:C!t"},
      {"a bias that every rank adds to partial sums", "gemm", "with bias", "=a*b+bias", "=a*b"},
      {"a bias added to partial sums", "add_bias", "", "=x+bias", "=x"},
      {"a matmul over a split dimension that is equal", "gemm", "", "out:mn=a*b", "out:mn!k"},
      {"a softmax over a split vocabulary", "cross_entropy", "",
       "logits:tV targets:t seed:_ > loss:t dlogits:tV hits:t",
       "logits:tv targets:t seed:_ > loss:t!v dlogits:tv hits:t!v"},
      {"attention of rows that are no whole sequences", "attention", "",
       "q:sh k:sh v:sh lengths:s documents:s > out:sh lse:sh_",
       "q:th k:th v:th lengths:t documents:t > out:th lse:th_"},
      {"a lookup in a split table that is equal", "embedding", "", "out:tc=table", "out:tc!v"},
      {"column sums of split rows that are equal", "column_sums", "", "out:c=x", "out:c!t"},
      {"a gradient linear in a saved activation", "gelu_grad", "", "=dout", "=dout*x"},
      {"a table of positions split by positions", "add_position", "", "pos:Pc", "pos:tc"},
      {"a norm of partial sums of squares", "normalize", "", "out:.", "out:.=squares"},
      {"one head's gamma split over heads", "qk_norm", "", "q_gamma:D", "q_gamma:h"},
      {"partial sums of squares of a row", "qk_row_sums", "", "sums:t#", "sums:t=qkv"},
      {"gradients of a row norm without its sums", "qk_row_norm_grad", "", "=dout+dsums", "=dout"},
  };
  for (const Wrong& w : all) {
    const OpCase& c = case_of(w.op, w.name);
    std::string rule = replaced(std::string(c.rule), w.from, w.to);
    INFO(w.what << ": " << rule);
    REQUIRE(rule != c.rule);
    const Count n = check(c, kept(rule), kQuick);
    CHECK(n.wrong.size() == 1);
  }
}

TEST_CASE("generated rules that accept more than the right one are noticed by the values of their ops") {
  // These ops are linear in more operands than their rules use.
  const std::set<std::string> linear{
      "normalize : x:. squares:_ > out:.=x", "dequantize_int8 : x:. > out:.=x",
      "qk_row_sums of gradients: qkv:th gamma:h dout:th > sums:t=dout",
      "qk_row_sums of gradients: qkv:th gamma:h dout:th > sums:t=gamma",
      "qk_row_sums of gradients: qkv:th gamma:h dout:th > sums:t=qkv",
      "qk_row_norm : qkv:th gamma:h sums:t > out:th=qkv",
      "cached_attention : q:th keys:_h__ values:_h__ > out:th=values",
      // Where dweights are zeros, whatever the indices are.
      "route_grad : logits:tE experts:t_ dweights:t_ > dlogits:tE=dweights*experts",
      "route_grad added: logits:tE experts:t_ dweights:t_ > dlogits:tE=dweights*experts"};
  struct Rule {
    const OpCase* c;
    std::string_view text;
    int64_t right;  // placements that the right rule accepts
    Count n = {};
    int64_t accepts() const { return n.placements - n.refused; }
  };
  std::vector<Rule> rules;
  for (const OpCase& c : op_cases()) {
    Count right;
    const auto accepts = static_cast<int64_t>(accepted(c, c.rule, kQuick, right).size());
    for (const std::string& rule : laxer_rules(c.rule)) rules.push_back({&c, kept(rule), accepts});
  }
  std::atomic<size_t> next{0};
  std::thread workers[2];
  for (std::thread& worker : workers)
    worker = std::thread([&] {
      for (size_t k; (k = next++) < rules.size();) rules[k].n = check(*rules[k].c, rules[k].text, kQuick);
    });
  for (std::thread& worker : workers) worker.join();
  int64_t wrong = 0, noticed = 0;
  std::set<std::string> missed;
  for (const Rule& r : rules) {
    if (r.n.wrong.empty() && r.accepts() <= r.right) continue;
    ++wrong, noticed += !r.n.wrong.empty();
    if (r.n.wrong.empty()) missed.insert(cat(r.c->op, " ", r.c->name, ": ", r.text));
  }
  std::cout << "op placements: " << wrong << " of " << rules.size() << " changed rules accept more, " << noticed
            << " of them are noticed\n";
  CHECK(missed == linear);
  CHECK(noticed > 250);
}

namespace {

// A gradient's type: of what is equal on every rank, each has a summand; of partial sums, each has the whole.
AxisType dual(AxisType t) {
  if (t.kind == Kind::kSame) return proof::kPartial;
  return t.kind == Kind::kPartial ? proof::kSame : t;
}

// A forward op, that of its gradient, and which operands of the first the second has: "^" is the gradient of one.
// Without pairs: by their names, "dout" for the gradient of "out".
struct Gradient {
  const char *op, *name, *backward, *backward_name;
  std::vector<std::pair<std::string, std::string>> operands = {};
  std::string of(const std::string& operand, const std::set<std::string>& known) const {
    for (const auto& [backward_operand, forward] : operands)
      if (backward_operand == operand) return forward;
    if (known.count(operand) > 0 && operand[0] != 'd') return operand;
    return operand[0] == 'd' && known.count(operand.substr(1)) > 0 ? "^" + operand.substr(1) : operand;
  }
};

// Returns what of an op's gradient, of one placement of the op, is not dual to the op.
std::string not_dual(const Gradient& g, const OpCase& forward, const OpCase& backward, std::string_view rule,
                     const Placement& p) {
  std::map<std::string, AxisType> types;
  std::set<std::string> known;
  const std::vector<AxisType> results = derive(forward, forward.rule, p);
  size_t r = 0, w = 0;
  std::map<std::string, AxisType> inputs;
  for (const Field& f : forward.fields) {
    known.insert(f.name);
    if (f.read) types[f.name] = inputs[f.name] = p.read[r++];
    if (f.written) types[f.name] = results[w++];
  }
  Placement q;
  std::vector<std::pair<std::string, AxisType>> expected;
  for (const Field& f : backward.fields) {
    const std::string of = g.of(f.name, known);
    if (f.read) q.read.push_back(of[0] == '^' ? dual(types.at(of.substr(1))) : types.at(of));
    if (f.adds) q.before.push_back(proof::kZero);
    if (f.written && of[0] == '^' && inputs.count(of.substr(1)) > 0) {
      const AxisType t = dual(inputs.at(of.substr(1)));
      expected.emplace_back(f.name, t);
      q.created = q.created || (t.kind == Kind::kSplit && f.letters[static_cast<size_t>(t.dim)] == 'v');
    } else if (f.written) {
      expected.emplace_back("", AxisType{});
    }
  }
  try {
    const std::vector<AxisType> is = derive(backward, rule, q);
    for (size_t k = 0; k < is.size(); ++k)
      if (!expected[k].first.empty() && !(is[k] == expected[k].second))
        return cat(expected[k].first, " is ", proof::to_string(is[k]), " instead of ",
                   proof::to_string(expected[k].second));
    return "";
  } catch (const proof::Violation& v) { return v.text; }
}

}  // namespace

TEST_CASE("the gradient of an op has the dual type of its operand in every placement of the op") {
  const Gradient all[] = {
      {"gemm", "b transposed", "gemm", "", {{"a", "^out"}, {"b", "b"}, {"out", "^a"}}},
      {"gemm", "b transposed", "gemm", "a transposed", {{"a", "^out"}, {"b", "a"}, {"out", "^b"}, {"dbias", "^bias"}}},
      {"gemm_fp8", "", "gemm", "", {{"a", "^out"}, {"b", "b"}, {"out", "^a"}}},
      {"add_bias", "", "column_sums", "", {{"x", "^out"}, {"out", "^bias"}}},
      {"scale", "", "scale", "", {{"x", "^out"}, {"out", "^x"}}},
      {"copy", "", "copy", "", {{"src", "^dst"}, {"dst", "^src"}}},
      {"cast", "", "cast", "", {{"src", "^dst"}, {"dst", "^src"}}},
      {"dropout", "", "dropout", "", {{"x", "^out"}, {"out", "^x"}}},
      {"rope", "", "rope", "", {{"x", "^x"}}},
      {"gelu", "", "gelu_grad", ""},
      {"gelu", "", "gelu_grad", "added"},
      {"activate", "gated", "activate_grad", "gated"},
      {"activate", "not gated", "activate_grad", "not gated"},
      {"layer_norm", "", "layer_norm_grad", ""},
      {"layer_norm", "rms", "layer_norm_grad", "rms, added"},
      {"layer_norm", "with residual", "layer_norm_grad", "with residual", {{"x", "sum"}, {"dbias", "^beta"}}},
      {"qk_norm", "", "qk_norm_grad", ""},
      {"attention", "", "attention_grad", ""},
      {"embedding", "", "embedding_grad", ""},
      {"add_position", "", "position_grad", "", {{"dout", "^x"}, {"dpos", "^pos"}}},
      {"fake_quant", "", "fake_quant_grad", ""},
  };
  for (const Gradient& g : all) {
    const OpCase &forward = case_of(g.op, g.name), &backward = case_of(g.backward, g.backward_name);
    Count n;
    int64_t placements = 0;
    for (const Placement& p : accepted(forward, forward.rule, {.others = false}, n)) {
      if (std::any_of(p.read.begin(), p.read.end(), [](AxisType t) { return t.kind == Kind::kZero; })) continue;
      ++placements;
      INFO(to_string(forward, p));
      CHECK(not_dual(g, forward, backward, backward.rule, p) == "");
    }
    CHECK(placements > 1);
  }
}

TEST_CASE("a gradient whose rule is not the dual one is noticed by its type") {
  struct Wrong {
    Gradient gradient;
    const char *from, *to;
  };
  const Wrong all[] = {
      {{"gelu", "", "gelu_grad", ""}, "dx:.=dout", "dx:."},
      {{"add_bias", "", "column_sums", "", {{"x", "^out"}, {"out", "^bias"}}}, "out:c=x", "out:c!t"},
      {{"layer_norm", "", "layer_norm_grad", ""}, "dgamma:C=dout", "dgamma:C!t"},
      {{"gemm", "b transposed", "gemm", "", {{"a", "^out"}, {"b", "b"}, {"out", "^a"}}}, "out:mn=a*b", "out:mn!k"},
      {{"embedding", "", "embedding_grad", ""}, "dtable:vc=dout", "dtable:Vc=dout"},
      {{"attention", "", "attention_grad", ""}, "dk:sh=dout", "dk:sh"},
  };
  for (const Wrong& w : all) {
    const Gradient& g = w.gradient;
    const OpCase &forward = case_of(g.op, g.name), &backward = case_of(g.backward, g.backward_name);
    const std::string_view rule = kept(replaced(std::string(backward.rule), w.from, w.to));
    INFO(rule);
    REQUIRE(rule != backward.rule);
    Count n;
    int64_t found = 0;
    for (const Placement& p : accepted(forward, forward.rule, kQuick, n))
      found += not_dual(g, forward, backward, rule, p) != "";
    CHECK(found > 0);
  }
}
