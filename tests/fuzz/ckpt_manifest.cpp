// A manifest's seal is a plain hash: the target seals its input to reach the code behind.
#include "checkpoint/format/manifest.h"
#include "kernels/core/hash/sha256.h"
#include "tests/fuzz/sealed_step.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {

std::string sealed_manifest(std::string_view body) { return cat(body, ",\"sha256\":\"", sha256_hex(body), "\"}\n"); }

namespace {

void run(std::string_view input) {
  Manifest m;
  if (refused([&] { m = parse_manifest(sealed_manifest(input), "fuzz/manifest.json"); })) return;
  GT_CHECK(m.bytes() >= 0 && !m.layout().empty() && m.shapes().size() == m.tensors.size());
  for (const TensorEntry& t : m.tensors)
    for (const auto& [first, last] : t.files) GT_CHECK(0 <= first && first <= last && last < int(m.files.size()));
  const std::string text = to_text(m);
  GT_CHECK(to_text(parse_manifest(text, "written")) == text, "a manifest that was accepted is written and read again");
}

std::vector<std::string> seeds() {
  Manifest m;
  m.step = 40;
  m.created = "2024-01-02T03:04:05Z";
  m.version = "0.1.0";
  m.mesh = {.pp = 2, .dp = 1, .ep = 1, .cp = 1, .tp = 1};
  m.files = {{"rank-00000.h5", 8192, 300, std::string(64, 'a')}, {"rank-00001.h5", 4096, 200, std::string(64, 'b')}};
  m.aux = {{"config.json", 17, std::string(64, 'c')}};
  TensorEntry t;
  t.name = "master/embed.weight";
  t.shape = {23, 5};
  t.files = {{0, 1}};
  m.tensors.push_back(t);
  t.name = "master/qkv.weight";
  t.shape = {9, 3};
  t.blocks = 3;
  t.files = {{1, 1}};
  m.tensors.push_back(t);
  m.ties = {{"master/head.weight", "master/embed.weight"}};
  m.state.step = 40;
  m.state.consumed_samples = 7;
  m.state.best_step = 30;
  m.state.best_loss = 2.5;
  m.state.seed = 1ull << 60;  // beyond JSON's portable integer range: written as a string
  m.state.scaler = {65536, 12, 2};
  m.state.curriculum = {32, 100};
  m.state.pld_theta = 0.75;
  m.state.eval_step = 30;
  m.state.eval_loss = 3.5;
  m.state.anomaly_json = "{\"window\":[1]}";
  m.state.data_json = "{\"consumed_samples\":7,\"data\":{}}";
  m.state.carry = "{\"later\":[1,2]}";
  const std::string text = to_text(m);
  return {text.substr(0, text.size() - 78)};
}

}  // namespace

Target ckpt_manifest() {
  return {"ckpt_manifest",
          run,
          seeds,
          {"\"blocks\":", "\"files\":", "[0,1]", "-1", "4611686018427387904", "9223372036854775807", "2147483647",
           "null", "{}", "[]", "\"0x1p-3\"", "\"nan\"", ",", "1e999"},
          6000};
}

}  // namespace gt::fuzz
