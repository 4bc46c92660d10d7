// oneDNN state behind GEMM: compiled tile kernels keyed by shape, and packed copies of right-hand sides keyed by
// address. One per context; used by one calling thread at a time, which creates everything before the parallel region.
#pragma once
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "kernels/core/tensor.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {

// Rows per tile. Fixed, so that the tiling, and with it every bit, is independent of the thread count.
constexpr int64_t kTileRows = 64;

// Tile GEMM c [m,n] (+)= op(a) op(b) + bias; bias and c f32; leading dimensions in elements. packed: b is a panel of a
// PackedMatrix, ldb unused.
struct TileSpec {
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  DType in = DType::kF32;  // of a and b
  bool trans_a = false, trans_b = false, packed = false, bias = false, accumulate = false;
  friend bool operator==(const TileSpec&, const TileSpec&) = default;
};

struct TileSpecHash {
  size_t operator()(const TileSpec& s) const;
};

// One oneDNN matmul primitive with argument objects for every pool thread.
class TileKernel {
 public:
  TileKernel(const TileSpec& spec, const dnnl::memory::desc& b, const dnnl::engine& engine, int threads);
  // `scratchpad`: scratchpad_bytes() bytes of this thread. `b`: nullptr when b_packed is the panel to use.
  void run(int thread, dnnl_stream_t stream, void* a, void* b, dnnl_memory_t b_packed, void* bias, void* c,
           void* scratchpad) const;
  int64_t scratchpad_bytes() const { return scratchpad_bytes_; }
  // Whether oneDNN has only its slow reference implementation for this combination.
  bool reference() const { return reference_; }

 private:
  struct Args {
    dnnl::memory a, b, bias, c, scratchpad;
  };
  dnnl::matmul primitive_;
  std::vector<Args> args_;
  int64_t scratchpad_bytes_ = 0;
  bool bias_ = false, reference_ = false;
};

// A [k,n] matrix split into column panels, each in the layout that oneDNN's kernels read fastest.
class PackedMatrix {
 public:
  PackedMatrix(int64_t k, int64_t n, int64_t panel, bool trans, DType type, const dnnl::memory::desc& full,
               const dnnl::memory::desc& tail, const dnnl::engine& engine, int threads);
  // Packs b ([k,n], or [n,k] when trans) into the panels, in parallel over panels.
  void pack(const void* b, class GemmCache& cache, ThreadPool& pool);
  dnnl_memory_t panel(int64_t i) const { return panels_[static_cast<size_t>(i)].get(); }
  int64_t bytes() const { return storage_.bytes(); }
  // Bytes of n columns in panels of `panel`, laid out as `full`.
  static int64_t bytes_of(int64_t n, int64_t panel, const dnnl::memory::desc& full);
  int64_t version = 0;  // weight version of the packed bytes; 0: none
  bool holds(int64_t requested) const { return requested > 0 && version == requested; }

 private:
  struct Reorder {
    dnnl::reorder primitive;
    std::vector<dnnl::memory> from, scratchpad;  // one per thread
    int64_t scratchpad_bytes = 0;
  };
  Reorder make_reorder(int64_t width, const dnnl::memory::desc& to, const dnnl::engine& engine, int threads) const;
  int64_t k_, n_, width_;
  bool trans_;
  DType type_;
  Scratch storage_;
  std::vector<dnnl::memory> panels_;
  Reorder full_, tail_;
};

// A right-hand side as f32 panels [k][kRowsPanel] of its columns, which Simd::gemm_block reads.
struct ColumnPanels {
  Scratch storage;
  int64_t version = 0;  // weight version of the panels; 0: none
  static int64_t bytes_of(int64_t k, int64_t n);
};

// Packs columns [col, col + cols) of b ([k, n] or, transposed, [n, k]), f32 or 16-bit, to a panel [k][kRowsPanel].
void pack_columns(const Tensor& b, int64_t k, int64_t n, bool trans, int64_t col, int64_t cols, float* panel);

struct PackKey {
  const void* address = nullptr;  // nullptr: repacked at every call
  int64_t k = 0, n = 0, panel = 0;
  bool trans = false;
  DType type = DType::kF32;
  friend bool operator==(const PackKey&, const PackKey&) = default;
};

struct PackKeyHash {
  size_t operator()(const PackKey& k) const;
};

class GemmCache {
 public:
  explicit GemmCache(int threads);
  // Returns the kernel of this shape, compiled on first use. References stay valid.
  const TileKernel& kernel(const TileSpec& spec);
  // Returns whether packing b pays off: where oneDNN has a blocked panel layout (AVX-512), and elsewhere for rows a
  // multiple of a page apart. These share cache sets, which reduces GEMM to a third of its speed.
  bool worth_packing(int64_t k, int64_t n, int64_t panel, bool trans, DType type);
  // Returns the packed copy of b in panels of `panel` columns of `type`; the caller packs it unless it holds the
  // version. version > 0: cached under b's address until the version changes. 0: valid until the next such call of this
  // shape.
  PackedMatrix& copy_of(const void* b, int64_t k, int64_t n, int64_t panel, bool trans, DType type, int64_t version);
  // The same for Simd::gemm_block. Returns the panels, packed from b ([k, n] or, transposed, [n, k]) unless they hold
  // the version.
  const float* column_panels(const Tensor& b, int64_t k, int64_t n, bool trans, int64_t version, ThreadPool& pool);
  // `bytes`: b in the copy's dtype.
  void pack(PackedMatrix& copy, const void* bytes, int64_t version, ThreadPool& pool);

  int threads() const { return static_cast<int>(threads_.size()); }
  dnnl_stream_t stream(int thread) const { return threads_[static_cast<size_t>(thread)].stream.get(); }
  std::byte* scratchpad(int thread, int64_t bytes) {
    return threads_[static_cast<size_t>(thread)].scratchpad.get(bytes);
  }
  // f32 tile of this thread, for results that are converted on output.
  float* tile(int thread, int64_t count) {
    return reinterpret_cast<float*>(threads_[static_cast<size_t>(thread)].tile.get(count * 4));
  }
  // Tiles of this thread, of a block of the inner dimension.
  float* addend(int thread, int64_t count) {
    return reinterpret_cast<float*>(threads_[static_cast<size_t>(thread)].addend.get(count * 4));
  }
  // Columns of a transposed a, gathered from widely strided rows.
  std::byte* columns(int thread, int64_t bytes) { return threads_[static_cast<size_t>(thread)].columns.get(bytes); }
  // Whole operands widened to f32, where the processor has no kernel for the 16-bit dtype. slot: 0 a, 1 b (or an
  // operand in pairs or parts), 2 bias; 3: column sums by blocks of rows.
  float* converted(int slot, int64_t count) { return reinterpret_cast<float*>(converted_[slot].get(count * 4)); }

  // Sums of blocks of a weight gradient.
  float* block_sums(int64_t count) { return reinterpret_cast<float*>(block_sums_.get(count * 4)); }

  // Forces this panel layout instead of oneDNN's choice: tests cover the packed path on every processor.
  void force_panel_layout(dnnl::memory::format_tag tag) { panel_tag_ = tag, layouts_.clear(); }
  bool layout_forced() const { return panel_tag_ != dnnl::memory::format_tag::any; }

  int64_t packs() const { return packs_; }                              // panel sets packed so far
  size_t kernels() const { return kernels_.size(); }                    // primitives compiled so far
  int64_t kept_bytes() const;                                           // memory of copies cached under a version
  int64_t copy_bytes(int64_t k, int64_t n, int64_t panel, DType type);  // size of one copy

 private:
  const dnnl::memory::desc& panel_layout(int64_t k, int64_t width, DType type);
  struct PerThread {
    dnnl::stream stream;
    Scratch scratchpad, tile, addend, columns;
  };
  dnnl::engine engine_;
  std::vector<PerThread> threads_;
  std::unordered_map<TileSpec, TileKernel, TileSpecHash> kernels_;
  std::unordered_map<PackKey, PackedMatrix, PackKeyHash> packed_;
  std::unordered_map<PackKey, ColumnPanels, PackKeyHash> panels_;
  // Panel layouts, keyed with no address and n = panel.
  std::unordered_map<PackKey, dnnl::memory::desc, PackKeyHash> layouts_;
  Scratch converted_[4], block_sums_;
  dnnl::memory::format_tag panel_tag_ = dnnl::memory::format_tag::any;
  int64_t packs_ = 0;
};

// Padding per row of a copy, in elements, so its rows do not share cache sets.
constexpr int64_t kPadding = 16;

// While alive, OpenMP regions entered by this thread use one thread, so oneDNN runs on the caller alone.
class SingleOpenMpThread {
 public:
  SingleOpenMpThread();
  ~SingleOpenMpThread();
  SingleOpenMpThread(const SingleOpenMpThread&) = delete;
  SingleOpenMpThread& operator=(const SingleOpenMpThread&) = delete;

 private:
  int before_;
};

}  // namespace gt::cpu
