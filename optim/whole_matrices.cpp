#include "optim/whole_matrices.h"

#include <algorithm>
#include <numeric>

namespace gt {

WholeMatrices::WholeMatrices(const ParamStore& store, const std::vector<bool>& tensors, const Mesh& mesh,
                             const Backend& backend, Stream stream)
    : mesh_(mesh), ops_(*backend.ops), layouts_(static_cast<size_t>(store.num_units())) {
  for (int k = 0; k < store.num_units(); ++k)
    if (store.state_elements(k) > 0) add_unit(store, k, tensors);
  int64_t most = 0, gathered = 0;
  for (const Unit& u : units_) most = std::max(most, layouts_[static_cast<size_t>(u.unit)].size);
  for (const Matrix& m : matrices_) gathered = std::max(gathered, m.gathered());
  flat_ = Buffer(most * size_of(DType::kF32), stream.device, *backend.device);
  slices_ = Buffer(gathered * size_of(DType::kF32), stream.device, *backend.device);
  for (const Buffer* b : {&flat_, &slices_})
    if (b->bytes() > 0) backend.device->zero(b->data(), b->bytes(), stream);
  for (Matrix& m : matrices_)
    m.whole.data = m.over.empty() ? slice_of(m) : slices_.tensor({m.whole.rows * m.whole.cols}, DType::kF32);
  sending_.reserve(matrices_.size());
}

void WholeMatrices::add_unit(const ParamStore& store, int unit, const std::vector<bool>& tensors) {
  const FlatUnit u = store.flat_unit(unit);
  const size_t first = matrices_.size();
  for (size_t k = 0; k < u.params.size(); ++k)
    if (tensors[static_cast<size_t>(u.first_tensor) + k]) add_matrices(*u.params[k], unit, u.offsets[k]);
  if (matrices_.size() == first) return;
  layouts_[static_cast<size_t>(unit)] = u;
  units_.push_back({unit, u.first_tensor, u.first_tensor + static_cast<int>(u.params.size())});
  assign_owners(first);
}

void WholeMatrices::add_matrices(const Parameter& p, int unit, int64_t at) {
  const int first = p.full_shape.rank - 2;  // dimension of the rows; before it that of a stack, one after the other
  GT_CHECK((first == 0 || first == 1) && p.pad_rows == 0, p.name, " ", to_string(p.full_shape), " is not a matrix");
  const AxisShard tp = p.shard.tp();
  GT_CHECK(!tp.splits() || p.matrices == tp.blocks, p.name, ": ", p.matrices, " matrices in ", int{tp.blocks},
           " blocks");
  const RankCoordinates here = mesh_.all_coordinates();
  const int64_t rows = p.local_shape[first], cols = p.local_shape[first + 1], stack = first == 0 ? 1 : p.local_shape[0];
  for (int i = 0; i < stack * p.matrices; ++i) {
    const int b = i % p.matrices;
    const BlockRange block = tp.dim == first && p.matrices > 1
                                 ? local_block(tp, p.full_shape[first], b, here[Axis::kTp].size)
                                 : BlockRange{b * (rows / p.matrices), rows / p.matrices};
    const int64_t begin = (i / p.matrices * rows + block.first) * cols;
    Matrix m{.unit = unit, .at = at + begin, .local = block.count * cols, .over = {}, .whole = {}};
    m.whole.rows = block.count, m.whole.cols = p.full_shape[first + 1];
    for (const int dim : {0, 1})
      for (size_t k = p.shard.axes.size(); k-- > 0;) {
        const AxisShard& s = p.shard.axes[k];
        const AxisPosition on = here[s.axis];
        if (s.dim != first + dim || on.size == 1) continue;
        GT_CHECK(dim == 1 || p.matrices == 1 || s.axis == Axis::kTp, p.name, ": ", name_of(s.axis),
                 " splits its matrices along their rows");
        m.over.push_back({s.axis, on.rank, on.size, b > 0 ? s.copies(on.size) : 1});
        if (dim == 0)
          m.whole.rows *= m.over.back().parts();
        else
          m.whole.blocks *= on.size;
      }
    matrices_.push_back(std::move(m));
  }
}

WholeMatrices::Slices* WholeMatrices::Matrix::along(Axis axis) {
  const auto it = std::find_if(over.begin(), over.end(), [&](const Slices& s) { return s.axis == axis; });
  return it == over.end() ? nullptr : &*it;
}

int64_t WholeMatrices::Matrix::gathered() const {
  int64_t n = over.empty() ? 0 : local;
  for (const Slices& s : over) n *= s.size;
  return n;
}

// Balances FLOPs among the ranks of the unit's domain and of the axes that split it: largest matrices first, each to
// the least loaded rank.
void WholeMatrices::assign_owners(size_t first) {
  const int ranks = layouts_[static_cast<size_t>(matrices_[first].unit)].domain.size, tp = mesh_.size(Axis::kTp);
  const bool any = std::any_of(matrices_.begin() + static_cast<ptrdiff_t>(first), matrices_.end(),
                               [](Matrix& m) { return m.along(Axis::kEp) != nullptr; });
  const int ep = any ? mesh_.size(Axis::kEp) : 1;
  const auto flops = [&](size_t i) {
    const WholeMatrix& w = matrices_[i].whole;
    const auto k = static_cast<double>(std::min(w.rows, w.cols));
    return k * (static_cast<double>(2 * w.rows * w.cols) + k * k);
  };
  std::vector<size_t> order(matrices_.size() - first);
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return flops(a) > flops(b); });
  std::vector<double> load(static_cast<size_t>(ranks * ep * tp));
  for (const size_t i : order) {
    Matrix& m = matrices_[i];
    const auto least = static_cast<int>(std::min_element(load.begin(), load.end()) - load.begin());
    m.owner = least / (ep * tp);
    for (int k = m.owner * ep * tp; k < (m.owner + 1) * ep * tp; ++k) {
      // Of an axis that does not split it, every rank updates it.
      Slices *over_ep = m.along(Axis::kEp), *over_tp = m.along(Axis::kTp);
      if (over_ep != nullptr) over_ep->owner = least / tp % ep;
      if (over_tp != nullptr) over_tp->owner = least % tp;
      if ((over_ep == nullptr || over_ep->owner == k / tp % ep) && (over_tp == nullptr || over_tp->owner == k % tp))
        load[static_cast<size_t>(k)] += flops(i);
    }
  }
}

Tensor WholeMatrices::of(const TensorRange& r, int64_t first, int64_t count) const {
  return flat(layouts_[static_cast<size_t>(r.unit)].begin + r.at + first, count);
}

bool WholeMatrices::owns(int index) const {
  const Matrix& m = matrices_[static_cast<size_t>(index)];
  return std::all_of(m.over.begin(), m.over.end(), [](const Slices& s) { return s.rank == s.owner; });
}

void WholeMatrices::gather_shards(int unit, Stream stream) {
  const FlatUnit& u = layouts_[static_cast<size_t>(unit)];
  if (u.held < u.size) u.domain.group->all_gather(flat(u.begin, u.held), flat(0, u.size), stream).wait(stream);
}

// Returns whether this rank takes part in updating the matrix.
bool WholeMatrices::gather_slices(int unit, int index, Stream stream) {
  const Matrix& m = matrices_[static_cast<size_t>(index)];
  if (m.unit != unit || m.owner != layouts_[static_cast<size_t>(unit)].domain.rank) return false;
  Tensor part = slice_of(m);
  for (size_t k = 0; k < m.over.size(); ++k) {
    const Slices& s = m.over[k];
    const int64_t n = part.numel(), offset = slice_begin(m, k + 1);  // in place for the next axis
    const auto at = [&](int64_t begin, int64_t count) {
      return slices_.tensor({count}, DType::kF32, (offset + begin) * size_of(DType::kF32));
    };
    mesh_.group(s.axis).all_gather(part, at(0, s.size * n), stream).wait(stream);
    for (int j = 1; s.copies > 1 && j < s.parts(); ++j)
      ops_.copy({.src = at(j * s.copies * n, n), .dst = at(j * n, n)}, stream);
    part = at(0, s.parts() * n);
  }
  return true;
}

// First element in the gathered matrix of the part that is complete once the first `axes` axes are gathered.
int64_t WholeMatrices::slice_begin(const Matrix& m, size_t axes) {
  int64_t begin = 0, n = m.local;
  for (size_t k = 0; k < m.over.size(); ++k) {
    if (k >= axes) begin += m.over[k].rank / m.over[k].copies * n;
    n *= m.over[k].parts();
  }
  return begin;
}

// Within the groups that the owner is in, from the innermost axis on.
void WholeMatrices::return_slices(int index, Stream stream) {
  const Matrix& m = matrices_[static_cast<size_t>(index)];
  if (m.over.empty()) return;
  for (size_t k = 0; k < m.over.size(); ++k)
    if (std::all_of(m.over.begin() + static_cast<ptrdiff_t>(k) + 1, m.over.end(),
                    [](const Slices& s) { return s.rank == s.owner; }))
      mesh_.group(m.over[k].axis).broadcast(m.whole.data, m.over[k].owner, stream).wait(stream);
  ops_.copy({.src = m.whole.data.slice(slice_begin(m, 0), m.local), .dst = slice_of(m)}, stream);
}

void WholeMatrices::return_shards(int unit, Stream stream) {
  const FlatUnit& u = layouts_[static_cast<size_t>(unit)];
  if (u.domain.size == 1) return;
  sending_.clear();
  for (const Matrix& m : matrices_)
    if (m.unit == unit) sending_.push_back(u.domain.group->broadcast(slice_of(m), m.owner, stream));
  for (Work& w : sending_) w.wait(stream);
}

}  // namespace gt
