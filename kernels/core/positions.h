// Positions of tokens, as arithmetic on rows. Must not use the standard library: included by files compiled per
// instruction set. constexpr, so CUDA kernels call the same functions.
#pragma once
#include <cstdint>

namespace gt {

// Where the rows of a tensor are in the sequences of a microbatch [batch * seq, C]. The rows of a sequence have
// consecutive positions, or two runs of them: ranks that share a sequence may hold one from its front and one from its
// back.
struct Positions {
  int64_t seq = 1;          // rows per sequence
  int64_t first_row = 0;    // row of the microbatch that is row 0 of the tensor
  int64_t first = 0;        // position of each sequence's first row: not 0 where sequences are parts of longer ones
  int64_t run = INT64_MAX;  // rows of the first run
  int64_t gap = 0;          // positions between the runs

  // Sequence of a row of the tensor, and the row's number in it.
  struct InSequence {
    int64_t sequence, row;
  };
  constexpr InSequence in_sequence(int64_t row) const {
    const int64_t at = first_row + row, sequence = at / seq;
    return {sequence, at - sequence * seq};
  }
  // Position of a row, given its number in its sequence.
  constexpr int64_t position_of_row(int64_t row) const { return first + row + (row < run ? 0 : gap); }
  // documents: i32, position of each row of the tensor in its document; nullptr: each sequence is one document.
  constexpr int64_t position(int64_t row, const int32_t* documents = nullptr) const {
    return documents != nullptr ? documents[row] : position_of_row(in_sequence(row).row);
  }
  // Number in its sequence of the row at a position; -1: there is none.
  constexpr int64_t row_at(int64_t position) const {
    const int64_t at = position - first, row = at < run ? at : at - gap;
    return at >= 0 && row < seq && (at < run || row >= run) ? row : -1;
  }
  // Row of the tensor that begins a sequence; outside of the tensor if that begins elsewhere.
  constexpr int64_t row_of(int64_t sequence) const { return sequence * seq - first_row; }
  // Bound of position() over `rows` rows.
  constexpr int64_t end(int64_t rows) const {
    return position_of_row((first_row + rows < seq ? first_row + rows : seq) - 1) + 1;
  }
};

}  // namespace gt
