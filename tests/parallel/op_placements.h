// Checks the typing rules of ops (parallel/proof/op_rules.h) against the kernels: every placement of an op's operands
// on a mesh of 2 x 2 threads is either refused by its rule, or the ranks' results, put together by the types that the
// rule derives, equal those of one rank.
#pragma once
#include <array>
#include <cctype>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "parallel/proof/op_rules.h"
#include "parallel/proof/op_types.h"

namespace gt::placements {

// A tensor on the host. sections: parts of the last dimension that ranks split each for themselves, such as the
// queries, keys and values of packed qkv; empty: one.
struct Values {
  Shape shape;
  DType dtype = DType::kF32;
  std::vector<std::byte> bytes;
  std::vector<int64_t> sections;
  Tensor tensor() const { return {const_cast<std::byte*>(bytes.data()), shape, dtype, {}}; }
  double at(int64_t) const;
  void set(int64_t, double);
};
Values empty_values(Shape, DType, std::vector<int64_t> sections = {});

// The part of each dimension that a rank has: of the two axes, the letters that are split over it.
struct Cut {
  std::array<std::string, 2> split;
  std::array<int, 2> at{};
  int64_t parts(char letter) const;
  int64_t begin(char letter, int64_t size) const { return index(letter) * size / parts(letter); }

 private:
  int64_t index(char letter) const;
};

struct Field {
  std::string name, letters;  // of its dimensions: those of the rule; of controls that no rule names, of the case
  Values value;               // of one rank; of a result that the op adds to, what is there before
  bool read = false, written = false, adds = false;
  bool may_be_zero = true;
  bool one_each = false;  // along dimension 0, of which every rank makes one
};

struct OpCase {
  std::string op, name;
  std::string_view rule;
  std::vector<Field> fields;
  double tolerance = 2e-5;
  bool flat = true;  // of an elementwise op: shards of the flattened tensors are tested
  std::function<void(std::span<const Tensor>, const Cut&)> call;
  std::function<Values(const Values&)> combine;  // of a result of one_each
};

// How the values of a field are drawn.
enum class Draw : uint8_t { kNormal, kPositive, kIds };
struct FieldSpec {
  const char* name;
  Shape shape;
  Draw draw = Draw::kNormal;
  DType dtype = DType::kF32;
  std::vector<int64_t> sections = {};
  const char* letters = nullptr;  // of a control that the rule does not name
  int64_t ids = 0;                // kIds: below it
};
Field make_field(const FieldSpec&, std::string_view rule, OperandRole, uint64_t key);

// Adds a case of an op. localize: sets the arguments that depend on the part, such as the first row.
template <class Args>
OpCase& add(std::vector<OpCase>& to, const Args& args, const char* name, const std::vector<FieldSpec>& fields,
            void (*localize)(Args&, const Cut&) = nullptr) {
  OpCase c{.op = OpOf<Args>::kInfo.name, .name = name, .rule = proof::rule_of(args)};
  std::vector<std::string> names;
  for (const FieldSpec& f : fields) {
    OperandRole role = OperandRole::kIn;
    bool listed = false;
    each_operand(args, [&](const char* operand, const Tensor&, OperandRole r) {
      if (std::string_view(operand) == f.name) role = r, listed = true;
    });
    GT_CHECK(listed, c.op, " lists no operand ", f.name);
    c.fields.push_back(make_field(f, c.rule, role, 100 * to.size() + names.size()));
    names.emplace_back(f.name);
  }
  c.call = [args, names, localize](std::span<const Tensor> tensors, const Cut& cut) {
    Args a = args;
    each_operand(a, [&](const char* operand, Tensor& t, OperandRole) {
      for (size_t k = 0; k < names.size(); ++k)
        if (names[k] == operand) t = tensors[k];
    });
    if (localize != nullptr) localize(a, cut);
    (cpu_backend().ops->*OpOf<Args>::kEntry)(a, Stream{});
  };
  to.push_back(std::move(c));
  return to.back();
}

const std::vector<OpCase>& op_cases();  // of every op whose rule has letters
void add_transformer_cases(std::vector<OpCase>&);

// Of one axis: a type for every operand that is read, whether new dimensions of results are split, and the types of
// what results are added to.
struct Placement {
  std::vector<proof::AxisType> read, before;
  bool created = false;
};
std::string to_string(const OpCase&, const Placement&);

struct Count {
  int64_t placements = 0;  // of one axis
  int64_t refused = 0;     // of them by the rule
  int64_t varying = 0;     // of them read values of their own ranks, and so are the results
  int64_t equal = 0;       // pairs of the others, of two axes: equal to one rank
  std::vector<std::string> wrong;
};

struct Extent {
  bool two_axes = true, others = true;  // others: zeros and values of their own ranks
  size_t most_wrong = 5;                // stops behind so many
};
// `rule`: instead of that of the case; lives as long as the program.
Count check(const OpCase&, std::string_view rule, const Extent& = {});

// Placements of one axis that the rule accepts.
std::vector<Placement> accepted(const OpCase&, std::string_view rule, const Extent&, Count&);
// Types of the results along one axis; throws proof::Violation.
std::vector<proof::AxisType> derive(const OpCase&, std::string_view rule, const Placement&);

}  // namespace gt::placements
