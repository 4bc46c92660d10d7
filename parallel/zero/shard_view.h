// A rank's shard of a named logical tensor, as checkpoints write and read it, independent of the layout.
#pragma once
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "kernels/core/tensor.h"

namespace gt {

// `data`: elements [begin, begin + data.numel()) of the flattened local tensor of shape `local`. That is the slice of
// the logical tensor `full` which `shard` gives to the rank at these coordinates. With a padded vocabulary, `local`
// counts padded rows and pad_rows is dim 0 of the padded logical tensor. Padding is never stored and is 0 after a load.
struct ShardView {
  std::string name;  // group + parameter: "master/layers.0.attn.qkv.weight", "optim/exp_avg/embed.weight"
  Tensor data;       // 1-D, f32, 16-bit, or i8 codes of weights whose scales are "scale/…"; on the device
  Shape full, local;
  ShardSpec shard;
  RankCoordinates at;
  int64_t pad_rows = 0;
  int64_t begin = 0;
  // false: read, never written. A tied copy on the last stage, another rank's shard at stage 0, or replicated data that
  // another tp rank stores.
  bool save = true;
  bool assigned_elsewhere =
      false;  // assigned to another tp rank by assign_over_tp: the only reason why it is not saved
};

// The whole local tensor of a parameter, without data.
ShardView view_of(const Parameter&, const RankCoordinates&);

// Returns the slice that contains index `local` of dimension `dim`; padding is part of the logical dimension.
BlockSlice block_slice(const ShardView&, int dim, int64_t local);
// Returns the index in the flattened logical tensor of element `local` of the flattened local tensor; -1 for
// vocabulary padding.
int64_t logical_offset(const ShardView&, int64_t local);

// Assigns each shard of a replicated tensor to the one tp rank that saves it. Shards are taken by bytes descending,
// then by name and begin. Each goes to the tp rank with the fewest bytes so far, the lowest on a tie. Requires: the
// same list on all tp ranks. May be called again after views were added.
void assign_over_tp(std::vector<ShardView>& views);

}  // namespace gt
