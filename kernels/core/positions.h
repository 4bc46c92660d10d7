// Positions of tokens, as arithmetic on rows. Must not use the standard library: included by files compiled per
// instruction set. constexpr, so CUDA kernels call the same functions.
#pragma once
#include <cstdint>

namespace gt {

// Where the rows of a tensor are in the sequences of a microbatch [batch * seq, C].
struct Positions {
  int64_t seq = 1;        // rows per sequence
  int64_t first_row = 0;  // row of the microbatch that is row 0 of the tensor
  int64_t first = 0;      // position of each sequence's first row: not 0 where sequences are the ends of longer ones

  // Sequence of a row of the tensor, and the row's number in it.
  struct InSequence {
    int64_t sequence, row;
  };
  constexpr InSequence in_sequence(int64_t row) const {
    const int64_t at = first_row + row, sequence = at / seq;
    return {sequence, at - sequence * seq};
  }
  // documents: i32, position of each row of the tensor in its document; nullptr: each sequence is one document.
  constexpr int64_t position(int64_t row, const int32_t* documents = nullptr) const {
    return documents != nullptr ? documents[row] : first + in_sequence(row).row;
  }
  // Row of the tensor that begins a sequence; outside of the tensor if that begins elsewhere.
  constexpr int64_t row_of(int64_t sequence) const { return sequence * seq - first_row; }
  // Bound of position() over `rows` rows.
  constexpr int64_t end(int64_t rows) const { return first + (first_row + rows < seq ? first_row + rows : seq); }
};

}  // namespace gt
