// A rank's piece of a named logical tensor: what checkpoints write and read, whatever the layout that made it.
#pragma once
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "kernels/core/tensor.h"

namespace gt {

// `data` holds elements [begin, begin + data.numel()) of the flattened tp-local tensor of shape `local`, which is this
// rank's cut
// (`shard`, tp_rank of tp_size) of the logical tensor `full`. When the vocabulary is padded, `local` counts padded rows
// and pad_rows is dim 0 of the padded logical tensor; padding is never stored and is 0 after a load.
struct ShardView {
  std::string name;  // group + parameter: "master/layers.0.attn.qkv.weight", "optim/exp_avg/embed.weight"
  Tensor data;       // 1-D, f32 or half, on the device
  Shape full, local;
  ShardSpec shard;
  int tp_rank = 0, tp_size = 1;
  int64_t pad_rows = 0;
  int64_t begin = 0;
  // false: a second copy (tied weight on the last stage, ZeRO-0 piece of another rank, replicated piece that another tp
  // rank stores): read, never written.
  bool save = true;
  bool dealt_away = false;  // to another tp rank, by deal_over_tp: the only reason why it is not saved
};

// Element of the flattened logical tensor that element `local` of the flattened tp-local tensor is; -1: vocabulary
// padding.
int64_t logical_offset(const ShardView&, int64_t local);

// Every tp rank holds the same pieces of replicated tensors; each is saved by one of them. By bytes descending, then by
// name and begin, each piece goes to the tp rank that has been dealt least, the lowest on a tie. All tp ranks must give
// the same list. May be called again when views were added.
void deal_over_tp(std::vector<ShardView>& views);

}  // namespace gt
