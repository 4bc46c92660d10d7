#include "checkpoint/format/state_json.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

std::string hex_float(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", v);
  return text;
}

double float_from(const Json& j, const char* key) {
  const auto text = field<std::string>(j, key);
  char* end = nullptr;
  const double v = std::strtod(text.c_str(), &end);
  GT_REQUIRE(!text.empty() && *end == '\0', Exit::kDamaged, key, ": expected a hexadecimal float, found \"",
             printable(text), "\"");
  return v;
}

constexpr const char* kCursorKeys[] = {"consumed_samples", "skip_windows", "data"};
// Keys that this program reads; all others are carried.
constexpr const char* kKnown[] = {"step",
                                  "consumed_samples",
                                  "consumed_tokens",
                                  "skipped_steps",
                                  "skips_in_a_row",
                                  "scaler",
                                  "run_uuid",
                                  "origin",
                                  "elapsed_seconds",
                                  "seed",
                                  "optim",
                                  "lr",
                                  "batch",
                                  "skip_windows",
                                  "data",
                                  "best",
                                  "curriculum",
                                  "pld",
                                  "eval",
                                  "bad_steps"};

}  // namespace

Json integer_json(uint64_t v) {
  if (v <= (uint64_t{1} << 53)) return v;
  return std::to_string(v);
}

uint64_t integer_from(const Json& j, const char* key) {
  if (!member(j, key).is_string()) return field<uint64_t>(j, key);
  const auto text = field<std::string>(j, key);
  GT_REQUIRE(!text.empty() && text.size() <= 20 && text.find_first_not_of("0123456789") == std::string::npos,
             Exit::kDamaged, key, ": expected a whole number, found \"", printable(text), "\"");
  return std::strtoull(text.c_str(), nullptr, 10);
}

Json to_json(const TrainState& s) {
  Json j;
  j["step"] = s.step;
  j["consumed_samples"] = s.consumed_samples;
  j["consumed_tokens"] = s.consumed_tokens;
  j["skipped_steps"] = s.skipped_steps;
  j["skips_in_a_row"] = s.consecutive_skips;
  if (s.scaler)
    j["scaler"] = {{"scale", hex_float(s.scaler->scale)}, {"c", s.scaler->clean}, {"h", s.scaler->hysteresis}};
  else
    j["scaler"] = nullptr;
  j["run_uuid"] = s.run_uuid;
  j["origin"] = s.origin;
  j["elapsed_seconds"] = hex_float(s.elapsed_seconds);
  j["seed"] = integer_json(s.seed);
  j["optim"] = {{"type", s.optim_type}, {"t", Json::array({s.applied_steps})}};
  j["lr"] = {
      {"type", s.lr_type}, {"t", s.schedule_steps}, {"samples", s.applied_samples}, {"value", hex_float(s.lr_value)}};
  j["batch"] = {{"global", s.global_batch}, {"micro", s.micro_batch}};
  if (s.best_step >= 0)
    j["best"] = {{"metric", "validation loss"}, {"value", hex_float(s.best_loss)}, {"step", s.best_step}};
  else
    j["best"] = nullptr;
  if (s.curriculum) j["curriculum"] = {{"length", s.curriculum->length}, {"samples", s.curriculum->samples}};
  if (s.pld_theta) j["pld"] = {{"theta", hex_float(*s.pld_theta)}};
  if (s.eval_step >= 0) j["eval"] = {{"value", hex_float(s.eval_loss)}, {"step", s.eval_step}};
  if (!s.anomaly_json.empty()) j["bad_steps"] = parse_json<Json>(s.anomaly_json, "anomaly state", kOwnJson);
  if (!s.data_json.empty()) {
    const Json cursor = parse_json<Json>(s.data_json, "data cursor", kOwnJson);
    for (const char* key : kCursorKeys)
      if (cursor.contains(key)) j[key] = cursor[key];
    GT_CHECK(j["consumed_samples"] == s.consumed_samples, "the loader's cursor and the state disagree: ", s.data_json);
  }
  if (!s.carry.empty()) {
    const Json carry = parse_json<Json>(s.carry, "carried state", kOwnJson);
    for (const auto& [key, value] : carry.items())
      if (!j.contains(key)) j[key] = value;
  }
  return j;
}

TrainState state_from(const Json& j) {
  TrainState s;
  s.step = field<int64_t>(j, "step");
  s.consumed_samples = field<int64_t>(j, "consumed_samples");
  s.consumed_tokens = field<int64_t>(j, "consumed_tokens");
  s.skipped_steps = field<int64_t>(j, "skipped_steps");
  s.consecutive_skips = field_or(j, "skips_in_a_row", int64_t{0});
  if (j.contains("scaler") && !j.at("scaler").is_null()) {
    const Json& scaler = j.at("scaler");
    s.scaler = {float_from(scaler, "scale"), field<int64_t>(scaler, "c"), field<int64_t>(scaler, "h")};
    GT_REQUIRE(
        s.scaler->scale > 0 && std::isfinite(s.scaler->scale) && s.scaler->clean >= 0 && s.scaler->hysteresis >= 1,
        Exit::kDamaged, "scaler ", found_json(scaler), " is not the state of a loss scaler");
  }
  s.origin = field_or(j, "origin", std::string("train"));
  s.run_uuid = field<std::string>(j, "run_uuid");
  s.elapsed_seconds = float_from(j, "elapsed_seconds");
  s.seed = integer_from(j, "seed");
  s.optim_type = field<std::string>(j, "optim.type");
  s.applied_steps = field<int64_t>(j, "optim.t.0");
  s.lr_type = field<std::string>(j, "lr.type");
  s.schedule_steps = field_or(member(j, "lr"), "t", s.applied_steps);
  s.lr_value = float_from(j, "lr.value");
  s.global_batch = field<int64_t>(j, "batch.global");
  s.micro_batch = field<int64_t>(j, "batch.micro");
  s.applied_samples = field_or(member(j, "lr"), "samples", s.schedule_steps * s.global_batch);
  if (j.contains("best") && !j.at("best").is_null()) {
    s.best_loss = float_from(j, "best.value");
    s.best_step = field<int64_t>(j, "best.step");
  }
  if (j.contains("curriculum")) {
    const Json& c = j.at("curriculum");
    s.curriculum = {field<int64_t>(c, "length"), field<int64_t>(c, "samples")};
    GT_REQUIRE(s.curriculum->length >= 1 && s.curriculum->samples >= 0, Exit::kDamaged, "curriculum ", found_json(c),
               " is not the state of a curriculum");
  }
  if (j.contains("pld")) s.pld_theta = float_from(j, "pld.theta");
  if (j.contains("eval")) {
    s.eval_loss = float_from(j, "eval.value");
    s.eval_step = field<int64_t>(j, "eval.step");
  }
  if (j.contains("bad_steps")) s.anomaly_json = j.at("bad_steps").dump();
  if (j.contains("data")) {
    Json cursor;
    for (const char* key : kCursorKeys)
      if (j.contains(key)) cursor[key] = j.at(key);
    s.data_json = cursor.dump();
  }
  Json carry;
  for (const auto& [key, value] : j.items()) {
    bool known = false;
    for (const char* k : kKnown) known = known || key == k;
    if (!known) carry[key] = value;
  }
  if (!carry.empty()) s.carry = carry.dump();
  return s;
}

}  // namespace gt
