// Weight files: our output is canonical and round-trips, and no field of a hostile file is trusted.
#include "checkpoint/weights/weights.h"

#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "checkpoint/step_reader.h"
#include "launch/tools/weights/model_weights.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;

std::string safetensors(const std::string& header, const std::string& data) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + data;
}

// Error for a file with these bytes: "65: ..."; "" when it is accepted.
std::string refusal(const std::string& bytes, const std::string& name = "x.safetensors") {
  const TempDir dir;
  spill(dir.path + "/" + name, bytes);
  Vfs vfs;
  try {
    const auto f = name == "x.bin"  ? open_llmc(vfs, dir.path + "/" + name, llmc_tensors)
                   : name == "x.h5" ? open_h5(vfs, dir.path + "/" + name)
                                    : open_safetensors(vfs, dir.path + "/" + name);
    for (size_t k = 0; k < f->list().size(); ++k) f->read(k);
  } catch (const Error& e) { return cat(static_cast<int>(e.code()), ": ", e.what()); }
  return "";
}

std::vector<OutTensor> two() { return {{"a.weight", {2, 3}}, {"b.bias", {3}}}; }
std::vector<float> value(size_t k) {
  return k == 0 ? std::vector<float>{1, -2, 0.5f, 3, 1e-8f, 70000} : std::vector<float>{7, 8, 9};
}
std::vector<float> fetched(size_t k, int64_t first, int64_t count) {
  const std::vector<float> all = value(k);
  return {all.begin() + first, all.begin() + first + count};
}

TEST_CASE("16-bit floats round to nearest even and back") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {  // every f16 and bf16 round-trips
    const auto h = static_cast<uint16_t>(bits);
    if (!std::isnan(f32_from_f16(h))) REQUIRE(f16_from(f32_from_f16(h)) == h);
    if (!std::isnan(f32_from_bf16(h))) REQUIRE(bf16_from(f32_from_bf16(h)) == h);
  }
  // Between neighbours: the nearer one; at the midpoint the one with an even last bit.
  for (uint32_t h = 1; h < 0x7bff; ++h) {
    const float a = f32_from_f16(static_cast<uint16_t>(h)), b = f32_from_f16(static_cast<uint16_t>(h + 1)),
                mid = (a + b) / 2;
    REQUIRE(f16_from(mid) == (h % 2 ? h + 1 : h));
    REQUIRE(f16_from(std::nextafter(mid, a)) == h);
    REQUIRE(f16_from(std::nextafter(mid, b)) == h + 1);
  }
  CHECK(f16_from(65520.f) == 0x7c00);
  CHECK(f16_from(65519.f) == 0x7bff);
  CHECK(bf16_from(1.00390625f) == 0x3f80);  // midpoint: to even
  CHECK(bf16_from(1.01171875f) == 0x3f82);
  CHECK(std::isnan(f32_from_bf16(bf16_from(std::nanf("")))));
}

TEST_CASE("a written safetensors file is canonical: known bytes, and the reader returns every value") {
  const TempDir dir;
  Vfs vfs;
  write_safetensors(vfs, dir.path, two(), {}, 1 << 30, fetched);
  const std::string bytes = slurp(dir.path + "/model.safetensors");
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b.bias":{"dtype":"F32","shape":[3],"data_offsets":[24,36]}})";
  CHECK(bytes.substr(8, header.size()) == header);
  uint64_t n = 0;
  std::memcpy(&n, bytes.data(), 8);
  CHECK(n % 8 == 0);
  CHECK(bytes.size() == 8 + n + 36);
  const auto f = open_safetensors(vfs, dir.path);
  REQUIRE(f->list().size() == 2);
  CHECK(f->read(0) == value(0));
  CHECK(f->read(1) == value(1));
  CHECK(f->read(0, 1, 3) == fetched(0, 1, 3));
  CHECK(f->note("format") == "pt");
}

TEST_CASE("weights above the shard limit are split, indexed and found again") {
  const TempDir dir;
  Vfs vfs;
  write_safetensors(vfs, dir.path, two(), {{"ties", "[]"}}, 30, fetched);
  CHECK(fs::exists(dir.path + "/model-00002-of-00002.safetensors"));
  CHECK_THAT(slurp(dir.path + "/model.safetensors.index.json"), Catch::Contains("\"total_size\": 36"));
  const auto f = open_safetensors(vfs, dir.path);
  REQUIRE(f->list().size() == 2);
  CHECK(f->read(1) == value(1));
  CHECK(f->read(0, 1, 3) == fetched(0, 1, 3));
  const std::string index = dir.path + "/model.safetensors.index.json", text = slurp(index);
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& why) {
    std::string bad = text;
    bad.replace(bad.find(from), from.size(), to);
    spill(index, bad);
    try {
      open_safetensors(vfs, dir.path);
      FAIL("taken: " << to);
    } catch (const Error& e) { CHECK_THAT(e.what(), Catch::Contains(why)); }
  };
  refused("model-00001-of-00002.safetensors", "../model-00001-of-00002.safetensors",
          "not a safetensors file of this folder");
  refused("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "a.weight");
  refused("weight_map", "weight_mop", "weight_map");
  refused("a.weight", "c.weight", "does not map a.weight to ");
}

TEST_CASE("bf16 and f16 are written rounded, and f16 refuses values out of its range") {
  const TempDir dir;
  Vfs vfs;
  std::vector<OutTensor> t = two();
  t[0].dtype = t[1].dtype = DType::kBF16;
  write_safetensors(vfs, dir.path, t, {}, 1 << 30, fetched);
  CHECK(open_safetensors(vfs, dir.path)->read(0)[5] == 70144);
  t[0].dtype = t[1].dtype = DType::kF16;
  try {
    write_safetensors(vfs, dir.path, t, {}, 1 << 30, fetched);
    FAIL("70000 as f16");
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kUsage);
    CHECK_THAT(e.what(), Catch::Contains("a.weight") && Catch::Contains("70000"));
  }
}

TEST_CASE("hostile safetensors headers are refused with the reason") {
  const std::string data(8, 'x');
  const auto tensor = [](const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
    return "\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  REQUIRE(refusal(safetensors("{" + tensor("[2]", "[0,8]") + "}", data)) == "");
  const auto refused = [&](const std::string& header, const std::string& why) {
    INFO(header.substr(0, 200));
    const std::string text = refusal(safetensors(header, data));
    CHECK(text.substr(0, 3) == "65:");
    CHECK_THAT(text, Catch::Contains(why));
    CHECK(text.size() < 1000);
  };
  refused("{" + tensor("[3]", "[0,8]") + "}", "in 8 bytes");
  refused("{" + tensor("[2]", "[0,12]") + "}", "data_offsets");
  refused("{" + tensor("[2]", "[8,0]") + "}", "data_offsets");
  refused("{" + tensor("[1]", "[0,4]") + "}", "belong to no tensor");
  refused("{" + tensor("[1]", "[4,8]") + "}", "begins at 4");
  refused("{" + tensor("[-2]", "[0,8]") + "}", "-2");
  refused("{" + tensor("[2.0]", "[0,8]") + "}", "2.0");
  refused("{" + tensor("[4611686018427387904,4]", "[0,8]") + "}", "in 8 bytes");
  refused("{" + tensor("[18446744073709551615]", "[0,8]") + "}", "18446744073709551615");
  refused("{" + tensor("[1,1,1,1,1,1,1,1,2]", "[0,8]") + "}", "more than 8");
  refused("{" + tensor("[2]", "[0,8]", "F31") + "}", "unknown dtype");
  refused("{" + tensor("[8]", "[0,8]", "U8") + "}", "expected F32");
  refused("{" + tensor("[2]", "[0,8]") + "," + tensor("[2]", "[0,8]") + "}", "the key \"a\" is given twice");
  refused("{" + tensor("[2]", "[0,8]") + ",\"\\u0061\":{}}", "the key \"a\" is given twice");
  refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "expected dtype, shape and data_offsets");
  refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", "unknown key");
  refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[[2]],\"data_offsets\":[0,8]}}", "unexpected a list");
  refused("{\"a\":[]}", "unexpected a list");
  refused("{\"a/b\":{}}", "not the name of a tensor");
  refused("{\"..\":{}}", "not the name of a tensor");
  refused("{\"a\\u0000b\":{}}", "not the name of a tensor");
  refused("{\"" + std::string(600, 'n') + "\":{}}", "not the name of a tensor");
  refused("{\"__metadata__\":{\"format\":1}}", "the number 1");
  refused("{" + std::string(100000, '['), "header:1:2: expected a key");
  refused("{\"a\":" + std::string(200000, '{'), "header:1:7: expected a key");
  refused("{\"a\xff\":{}}", "header:1:4: not UTF-8");
  refused("[]", "expected {");
  std::string many = "{";
  for (int k = 0; k <= 20000; ++k)
    many += cat(k == 0 ? "" : ",", "\"t", k, "\":", "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}");
  refused(many + "}", "a list or an object of more than 20000 entries");
  refused("{ ", "header:1:3: expected a key");
  for (uint64_t n : {uint64_t{0}, uint64_t{1}, uint64_t{9}, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::string bytes = safetensors("{}", "");
    std::memcpy(bytes.data(), &n, 8);
    CHECK_THAT(refusal(bytes), Catch::StartsWith("65:"));
  }
  CHECK_THAT(refusal(""), Catch::StartsWith("65:"));
}

TEST_CASE("hostile lists of safetensors files are refused with the reason", "[R21]") {
  const auto load_error = [](const std::string& index) {
    const TempDir dir;
    Vfs vfs;
    write_safetensors(vfs, dir.path, two(), {}, 1 << 30, fetched);
    fs::rename(dir.path + "/model.safetensors", dir.path + "/part.safetensors");
    spill(dir.path + "/model.safetensors.index.json", index);
    try {
      open_safetensors(vfs, dir.path);
    } catch (const Error& e) { return cat(static_cast<int>(e.code()), ": ", e.what()); }
    return std::string();
  };
  const auto index = [](const std::string& map) { return "{\"weight_map\":{" + map + "}}"; };
  const std::string a = "\"a.weight\":\"part.safetensors\"", b = "\"b.bias\":\"part.safetensors\"";
  REQUIRE(load_error(index(a + "," + b)) == "");
  for (const std::string file : {"/etc/passwd", "../part.safetensors", "..", ".", "", "/abs/x.safetensors",
                                 "sub/part.safetensors", "part.bin", "\\u0000.safetensors"}) {
    INFO(file);
    CHECK_THAT(load_error(index(a + ",\"b.bias\":\"" + file + "\"")),
               Catch::StartsWith("65:") || Catch::StartsWith("2:"));
  }
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"weight_map\":[]}"), index(""), index(a),
        index(a + "," + b + "," + b), index(a + "," + b + ",\"b.bia\\u0073\":\"part.safetensors\""),
        "{\"weight_map\":{},\"weight_map\":{" + a + "," + b + "}}", index(a + "," + b + ",\"c\":\"part.safetensors\""),
        index(a + ",\"b.bias\":7"), index(a + ",\"b.bias\":\"other.safetensors\""),
        "{\"weight_map\":" + std::string(100000, '[')}) {
    INFO(bad.substr(0, 100));
    CHECK_THAT(load_error(bad), Catch::StartsWith("65:") || Catch::StartsWith("2:"));
  }
  std::string many = a;
  for (int k = 0; k < 20000; ++k) many += cat(",\"t", k, "\":\"part.safetensors\"");
  CHECK_THAT(load_error(index(many)), Catch::StartsWith("65:") && Catch::Contains("more than 20000 entries"));
  CHECK_THAT(load_error(index(a + ",\"b.bias\":\"other.safetensors\"")),
             Catch::StartsWith("65:") && Catch::Contains("b.bias is in other.safetensors, which is not there"));
}

// Every hostile value in every field: more than two hundred files, none accepted.
TEST_CASE("every hostile value is rejected in every field", "[R21]") {
  const char* const values[] = {"-1",
                                "-9223372036854775808",
                                "9223372036854775807",
                                "9223372036854775808",
                                "18446744073709551615",
                                "18446744073709551616",
                                "1e3",
                                "2.0",
                                "1e400",
                                "NaN",
                                "Infinity",
                                "null",
                                "true",
                                "\"2\"",
                                "[]",
                                "[[2]]",
                                "{}",
                                "{\"a\":2}",
                                "02",
                                "+2",
                                "0x2",
                                "",
                                "4611686018427387904",
                                "1099511627776",
                                "3",
                                "65536",
                                "4294967296",
                                "2,2"};
  const std::string data(8, 'x');
  int files = 0;
  const auto refused = [&](const std::string& header) {
    INFO(header.substr(0, 120));
    const std::string message = refusal(safetensors(header, data));
    CHECK_THAT(message, Catch::StartsWith("65:"));
    CHECK(message.size() < 1000);
    ++files;
  };
  for (const std::string v : values) {
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[" + v + "],\"data_offsets\":[0,8]}}");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2," + v + "],\"data_offsets\":[0,8]}}");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":" + v + ",\"data_offsets\":[0,8]}}");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0," + v + "]}}");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" + v + ",8]}}");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" + v + "}}");
    refused("{\"a\":{\"dtype\":" + v + ",\"shape\":[2],\"data_offsets\":[0,8]}}");
    refused("{\"a\":" + v + "}");
    refused("{\"__metadata__\":{\"format\":" + std::string(v == "\"2\"" ? "2" : v) +
            "},\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}");
  }
  CHECK(files >= 200);
}

TEST_CASE("every truncation and every changed byte of a safetensors file is accepted or refused, nothing else") {
  const TempDir dir;
  Vfs vfs;
  write_safetensors(vfs, dir.path, two(), {}, 1 << 30, fetched);
  const std::string good = slurp(dir.path + "/model.safetensors");
  for (size_t n = 0; n < good.size(); ++n) REQUIRE_THAT(refusal(good.substr(0, n)), Catch::StartsWith("65:"));
  int taken = 0;
  for (size_t k = 0; k < good.size(); ++k)
    for (int mask : {1, 8, 128}) {
      std::string bad = good;
      bad[k] = static_cast<char>(bad[k] ^ mask);
      const std::string message = refusal(bad);
      taken += message.empty();
      REQUIRE((message.empty() || message.substr(0, 3) == "65:"));
    }
  CHECK(taken >= 36 * 3);  // the values themselves are unconstrained
}

TEST_CASE("an exported HDF5 file is read back through the gate with its attributes, in every float type") {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const TempDir dir;
    Vfs vfs;
    std::vector<OutTensor> t = two();
    t[0].dtype = t[1].dtype = type;
    const auto whole = [](size_t k) { return k == 0 ? std::vector<float>{1, -2, 0.5f, 3, 0, 7} : value(1); };
    const auto small = [&](size_t k, int64_t, int64_t) { return whole(k); };
    write_h5(vfs, dir.path + "/w.h5", t, {{"model", "{\"layers\":2}"}, {"ties", "[]"}}, small);
    const std::string bytes = slurp(dir.path + "/w.h5");
    write_h5(vfs, dir.path + "/again.h5", t, {{"model", "{\"layers\":2}"}, {"ties", "[]"}}, small);
    CHECK(slurp(dir.path + "/again.h5") == bytes);
    const auto f = open_h5(vfs, dir.path + "/w.h5");
    REQUIRE(f->list().size() == 2);
    CHECK(f->list()[0].name == "model/a.weight");
    CHECK(f->list()[0].shape == std::vector<int64_t>{2, 3});
    CHECK(f->read(0) == whole(0));
    CHECK(f->read(1) == whole(1));
    CHECK(f->read(0, 2, 3) == std::vector<float>{0.5f, 3, 0});
    CHECK(f->note("model") == "{\"layers\":2}");
    CHECK(f->note("ties") == "[]");
  }
}

TEST_CASE("a damaged HDF5 file kills at most its reader process") {
  const TempDir dir;
  Vfs vfs;
  write_h5(vfs, dir.path + "/w.h5", two(), {{"model", "{}"}}, fetched);
  const std::string good = slurp(dir.path + "/w.h5");
  CHECK_THAT(refusal(std::string(4096, '\0'), "x.h5"), Catch::StartsWith("65:"));
  for (size_t n : {size_t{0}, size_t{8}, size_t{100}, good.size() / 2, good.size() - 8})
    CHECK_THAT(refusal(good.substr(0, n), "x.h5"), Catch::StartsWith("65:"));
  uint32_t random = 7;
  for (int k = 0; k < 60; ++k) {  // metadata is checksummed, so most are rejected; none may crash this process
    std::string bad = good;
    for (int flips = 0; flips < 3; ++flips) {
      random = random * 1664525 + 1013904223;
      bad[random % 2500] = static_cast<char>(random >> 24);
    }
    const std::string message = refusal(bad, "x.h5");
    REQUIRE((message.empty() || message.substr(0, 3) == "65:"));
  }
}

std::string llmc(std::vector<int32_t> head, size_t payload) {
  head.resize(256);
  std::string out(reinterpret_cast<const char*>(head.data()), 1024);
  for (size_t k = 0; k < payload; ++k) {
    const auto v = static_cast<float>(k);
    out.append(reinterpret_cast<const char*>(&v), 4);
  }
  return out;
}

TEST_CASE("an llm.c checkpoint is read by its stacked layers, without the padding of the vocabulary") {
  // T 3, V 5 padded to 8, L 2, H 1, C 2.
  const size_t payload = 8 * 2 + 3 * 2 + 2 * (2 + 2 + 12 + 6 + 4 + 2 + 2 + 2 + 16 + 8 + 16 + 2) + 4;
  const std::string good = llmc({20240326, 3, 3, 5, 2, 1, 2, 8}, payload);
  const TempDir dir;
  spill(dir.path + "/x.bin", good);
  Vfs vfs;
  const auto f = open_llmc(vfs, dir.path + "/x.bin", llmc_tensors);
  REQUIRE(f->list().size() == 2 + 24 + 2);
  CHECK(f->list()[0].shape == std::vector<int64_t>{5, 2});
  CHECK(f->read(0).back() == 9);
  CHECK(f->list()[1].name == "pos_embed.weight");
  CHECK(f->read(1).front() == 16);
  CHECK(f->list()[3].name == "layers.1.norm1.weight");
  CHECK(f->read(3).front() == 16 + 6 + 2);
  CHECK(f->list().back().name == "final_norm.bias");
  CHECK(f->read(27).back() == static_cast<float>(payload - 1));
  CHECK_THAT(f->note(kModelNote), Catch::Contains("\"heads\":1"));

  CHECK_THAT(refusal(good.substr(0, good.size() - 4), "x.bin"), Catch::Contains("these tensors take"));
  CHECK_THAT(refusal(good + "x", "x.bin"), Catch::Contains("these tensors take"));
  CHECK_THAT(refusal(good.substr(0, 1000), "x.bin"), Catch::StartsWith("65:"));
  CHECK_THAT(refusal(llmc({20240327, 3, 3, 5, 2, 1, 2, 8}, payload), "x.bin"), Catch::Contains("20240326"));
  CHECK_THAT(refusal(llmc({20240326, 1, 3, 5, 2, 1, 2, 8}, payload), "x.bin"), Catch::Contains("version 1"));
  for (const auto& head : {std::vector<int32_t>{20240326, 3, 3, 5, -2, 1, 2, 8},
                           {20240326, 3, 0, 5, 2, 1, 2, 8},
                           {20240326, 3, 3, 5, 2, 3, 2, 8},
                           {20240326, 3, 3, 9, 2, 1, 2, 8},
                           {20240326, 3, 3, 5, 2147483647, 1, 2, 8}})
    CHECK_THAT(refusal(llmc(head, payload), "x.bin"), Catch::Contains("invalid header: T "));
}

}  // namespace
}  // namespace gt::ckpt
