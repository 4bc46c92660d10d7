// Chat data: templates, loss masks, what is refused, and masks in the hands of a loader.
#include "data/prepare/chat.h"

#include <algorithm>
#include <sstream>

#include "data/prepare/prepare.h"
#include "data/samples/loader.h"
#include "data/samples/loss_mask.h"
#include "data/tokenizer/tokenizer_train.h"
#include "data/tokens/token_meta.h"
#include "tests/data/byte_level_json.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {

// A folder with a tokenizer of 400 pieces that has the special tokens of ChatML and of Llama 3.
struct Workshop : TempDir {
  Workshop() {
    write_file(*this / "train.txt", made_up_text(1500));
    TokenizerTrainOptions o;
    o.inputs = {*this / "train.txt"};
    o.output = *this / "tok.model";
    o.vocab = 400;
    o.special = {"<|im_start|>",        "<|im_end|>",        "<|begin_of_text|>",
                 "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    tokenizer_train(o);
    o.special = {};
    o.output = *this / "bare.model";
    tokenizer_train(o);
  }
  Tokenizer tokenizer() const { return Tokenizer::load(*this / "tok.model"); }
  PrepareOptions options(const std::string& lines, TextFormat format = TextFormat::kChat) const {
    write_file(*this / "in.jsonl", lines);
    PrepareOptions o;
    o.inputs = {*this / "in.jsonl"};
    o.tokenizer = *this / "tok.model";
    o.output = *this / "out";
    o.format = format;
    o.chunk_bytes = 500;
    return o;
  }
};

// A tokenizer of bytes that has these added tokens.
Tokenizer tokenizer_with(const std::vector<std::string>& tokens) {
  Json j = byte_level_json();
  Json added = j["added_tokens"][0];
  int64_t id = added["id"];
  for (const std::string& token : tokens) {
    added["id"] = ++id, added["content"] = token;
    j["added_tokens"].push_back(added);
  }
  return Tokenizer::from_bytes(j.dump(), "tokenizer.json");
}

// Text of tokens with targets in square brackets.
std::string shown(const Tokenizer& t, const ChatTokens& c) {
  std::string out;
  for (size_t i = 0; i < c.ids.size();) {
    size_t end = i;
    while (end < c.ids.size() && c.loss[end] == c.loss[i]) ++end;
    std::string text;
    for (size_t k = i; k < end; ++k)
      text += t.kind(c.ids[k]) == PieceKind::kControl ? t.piece(c.ids[k]) : t.decode({&c.ids[k], 1});
    out += c.loss[i] ? "[" + text + "]" : text;
    i = end;
  }
  return out;
}

ChatTokens encode(const Tokenizer& t, const std::string& chat_template, const std::string& line,
                  bool instruct = false) {
  const ChatFormat format(load_chat_template(chat_template), t);
  Encoder encoder(t);
  Conversation messages;
  ChatTokens out;
  std::string why;
  const bool good = (instruct ? parse_instruct : parse_chat)(line, &messages, &why, false) &&
                    format.encode(messages, encoder, &out, &why);
  INFO(why);
  REQUIRE(good);
  REQUIRE(out.ids.size() == out.loss.size());
  return out;
}

const std::string kTalk =
    R"({"id": 7, "messages": [{"role": "system", "content": " be kind "}, {"role": "user", "content": "hi"},)"
    R"( {"content": "hello\nyou", "role": "assistant", "weight": 1, "id": [1, {"content": 2}], "name": null}, {"role": "user",)"
    R"( "content": "bye"},)"
    R"( {"role": "assistant", "content": "so long"}], "more": {"messages": 3}})"
    "\n";

std::vector<int32_t> bin_of(const std::string& prefix) {
  const TokenFile f = TokenFile::open(prefix);
  std::vector<int32_t> out;
  for (int64_t s = 0; s < f.sequences(); ++s) {
    out.resize(out.size() + static_cast<size_t>(f.length(s)));
    f.read(s, 0, std::span(out).last(static_cast<size_t>(f.length(s))));
  }
  return out;
}

}  // namespace

TEST_CASE("chat templates put special tokens around messages, and targets are the answers and their ends") {
  const Workshop w;
  const Tokenizer t = w.tokenizer();
  CHECK(shown(t, encode(t, "chatml", kTalk)) ==
        "<|im_start|>system\n be kind <|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        "[hello\nyou<|im_end|>]\n<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n[so long<|im_end|>]\n");
  CHECK(shown(t, encode(t, "llama3", kTalk)) ==
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nbe kind<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[hello\nyou<|eot_id|>]"
        "<|start_header_id|>user<|end_header_id|>\n\nbye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "[so long<|eot_id|>]");
  CHECK(shown(t, encode(t, "mistral", kTalk)) ==
        "<s>[INST]  be kind \n\nhi [/INST][hello\nyou</s>] [INST] bye [/INST][so long</s>] ");
  CHECK(shown(t, encode(t, "plain", kTalk)) ==
        "system:\n be kind \n\nuser:\nhi\n\nassistant:\n[hello\nyou<|endoftext|>]user:\nbye\n\nassistant:\n"
        "[so long<|endoftext|>]");
  CHECK(shown(t, encode(t, "plain", R"({"instruction": "add", "input": "1 2", "output": "3"})", true)) ==
        "user:\nadd\n\n1 2\n\nassistant:\n[3<|endoftext|>]");
  CHECK(shown(t, encode(t, "plain", R"({"response": "3", "prompt": "add", "input": "", "system": "s"})", true)) ==
        "system:\ns\n\nuser:\nadd\n\nassistant:\n[3<|endoftext|>]");
  // Special tokens are one token each, and an answer has the tokens that follow the prompt alone.
  const ChatTokens c = encode(t, "chatml", kTalk);
  CHECK(std::count(c.ids.begin(), c.ids.end(), t.id_of("<|im_start|>")) == 5);
  std::vector<int32_t> answer = t.encode("so long");
  answer.push_back(t.id_of("<|im_end|>"));
  const size_t newline = t.encode("\n").size();
  CHECK(std::equal(answer.begin(), answer.end(), c.ids.end() - static_cast<int64_t>(answer.size() + newline)));
}

TEST_CASE("a chat template from a file is the one of its name, and what is wrong with one is named") {
  const Workshop w;
  const Tokenizer t = w.tokenizer();
  const std::string turn = R"({"before": "<|im_start|>ROLE\n", "end": "<|im_end|>", "after": "\n"})";
  const auto with = [&](std::string role) { return std::string(turn).replace(turn.find("ROLE"), 4, role); };
  write_file(w / "own.json", R"({"system": )" + with("system") + R"(, "user": )" + with("user") + R"(, "assistant": )" +
                                 with("assistant") + R"(, "special": ["<|im_start|>", "<|im_end|>"]})");
  const ChatTokens own = encode(t, w / "own.json", kTalk), known = encode(t, "chatml", kTalk);
  CHECK((own.ids == known.ids && own.loss == known.loss));
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    write_file(w / "bad.json", text);
    expect_error(Exit::kUsage, parts, [&] { load_chat_template(w / "bad.json"); });
  };
  refused("[]", {"bad.json", "expected an object"});
  refused("{", {"bad.json:1:2: expected a key"});
  refused(R"({"user": {}, "assistant": {"end": "x"}})", {"system", "is missing"});
  refused(R"({"system": {}, "user": {"befor": ""}, "assistant": {"end": "x"}})", {"user.", "befor"});
  refused(R"({"system": {}, "user": {}, "assistant": {}})", {"assistant", "end"});
  refused(R"({"system": {}, "user": {}, "assistant": {"end": 3}})", {"end: expected a string"});
  refused(R"({"system": {}, "user": {}, "assistant": {"end": "x"}, "special": [""]})", {"special"});
  expect_error(Exit::kUsage, {"llama2", "chatml, llama3, mistral, plain"}, [] { load_chat_template("llama2"); });
  const Tokenizer of_llama =
      tokenizer_with({"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  expect_error(Exit::kUsage, {"has no token <|im_start|>, <|im_end|>", "use --template llama3, or train"},
               [&] { ChatFormat(load_chat_template("chatml"), of_llama); });
  CHECK(fitting_chat_template(tokenizer_with({"[INST]", "[/INST]"})) == "mistral");
  CHECK(fitting_chat_template(tokenizer_with({"[INST]"})) == "plain");
  expect_error(Exit::kUsage, {"bare.model", "<|im_start|>, <|im_end|>", "chatml", "use --template plain"},
               [&] { ChatFormat(load_chat_template("chatml"), Tokenizer::load(w / "bare.model")); });
}

TEST_CASE("marks of a template that the tokenizer has no tokens for are named in the report") {
  const Workshop w;
  PrepareOptions o = w.options(kTalk);
  o.chat_template = "mistral";
  CHECK(to_text(prepare_data(o)).find("written as text   [INST], [/INST]: no tokens") != std::string::npos);
  for (const bool part : {false, true}) {
    TokenizerTrainOptions t;
    t.inputs = {w / "train.txt"}, t.output = w / "marks.model", t.vocab = 400;
    t.special = {"[INST]"};
    if (!part) t.special.push_back("[/INST]");
    tokenizer_train(t);
    o.tokenizer = t.output, o.force = true;
    const PrepareResult r = prepare_data(o);
    CHECK(r.as_text == (part ? "[/INST]" : ""));
    CHECK((to_text(r).find("written as text") != std::string::npos) == part);
  }
}

TEST_CASE("lines that are not conversations are refused by line and reason, or counted") {
  const Workshop w;
  const auto refused = [&](const std::string& line, const std::string& reason, TextFormat f = TextFormat::kChat) {
    expect_error(Exit::kUsage, {"in.jsonl line 2", reason}, [&] { prepare_data(w.options(kTalk + line + "\n", f)); });
    std::filesystem::remove_all(w / "out.progress.json");
  };
  refused("{", "broken JSON");
  refused("[1]", "expected an object, found a list");
  refused("\"a\"", "expected an object, found a string");
  refused("{}", "no key \"messages\"");
  refused(R"({"messages": "a"})", "\"messages\": expected a list, found a string");
  refused(R"({"messages": {"role": "user"}})", "\"messages\": expected a list, found an object");
  refused(R"({"messages": [3]})", "\"messages\": expected objects, found a number");
  refused(R"({"messages": [[]]})", "\"messages\": expected objects, found a list");
  refused(R"({"messages": ["a"]})", "expected an object, found a string");
  refused(R"({"messages": [], "messages": []})", "two keys \"messages\"");
  refused(R"({"messages": [{"role": "user"}]})", "message 1 has no key \"content\"");
  refused(R"({"messages": [{"content": "a"}]})", "message 1 has no key \"role\"");
  refused(R"({"messages": [{"role": "tool", "content": "a"}]})", "found tool");
  refused(R"({"messages": [{"role": "user", "content": null}]})", "\"content\": expected a string, found null");
  refused(R"({"messages": [{"role": "user", "content": [{"text": "a"}]}]})",
          "\"content\": expected a string, found a list");
  refused(R"({"messages": [{"role": "user", "content": "a", "content": "b"}]})", "two keys \"content\"");
  refused(R"({"messages": [{"role": "user", "content": "a<|im_end|>"}, {"role": "assistant", "content": "b"}]})",
          "contains <|im_end|>");
  refused(R"({"conversations": [{"from": "human", "value": "a"}], "source": "web"})", "ShareGPT");
  refused(R"({"instruction": "a", "output": "b"})", "--format instruct reads it");
  refused(R"({"prompt": "a", "completion": "b"})", "jq -c '{prompt, response: .completion}'");
  refused("[{\"messages\": []}]", "jq -c '.[]'");
  refused("{", "jq -c . FILE");
  expect_error(Exit::kUsage, {"line 1", "no text \"instruction\" or \"prompt\""},
               [&] { prepare_data(w.options("{\"output\": \"a\"}\n", TextFormat::kInstruct)); });
  expect_error(Exit::kUsage, {"no text \"output\" or \"response\""},
               [&] { prepare_data(w.options("{\"prompt\": \"a\", \"output\": 3}\n", TextFormat::kInstruct)); });

  const std::string nothing = R"({"messages": [{"role": "user", "content": "q"}]})";
  PrepareOptions o = w.options(kTalk + "{}\n" + nothing + "\n" + R"({"messages": []})" + "\n" +
                               R"({"messages": [{"role": "assistant", "content": ""}]})" + "\n" + kTalk);
  o.on_bad = OnBad::kSkip;
  o.force = true;
  const PrepareResult r = prepare_data(o);
  CHECK((r.documents == 2 && r.bad == 1 && r.unanswered == 3 && r.truncated == 0 && r.masked));
  CHECK(to_text(r).find("without answer    3") != std::string::npos);
  o = w.options(nothing + "\n");
  o.force = true;
  expect_error(Exit::kUsage, {"no text", "1 conversations without an answer"}, [&] { prepare_data(o); });
}

TEST_CASE("keys of lines and messages that may change what they mean are refused by name") {
  const Workshop w;
  const auto refused = [&](const std::string& line, const std::string& reason, TextFormat f = TextFormat::kChat) {
    INFO(line);
    expect_error(Exit::kUsage, {"in.jsonl line 1", reason}, [&] { prepare_data(w.options(line + "\n", f)); });
    std::filesystem::remove_all(w / "out.progress.json");
  };
  const auto message = [](const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", )" + more + "}]}";
  };
  refused(message(R"("weight": 0.5)"), "message 2: \"weight\": expected 0 (no loss) or 1, found 0.5");
  refused(message(R"("weight": -1)"), "\"weight\": expected 0 (no loss) or 1");
  refused(message(R"("weight": true)"), "\"weight\": expected 0 or 1, found true or false");
  refused(message(R"("weight": "0")"), "\"weight\": expected 0 or 1, found a string");
  refused(message(R"("weight": [0])"), "\"weight\"");
  refused(message(R"("weight": 1, "weight": 0)"), "two keys \"weight\"");
  refused(message(R"("weight": NaN)"), "\"weight\": expected 0 or 1, found NaN or Infinity");
  refused(R"({"messages": [{"role": "user", "content": "q", "weight": 1}]})", "outside of an answer");
  for (const char* key : {"tool_calls", "function_call", "name", "reasoning_content", "prefix", "images"}) {
    refused(message(cat("\"", key, "\": [{\"a\": 1}]")), cat("message 2: \"", key, "\": a key that may change"));
    refused(message(cat("\"", key, "\": \"x\"")), "--ignore-unknown");
  }
  const std::string keys =
      "tools functions images system chat_template_kwargs System loss_mask masks labels weights train_on_inputs "
      "roles_to_train skip instruction history reasoning_effort assistant_mask response completion output Outputs "
      "answer chosen targets";
  std::istringstream list(keys);
  for (std::string key; list >> key;)
    refused(R"({"messages": [{"role": "assistant", "content": "a"}], ")" + key + R"(": [1]})",
            cat("\"", key, "\": a key that may change what the line means"));
  refused(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]})", "a list of parts");
  refused(R"({"instruction": "a", "output": "b", "context": "c"})", "\"context\": a key", TextFormat::kInstruct);
  refused(R"({"instruction": "a", "output": "b", "history": [["q", "r"]]})", "\"history\"", TextFormat::kInstruct);
  refused(R"({"instruction": "a", "output": "b", "input": 3})", "\"input\": expected", TextFormat::kInstruct);
  refused(R"({"instruction": "a", "prompt": "p", "output": "b"})", "two texts, \"instruction\"", TextFormat::kInstruct);
  refused(R"({"prompt": "a", "completion": "b"})", "jq -c '{prompt, response", TextFormat::kInstruct);
  refused(message(R"("id": 1)"), "\"instruction\" or \"prompt\"; it is a conversation", TextFormat::kInstruct);
}

TEST_CASE("an answer of weight 0 is no target, and keys that are not understood are passed over only on request") {
  const Workshop w;
  const Tokenizer t = w.tokenizer();
  const auto talk = [](const std::string& first, const std::string& line) {
    return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one")" + first +
           R"(}, {"role": "user", "content": "r", "weight": 0}, {"role": "assistant", "content": "two"}])" + line +
           "}\n";
  };
  const std::string both = "user:\nq\n\nassistant:\n[one<|endoftext|>]user:\nr\n\nassistant:\n[two<|endoftext|>]";
  const std::string second = "user:\nq\n\nassistant:\none<|endoftext|>user:\nr\n\nassistant:\n[two<|endoftext|>]";
  CHECK(shown(t, encode(t, "plain", talk("", ""))) == both);
  for (const char* weight : {"1", "1.0", "null"})
    CHECK(shown(t, encode(t, "plain", talk(cat(", \"weight\": ", weight), ""))) == both);
  for (const char* weight : {"0", "0.0"})
    CHECK(shown(t, encode(t, "plain", talk(cat(", \"weight\": ", weight), ""))) == second);
  // Empty values change nothing; what describes a line or message does not change it, not even NaN.
  CHECK(shown(t, encode(t, "plain",
                        talk(R"(, "tool_calls": [], "name": null, "reasoning_content": "", "id": 3)",
                             R"(, "source": "x", "score": NaN, "turns": [1e999], "tools": null)"))) == both);
  Conversation c;
  std::string why;
  const std::string unknown =
      talk(R"(, "weight": 0, "tool_calls": [{"id": "a", "content": "b"}])", R"(, "tools": [1])");
  CHECK_FALSE(parse_chat(unknown, &c, &why));
  REQUIRE(parse_chat(unknown, &c, &why, true));
  CHECK((c.size() == 4 && !c[1].trained && c[1].text == "one" && c[3].trained));

  PrepareOptions o = w.options(talk(", \"weight\": 0", "") + unknown +
                               R"({"messages": [{"role": "assistant", "content": "a", "weight": 0}]})" + "\n");
  o.ignore_unknown = true;
  const PrepareResult r = prepare_data(o);
  CHECK((r.documents == 2 && r.unanswered == 1));
  o = w.options("text\n", TextFormat::kText);
  o.ignore_unknown = true;
  expect_error(Exit::kUsage, {"--ignore-unknown", "--format chat"}, [&] { prepare_data(o); });
}

TEST_CASE("conversations longer than max_tokens lose their end, and are dropped when no answer is left") {
  const Workshop w;
  const Tokenizer t = w.tokenizer();
  const ChatTokens whole = encode(t, "chatml", kTalk);
  const auto first = static_cast<int64_t>(std::find(whole.loss.begin(), whole.loss.end(), 1) - whole.loss.begin());
  for (const int64_t limit :
       {first, first + 1, static_cast<int64_t>(whole.ids.size()) - 1, static_cast<int64_t>(whole.ids.size())}) {
    INFO("limit " << limit << " of " << whole.ids.size());
    PrepareOptions o = w.options(kTalk + kTalk + R"({"messages": [{"role": "assistant", "content": "a"}]})" + "\n");
    o.max_tokens = limit;
    o.force = true;
    const PrepareResult r = prepare_data(o);
    const bool cut = limit < static_cast<int64_t>(whole.ids.size()), gone = limit == first;
    CHECK(r.documents == (gone ? 1 : 3));
    CHECK(r.truncated == (cut && !gone ? 2 : 0));
    CHECK(r.unanswered == (gone ? 2 : 0));
    CHECK(TokenFile::open(w / "out").length(0) ==
          (gone ? static_cast<int64_t>(
                      encode(t, "chatml", R"({"messages": [{"role": "assistant", "content": "a"}]})").ids.size())
                : limit));
  }
  PrepareOptions o = w.options("text\n", TextFormat::kText);
  o.max_tokens = 5;
  expect_error(Exit::kUsage, {"--max-tokens", "--format chat"}, [&] { prepare_data(o); });
  o.max_tokens = 0, o.chat_template = "plain";
  expect_error(Exit::kUsage, {"--template", "--format chat"}, [&] { prepare_data(o); });
  o = w.options(kTalk);
  o.eod = false;
  expect_error(Exit::kUsage, {"--no-eod", "--template"}, [&] { prepare_data(o); });
}

TEST_CASE("mask and tokens do not depend on threads, chunks or interruptions") {
  const Workshop w;
  std::string lines;
  std::istringstream text(made_up_text(300, 4));
  for (std::string a, b; std::getline(text, a) && std::getline(text, b);)
    lines += R"({"instruction": ")" + a + R"(", "output": ")" + b + "\"}\n";
  PrepareOptions o = w.options(lines, TextFormat::kInstruct);
  const PrepareResult one = prepare_data(o);
  const std::string bin = read_file(w / "out.bin"), mask = read_file(w / "out.mask");
  CHECK(mask.size() == 8 + bin.size() / 2);
  CHECK(mask.substr(0, 8) == "GPTMASK1");
  CHECK(std::count(mask.begin() + 8, mask.end(), 1) == one.targets);
  CHECK((one.targets > 0 && one.targets < one.tokens && one.documents == 150));
  const auto meta = read_token_meta(w / "out");
  REQUIRE(meta);
  CHECK(meta->mask_xxh3_128 == xxh3_128_file(w / "out.mask"));
  o.output = w / "many";
  o.threads = 3;
  o.chunk_bytes = 4000;
  prepare_data(o);
  CHECK((read_file(w / "many.bin") == bin && read_file(w / "many.mask") == mask));
  o.output = w / "broken";
  o.threads = 1;
  o.chunk_bytes = 500;
  o.journal_seconds = 0;
  for (const int64_t chunks : {3, 5, 4}) {
    o.test_kill_after_chunks = chunks;
    expect_error(Exit::kInterrupted, {"test"}, [&] { prepare_data(o); });
    CHECK_FALSE(std::filesystem::exists(w / "broken.mask"));
  }
  o.test_kill_after_chunks = -1;
  const PrepareResult resumed = prepare_data(o);
  CHECK((resumed.resumed && resumed.targets == one.targets && resumed.documents == one.documents));
  CHECK((read_file(w / "broken.bin") == bin && read_file(w / "broken.mask") == mask));
  CHECK_FALSE(std::filesystem::exists(w / "broken.mask.part"));
  // Text that was prepared beside an old mask would be read with that mask.
  std::filesystem::remove(w / "many.bin"), std::filesystem::remove(w / "many.idx");
  o.output = w / "many";
  o.format = TextFormat::kJsonl;
  o.json_key = "output";
  expect_error(Exit::kUsage, {"many", ".mask", "--force"}, [&] { prepare_data(o); });
  o.force = true;
  prepare_data(o);
  CHECK_FALSE(std::filesystem::exists(w / "many.mask"));
  CHECK_FALSE(TokenFile::open(w / "many").masked());
}

TEST_CASE("a mask is checked: magic, size, values, absence, positions") {
  const Workshop w;
  prepare_data(w.options(kTalk + kTalk));
  const std::string mask = read_file(w / "out.mask"), idx = read_file(w / "out.idx");
  const auto tokens = static_cast<int64_t>(mask.size()) - 8;
  const auto open = [&] { return TokenFile::open(w / "out"); };
  CHECK((open().masked() && LossMask(w / "out.mask", tokens).file().size() == tokens + 8));
  write_file(w / "out.mask", mask.substr(0, 5));
  expect_error(Exit::kUsage, {"out.mask byte 5", "GPTMASK1"}, open);
  write_file(w / "out.mask", "GPTMASK2" + mask.substr(8));
  expect_error(Exit::kUsage, {"out.mask byte 0", "magic"}, open);
  for (const std::string& other : {mask + '\1', mask.substr(0, mask.size() - 1)}) {
    write_file(w / "out.mask", other);
    expect_error(Exit::kUsage, {"out.mask", "one byte for each of the " + std::to_string(tokens)}, open);
  }
  std::string wrong = mask;
  wrong[8 + 4] = 2;
  write_file(w / "out.mask", wrong);
  std::vector<uint8_t> out(6);
  open().read_mask(0, 5, out);
  expect_error(Exit::kIo, {"out.mask byte 12", "0 or 1, found 2"}, [&] { open().read_mask(0, 0, out); });
  std::filesystem::remove(w / "out.mask");
  expect_error(Exit::kUsage, {"out.mask", "missing", "meta.json"}, open);
  write_file(w / "out.mask", mask);
  std::string odd = idx;  // both sequences begin at odd bytes, and the second is a token shorter
  for (const size_t k : {34 + 4 * 2, 34 + 4 * 2 + 8}) {
    int64_t at = 0;
    std::memcpy(&at, odd.data() + k, 8);
    at += 1;
    std::memcpy(odd.data() + k, &at, 8);
  }
  int32_t length = 0;
  std::memcpy(&length, odd.data() + 34 + 4, 4);
  length -= 1;
  std::memcpy(odd.data() + 34 + 4, &length, 4);
  write_file(w / "out.idx", odd);
  expect_error(Exit::kUsage, {"out.idx byte 42", "multiple of 2", "out.mask"}, open);
}

TEST_CASE("a loader masks targets by the file's mask, and restarts positions at each document") {
  const Workshop w;
  prepare_data(w.options(kTalk + kTalk + kTalk));
  const std::vector<int32_t> ids = bin_of(w / "out");
  const std::string mask = read_file(w / "out.mask").substr(8);
  const int64_t length = TokenFile::open(w / "out").length(0), seq = length - 3;
  for (const bool documents : {false, true}) {
    INFO("documents " << documents);
    const auto data = open_dataset({.sources = {{w / "out"}},
                                    .whole = true,
                                    .seq = seq,
                                    .order = SampleOrder::kSequential,
                                    .vocab = 400,
                                    .documents = documents});
    CHECK(data->masked());
    Loader l(*data, {.seq = seq, .micro_batch = 2, .documents = documents}, Device{}, host_device(), {});
    CHECK(l.masks());
    const MicroBatch m = l.next()[0];
    CHECK(static_cast<bool>(m.positions) == documents);
    int64_t count = 0;
    for (int64_t i = 0; i < 2 * seq; ++i) {
      INFO("token " << i);
      const int64_t row = i / seq, next = i + 1, start = std::max(row * seq, next / length * length);
      const bool target = mask[static_cast<size_t>(next)] == 1 && !(documents && start == next);
      CHECK(m.tokens.as<int32_t>()[i] == ids[static_cast<size_t>(i)]);
      CHECK(m.targets.as<int32_t>()[i] == (target ? ids[static_cast<size_t>(next)] : -1));
      if (documents) CHECK(m.positions.as<int32_t>()[i] == i - std::max(row * seq, i / length * length));
      count += target;
    }
    CHECK((l.step_tokens() == count && m.loss_tokens == count && count > 0 && count < 2 * seq));
    // A stage between the first and the last needs positions alone.
    Loader middle(*data,
                  {.seq = seq, .micro_batch = 2, .need_tokens = false, .need_targets = false, .documents = documents},
                  Device{}, host_device(), {});
    const MicroBatch n = middle.next()[0];
    CHECK((!n.tokens && !n.targets && n.loss_tokens == -1 && middle.step_tokens() == -1));
    if (documents)
      CHECK(std::equal(n.positions.as<int32_t>(), n.positions.as<int32_t>() + 2 * seq, m.positions.as<int32_t>()));
  }
}
