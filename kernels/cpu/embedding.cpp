// Token and position embeddings on the CPU. The token table's gradient sorts tokens by row once; each thread then owns
// rows. 16-bit rows are widened on the stack, one chunk at a time.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cols)); }

constexpr int64_t kChunk = 1024;  // elements staged on the stack

void zero_row(float* row, int64_t cols) { std::memset(row, 0, static_cast<size_t>(cols) * sizeof(float)); }

}  // namespace

void embedding(const Embedding& p, Stream s) {
  require_dtype("embedding", DType::kI32, {{"tokens", p.tokens}});
  require_same("embedding", {"table", p.table}, {{"out", p.out}});
  const int64_t cols = p.table.shape.cols(), rows = p.table.shape.rows(), count = p.tokens.numel();
  require_numel("embedding", count * cols, {{"out", p.out}});
  const int32_t* tokens = p.tokens.as<int32_t>();
  const int64_t bytes = cols * size_of(p.table.dtype);
  parallel_for(s, count, row_grain(cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = tokens[i] - p.first_row;
      std::byte* out = p.out.data + i * bytes;
      if (row < 0 || row >= rows) {
        std::memset(out, 0, static_cast<size_t>(bytes));
      } else {
        std::memcpy(out, p.table.data + row * bytes, static_cast<size_t>(bytes));
      }
    }
  });
}

namespace {

// Token positions grouped by table row, ascending: those of row r are order[start[r]] .. order[start[r + 1] - 1].
struct SortedTokens {
  const int32_t *start, *order;
};

SortedTokens sort_tokens(const int32_t* tokens, int64_t count, int64_t first_row, int64_t rows, int32_t* scratch) {
  int32_t *start = scratch, *order = scratch + rows + 2;
  std::fill(start, start + rows + 2, 0);
  const auto row_of = [&](int64_t i) { return tokens[i] - first_row; };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = row_of(i);
    if (row >= 0 && row < rows) ++start[row + 2];
  }
  for (int64_t r = 0; r < rows; ++r) start[r + 2] += start[r + 1];
  for (int64_t i = 0; i < count; ++i) {  // start[r + 1] runs from the first index of row r to the first of row r + 1
    const int64_t row = row_of(i);
    if (row >= 0 && row < rows) order[start[row + 1]++] = static_cast<int32_t>(i);
  }
  return {start, order};
}

}  // namespace

void embedding_grad(const EmbeddingGrad& p, Stream s) {
  require_dtype("embedding_grad", DType::kI32, {{"tokens", p.tokens}});
  require_float("embedding_grad", {"dout", p.dout});
  require_gradient("embedding_grad", {{"dtable", p.dtable}});
  const int64_t cols = p.dtable.shape.cols(), rows = p.dtable.shape.rows(), count = p.tokens.numel();
  require_numel("embedding_grad", count * cols, {{"dout", p.dout}});
  GT_CHECK(count < INT32_MAX, "embedding_grad: ", count, " tokens in one call");
  if (p.squares) require_dtype("embedding_grad", DType::kF64, {{"squares", p.squares}});
  if (p.squares) require_f32("embedding_grad", {{"dtable", p.dtable}});
  if (rows == 0) return;
  double* change = cpu_context(s).scratch<double>((p.squares ? rows : 0) + (rows + 3 + count) / 2);
  auto* scratch = reinterpret_cast<int32_t*>(change + (p.squares ? rows : 0));
  const SortedTokens sorted = sort_tokens(p.tokens.as<int32_t>(), count, p.first_row, rows, scratch);
  parallel_for(s, rows, row_grain(cols), [&, &f = simd()](int64_t begin, int64_t end, int) {
    float wide[kChunk], sum[kChunk];
    // Columns [from, from + n) of the sum of tokens [first, last); a part of one token is not copied.
    const auto sum_of = [&](int64_t first, int64_t last, int64_t from, int64_t n) -> const float* {
      const float* total = read(f, p.dout, sorted.order[first] * cols + from, n, sum);
      for (int64_t i = first + 1; i < last; ++i, total = sum)
        f.add(total, read(f, p.dout, sorted.order[i] * cols + from, n, wide), sum, n);
      return total;
    };
    for (int64_t r = begin; r < end; ++r) {
      const int64_t first = sorted.start[r], last = sorted.start[r + 1];
      if (p.squares) change[r] = 0;
      if (p.accumulate && first == last) continue;
      const auto squares = [&] { return p.squares ? f.sum_squares(p.dtable.as<float>() + r * cols, cols) : 0.0; };
      const double before = p.accumulate ? squares() : 0.0;
      edit(f, p.dtable, r * cols, cols, p.accumulate, [&](float* row, int64_t from, int64_t count) {
        if (first == last) return zero_row(row, count);
        for (int64_t c = 0; c < count; c += kChunk) {
          const int64_t n = std::min(kChunk, count - c);
          const float* total = sum_of(first, last, from + c, n);
          if (p.accumulate)
            f.add(row + c, total, row + c, n);
          else
            std::memcpy(row + c, total, static_cast<size_t>(n) * sizeof(float));
        }
      });
      if (p.squares && first != last) change[r] = squares() - before;
    }
  });
  if (!p.squares) return;
  double& squares = *p.squares.as<double>();
  if (p.accumulate && squares == -1) return;
  squares = std::accumulate(change, change + rows, p.accumulate ? squares : 0.0);
  if (squares < 0) squares = 0;  // by rounding
}

void add_position(const AddPosition& p, Stream s) {
  require_same_or_f32("add_position", {"x", p.x}, {{"pos", p.pos}});
  const int64_t cols = p.pos.shape.cols(), rows = cols ? p.x.numel() / cols : 0;
  if (rows == 0) return;
  GT_CHECK(p.rows.seq > 0 && p.rows.first >= 0 && p.rows.end(rows) <= p.pos.shape.rows(), "add_position: x ",
           to_string(p.x.shape), " with sequences of ", p.rows.seq, " from position ", p.rows.first, " of pos ",
           to_string(p.pos.shape));
  parallel_for(s, rows, row_grain(cols), [&, &f = simd()](int64_t begin, int64_t end, int) {
    float x[kChunk], pos[kChunk];
    const int64_t step = is_16bit(p.x.dtype) ? kChunk : cols;
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < cols; c += step) {
        const int64_t n = std::min(step, cols - c), at = r * cols + c;
        const float* add = read(f, p.pos, p.rows.position(r) * cols + c, n, pos);
        f.add(read(f, p.x, at, n, x), add, target(p.x, at, x), n);
        write(f, p.x, at, n, x);
      }
    }
  });
}

void position_grad(const PositionGrad& p, Stream s) {
  require_float("position_grad", {"dout", p.dout});
  require_gradient("position_grad", {{"dpos", p.dpos}});
  const int64_t cols = p.dpos.shape.cols(), rows = p.dpos.shape.rows(), tokens = cols ? p.dout.numel() / cols : 0;
  const int64_t seq = p.rows.seq;
  GT_CHECK(tokens == 0 ||
               (seq > 0 && tokens % seq == 0 && p.rows.first_row == 0 && p.rows.first >= 0 && p.rows.end(seq) <= rows),
           "position_grad: dout ", to_string(p.dout.shape), " with sequences of ", seq, " from position ", p.rows.first,
           " of dpos ", to_string(p.dpos.shape));
  const int64_t sequences = tokens ? tokens / seq : 0;
  parallel_for(s, rows, row_grain(cols), [&, &f = simd()](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = sequences > 0 ? p.rows.row_at(r) : -1;
      if (at >= 0) {
        column_sums(f, p.dout, at * cols, seq * cols, sequences, p.dpos, r * cols, cols, p.accumulate);
      } else if (!p.accumulate) {
        std::memset(p.dpos.data + r * cols * size_of(p.dpos.dtype), 0,
                    static_cast<size_t>(cols * size_of(p.dpos.dtype)));
      }
    }
  });
}

}  // namespace gt::cpu
