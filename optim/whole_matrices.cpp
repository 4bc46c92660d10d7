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
  const int tp = mesh.size(Axis::kTp);
  for (const Matrix& m : matrices_)
    if (m.split) gathered = std::max(gathered, tp * m.local);
  flat_ = Buffer(most * size_of(DType::kF32), stream.device, *backend.device);
  slices_ = Buffer(gathered * size_of(DType::kF32), stream.device, *backend.device);
  for (const Buffer* b : {&flat_, &slices_})
    if (b->bytes() > 0) backend.device->zero(b->data(), b->bytes(), stream);
  for (Matrix& m : matrices_)
    m.whole.data = m.split ? slices_.tensor({m.whole.rows * m.whole.cols}, DType::kF32) : slice_of(m);
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
  GT_CHECK(p.full_shape.rank == 2 && p.pad_rows == 0, p.name, " ", to_string(p.full_shape), " is not a matrix");
  const int tp = mesh_.size(Axis::kTp);
  const bool split = p.shard.kind == ShardSpec::Kind::kSplit;
  const int64_t rows = p.full_shape[0], cols = p.full_shape[1], local_cols = p.local_shape[1];
  GT_CHECK(!split || p.matrices == p.shard.blocks, p.name, ": ", p.matrices, " matrices in ", int{p.shard.blocks},
           " blocks");
  for (int b = 0; b < p.matrices; ++b) {
    Matrix m{.unit = unit, .at = at, .local = p.local_shape.numel(), .split = split && tp > 1, .copies = 1};
    m.whole.rows = rows, m.whole.cols = cols;
    if (split && p.shard.dim == 1) {
      m.whole.blocks = tp;
    } else {
      const BlockRange local =
          split ? local_block(p.shard, rows, b, tp) : BlockRange{b * (rows / p.matrices), rows / p.matrices};
      m.copies = split && b > 0 ? p.shard.copies(tp) : split ? 1 : tp;
      m.at += local.first * local_cols;
      m.local = local.count * local_cols;
      m.whole.rows = local.count * tp / m.copies;
    }
    matrices_.push_back(m);
  }
}

// Balances FLOPs among the ranks of the unit's domain and tp: largest matrices first, each to the least loaded rank.
void WholeMatrices::assign_owners(size_t first) {
  const int tp = mesh_.size(Axis::kTp), ranks = layouts_[static_cast<size_t>(matrices_[first].unit)].domain.size;
  const auto flops = [&](size_t i) {
    const WholeMatrix& w = matrices_[i].whole;
    const auto k = static_cast<double>(std::min(w.rows, w.cols));
    return k * (static_cast<double>(2 * w.rows * w.cols) + k * k);
  };
  std::vector<size_t> order(matrices_.size() - first);
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return flops(a) > flops(b); });
  std::vector<double> load(static_cast<size_t>(ranks * tp));
  for (const size_t i : order) {
    Matrix& m = matrices_[i];
    const auto least = std::min_element(load.begin(), load.end());
    m.owner = static_cast<int>(least - load.begin()) / tp;
    m.tp_owner = static_cast<int>(least - load.begin()) % tp;
    // Replicated over tp: every TP rank updates it.
    if (m.split)
      *least += flops(i);
    else
      for (int t = 0; t < tp; ++t) load[static_cast<size_t>(m.owner * tp + t)] += flops(i);
  }
}

Tensor WholeMatrices::of(const TensorRange& r, int64_t first, int64_t count) const {
  return flat(layouts_[static_cast<size_t>(r.unit)].begin + r.at + first, count);
}

bool WholeMatrices::owns(int index) const {
  const Matrix& m = matrices_[static_cast<size_t>(index)];
  return !m.split || m.tp_owner == mesh_.coord(Axis::kTp);
}

void WholeMatrices::gather_shards(int unit, Stream stream) {
  const FlatUnit& u = layouts_[static_cast<size_t>(unit)];
  if (u.held < u.size) u.domain.group->all_gather(flat(u.begin, u.held), flat(0, u.size), stream).wait(stream);
}

// Returns whether this rank takes part in updating the matrix.
bool WholeMatrices::gather_slices(int unit, int index, Stream stream) {
  const Matrix& m = matrices_[static_cast<size_t>(index)];
  if (m.unit != unit || m.owner != layouts_[static_cast<size_t>(unit)].domain.rank) return false;
  if (!m.split) return true;
  const int tp = mesh_.size(Axis::kTp);
  mesh_.group(Axis::kTp).all_gather(slice_of(m), slices_.tensor({tp * m.local}, DType::kF32), stream).wait(stream);
  for (int k = 1; m.copies > 1 && k < tp / m.copies; ++k)
    ops_.copy({.src = slices_.tensor({m.local}, DType::kF32, k * m.copies * m.local * size_of(DType::kF32)),
               .dst = m.whole.data.slice(k * m.local, m.local)},
              stream);
  return true;
}

void WholeMatrices::return_slices(int index, Stream stream) {
  const Matrix& m = matrices_[static_cast<size_t>(index)];
  if (!m.split) return;
  mesh_.group(Axis::kTp).broadcast(m.whole.data, m.tp_owner, stream).wait(stream);
  const int64_t mine = mesh_.coord(Axis::kTp) / m.copies * m.local;
  ops_.copy({.src = m.whole.data.slice(mine, m.local), .dst = slice_of(m)}, stream);
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
