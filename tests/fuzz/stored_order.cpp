// A stored order of samples, its hash repaired: what someone else leaves in a cache folder. Whatever is accepted must
// be an order of the file.
#include <sys/stat.h>
#include <xxhash.h>

#include <filesystem>

#include "data/tokens/index_store.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

const std::vector<int32_t> kLengths{5, 0, 3, 7, 1, 12};
const char* const kKey = "key";

OrderShape shape() { return {.lengths = {kLengths.data(), 0, 6}, .seq = 4, .samples = samples_per_epoch(28, 4)}; }

// Sets the hash of the tables, as the writer does.
std::string repaired(std::string s) {
  if (s.size() < 64) return s;
  uint64_t documents = 0, samples = 0;
  std::memcpy(&documents, s.data() + 8, 8);
  std::memcpy(&samples, s.data() + 16, 8);
  if (documents > 1000 || samples > 1000 || s.size() < 64 + 4 * documents + 12 * samples + 8) return s;
  const char* at = s.data() + 64;
  uint64_t h = XXH3_64bits(at, 4 * documents);
  h = XXH3_64bits_withSeed(at + 4 * documents, 8 * (samples + 1), h);
  h = XXH3_64bits_withSeed(at + 4 * documents + 8 * (samples + 1), 4 * samples, h);
  std::memcpy(s.data() + 24, &h, 8);
  return s;
}

void run(std::string_view input) {
  static const ScratchFile file("order.gti");
  file.put(repaired(std::string(input)));
  ::chmod(file.path().c_str(), 0600);
  StoredOrder o;
  std::string problem;
  if (!map_order(file.path(), kKey, shape(), &o, &problem)) {
    GT_CHECK(!problem.empty());
    outcome().refusals += problem;
    return;
  }
  ++outcome().accepted;
  const OrderView v = o.view();
  GT_CHECK(is_order(v, shape()) && v.samples() == 6 && v.documents.size() == 6);
  std::vector<int> drawn(6);
  for (const uint32_t row : v.shuffle) {
    GT_CHECK(row < 6 && drawn[row]++ == 0);
    GT_CHECK(v.positions[2 * row] < 6 && v.documents[v.positions[2 * row]] < 6);
    GT_CHECK(static_cast<int64_t>(v.positions[2 * row + 1]) < kLengths[v.documents[v.positions[2 * row]]]);
  }
}

std::vector<std::string> seeds() {
  const ScratchFile anchor("seed-order");
  const std::string folder = std::filesystem::path(anchor.path()).parent_path().string();
  std::vector<std::string> out;
  for (const uint32_t seed : {1u, 7u}) {
    const OrderShape s = shape();
    std::filesystem::remove(order_file(folder, kKey));
    stored_order({folder, true, 0, {}}, kKey, s, [&] { return build_epoch(s.lengths, s.seq, seed); });
    Vfs vfs;
    out.push_back(read_file(vfs, order_file(folder, kKey), 1 << 20));
  }
  std::string first = out[0];
  for (size_t k = first.size() - 6 * 4; k < first.size(); ++k) first[k] = 0;  // every sample is the first
  out.push_back(first);
  std::string far = out[0];
  far[64] = 100;  // no such sequence
  out.push_back(far);
  return out;
}

}  // namespace

Target stored_order_file() {
  return {
      "stored_order", run, seeds, {"GTORDER2", number_bytes(~0ull, 8), number_bytes(6, 8), number_bytes(5, 4)}, 4000};
}

}  // namespace gt::fuzz
