// ONE list of cases per op, for parity between backends and the reference, and for the micro-benchmark. A case owns
// host images of every tensor of its argument struct: fresh random inputs per seed, outputs poisoned with NaN, guard
// bytes on both sides. It can run on any backend that offers memory and an op table; it knows no backend.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"

namespace gt::test {

// Puts values into a host tensor; `key` differs for every tensor and seed.
using Fill = std::function<void(const Tensor&, uint64_t key)>;
Fill normal(double scale = 1, double mean = 0);
Fill positive();                       // squares of normal numbers, for second moments
Fill ids(int64_t begin, int64_t end);  // integers in [begin, end), both ends drawn when there is room
Fill values(std::vector<double> v);    // these, repeated; NaN: left poisoned, so that the op has to write there

constexpr DType kHalves[] = {DType::kBF16, DType::kF16};
// What one rounding to this type may change, relative; f32: what sums of our lengths lose.
constexpr double unit_of(DType t) { return t == DType::kBF16 ? 0x1p-8 : t == DType::kF16 ? 0x1p-11 : 1e-5; }
inline std::string suffix(DType t) { return t == DType::kF32 ? "" : cat(" ", name_of(t)); }
// How gradients of parameters are kept, whatever else an op has (ops.h, G).
constexpr DType kGradients[] = {DType::kF32, DType::kBF16};
inline std::string grad_suffix(DType t) { return t == DType::kF32 ? "" : cat(", gradient ", name_of(t)); }

enum class Access : uint8_t { kIn, kOut, kInOut };

// The bytes of every block of a case, guards included, in the order of the case's blocks.
using Images = std::vector<std::vector<std::byte>>;

class OpCase {
 public:
  std::string op, name;
  double tolerance = 1e-5;  // relative L2 of every output; 0: the same bits
  double flops = 0;
  double untouched = 0;     // bytes of the tensors that the op has no reason to read
  bool big = false;         // for the benchmark only: the reference would take minutes
  bool non_finite = false;  // inf and nan belong to the expected result; elsewhere they are a mistake of the case
  int skew = 0;  // every tensor starts this many elements after an aligned address, as slices of flat buffers do
  std::string skewed;  // of which label; empty: every tensor

  virtual ~OpCase() = default;

  // Draws inputs and computes what the reference makes of them (not for `big` cases).
  void prepare(uint64_t seed);
  // Uploads, runs once through backend.ops, downloads.
  Images run(const Backend& backend, Stream stream) const;
  // Empty when the images agree with the reference, inputs and guards are untouched; otherwise what differs where.
  std::string judge(const Images& got) const;
  // Seconds of one call, the median of `repeats` after a warm-up.
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

  // Points the argument struct's tensors at these addresses (one a block) and calls the op / the case's derive().
  virtual void call(const Backend& backend, const std::vector<std::byte*>& data, Stream stream) const = 0;
  virtual void derive_inputs(const std::vector<std::byte*>& data) const = 0;

 private:
  int64_t begin(const Block& b) const;  // byte of its image where the tensor starts
  int64_t image_bytes(const Block& b) const;
  std::vector<std::byte*> host_pointers(Images& images) const;
  std::string judge_block(size_t index, const std::vector<std::byte>& got) const;
  Images before_, after_;
};

template <class Args>
class CaseOf final : public OpCase {
 public:
  // A tensor of the arguments, or of their FP8 outputs.
  class Field {
   public:
    Field(Tensor Args::*f) : own_(f) {}
    Field(Tensor Fp8Out::*f) : fp8_(f) {}
    Tensor& of(Args& a) const {
      if constexpr (requires { a.fp8; })
        if (fp8_ != nullptr) return a.fp8.*fp8_;
      return a.*own_;
    }
    bool operator==(const Field&) const = default;

   private:
    Tensor Args::*own_ = nullptr;
    Tensor Fp8Out::*fp8_ = nullptr;
  };
  Args args;  // flags and numbers; the tensors are bound when the case runs
  // Fills inputs that other ops compute, on the host, from those drawn. A `big` case keeps the random ones.
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
  // An output, or with `accumulate` a sum that goes on.
  CaseOf& result(Field f, const char* label, Shape s, bool accumulate, DType t = DType::kF32) {
    return accumulate ? inout(f, label, s, normal(), t) : out(f, label, s, t);
  }
  // One more segment of the op's table, and what the last one has; types in args.table.
  CaseOf& segment(Segment numbers) {
    segments_.push_back({numbers, {}});
    return *this;
  }
  enum Part : size_t { kMaster, kGrad, kM, kV, kValue };
  CaseOf& has(Part part, Access access, Fill fill, DType t = DType::kF32) {
    static constexpr const char* kNames[] = {"master", "grad", "m", "v", "value"};
    segments_.back().parts.emplace_back(part, blocks_.size());
    blocks_.push_back({cat(kNames[part], " ", segments_.size() - 1), {segments_.back().numbers.count}, t, access,
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
  // The op lists this tensor by this name, and writes it where the case says that it does.
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
  // Made once for the same tensors: calls are timed.
  SegmentTable table(const Backend& backend, const std::vector<std::byte*>& data, Stream stream) const
      requires OverSegments<Args> {
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

// The families.
void add_matrix_cases(OpCases&);       // op_cases_matrix.cpp
void add_elementwise_cases(OpCases&);  // op_cases_elementwise.cpp
void add_model_cases(OpCases&);        // op_cases_model.cpp
void add_step_cases(OpCases&);         // op_cases_step.cpp
void add_optim_cases(OpCases&);        // op_cases_optim.cpp
void add_dropout_cases(OpCases&);      // op_cases_dropout.cpp
void add_quant_cases(OpCases&);        // op_cases_quant.cpp
void add_fp8_cases(OpCases&);          // op_cases_fp8.cpp
void add_gradient_cases(OpCases&);     // op_cases_grad.cpp
void add_cache_cases(OpCases&);        // op_cases_cache.cpp
void add_transformer_cases(OpCases&);  // op_cases_transformer.cpp

template <class Args>
CaseOf<Args>& add_case(OpCases& to, std::string name) {
  auto c = std::make_unique<CaseOf<Args>>(std::move(name));
  CaseOf<Args>& ref = *c;
  to.push_back(std::move(c));
  return ref;
}

}  // namespace gt::test
