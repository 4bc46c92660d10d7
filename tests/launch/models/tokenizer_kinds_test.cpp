// Kinds of tokenizer.json, vocab.txt and tekken.json: ids and decoded text against Hugging Face's tokenizers, on 20,000
// hard texts for each kind.
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/tokenizer/tokenizer.h"
#include "tests/launch/process.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kText = "/usr/share/common-licenses/GPL-3";

std::string python() { return source_dir() + "/build/hf5/bin/python"; }

// Encodes and decodes every text with the tokenizer of the folder, and writes one JSON value a line.
void write_ours(const TempDir& dir, const std::string& folder) {
  const Tokenizer t = Tokenizer::load(dir / folder);
  Encoder cached(t);
  std::istringstream texts(read_file(dir / "texts.jsonl"));
  std::string ids, back;
  int64_t differences = 0;
  for (std::string line; std::getline(texts, line);) {
    const auto text = Json::parse(line).get<std::string>();
    const std::vector<int32_t> plain = t.encode(text);
    std::vector<int32_t> of_cache;
    cached.encode(text, &of_cache);
    differences += of_cache != plain;
    ids += Json(plain).dump() + "\n";
    back += Json(t.decode(plain)).dump() + "\n";
  }
  CHECK(differences == 0);  // with a word cache and without
  write_file(dir / "ids.jsonl", ids);
  write_file(dir / "back.jsonl", back);
}

void compare_kinds(const std::string& group) {
  if (!fs::exists(python())) GT_SKIP("no " + python() + "; tests/readers/setup.sh makes it");
  TempDir dir;
  const std::string count = full_size() ? "100000" : "20000";
  const auto run = [&](const std::string& args) {
    const Outcome r =
        shell(python() + " " + source_dir() + "/tests/readers/tokenizer_kinds.py " + args, dir.path(), 500);
    INFO(r.out);
    REQUIRE(r.code == 0);
    return r;
  };
  run("texts " + count + " 3 " + kText + " >texts.jsonl");
  std::istringstream kinds(run("kinds " + group).out);
  int compared = 0;
  for (std::string kind; std::getline(kinds, kind); ++compared) {
    INFO(kind);
    run("make " + kind + " " + kind + " " + kText);
    write_ours(dir, kind);
    CHECK(run("compare " + kind + " texts.jsonl ids.jsonl back.jsonl").prints(count + " texts"));
    std::printf("tokenizers: %s: ids and text of %s texts equal\n", kind.c_str(), count.c_str());
  }
  CHECK(compared > 0);
}

}  // namespace

TEST_CASE("a tokenizer.json of BPE with byte fallback equals Hugging Face's: Gemma, Llama 2, Mistral, Yi, Phi-3") {
  compare_kinds("fallback");
}

TEST_CASE("a tokenizer.json of byte-level BPE with other normalizers and pre-tokenizers equals Hugging Face's") {
  compare_kinds("byte_level");
}

TEST_CASE("WordPiece as tokenizer.json and as vocab.txt equals Hugging Face's: BERT") { compare_kinds("word_piece"); }

TEST_CASE("Unigram as tokenizer.json equals Hugging Face's: T5, XLM-R") { compare_kinds("unigram"); }

TEST_CASE("tekken.json equals Hugging Face's conversion of it: Mistral") { compare_kinds("tekken"); }
