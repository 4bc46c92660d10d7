#include "tests/checkpoint/power_model.h"

#include <algorithm>
#include <filesystem>

#include "tests/checkpoint/support.h"

namespace gt::ckpt {
namespace {
namespace fs = std::filesystem;
using Call = RecordingVfs::Call;
constexpr int64_t kSector = 512;

void put(std::string& file, int64_t offset, std::string_view data) {
  file.resize(std::max(file.size(), static_cast<size_t>(offset) + data.size()), '\0');
  std::copy(data.begin(), data.end(), file.begin() + offset);
}

template <class Entries, class Map>
void enter(const Entries& entries, Map& map) {
  for (const auto& e : entries)
    if (e.node < 0)
      map.erase(e.name);
    else
      map[e.name] = e.node;
}
}  // namespace

// ---- recording ----

int RecordingVfs::note(Call call, const std::function<int()>& real) {
  const std::lock_guard lock(mutex_);
  const int r = real();
  if (r >= 0) calls_.push_back(std::move(call));
  return r;
}

int RecordingVfs::open(const std::string& path, int flags, int mode) {
  const std::lock_guard lock(mutex_);
  const int fd = Vfs::open(path, flags, mode);
  if (fd < 0) return fd;
  handles_[fd] = next_;
  calls_.push_back({mode != 0 ? Call::kCreate : Call::kOpen, next_++, path, ""});
  return fd;
}
int RecordingVfs::close(int fd) {
  const std::lock_guard lock(mutex_);
  handles_.erase(fd);
  return Vfs::close(fd);
}
int64_t RecordingVfs::pwrite(int fd, const void* data, int64_t bytes, int64_t offset) {
  const std::lock_guard lock(mutex_);
  const int64_t n = Vfs::pwrite(fd, data, bytes, offset);
  if (n > 0)
    calls_.push_back({Call::kWrite, handles_.at(fd), "", "", offset, n,
                      std::string(static_cast<const char*>(data), static_cast<size_t>(n))});
  return n;
}
int RecordingVfs::fsync(int fd) {
  const std::lock_guard lock(mutex_);
  const int r = Vfs::fsync(fd);
  if (r == 0) calls_.push_back({Call::kSync, handles_.at(fd), "", ""});
  return r;
}
int RecordingVfs::fallocate(int fd, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int r = Vfs::fallocate(fd, bytes);
  if (r == 0) calls_.push_back({Call::kReserve, handles_.at(fd), "", "", 0, bytes});
  return r;
}
int RecordingVfs::rename(const std::string& from, const std::string& to) {
  return note({Call::kRename, -1, from, to}, [&] { return Vfs::rename(from, to); });
}
int RecordingVfs::unlink(const std::string& path) {
  return note({Call::kUnlink, -1, path, ""}, [&] { return Vfs::unlink(path); });
}
int RecordingVfs::mkdir(const std::string& path, int mode) {
  return note({Call::kMkdir, -1, path, ""}, [&] { return Vfs::mkdir(path, mode); });
}
int RecordingVfs::rmdir(const std::string& path) {
  return note({Call::kRmdir, -1, path, ""}, [&] { return Vfs::rmdir(path); });
}

// ---- the disk ----

PowerModel::PowerModel(const std::string& root) : root_(root) { read_tree(root); }

int PowerModel::add(bool folder) {
  nodes_.emplace_back().folder = folder;
  return static_cast<int>(nodes_.size()) - 1;
}

int PowerModel::read_tree(const std::string& path) {
  const int node = add(fs::is_directory(path));
  if (!nodes_[static_cast<size_t>(node)].folder) {
    nodes_[static_cast<size_t>(node)].bytes = slurp(path);
    return node;
  }
  for (const auto& e : fs::directory_iterator(path)) {
    const int child = read_tree(e.path().string());
    Node& n = nodes_[static_cast<size_t>(node)];
    n.durable[e.path().filename().string()] = child;
    n.now = n.durable;
  }
  return node;
}

std::pair<int, std::string> PowerModel::parent_of(const std::string& path) const {
  const fs::path p = fs::path(path).lexically_relative(root_);
  int folder = 0;
  for (const auto& part : p.parent_path()) folder = nodes_[static_cast<size_t>(folder)].now.at(part.string());
  return {folder, p.filename().string()};
}

int PowerModel::find(const std::string& path) const {
  const std::string clean = fs::path(path).lexically_normal().string();  // "dir/." is "dir/"
  const std::string p = clean.back() == '/' ? clean.substr(0, clean.size() - 1) : clean;
  if (p == root_) return 0;
  const auto [folder, name] = parent_of(p);
  return nodes_[static_cast<size_t>(folder)].now.at(name);
}

void PowerModel::change(int folder, std::vector<Entry> entries) {
  Node& n = nodes_[static_cast<size_t>(folder)];
  enter(entries, n.now);
  n.changes.push_back({std::move(entries)});
}

void PowerModel::sync(Node& n) {
  for (const Change& c : n.changes) enter(c.entries, n.durable);
  n.changes.clear();
  for (const Write& w : n.writes)
    if (w.length >= 0)
      n.bytes.resize(static_cast<size_t>(w.length), '\0');
    else
      put(n.bytes, w.offset, w.data);
  n.writes.clear();
}

void PowerModel::apply(const Call& c) {
  const auto node = [&]() -> Node& { return nodes_[static_cast<size_t>(open_.at(c.handle))]; };
  switch (c.kind) {
    case Call::kOpen: open_[c.handle] = find(c.path); return;
    case Call::kCreate: {
      const auto [folder, name] = parent_of(c.path);
      const auto known = nodes_[static_cast<size_t>(folder)].now.find(name);
      if (known != nodes_[static_cast<size_t>(folder)].now.end()) {
        open_[c.handle] = known->second;
        node().writes.push_back({0, "", 0});
        return;
      }
      open_[c.handle] = add(false);
      return change(folder, {{name, open_[c.handle]}});
    }
    case Call::kWrite: node().writes.push_back({c.offset, c.data, -1}); return;
    case Call::kReserve:
      node().writes.push_back({0, "", c.bytes});  // for new files
      return;
    case Call::kSync: return sync(node());
    case Call::kRename: {
      const auto [from, name] = parent_of(c.path);
      const auto [to, new_name] = parent_of(c.to);
      GT_CHECK(from == to, "renames between folders are not modelled");
      return change(from, {{name, -1}, {new_name, nodes_[static_cast<size_t>(from)].now.at(name)}});
    }
    case Call::kUnlink:
    case Call::kRmdir: {
      const auto [folder, name] = parent_of(c.path);
      return change(folder, {{name, -1}});
    }
    case Call::kMkdir: {
      const auto [folder, name] = parent_of(c.path);
      const int made = add(true);
      return change(folder, {{name, made}});
    }
  }
}

int PowerModel::pending() const {
  size_t n = 0;
  for (const Node& node : nodes_) n += node.writes.size() + node.changes.size();
  return static_cast<int>(n);
}

PowerModel::Image PowerModel::after_outage(const std::function<bool(int)>& keep,
                                           const std::function<bool(int64_t)>& tear) const {
  int next = 0;
  std::vector<std::string> bytes(nodes_.size());
  std::vector<std::map<std::string, int>> entries(nodes_.size());
  for (size_t k = 0; k < nodes_.size(); ++k) {
    entries[k] = nodes_[k].durable;
    for (const Change& c : nodes_[k].changes)
      if (keep(next++)) enter(c.entries, entries[k]);
    bytes[k] = nodes_[k].bytes;
    for (const Write& w : nodes_[k].writes) {
      if (!keep(next++)) continue;
      if (w.length >= 0) bytes[k].resize(static_cast<size_t>(w.length), '\0');
      for (int64_t at = 0; at < static_cast<int64_t>(w.data.size()); at += kSector)
        if (!tear(at / kSector))
          put(bytes[k], w.offset + at, std::string_view(w.data).substr(static_cast<size_t>(at), kSector));
    }
  }
  Image image;
  const std::function<void(int, const std::string&)> walk = [&](int node, const std::string& path) {
    for (const auto& [name, child] : entries[static_cast<size_t>(node)]) {
      const std::string at = path + name;
      if (!nodes_[static_cast<size_t>(child)].folder) {
        image[at] = bytes[static_cast<size_t>(child)];
        continue;
      }
      image[at + "/"] = "";
      walk(child, at + "/");
    }
  };
  walk(0, "");
  return image;
}

void materialise(const PowerModel::Image& image, const std::string& root) {
  for (const auto& [path, bytes] : image)
    if (path.back() == '/')
      fs::create_directories(root + "/" + path);
    else
      spill(root + "/" + path, bytes);
}

}  // namespace gt::ckpt
