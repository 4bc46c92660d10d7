// Reads tensors from a step directory by rectangles. Requested rectangles are intersected with the stored ones; only
// the 1 MiB blocks that overlap are read, each once, and each is checked before use. No libhdf5.
#pragma once
#include <map>
#include <span>
#include <string>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/vfs.h"
#include "parallel/mesh.h"

namespace gt {

// Reads one index and checks it against the manifest. `file`: index into manifest.files. kDamaged, kIo.
ShardIndex read_index(Vfs&, const std::string& dir, const Manifest&, int file, std::span<const TensorShape>);

// Zero-fills a view.
void clear_view(const ShardView&, const DeviceApi* api, Stream);

// Returns whether a view of dtype `to` can be filled from `stored`: identical types, or both floating-point.
bool may_hold(DType requested, DType stored);

// Fills every view; vocabulary padding becomes 0. Requires: names and shapes match the manifest (kInternal) and dtypes
// satisfy may_hold(). f32 is rounded to a 16-bit view; bf16 and f16 are widened. Working memory: the indexes and one
// block. `api` may be null when all views are in host memory. Throws kDamaged naming file, block, byte range and
// tensor; kIo. After an error the contents of the views are undefined. `cache`: indexes read so far, keyed by index
// into manifest.files, for repeated calls; null: none is kept.
void read_views(Vfs&, const std::string& dir, const Manifest&, std::span<const ShardView>, const DeviceApi* api, Stream,
                std::map<int, ShardIndex>* cache = nullptr);

// read_views() for every rank of `group`, reading shared blocks once. Collective over the mesh. A block that several
// ranks need is read by one of them and broadcast. Working memory: one more block, and a list of blocks.
void read_views_once(Vfs&, const std::string& dir, const Manifest&, std::span<const ShardView>, const DeviceApi* api,
                     Stream, const Mesh&, ProcessGroup& group);

}  // namespace gt
