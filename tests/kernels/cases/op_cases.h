// The list of cases per op, used for parity between backends and the reference, and for the micro-benchmark. A case
// owns host images of every tensor of its argument struct: fresh random inputs per seed, outputs poisoned with NaN,
// guard bytes on both sides. It runs on any backend with memory and an op table.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"

namespace gt::test {

// Fills a host tensor; `key` differs for every tensor and seed.
using Fill = std::function<void(const Tensor&, uint64_t key)>;
Fill normal(double scale = 1, double mean = 0);
Fill positive();                       // squares of normal samples, for second moments
Fill ids(int64_t begin, int64_t end);  // integers in [begin, end), both ends occur if there are 3 elements or more
Fill values(std::vector<double> v);    // these, repeated; NaN: left poisoned, so the op must write there

constexpr DType k16BitDtypes[] = {DType::kBF16, DType::kF16};
// Relative error of one rounding to this dtype; f32: error of sums of the tested lengths.
constexpr double unit_of(DType t) { return t == DType::kBF16 ? 0x1p-8 : t == DType::kF16 ? 0x1p-11 : 1e-5; }
inline std::string suffix(DType t) { return t == DType::kF32 ? "" : cat(" ", name_of(t)); }
// Dtypes of parameter gradients, independent of the op's other tensors (ops.h, G).
constexpr DType kGradients[] = {DType::kF32, DType::kBF16};
inline std::string grad_suffix(DType t) { return t == DType::kF32 ? "" : cat(", gradient ", name_of(t)); }

enum class Access : uint8_t { kIn, kOut, kInOut };

// Bytes of every block of a case, guards included, in block order.
using Images = std::vector<std::vector<std::byte>>;

class OpCase {
 public:
  std::string op, name;
  double tolerance = 1e-5;  // relative L2 error of every output; 0: bitwise identical
  double flops = 0;
  double untouched = 0;     // bytes of tensors that the op need not read
  bool big = false;         // benchmark only: the reference would take minutes
  bool non_finite = false;  // inf and NaN are part of the expected result; elsewhere they are a bug in the case
  int skew = 0;        // every tensor starts this many elements after an aligned address, like slices of flat buffers
  std::string skewed;  // label it applies to; empty: every tensor

  virtual ~OpCase() = default;

  // Draws inputs and computes the reference result (not for `big` cases).
  void prepare(uint64_t seed);
  // Uploads, runs once through backend.ops, downloads.
  Images run(const Backend& backend, Stream stream) const;
  // Returns "" when the images agree with the reference and inputs and guards are intact; else the first mismatch.
  std::string compare(const Images& got) const;
  // Returns seconds per call: median of `repeats` after a warm-up.
  double time(const Backend& backend, Stream stream, int repeats) const;
  // Bytes that an ideal kernel moves: inputs once, outputs once.
  double bytes() const;

 protected:
  struct Block {
    std::string label;
    Shape shape;
    DType dtype;
    Access access;
    Fill fill;
  };
  std::vector<Block> blocks_;

  // Binds the argument struct's tensors to these addresses (one per block) and calls the op, or the case's derive().
  virtual void call(const Backend& backend, const std::vector<std::byte*>& data, Stream stream) const = 0;
  virtual void derive_inputs(const std::vector<std::byte*>& data) const = 0;

 private:
  int64_t begin(const Block& b) const;  // byte offset of the tensor in its image
  int64_t image_bytes(const Block& b) const;
  std::vector<std::byte*> host_pointers(Images& images) const;
  std::string compare_block(size_t index, const std::vector<std::byte>& got) const;
  Images before_, after_;
};

template <class Args>
class CaseOf final : public OpCase {
 public:
  // A tensor of the arguments, one of their FP8 outputs or of their AttentionSpec, or the rows of a view.
  class Field {
   public:
    Field(Tensor Args::*f) : own_(f) {}
    Field(Tensor Fp8Out::*f) : fp8_(f) {}
    Field(Tensor AttentionSpec::*f) : spec_(f) {}
    Field(HeadView Args::*f) : view_(f) {}
    Tensor& of(Args& a) const {
      if (view_ != nullptr) return (a.*view_).rows;
      if constexpr (requires { a.spec; })
        if (spec_ != nullptr) return a.spec.*spec_;
      if constexpr (requires { a.fp8; })
        if (fp8_ != nullptr) return a.fp8.*fp8_;
      return a.*own_;
    }
    bool operator==(const Field&) const = default;

   private:
    Tensor Args::*own_ = nullptr;
    Tensor Fp8Out::*fp8_ = nullptr;
    Tensor AttentionSpec::*spec_ = nullptr;
    HeadView Args::*view_ = nullptr;
  };
  Args args;  // flags and numbers; tensors are bound when the case runs
  // Computes inputs that other ops produce, on the host, from the drawn ones. A `big` case keeps the random ones.
  std::function<void(const Args&)> derive;

  CaseOf(std::string case_name) { op = OpOf<Args>::kInfo.name, name = std::move(case_name); }

  CaseOf& in(Field f, const char* label, Shape s, Fill fill = normal(), DType t = DType::kF32) {
    return add(f, label, s, t, Access::kIn, std::move(fill));
  }
  CaseOf& out(Field f, const char* label, Shape s, DType t = DType::kF32) {
    return add(f, label, s, t, Access::kOut, nullptr);
  }
  CaseOf& inout(Field f, const char* label, Shape s, Fill fill = normal(), DType t = DType::kF32) {
    return add(f, label, s, t, Access::kInOut, std::move(fill));
  }
  // An output, or with `accumulate` a running sum.
  CaseOf& result(Field f, const char* label, Shape s, bool accumulate, DType t = DType::kF32) {
    return accumulate ? inout(f, label, s, normal(), t) : out(f, label, s, t);
  }
  // Appends a segment to the op's table; the following calls add tensors to it; dtypes in args.table.
  CaseOf& segment(Segment numbers) {
    segments_.push_back({numbers, {}});
    return *this;
  }
  enum Part : size_t { kMaster, kGrad, kM, kV, kValue };
  CaseOf& has(Part part, Access access, Fill fill, DType t = DType::kF32) {
    static constexpr const char* kNames[] = {"master", "grad", "m", "v", "value"};
    segments_.back().parts.emplace_back(part, blocks_.size());
    blocks_.push_back({cat(kNames[part], " ", segments_.size() - 1),
                       {segments_.back().numbers.count},
                       t,
                       access,
                       access == Access::kOut ? nullptr : std::move(fill)});
    return *this;
  }
  // f is the same tensor as the one bound to `of` before.
  CaseOf& alias(Field f, Field of) {
    for (const auto& [field, block] : std::vector(bound_)) {
      if (field == of) bound_.emplace_back(f, block);
    }
    return *this;
  }

 protected:
  void call(const Backend& backend, const std::vector<std::byte*>& data, Stream stream) const override {
    Args a = bind(data, stream.device);
    if constexpr (OverSegments<Args>) a.table = table(backend, data, stream);
    (backend.ops->*OpOf<Args>::kEntry)(a, stream);
  }
  void derive_inputs(const std::vector<std::byte*>& data) const override {
    if (derive) derive(bind(data, Device{}));
  }

 private:
  // Checks that the op declares this tensor under this name, and writes it as the case specifies.
  static void check_listed(Field f, const char* label, Access access) {
    Args dummy{};
    bool listed = false;
    each_operand(dummy, [&](const char* name, Tensor& t, OperandRole role) {
      listed = listed || (&t == &f.of(dummy) && std::string_view(name) == label &&
                          (access == Access::kIn || role != OperandRole::kIn));
    });
    GT_CHECK(listed, OpOf<Args>::kInfo.name, " lists no operand ", label, " that is used so");
  }
  CaseOf& add(Field f, const char* label, Shape s, DType t, Access access, Fill fill) {
    if (access != Access::kInOut) check_listed(f, label, access);
    bound_.emplace_back(f, blocks_.size());
    blocks_.push_back({label, s, t, access, std::move(fill)});
    return *this;
  }
  Args bind(const std::vector<std::byte*>& data, Device device) const {
    Args a = args;
    for (const auto& [field, block] : bound_) {
      field.of(a) = Tensor{data[block], blocks_[block].shape, blocks_[block].dtype, device};
    }
    return a;
  }
  // Cached for the same tensors, since calls are timed.
  SegmentTable table(const Backend& backend, const std::vector<std::byte*>& data,
                     Stream stream) const requires OverSegments<Args> {
    if (made_ && made_for_ == data) return made_->tables().front();
    made_ = std::make_unique<SegmentTables>();
    made_for_ = data;
    made_->open(args.table.master, args.table.grad, args.table.value);
    for (const auto& [numbers, parts] : segments_) {
      Segment s = numbers;
      for (const auto& [part, block] : parts) {
        if (part == kMaster) s.master = data[block];
        if (part == kGrad) s.grad = data[block];
        if (part == kM) s.m = reinterpret_cast<float*>(data[block]);
        if (part == kV) s.v = reinterpret_cast<float*>(data[block]);
        if (part == kValue) s.value = data[block];
      }
      made_->add(s);
    }
    made_->upload(static_cast<int64_t>(segments_.size()), stream, *backend.device);
    return made_->tables().front();
  }
  struct Listed {
    Segment numbers;
    std::vector<std::pair<Part, size_t>> parts;
  };
  std::vector<Listed> segments_;
  mutable std::unique_ptr<SegmentTables> made_;
  mutable std::vector<std::byte*> made_for_;
  std::vector<std::pair<Field, size_t>> bound_;
};

using OpCases = std::vector<std::unique_ptr<OpCase>>;
OpCases op_cases();  // all of them, unprepared
// k of the environment's GPT_TEST_EVERY=k: a slow run takes the first case of an op and every k-th after it. 1 without
// it, and for GPT_TEST_FULL.
int64_t case_stride();

// One function per family.
void add_matrix_cases(OpCases&);       // op_cases_matrix.cpp
void add_elementwise_cases(OpCases&);  // op_cases_elementwise.cpp
void add_model_cases(OpCases&);        // op_cases_model.cpp
void add_attention_cases(OpCases&);    // op_cases_attention.cpp
void add_step_cases(OpCases&);         // op_cases_step.cpp
void add_optim_cases(OpCases&);        // op_cases_optim.cpp
void add_dropout_cases(OpCases&);      // op_cases_dropout.cpp
void add_quant_cases(OpCases&);        // op_cases_quant.cpp
void add_fp8_cases(OpCases&);          // op_cases_fp8.cpp
void add_gradient_cases(OpCases&);     // op_cases_grad.cpp
void add_cache_cases(OpCases&);        // op_cases_cache.cpp
void add_transformer_cases(OpCases&);  // op_cases_transformer.cpp
void add_expert_cases(OpCases&);       // op_cases_experts.cpp

template <class Args>
CaseOf<Args>& add_case(OpCases& to, std::string name) {
  auto c = std::make_unique<CaseOf<Args>>(std::move(name));
  CaseOf<Args>& ref = *c;
  to.push_back(std::move(c));
  return ref;
}

}  // namespace gt::test
