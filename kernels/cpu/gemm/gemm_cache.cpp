#include "kernels/cpu/gemm/gemm_cache.h"

#include <algorithm>
#include <string_view>

#include "kernels/cpu/simd/cast_16bit.h"

// oneDNN of Debian is built on OpenMP; only these two functions of its interface are needed.
extern "C" {
int omp_get_max_threads(void);
void omp_set_num_threads(int);
}

namespace gt::cpu {
namespace {

using dnnl::memory;

memory::data_type dnnl_type(DType t) {
  switch (t) {
    case DType::kF32: return memory::data_type::f32;
    case DType::kBF16: return memory::data_type::bf16;
    default: fail(Exit::kInternal, "gemm: no CPU kernel for type ", name_of(t));
  }
}

// A row-major [rows, cols] matrix, or one stored as its transpose.
memory::desc matrix(int64_t rows, int64_t cols, int64_t ld, bool trans, DType type) {
  return {{rows, cols}, dnnl_type(type), trans ? memory::dims{1, ld} : memory::dims{ld, 1}};
}

dnnl::matmul::primitive_desc make_desc(const TileSpec& s, const memory::desc& b, const dnnl::engine& engine) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  const memory::desc a = matrix(s.m, s.k, s.lda, s.trans_a, s.in), c = matrix(s.m, s.n, s.ldc, false, DType::kF32);
  if (!s.bias) return {dnnl::matmul::desc(a, b, c), attr, engine};
  return {dnnl::matmul::desc(a, b, matrix(1, s.n, s.n, false, DType::kF32), c), attr, engine};
}

size_t mix(size_t h, int64_t v) { return (h ^ static_cast<size_t>(v)) * 0x9E3779B97F4A7C15ull + (h >> 29); }

bool blocked(const memory::desc& d) {
  return d.data.format_kind == dnnl_blocked && d.data.format_desc.blocking.inner_nblks > 0;
}

void check(dnnl_status_t status, const char* what) {
  GT_CHECK(status == dnnl_success, "oneDNN ", what, " failed, status ", static_cast<int>(status));
}

}  // namespace

size_t TileSpecHash::operator()(const TileSpec& s) const {
  size_t h = 0;
  for (int64_t v : {s.m, s.n, s.k, s.lda, s.ldb, s.ldc}) h = mix(h, v);
  return mix(h, static_cast<int64_t>(s.in) | s.trans_a << 16 | s.trans_b << 17 | s.packed << 18 | s.bias << 19 |
                    s.accumulate << 20);
}

size_t PackKeyHash::operator()(const PackKey& k) const {
  size_t h = mix(0, static_cast<int64_t>(reinterpret_cast<uintptr_t>(k.address)));
  for (int64_t v : {k.k, k.n, k.panel}) h = mix(h, v);
  return mix(h, static_cast<int64_t>(k.type) << 1 | k.trans);
}

SingleOpenMpThread::SingleOpenMpThread() : before_(omp_get_max_threads()) {
  if (before_ != 1) omp_set_num_threads(1);
}

SingleOpenMpThread::~SingleOpenMpThread() {
  if (before_ != 1) omp_set_num_threads(before_);
}

TileKernel::TileKernel(const TileSpec& spec, const memory::desc& b, const dnnl::engine& engine, int threads)
    : bias_(spec.bias) {
  const dnnl::matmul::primitive_desc desc = make_desc(spec, b, engine);
  primitive_ = dnnl::matmul(desc);
  reference_ = std::string_view(desc.impl_info_str()).find("ref") != std::string_view::npos;
  scratchpad_bytes_ = static_cast<int64_t>(desc.scratchpad_desc().get_size());
  for (int t = 0; t < threads; ++t) {
    Args args{{desc.src_desc(), engine, nullptr}, {}, {}, {desc.dst_desc(), engine, nullptr}, {}};
    if (!spec.packed) args.b = memory(desc.weights_desc(), engine, nullptr);
    if (spec.bias) args.bias = memory(desc.bias_desc(), engine, nullptr);
    if (scratchpad_bytes_ > 0) args.scratchpad = memory(desc.scratchpad_desc(), engine, nullptr);
    args_.push_back(std::move(args));
  }
}

void TileKernel::run(int thread, dnnl_stream_t stream, void* a, void* b, dnnl_memory_t b_packed, void* bias, void* c,
                     void* scratchpad) const {
  const Args& args = args_[static_cast<size_t>(thread)];
  dnnl_exec_arg_t list[5];
  int count = 0;
  const auto give = [&](int name, const memory& m, void* data) {
    check(dnnl_memory_set_data_handle(m.get(), data), "memory_set_data_handle");
    list[count++] = {name, m.get()};
  };
  give(DNNL_ARG_SRC, args.a, a);
  give(DNNL_ARG_DST, args.c, c);
  if (b != nullptr) {
    give(DNNL_ARG_WEIGHTS, args.b, b);
  } else {
    list[count++] = {DNNL_ARG_WEIGHTS, b_packed};
  }
  if (bias_) give(DNNL_ARG_BIAS, args.bias, bias);
  if (scratchpad_bytes_ > 0) give(DNNL_ARG_SCRATCHPAD, args.scratchpad, scratchpad);
  check(dnnl_primitive_execute(primitive_.get(), stream, count, list), "matmul");
}

GemmCache::GemmCache(int threads) : engine_(dnnl::engine::kind::cpu, 0), threads_(static_cast<size_t>(threads)) {
  for (PerThread& t : threads_) t.stream = dnnl::stream(engine_);
}

const memory::desc& GemmCache::panel_layout(int64_t k, int64_t width, DType type) {
  const PackKey key{nullptr, k, width, width, false, type};
  const auto found = layouts_.find(key);
  if (found != layouts_.end()) return found->second;
  const SingleOpenMpThread single;
  const TileSpec whole{.m = kTileRows, .n = width, .k = k, .lda = k, .ldc = width, .in = type};
  const memory::desc open({k, width}, dnnl_type(type), panel_tag_);
  memory::desc best = make_desc(whole, open, engine_).weights_desc();
  if (!blocked(best)) best = matrix(k, width, width + kPadding, false, type);
  return layouts_.try_emplace(key, best).first->second;
}

bool GemmCache::worth_packing(int64_t k, int64_t n, int64_t panel, bool trans, DType type) {
  constexpr int64_t kPage = 4096;
  return blocked(panel_layout(k, std::min(panel, n), type)) || (!trans && k > 1 && n * size_of(type) % kPage == 0);
}

const TileKernel& GemmCache::kernel(const TileSpec& spec) {
  const auto found = kernels_.find(spec);
  if (found != kernels_.end()) return found->second;
  const SingleOpenMpThread single;
  const memory::desc b =
      spec.packed ? panel_layout(spec.k, spec.n, spec.in) : matrix(spec.k, spec.n, spec.ldb, spec.trans_b, spec.in);
  return kernels_.try_emplace(spec, spec, b, engine_, static_cast<int>(threads_.size())).first->second;
}

PackedMatrix& GemmCache::copy_of(const void* b, int64_t k, int64_t n, int64_t panel, bool trans, DType type,
                                 int64_t version) {
  const PackKey key{version > 0 ? b : nullptr, k, n, panel, trans, type};
  auto found = packed_.find(key);
  if (found == packed_.end()) {
    const SingleOpenMpThread single;
    const int64_t width = std::min(panel, n), rest = n % width;
    const memory::desc& full = panel_layout(k, width, type);
    const memory::desc& tail = rest ? panel_layout(k, rest, type) : full;
    const int threads = static_cast<int>(threads_.size());
    found = packed_.try_emplace(key, k, n, width, trans, type, full, tail, engine_, threads).first;
  }
  return found->second;
}

void GemmCache::pack(PackedMatrix& copy, const void* bytes, int64_t version, ThreadPool& pool) {
  copy.pack(bytes, *this, pool);
  copy.version = version;
  ++packs_;
}

int64_t ColumnPanels::bytes_of(int64_t k, int64_t n) {
  return (n + kRowsPanel - 1) / kRowsPanel * kRowsPanel * k * static_cast<int64_t>(sizeof(float));
}

const float* GemmCache::column_panels(const Tensor& b, int64_t k, int64_t n, bool trans, int64_t version,
                                      ThreadPool& pool) {
  ColumnPanels& to = panels_[{version > 0 ? b.data : nullptr, k, n, kRowsPanel, trans, b.dtype}];
  auto* panels = reinterpret_cast<float*>(to.storage.get(ColumnPanels::bytes_of(k, n)));
  if (version > 0 && to.version == version) return panels;
  to.version = version;
  ++packs_;
  pool.parallel_for((n + kRowsPanel - 1) / kRowsPanel, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t col = begin * kRowsPanel; col < std::min(end * kRowsPanel, n); col += kRowsPanel)
      pack_columns(b, k, n, trans, col, std::min(kRowsPanel, n - col), panels + col * k);
  });
  return panels;
}

void pack_columns(const Tensor& b, int64_t k, int64_t n, bool trans, int64_t col, int64_t cols, float* panel) {
  const Simd& f = simd();
  if (!trans) {
    for (int64_t p = 0; p < k; ++p) {
      float* to = panel + p * kRowsPanel;
      const float* from = read(f, b, p * n + col, cols, to);
      if (from != to) std::copy_n(from, cols, to);
    }
    return;
  }
  if (b.dtype == DType::kF32) return f.transpose_rows(b.as<float>() + col * k, k, cols, k, panel);
  constexpr int64_t kDepth = 64;
  alignas(64) float wide[kRowsPanel * kDepth];
  for (int64_t p = 0; p < k; p += kDepth) {
    const int64_t depth = std::min(kDepth, k - p);
    for (int64_t c = 0; c < cols; ++c) read(f, b, (col + c) * k + p, depth, wide + c * kDepth);
    f.transpose_rows(wide, kDepth, cols, depth, panel + p * kRowsPanel);
  }
}

int64_t GemmCache::kept_bytes() const {
  int64_t sum = 0;
  for (const auto& [key, copy] : panels_)
    if (key.address != nullptr) sum += copy.storage.bytes();
  for (const auto& [key, matrix] : packed_)
    if (key.address != nullptr) sum += matrix.bytes();
  return sum;
}

int64_t GemmCache::copy_bytes(int64_t k, int64_t n, int64_t panel, DType type) {
  const int64_t width = std::min(panel, n);
  return PackedMatrix::bytes_of(n, width, panel_layout(k, width, type));
}

}  // namespace gt::cpu
