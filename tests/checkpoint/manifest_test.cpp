// manifest.json: seal, versions, bitwise round trip of the state.
#include "checkpoint/format/manifest.h"

#include <cmath>
#include <limits>

#include "kernels/core/hash/sha256.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

Manifest example() {
  Manifest m;
  m.uuid = uuid_from("00112233-4455-8677-8899-aabbccddeeff");
  m.step = 12;
  m.created = "2026-01-31T12:00:00Z";
  m.version = "0.1.0";
  m.compiler = "c";
  m.device = "d";
  m.mesh = {.pp = 2, .dp = 3, .tp = 4};
  m.zero = 2;
  m.files = {{"rank-00000.h5", 100, 200, std::string(64, 'a')}};
  m.aux = {{"config.json", 3, std::string(64, 'b')}};
  TensorEntry t;
  t.name = "master/w";
  t.shape = {3, 5};
  t.blocks = 3;
  t.files = {{0, 0}};
  m.tensors = {t};
  m.state = some_state(12);
  return m;
}

// Replaces `from` by `to` and reseals, as a buggy or hostile writer could.
std::string forged(const std::string& from, const std::string& to) {
  std::string text = to_text(example());
  text.resize(text.size() - 78);
  const size_t at = text.find(from);
  GT_CHECK(at != std::string::npos, from);
  text.replace(at, from.size(), to);
  return text + ",\"sha256\":\"" + sha256_hex(text) + "\"}\n";
}

std::string refusal(const std::string& text) {
  try {
    parse_manifest(text, "m.json");
  } catch (const Error& e) { return cat(static_cast<int>(e.code()), ": ", e.what()); }
  return "";
}

TEST_CASE("the trainer's state round-trips bitwise, unknown keys included") {
  TrainState s = some_state(12);
  s.lr_value = std::nextafter(0.1, 1);
  s.best_loss = 5e-324;
  Manifest m = example();
  m.state = s;
  const TrainState r = parse_manifest(to_text(m), "m").state;
  CHECK(r.step == s.step);
  CHECK(r.consumed_samples == s.consumed_samples);
  CHECK(r.consumed_tokens == s.consumed_tokens);
  CHECK(r.skipped_steps == s.skipped_steps);
  CHECK(r.consecutive_skips == s.consecutive_skips);
  CHECK(r.scaler == s.scaler);
  CHECK(r.applied_steps == s.applied_steps);
  CHECK(r.run_uuid == s.run_uuid);
  CHECK(r.elapsed_seconds == s.elapsed_seconds);
  CHECK(r.seed == s.seed);
  CHECK(r.optim_type == s.optim_type);
  CHECK(r.lr_type == s.lr_type);
  CHECK(r.lr_value == s.lr_value);
  CHECK(r.global_batch == s.global_batch);
  CHECK(r.micro_batch == s.micro_batch);
  CHECK(r.best_loss == s.best_loss);
  CHECK(r.best_step == s.best_step);
  CHECK(r.data_json == s.data_json);
  CHECK(r.anomaly_json == s.anomaly_json);
  CHECK(r.carry == s.carry);
  m.state = r;
  CHECK(to_text(m) == to_text(parse_manifest(to_text(m), "m")));
}

TEST_CASE("a state without best loss, cursor or carried keys is read back empty") {
  Manifest m = example();
  m.state = {};
  m.state.step = 12;
  const TrainState r = parse_manifest(to_text(m), "m").state;
  CHECK(r.best_step == -1);
  CHECK(r.data_json.empty());
  CHECK(r.anomaly_json.empty());
  CHECK(r.carry.empty());
}

TEST_CASE("the last line is 78 bytes and seals everything before it") {
  const std::string good = to_text(example());
  CHECK(good.substr(good.size() - 79, 12) == "\n,\"sha256\":\"");
  for (size_t k = 0; k < good.size(); ++k)
    for (int flip : {1, 0x20, 0x80}) {
      std::string text = good;
      text[k] = static_cast<char>(text[k] ^ flip);
      REQUIRE(refusal(text).substr(0, 3) == "65:");
    }
  for (size_t n = 0; n < good.size(); n += 7) REQUIRE(refusal(good.substr(0, n)).substr(0, 3) == "65:");
  CHECK(refusal(good + "\n").substr(0, 3) == "65:");
}

TEST_CASE("a newer major version is refused with both versions and the writer") {
  const std::string text = refusal(forged("\"version\":[1,0]", "\"version\":[2,3]"));
  CHECK(text.substr(0, 2) == "2:");
  CHECK_THAT(text, Catch::Contains("2.3") && Catch::Contains("1.x") && Catch::Contains("0.1.0"));
}

TEST_CASE("a newer minor version with unknown keys is read") {
  CHECK(refusal(forged("\"version\":[1,0]", "\"version\":[1,9]")) == "");
  CHECK(refusal(forged("\n,\"step\"", "\n,\"novelty\":{\"a\":1}\n,\"step\"")) == "");
}

TEST_CASE("invalid manifests under a valid seal are refused") {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& why) {
    INFO(to);
    const std::string text = refusal(forged(from, to));
    CHECK(text.substr(0, 3) == "65:");
    CHECK_THAT(text, Catch::Contains(why));
  };
  refused("rank-00000.h5", "../../etc/passwd.h5", "not the name of a shard");
  refused("rank-00000.h5", "rank-0000.h5", "not the name of a shard");
  refused("\"config.json\"", "\"../config.json\"", "not the name of a file");
  refused("\n,\"step\":12", "\n,\"step\":12\n,\"step\":12", "the key \"step\" is given twice");
  refused("\n,\"step\":12", "\n,\"st\\u0065p\":13,\"step\":12", "the key \"step\" is given twice");
  refused("\n,\"step\":12", "\n,\"x\":" + std::string(100, '[') + std::string(100, ']') + "\n,\"step\":12", "nested");
  refused("\n,\"step\":12", "\n,\"step\":13", "state of step 12");
  refused("\"shape\":[3,5]", "\"shape\":[3,-5]", "shape");
  refused("\"shape\":[3,5]", "\"shape\":[4611686018427387904,4]", "shape");
  refused("\"shape\":[3,5]", "\"shape\":[]", "shape");
  refused("\"files\":[[0,0]]", "\"files\":[[0,1]]", "files");
  refused("\"dtype\":\"f32\"", "\"dtype\":\"f33\"", "dtype");
  refused("\"format\":\"gpttrain-checkpoint\"", "\"format\":\"other\"", "format");
  refused("\"uuid\":\"0011", "\"uuid\":\"zz11", "uuid");
  refused("\"seed\":", "\"sead\":", "seed");
}

}  // namespace
}  // namespace gt::ckpt
