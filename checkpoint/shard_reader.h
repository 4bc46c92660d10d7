// Tensors out of a step directory, by rectangles: what a view asks for is intersected with what the indexes offer, and
// only the 1 MiB blocks that hold it are read, each once, each checked before a byte of it is used. No libhdf5.
#pragma once
#include <map>
#include <span>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/vfs.h"
#include "parallel/mesh.h"

namespace gt {

// One index, checked against the manifest. `files`: its place in manifest.files. kDamaged, kIo.
ShardIndex read_index(Vfs&, const std::string& dir, const Manifest&, int file, std::span<const TensorShape>);

// All elements 0.
void clear_view(const ShardView&, const DeviceApi* api, Stream);

// Whether a view of this type takes what is stored as that one: the same, or both floating.
bool may_hold(DType wanted, DType stored);

// Fills every view; vocabulary padding becomes 0. The names and shapes must be those of the manifest (kInternal), and
// the types such that one may hold the other: f32 is rounded to the halves of a view, halves are widened. Working
// memory: the indexes and one block. `api` may be null when all views are in host memory. Throws kDamaged naming file,
// block, byte range and tensor; kIo. The views' contents are undefined after an error. `cache`: the indexes read so far,
// by place in manifest.files, for callers that come back for more; null: none is kept.
void read_views(Vfs&, const std::string& dir, const Manifest&, std::span<const ShardView>, const DeviceApi* api, Stream,
                std::map<int, ShardIndex>* cache = nullptr);

// Collective over the mesh, the same for every rank of `group`: a block that several of its ranks want is read by one
// of them and sent to the others. Working memory: one block more, and a list of blocks.
void read_views_once(Vfs&, const std::string& dir, const Manifest&, std::span<const ShardView>, const DeviceApi* api,
                     Stream, const Mesh&, ProcessGroup& group);

}  // namespace gt
