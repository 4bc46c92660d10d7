// Packs right-hand sides of GEMM into the layout that the tile kernels read.
#include "kernels/core/memory.h"
#include "kernels/cpu/gemm/gemm_cache.h"

namespace gt::cpu {
namespace {

using dnnl::memory;

memory::data_type dnnl_type(DType t) { return t == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32; }

}  // namespace

int64_t PackedMatrix::bytes_of(int64_t n, int64_t panel, const memory::desc& full) {
  return (n + panel - 1) / panel * align_up(static_cast<int64_t>(full.get_size()));
}

PackedMatrix::PackedMatrix(int64_t k, int64_t n, int64_t panel, bool trans, DType type, const memory::desc& full,
                           const memory::desc& tail, const dnnl::engine& engine, int threads)
    : k_(k), n_(n), width_(panel), trans_(trans), type_(type) {
  const int64_t count = (n + panel - 1) / panel, rest = n % panel;
  const int64_t stride = align_up(static_cast<int64_t>(full.get_size()));
  std::byte* base = storage_.get(bytes_of(n, panel, full));  // a narrower last panel never needs more than a full one
  GT_CHECK(!rest || static_cast<int64_t>(tail.get_size()) <= stride, "tail panel larger than a full one");
  for (int64_t i = 0; i < count; ++i) {
    panels_.emplace_back(rest && i == count - 1 ? tail : full, engine, base + i * stride);
  }
  full_ = make_reorder(panel, full, engine, threads);
  if (rest) tail_ = make_reorder(rest, tail, engine, threads);
}

PackedMatrix::Reorder PackedMatrix::make_reorder(int64_t width, const memory::desc& to, const dnnl::engine& engine,
                                                 int threads) const {
  const memory::dims strides = trans_ ? memory::dims{1, k_} : memory::dims{n_, 1};
  const memory::desc from({k_, width}, dnnl_type(type_), strides);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to, attr);
  Reorder r{dnnl::reorder(desc), {}, {}, static_cast<int64_t>(desc.scratchpad_desc().get_size())};
  for (int t = 0; t < threads; ++t) {
    r.from.emplace_back(from, engine, nullptr);
    if (r.scratchpad_bytes) r.scratchpad.emplace_back(desc.scratchpad_desc(), engine, nullptr);
  }
  return r;
}

void PackedMatrix::pack(const void* b, GemmCache& cache, ThreadPool& pool) {
  const auto count = static_cast<int64_t>(panels_.size());
  pool.parallel_for(count, 1, [&](int64_t begin, int64_t end, int thread) {
    const SingleOpenMpThread single;
    for (int64_t i = begin; i < end; ++i) {
      const bool is_tail = i == count - 1 && n_ % width_ != 0;
      const Reorder& r = is_tail ? tail_ : full_;
      const int64_t at = i * width_ * (trans_ ? k_ : 1) * size_of(type_);
      const memory& from = r.from[static_cast<size_t>(thread)];
      from.set_data_handle(const_cast<std::byte*>(static_cast<const std::byte*>(b) + at));
      dnnl_exec_arg_t args[3] = {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, panel(i)}, {}};
      int n = 2;
      if (r.scratchpad_bytes) {
        const memory& pad = r.scratchpad[static_cast<size_t>(thread)];
        pad.set_data_handle(cache.scratchpad(thread, r.scratchpad_bytes));
        args[n++] = {DNNL_ARG_SCRATCHPAD, pad.get()};
      }
      const dnnl_status_t status = dnnl_primitive_execute(r.primitive.get(), cache.stream(thread), n, args);
      GT_CHECK(status == dnnl_success, "oneDNN reorder of a weight failed, status ", static_cast<int>(status));
    }
  });
}

}  // namespace gt::cpu
