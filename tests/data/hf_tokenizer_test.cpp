// Unigram segmentation with exact sums, and the tokenizer.json made from our models.
// tests/launch/models/export_test.cpp compares the ids with Hugging Face's library.
#include "data/tokenizer/hf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "data/tokenizer/sentence_piece.h"
#include "data/tokenizer/tokenizer_train.h"
#include "data/tokenizer/unigram.h"
#include "data/tokens/files.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {

Tokenizer trained(const TempDir& dir, const std::string& type) {
  write_file(dir / "text.txt", made_up_text(2000) + "====\n========\n================\n");
  tokenizer_train(
      {.inputs = {dir / "text.txt"}, .output = dir / "t.model", .vocab = 400, .type = type, .special = {"<x1>"}});
  return Tokenizer::load(dir / "t.model");
}

std::array<int32_t, 256> byte_ids() {
  std::array<int32_t, 256> ids;
  for (int32_t b = 0; b < 256; ++b) ids[static_cast<size_t>(b)] = 1000 + b;
  return ids;
}

}  // namespace

TEST_CASE("unigram picks the best score, of equal ones the longer last token, and falls back to bytes") {
  // In float the sums a b c and b c a of these scores differ; ours are exact.
  const Unigram u({{"a", -3.3F, 1}, {"aa", -4.7F, 2}, {"aaa", -5.1F, 3}, {"b", -2, 4}, {" b", -2.5, 5}}, byte_ids());
  const auto ids = [&](const std::string& text) {
    std::vector<int32_t> out;
    u.encode(text, &out);
    return out;
  };
  CHECK(ids("").empty());
  CHECK(ids("aaaa") == std::vector<int32_t>{1, 3});
  CHECK(ids("aaaaa") == std::vector<int32_t>{2, 3});
  CHECK(ids("b b") == std::vector<int32_t>{4, 5});
  CHECK(ids("b\xC3\xA9z") == std::vector<int32_t>{4, 1000 + 0xC3, 1000 + 0xA9, 1000 + 'z'});
  // No prefix changes the ids of what follows.
  const std::string run(50, 'a');
  const auto alone = ids(run);
  for (int n = 1; n < 200; ++n) {
    const std::string prefix(static_cast<size_t>(n), 'z');
    const auto all = ids(prefix + run);
    CHECK((std::vector<int32_t>(all.begin() + n, all.end()) == alone));
  }
}

TEST_CASE("symbols are never split, for either model type, and tokenizer.json describes every token") {
  for (const char* type : {"bpe", "unigram"}) {
    INFO(type);
    TempDir dir;
    const Tokenizer t = trained(dir, type);
    const auto ids = t.encode("a<x1>\n<|endoftext|>=<s>");
    for (const char* symbol : {"<x1>", "\n", "<|endoftext|>"}) {
      CHECK(std::count(ids.begin(), ids.end(), t.id_of(symbol)) == 1);
      CHECK(t.kind(t.id_of(symbol)) == PieceKind::kUserDefined);
    }
    CHECK(std::count(ids.begin(), ids.end(), t.bos()) == 0);
    CHECK((t.kind(0) == PieceKind::kUnknown && t.kind(1) == PieceKind::kControl));
    CHECK((t.kind(t.id_of("<0x41>")) == PieceKind::kByte && t.kind(399) == PieceKind::kNormal));
    REQUIRE(hf_tokenizer_obstacle(t).empty());
    const auto j = nlohmann::json::parse(hf_tokenizer_json(t));
    const auto& vocab = j["model"]["vocab"];
    REQUIRE(vocab.size() == 400);
    CHECK(j["added_tokens"].size() == 3);
    for (const auto& a : j["added_tokens"]) CHECK(a["content"] == t.piece(a["id"].get<int32_t>()));
    if (t.sentence_piece()->bpe()) CHECK(j["model"]["merges"].size() > 100);
    CHECK(nlohmann::json::parse(hf_tokenizer_config_json(t, 64))["eos_token"] == "<|endoftext|>");
  }
}

TEST_CASE("a model that tokenizer.json cannot describe is reported with the reason") {
  TempDir dir;
  trained(dir, "unigram");
  std::string model = read_whole_file(dir / "t.model", 1 << 20);
  const size_t at = model.rfind(std::string("\x18\x00", 2));  // add_dummy_prefix: false, in the normalizer's section
  REQUIRE(at != std::string::npos);
  model[at + 1] = 1;
  const Tokenizer t = Tokenizer::from_bytes(model, "foreign.model");
  CHECK_FALSE(t.lossless());
  CHECK(hf_tokenizer_obstacle(t).find("adds a blank before it") != std::string::npos);
}
