// Whole matrices for update rules that need them. Ranks hold a matrix in shards (ZeRO) of slices (ShardSpec). One FSDP
// unit at a time is gathered in f32: shards over its domain, then the slices of each matrix over the axes that split
// it. A matrix is updated on one of these ranks, its owner, and the result is returned to all holders. A fused weight
// is several matrices, the weight of experts several each. Layouts of the store need no padding for this; the price is
// 2 elements sent per element and step.
#pragma once
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/mesh.h"
#include "parallel/zero/param_store.h"

namespace gt {

// A gathered matrix [rows, cols] as `blocks` blocks of adjacent columns, each contiguous: one, or one per
// slice of a weight that is split by columns.
struct WholeMatrix {
  Tensor data;  // f32 [rows * cols]
  int64_t rows = 0, cols = 0;
  int blocks = 1;
  Tensor block(Tensor of, int k) const {
    return of.slice(k * (rows * cols / blocks), rows * cols / blocks).view({rows, cols / blocks});
  }
};

class WholeMatrices {
 public:
  // tensors: by store.tensors(), those whose matrices are gathered. The mesh must outlive this object.
  WholeMatrices(const ParamStore&, const std::vector<bool>& tensors, const Mesh&, const Backend&, Stream);

  // Memory for elements [first, first + count) of a range, f32, to be filled before each() of its unit and read after
  // it. All units share it.
  Tensor of(const TensorRange& r, int64_t first, int64_t count) const;

  struct Unit {
    int unit;                       // in the store
    int first_tensor, last_tensor;  // [first, last) in store.tensors()
  };
  std::span<const Unit> units() const { return units_; }

  // The matrices of all units and where each is gathered: fixed addresses.
  int count() const { return static_cast<int>(matrices_.size()); }
  const WholeMatrix& matrix(int index) const { return matrices_[static_cast<size_t>(index)].whole; }

  // Calls rule(index) on the owner of each matrix of a unit, to update it in place. Collective over the stage.
  template <class Rule>
  void each(const Unit& u, Stream stream, Rule rule) {
    gather_shards(u.unit, stream);
    for (int i = 0; i < count(); ++i) {
      if (!gather_slices(u.unit, i, stream)) continue;
      if (owns(i)) rule(i);
      return_slices(i, stream);
    }
    return_shards(u.unit, stream);
  }

  int64_t bytes() const { return flat_.bytes() + slices_.bytes(); }

 private:
  // An axis that splits a matrix of more than one rank. copies: consecutive ranks that hold the same slice.
  struct Slices {
    Axis axis = Axis::kTp;
    int rank = 0, size = 1, copies = 1;
    int owner = 0;  // rank on the axis
    int parts() const { return size / copies; }
  };
  struct Matrix {
    int unit;
    int64_t at, local;         // elements of the unit's flat buffer: this rank's slice
    std::vector<Slices> over;  // from the innermost; empty: not split
    int owner = 0;             // in the unit's domain
    WholeMatrix whole;
    Slices* along(Axis);       // nullptr: not split over it
    int64_t gathered() const;  // elements that gathering the slices needs
  };
  void add_unit(const ParamStore&, int unit, const std::vector<bool>& tensors);
  void add_matrices(const Parameter&, int unit, int64_t at);
  void assign_owners(size_t first);
  bool owns(int index) const;
  static int64_t slice_begin(const Matrix&, size_t axes);
  void gather_shards(int unit, Stream);
  bool gather_slices(int unit, int index, Stream);
  void return_slices(int index, Stream);
  void return_shards(int unit, Stream);
  Tensor flat(int64_t at, int64_t count) const { return flat_.tensor({count}, DType::kF32, at * size_of(DType::kF32)); }
  Tensor slice_of(const Matrix& m) const { return flat(m.at, m.local); }

  const Mesh& mesh_;
  const OpTable& ops_;
  std::vector<FlatUnit> layouts_;  // by unit of the store; empty ones: no matrix
  std::vector<Unit> units_;
  std::vector<Matrix> matrices_;
  std::vector<Work> sending_;
  Buffer flat_, slices_;  // f32: one unit; the slices of one matrix
};

}  // namespace gt
