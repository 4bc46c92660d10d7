// Config validation: every error is found, all at once, with a fix that works; a valid config survives a round trip.
#include "launch/config/config.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/core/check.h"
#include "launch/config/config_check.h"
#include "launch/config/config_precision.h"
#include "launch/options/near_word.h"
#include "launch/tools/translate/deepspeed.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string w; in >> w;) out.push_back(w);
  return out;
}

Config load(const std::string& flags, int world = 0) {
  return load_config({.flags = words_of(flags), .external_world = world}).config;
}

std::string problems_in(const ConfigSource& source) {
  try {
    load_config(source);
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kUsage);
    return e.what();
  }
  return "accepted";
}
std::string problems_of(const std::string& flags, int world = 0) {
  return problems_in({.flags = words_of(flags), .external_world = world});
}

struct TempFile {
  explicit TempFile(const std::string& text)
      : path(std::filesystem::temp_directory_path() / ("gpt_config_test_" + std::to_string(getpid()) + ".json")) {
    std::ofstream(path) << text;
  }
  ~TempFile() { std::filesystem::remove(path); }
  std::string path;
};

const char* const kOneProblem = "1 problem, nothing was started";

}  // namespace

TEST_CASE("one wrong flag results in one problem with its key, reason and fix", "[R29]") {
  struct Case {
    const char *flags, *message;
  };
  const Case cases[] = {
      {"--model.layrs 4", "--model.layrs: unknown flag; did you mean --model.layers?"},
      {"--optim.wieght_decay 0.1", "--optim.wieght_decay: unknown flag; did you mean --optim.weight_decay?"},
      {"--micro_batch 4", "--micro_batch: unknown flag; did you mean --train.micro_batch?"},
      {"--tensor-model-paralel-size 2",
       "--tensor-model-paralel-size: unknown flag; did you mean --tensor-model-parallel-size?"},
      {"--xyzzy.plugh 4", "--xyzzy.plugh: unknown flag; see gpttrain train --help"},
      {"--train.steps many", "--train.steps: expected a whole number 1.. steps, found \"many\""},
      {"--train.steps 1e3", "--train.steps: expected a whole number 1.. steps, found \"1e3\" (write 1000)"},
      {"--train.steps 1.5", "--train.steps: expected a whole number 1.. steps, found \"1.5\""},
      {"--train.steps 0", "--train.steps: 0 is outside 1.. steps"},
      {"--train.steps", "--train.steps: expected a value 1.. steps, found none"},
      {"--train.steps 99999999999999999999",
       "--train.steps: expected a whole number 1.. steps, found \"99999999999999999999\""},
      {"--zero.bucket_bytes 25MiB",
       "--zero.bucket_bytes: expected a whole number 1.. bytes, found \"25MiB\" (write 26214400)"},
      {"--optim.lr 0", "--optim.lr: 0 is outside >0..100"},
      {"--optim.lr nan", "--optim.lr: expected a number >0..100, found \"nan\""},
      {"--optim.lr -1e-3", "--optim.lr: -0.001 is outside >0..100"},
      {"--optim.betas 0.9", "--optim.betas: expected 2 numbers, found 1"},
      {"--optim.betas 0.9,1.0", "--optim.betas: 1 is outside 0..<1"},
      {"--parallel.schedule 1b1f",
       "--parallel.schedule: expected gpipe, 1f1b, interleaved, zb-h1 or file:PATH, found \"1b1f\" (did you mean "
       "1f1b?)"},
      {"--pp 4 --vpp 2",
       "--vpp: 2 chunks per pipeline rank, but schedule 1f1b has one; use vpp 1, or --parallel.schedule interleaved"},
      {"--pp 4 --vpp 2 --parallel.schedule zb-h1",
       "--vpp: 2 chunks per pipeline rank, but schedule zb-h1 has one; use vpp 1"},
      {"--pp 4 --parallel.extra_in_flight 2 --parallel.schedule zb-h1",
       "--parallel.extra_in_flight: 2 extra microbatches in flight, but schedule zb-h1 has a fixed number; use 0, or "
       "--parallel.schedule 1f1b"},
      {"--vpp 2 --parallel.schedule interleaved",
       "--vpp: 2 chunks per pipeline rank, but parallel.pp is 1; use vpp 1, or pp 2 or more"},
      {"--pp 6 --vpp 3 --parallel.schedule interleaved",
       "--vpp: pp 6 x vpp 3 = 18 stages for 15 layers (embedding, 12 blocks, norm, head); vpp may be 1 to 2, or pp 2 "
       "to 5"},
      {"--pp 8 --vpp 2 --parallel.schedule interleaved",
       "--vpp: pp 8 x vpp 2 = 16 stages for 15 layers (embedding, 12 blocks, norm, head); vpp may be 1, or pp 2 to 7"},
      {"--pp 2 --vpp 2 --parallel.schedule interleaved --parallel.partition 6,6",
       "--parallel.partition: 12 blocks in 2 stages, but model.layers is 12 and pp x vpp is 4; for example 3,3,3,3"},
      {"--parallel.schedule forward",
       "--parallel.schedule: expected gpipe, 1f1b, interleaved, zb-h1 or file:PATH, found \"forward\""},
      {"--pp 2 --parallel.schedule file:none", "--parallel.schedule: none: cannot be read"},
      {"--zero.overlap maybe", "--zero.overlap: expected true or false, found \"maybe\""},
      {"--zero.overlap=maybe", "--zero.overlap: expected true or false, found \"maybe\""},
      {"100", "100: expected a flag that begins with --; values follow their flag: --train.steps 100"},
      {"--model.heads 20 --model.hidden 320 --tp 8",
       "--tp: model.heads 20 is not divisible by tp 8; tp may be 1, 2, 4, 5, 10, 20"},
      {"--model.ffn 1000 --tp 3", "--tp: model.ffn 1000 is not divisible by tp 3; tp may be 1, 2, 4"},
      {"--tp 4 --model.seq 1022 --parallel.sequence_parallel true",
       "--parallel.sequence_parallel: model.seq 1022 is not divisible by tp 4; model.seq may be 1020, 1024, or use "
       "false"},
      {"--tp 4 --model.seq 3 --sequence-parallel",
       "--sequence-parallel: model.seq 3 is not divisible by tp 4; model.seq may be 4, or use false"},
      {"--parallel.sequence_parallel maybe",
       "--parallel.sequence_parallel: expected auto or true or false, found \"maybe\""},
      {"--model.heads 7",
       "--model.heads: hidden 768 is not divisible by heads 7; heads may be 2, 3, 4, 6, 8, 12, hidden may be 763, 770"},
      {"--pp 16", "--pp: 16 stages for 15 layers (embedding, 12 blocks, norm, head); pp may be 1 to 15"},
      {"--pp 2 --parallel.partition 4,4",
       "--parallel.partition: 8 blocks in 2 stages, but model.layers is 12 and pp is 2; for example 6,6"},
      {"--pp 4 --parallel.partition 4,0,4,4",
       "--parallel.partition: 4,0,4,4: stage 1 would hold no layer at all; only the first (embedding) and the last "
       "(norm, "
       "head) may have 0 blocks; for example 3,3,3,3"},
      {"--pp 2 --parallel.partition halves",
       "--parallel.partition: expected flops, uniform, parameters, type:REGEX or blocks per stage as in 4,4, found "
       "\"halves\"; for example 6,6"},
      {"--pp 2 --parallel.partition type:moe", "--parallel.partition: "},
      {"--log.trace_steps 5:3", "--log.trace_steps: expected FIRST:END"},
      {"--parallel.recompute_layers 2",
       "--parallel.recompute_layers: 2 blocks, but parallel.recompute is none; add --parallel.recompute full"},
      {"--parallel.recompute full --parallel.recompute_layers 13",
       "--parallel.recompute_layers: 13 blocks of each stage, but model.layers is 12; 0 (all) to 12"},
      {"--dp 8 --train.micro_batch 4 --train.grad_accum 8 --train.global_batch 512",
       "--train.global_batch: global_batch 512 ≠ micro_batch 4 × grad_accum 8 × dp 8; nearest: global_batch 256, or "
       "grad_accum 16, or micro_batch 8"},
      {"--train.micro_batch 1099511627776 --train.grad_accum 16777216",
       "--train.micro_batch: 1099511627776 is more than 1048576"},
      {"--train.global_batch 4 --train.steps 9223372036854775807",
       "--train.steps: 9223372036854775807 steps of global_batch 4 x model.seq 1024 are more than 2^62 tokens; at most "
       "1125899906842624"},
      {"--train.global_batch 4 --train.eval_steps 9223372036854775807",
       "--train.eval_steps: 9223372036854775807 steps"},
      {"--schedule.type wsd --schedule.warmup_steps 9223372036854775807 --schedule.decay_steps 9223372036854775807",
       "--schedule.decay_steps: 9223372036854775807 steps of decay"},
      {"--dp 8 --train.micro_batch 4 --train.global_batch 500",
       "--train.global_batch: global_batch 500 is not micro_batch 4 × grad_accum × dp 8 for any grad_accum; nearest: "
       "480, 512"},
      {"--dp 8 --train.global_batch 4",
       "--train.global_batch: global_batch 4 is not grad_accum 1 × micro_batch × dp 8 for any micro_batch; nearest: 8"},
      {"--schedule.min_lr 1", "--schedule.min_lr: 1 is above optim.lr 0.0003; at most 0.0003"},
      {"--checkpoint.keep 1", "--checkpoint.keep: 1 is outside 2..1000"},
      {"--checkpoint.resume latest", "--checkpoint.resume: expected auto, never or a step, found \"latest\""},
      {"--log.name a/b",
       "--log.name: \"a/b\" is not the name of a folder: expected no slash, newline, tab or other control character; "
       "the folder above it is log.dir"},
      {"--data.train 0.7 a 0.3", "--data.train: expected pairs of weight and path"},
      {"--data.train 0.7 a -1 b", "--data.train: position 3: expected a weight above 0"},
      {"--model.arch t5", "--model.arch: expected gpt2 or llama or mistral or qwen2"},
      {"--model.dropout 1", "--model.dropout: 1 is outside 0..<1"},
      {"--model.attn_dropout -0.1", "--model.attn_dropout: -0.1 is outside 0..<1"},
      {"--model.kv_heads 5",
       "--model.kv_heads: 5 KV heads do not divide heads 12; kv_heads may be 1, 2, 3, 4, 6, 12, or 0 for as "
       "many as heads"},
      {"--model.global_every 2", "--model.global_every: 2, but no block has a window to be without: model.window is 0"},
      {"--model.global_first 2", "--model.global_first: 2, but no block has a window to be without: model.window is 0"},
      {"--model.window 4 --model.global_first 13", "--model.global_first: 13 blocks of 12; 0 to 12"},
      {"--model.kv_heads 3 --tp 4",
       "--tp: model.kv_heads 3 is neither divisible by tp 4 nor a divisor of it; tp may be 1, 3, 6, 12"},
      {"--zero 4", "--zero: 4 is outside 0..3"},
      {"--zero.grad_reduce each",
       "--zero.grad_reduce: each: zero.stage 1 does not shard gradients; use zero.stage 2 or 3, or grad_reduce auto or "
       "end"},
      {"--zero.grad_reduce never", "--zero.grad_reduce: expected auto or each or end, found \"never\""},
      {"--zero.prefetch -1", "--zero.prefetch: -1 is outside 0..64 units"},
      {"--zero.offload optimizer --device.kind cuda",
       "--zero.offload: optimizer is not built yet in this version (offload from a GPU); use none"},
      {"--amp O2 --precision.master_weights false",
       "--precision.master_weights: false with precision.amp O2 and precision.dtype bf16: its 8 bits of precision lose "
       "small updates; leave master_weights out, or add precision.stochastic_rounding, or use precision.dtype fp16, or "
       "precision.amp O3 to see it fail"},
      {"--amp O1 --precision.stochastic_rounding",
       "--precision.stochastic_rounding: true with precision.amp O1, which trains FP32 weights; leave it out, or use "
       "precision.amp O3, or O2 with precision.master_weights false"},
      {"--amp O3 --precision.dtype fp16 --precision.stochastic_rounding",
       "--precision.stochastic_rounding: true with precision.dtype fp16: it rounds to bf16; leave it out, or use "
       "precision.dtype bf16"},
      {"--amp O2 --precision.stochastic_rounding",
       "--precision.stochastic_rounding: true with precision.amp O2 and precision.master_weights auto: FP32 master "
       "weights already keep what rounding loses; leave it out, or use precision.master_weights false"},
      {"--amp O3 --precision.qat int8",
       "--precision.qat: int8 with precision.amp O3 and no master weights: the int8 weights themselves would be "
       "trained; use precision.master_weights true, or qat off"},
      {"--precision.qat int4", "--precision.qat: expected off or int8, found \"int4\""},
      {"--amp O3 --precision.loss_scale 8",
       "--precision.loss_scale: 8 with precision.dtype bf16, which has the range of FP32: its scale is 1; leave it "
       "out, or use precision.dtype fp16"},
      {"--amp O2 --precision.dtype fp32",
       "--precision.dtype: fp32 with precision.amp O2, which computes in 16 bits; use bf16 or fp16, or "
       "precision.amp O0"},
      {"--amp O1 --precision.master_weights true",
       "--precision.master_weights: true with precision.amp O1, which keeps every parameter in FP32; leave it out, or "
       "use precision.amp O2 or O3"},
      {"--amp O1 --precision.keep_norm_fp32 true",
       "--precision.keep_norm_fp32: true with precision.amp O1, which keeps every parameter in FP32; leave it out, or "
       "use precision.amp O2 or O3"},
      {"--amp O2 --precision.loss_scale 128",
       "--precision.loss_scale: 128 with precision.dtype bf16, which has the range of FP32: its scale is 1; leave it "
       "out, or use precision.dtype fp16"},
      {"--amp 02", "--amp: expected O0 or O1 or O2 or O3 (the letter O, not zero), found \"02\" (did you mean O2?)"},
      {"--precision.loss_scale lots",
       "--precision.loss_scale: expected none, dynamic or a number above 0 up to 1e28, found \"lots\"; for example "
       "dynamic, or 1024"},
      {"--precision.loss_scale -1", "--precision.loss_scale: expected none, dynamic or a number above 0 up to 1e28"},
      {"--precision.loss_scale dynamic --precision.loss_scale_init 4 --precision.loss_scale_min 8",
       "--precision.loss_scale_init: 4 is not from 8 to 1.67772e+07, the loss_scale_min and _max"},
      {"--launch.hostfile hosts", "hosts: cannot be read"},
      {"--launch.include far:0", "--include: Hostname 'far' not found in hostfile"},
  };
  for (const Case& c : cases) {
    INFO(c.flags);
    const std::string found = problems_of(c.flags);
    CHECK_THAT(found, Catch::StartsWith(c.message));
    CHECK_THAT(found, Catch::EndsWith(kOneProblem));
  }
}

TEST_CASE("a schedule from a file must match the layout and the microbatches of the run") {
  const std::string file = "--parallel.schedule file:" + source_dir() + "/configs/schedules/1f1b-p2-m4.schedule ";
  const Config c = load(file + "--pp 2 --train.grad_accum 4");
  CHECK(c.parallel.schedule.rfind("file:", 0) == 0);
  CHECK_THAT(problems_of(file + "--pp 4 --train.grad_accum 8"),
             Catch::Contains(
                 "has 2 pipeline ranks (lines) where parallel.pp is 4, 4 microbatches where train.grad_accum is 8") &&
                 Catch::Contains("it fits parallel.pp 2, train.grad_accum 4") && Catch::EndsWith(kOneProblem));
  CHECK_THAT(problems_of(file + "--pp 2 --vpp 2 --train.grad_accum 4"),
             Catch::Contains("1 chunks per rank where parallel.vpp is 2"));
  CHECK_NOTHROW(load("--pp 4 --vpp 3 --parallel.schedule interleaved"));
  CHECK_NOTHROW(load("--pp 4 --parallel.schedule zb-h1"));
}

TEST_CASE("every value that is not yet supported is refused, and the suggested value is accepted") {
  for (const Unimplemented& n : unimplemented_values()) {
    Config c;
    const auto options = list_options(c);
    const auto o = std::find_if(options.begin(), options.end(), [&](const Option& x) { return x.key() == n.key; });
    REQUIRE(o != options.end());
    const std::string working = std::string(n.working).substr(0, std::string(n.working).find('|'));
    INFO(n.key);
    if (!working.empty()) CHECK(set_from_words(*o, {working}) == "");
    CHECK_NOTHROW(working.empty() ? load("") : load("--" + o->key() + "=" + working));
    // Any other legal value of the domain.
    std::string other = "2";
    for (const std::string& choice : choices(*o))
      if (("|" + std::string(n.working) + "|").find("|" + choice + "|") == std::string::npos && choice != "NUMBER")
        other = choice;
    if (is_flag(*o)) other = working == "true" ? "false" : "true";
    if (o->domain == "0..<1") other = "0.5";
    if (n.working == std::string("0|1")) other = "3";
    CHECK_THAT(problems_of("--" + o->key() + "=" + other), Catch::Contains("not built yet"));
  }
}

TEST_CASE("all problems of file, flags and combinations are listed at once with their lines", "[R29]") {
  const TempFile file(R"({
  // a comment
  "model": { "heads": 20, "hidden": 320, "layers": "twelve" },
  "optim": { "wieght_decay": 0.1, "lr": true },
  "lr": 3,
  "train": [1],
})");
  const std::string found = problems_in({.file = file.path, .flags = words_of("--tp 8 --cp 2 --nonsense")});
  for (const std::string& part :
       {file.path + ":3 model.layers: expected a whole number, found a string",
        file.path + ":4 optim.wieght_decay: unknown key; did you mean optim.weight_decay?",
        file.path + ":4 optim.lr: expected a number, found true or false",
        file.path + ":5 lr: unknown section; did you mean optim.lr?",
        file.path + ":6 train: expected an object, found a list",
        std::string("--tp: model.heads 20 is not divisible by tp 8"), std::string("--cp: 2 is not built yet"),
        std::string("--nonsense: unknown flag"), std::string("8 problems, nothing was started")})
    CHECK_THAT(found, Catch::Contains(part));
}

TEST_CASE("a DeepSpeed file given as --config is recognized, and the error names its own flag") {
  const TempFile file(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})");
  const std::string found = problems_in({.file = file.path, .flags = {}, .names = &kDeepspeedNames});
  for (const char* key : {"train_batch_size", "zero_optimization"})
    CHECK_THAT(found, Catch::Contains(std::string(key) +
                                      ": unknown section; a key of DeepSpeed: give the file as --deepspeed_config " +
                                      file.path));
}

TEST_CASE("overrides of a level are accepted where they have an effect, and the banner lists level and overrides") {
  for (const char* flags :
       {"--amp O3", "--amp O3 --precision.dtype fp16", "--amp O3 --precision.keep_norm_fp32 true",
        "--amp O3 --precision.master_weights true", "--amp O3 --precision.stochastic_rounding",
        "--amp O3 --precision.dtype fp16 --precision.loss_scale dynamic",
        "--amp O2 --precision.dtype fp16 --precision.master_weights false",
        "--amp O2 --precision.master_weights false --precision.stochastic_rounding",
        "--precision.reduce_dtype bf16 --amp O1", "--precision.qat int8", "--precision.qat int8 --amp O2",
        "--precision.grad_dtype bf16", "--precision.grad_dtype bf16 --amp O3",
        "--precision.grad_dtype bf16 --amp O2 --precision.dtype fp16 --precision.reduce_dtype fp16"}) {
    INFO(flags);
    CHECK_NOTHROW(load(flags));
  }
  CHECK(precision_text(load("--amp O3")) ==
        "O3: bf16 weights and residual stream, norms bf16, no masters, gradients FP32, loss scale 1");
  CHECK(precision_text(load("--amp O3 --precision.dtype fp16 --precision.keep_norm_fp32 true "
                            "--precision.master_weights true --precision.loss_scale 64")) ==
        "O3: fp16 weights and residual stream, norms fp16, no masters, gradients FP32, loss scale 1\n"
        "with this run's settings: fp16 weights and residual stream, norms FP32, FP32 masters, gradients FP32, loss "
        "scale 64");
  CHECK_THAT(precision_text(load("--amp O2 --precision.master_weights false --precision.stochastic_rounding")),
             Catch::Contains("norms FP32, no masters but stochastic rounding"));
  CHECK_THAT(precision_text(load("--precision.qat int8 --precision.reduce_dtype fp16")),
             Catch::Contains("reductions fp16, weights and inputs of linear layers quantized to int8"));
  CHECK(precision_text(load("--precision.grad_dtype bf16 --precision.reduce_dtype bf16")) ==
        "O0: FP32 compute, master weights, gradients and reductions\n"
        "with this run's settings: FP32 compute and master weights, gradients bf16, reductions bf16");
  const Precision o3 = precision_of(load("--amp O3"));
  CHECK((!o3.masters && !o3.keep_norm && o3.norm() == DType::kBF16));
  const Precision o2 = precision_of(load("--amp O2"));
  CHECK((o2.masters && o2.keep_norm));
}

TEST_CASE("all broken rules of a layout are listed together, with legal alternatives", "[R29]") {
  const std::string found = problems_of(
      "--tp 8 --pp 3 --vpp 6 --dp 2 --parallel.schedule interleaved --model.heads 20 --model.hidden 320 "
      "--model.kv_heads 5 --model.ffn 1001 --model.seq 1022 --parallel.sequence_parallel true --train.micro_batch 4 "
      "--train.global_batch 100");
  for (const char* part :
       {"model.heads 20 is not divisible by tp 8; tp may be 1", "model.ffn 1001 is not divisible by tp 8; tp may be 1",
        "model.kv_heads 5 is neither divisible by tp 8 nor a divisor of it; tp may be 1",
        "model.seq 1022 is not divisible by tp 8; model.seq may be 1016, 1024",
        "pp 3 x vpp 6 = 18 stages for 15 layers", "vpp may be 1 to 5",
        "global_batch 100 is not micro_batch 4 × grad_accum × dp 2 for any grad_accum; nearest: 96, 104",
        "6 problems, nothing was started"})
    CHECK_THAT(found, Catch::Contains(part));
}

TEST_CASE("JSON errors name line and column") {
  struct Case {
    const char *text, *message;
  };
  std::string deep(40, '[');
  const Case cases[] = {
      {"{\n  \"a\": 1,\n  \"a\": 2 }", "x:3:3: the key \"a\" is given twice, first in line 2"},
      {"{\"a\" 1}", "x:1:6: expected : after the key \"a\", found '1'"},
      {"{\"a\": 1 \"b\": 2}", "x:1:9: expected , or }, found '\"'"},
      {"{\"a\": bf16}", "x:1:7: expected a value, found the word bf (strings need quotes)"},
      {"{\"a\": 01}", "x:1:9: a number must not begin with 0"},
      {"{\"a\": 1.}", "x:1:9: expected a digit, found '}'"},
      {"{\"a\": 1e999}", "x:1:12: the number 1e999 is out of range"},
      {"{\"a\": \"x", "x:1:9: this string is never closed"},
      {"{\"a\": \"\xff\"}", "x:1:8: not UTF-8: byte 255"},
      {"{\"a\": \"\\ud800\"}", "x:1:14: half of a surrogate pair"},
      {"{} {}", "x:1:4: expected the end of the text, found '{'"},
      {"{ /* never", "x:1:3: this comment is never closed: expected */"},
      {"", "x:1:1: expected a value, found the end of the text"},
      {"[1,", "x:1:4: expected a value, found the end of the text"},
      {"{,}", "x:1:2: expected a key in quotes or }, found ','"},
      {deep.c_str(), "x:1:33: nested deeper than 32 levels"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    CHECK_THROWS_WITH(parse_json(c.text, "x"), Catch::Equals(c.message));
  }
  CHECK_THROWS_WITH(parse_json(std::string(kMaxJsonBytes + 1, ' '), "x"), Catch::Contains("at most 1048576"));
}

TEST_CASE("comments, trailing commas and escapes are read") {
  const JsonValue v = parse_json("// c\n{ \"a\": [1, 2,], /* x \n y */ \"b\": \"\\u00e9\\n\\ud83d\\ude00\", }", "x");
  REQUIRE(v.keys == std::vector<std::string>{"a", "b"});
  CHECK(v.find("a")->items.size() == 2);
  CHECK(v.find("b")->text == "\xc3\xa9\n\xf0\x9f\x98\x80");
  CHECK(v.find("b")->line == 3);
  std::string again;
  append_json_string(again, v.find("b")->text);
  CHECK(parse_json(again, "x").text == v.find("b")->text);
}

TEST_CASE("any two of micro_batch, global_batch and grad_accum determine the third") {
  const auto check = [](const std::string& flags, int64_t micro, int64_t accum, int64_t global) {
    INFO(flags);
    const Config c = load(flags);
    CHECK(c.train.micro_batch == micro);
    CHECK(c.train.grad_accum == accum);
    CHECK(c.train.global_batch == global);
  };
  check("--dp 2 --train.micro_batch 4 --train.global_batch 64", 4, 8, 64);
  check("--dp 2 --train.grad_accum 8 --train.global_batch 64", 4, 8, 64);
  check("--dp 2 --train.grad_accum 8 --train.micro_batch 4", 4, 8, 64);
  check("--dp 2 --train.global_batch 24", 6, 2, 24);
  check("--dp 2 --train.micro_batch 3", 3, 1, 6);
  check("--dp 2", 8, 1, 16);
  const TempFile file(R"({"train": {"micro_batch": 4, "global_batch": 64, "grad_accum": 16}})");
  const Config c =
      load_config({.file = file.path, .flags = words_of("--train.micro_batch 2 --train.grad_accum 4")}).config;
  CHECK(c.train.global_batch == 8);  // two flags override the file's third value
}

TEST_CASE("flags win over the file, aliases and Megatron's names reach the same keys") {
  const TempFile file(
      R"({"parallel": {"tp": 4}, "optim": {"lr": 1e-3, "betas": [0.8, 0.9]}, "model": {"heads": 8, "hidden": 64}})");
  const LoadedConfig l = load_config(
      {.file = file.path,
       .flags = words_of("--tensor-model-parallel-size=2 --num-layers 4 --optim.lr 2e-3 --zero 0 "
                         "--zero.overlap false --data.train 0.7 a/b 0.3 c --untie-embeddings-and-output-weights "
                         "--optim.betas 0.9,0.99 --checkpoint.resume 100")});
  const Config& c = l.config;
  CHECK(c.parallel.tp == 2);
  CHECK(c.model.layers == 4);
  CHECK(c.optim.lr == 2e-3);
  CHECK(c.zero.stage == 0);
  CHECK_FALSE(c.zero.overlap);
  CHECK_FALSE(c.model.tied);
  CHECK(c.optim.betas == std::vector<double>{0.9, 0.99});
  CHECK(c.checkpoint.resume == "100");
  REQUIRE(c.data.train.size() == 2);
  CHECK(c.data.train[1].path == "c");
  CHECK(c.data.train[1].weight == 0.3);
  CHECK(c.model.ffn == 256);
  CHECK(c.model.kv_heads == 8);
  CHECK(l.origin.at("parallel.tp") == "--tensor-model-parallel-size");
  CHECK(l.origin.at("model.heads") == file.path + ":1");
  CHECK(std::find(l.notes.begin(), l.notes.end(), "--num-layers = model.layers") != l.notes.end());
}

TEST_CASE("sequence parallelism has three values, two of which JSON may spell as true and false") {
  CHECK(load("").parallel.sequence_parallel == AutoBool::kAuto);
  CHECK(load("--tp 2").sequence_parallel());
  // the flag may have no value
  CHECK(load("--parallel.sequence_parallel --tp 2").parallel.sequence_parallel == AutoBool::kTrue);
  for (const char* value : {"true", "false", "\"true\"", "\"auto\""}) {
    INFO(value);
    const TempFile file("{\"parallel\": {\"tp\": 2, \"sequence_parallel\": " + std::string(value) + "}}");
    const Config c = load_config({.file = file.path}).config;
    CHECK(c.sequence_parallel() == (value != std::string("false")));
  }
  const TempFile wrong(R"({"parallel": {"sequence_parallel": 1}, "train": {"steps": true}, "zero": {"overlap": 1}})");
  CHECK_THAT(problems_in({.file = wrong.path}),
             Catch::Contains("parallel.sequence_parallel: expected auto or true or false, found \"1\"") &&
                 Catch::Contains("train.steps: expected a whole number, found true or false") &&
                 Catch::Contains("zero.overlap: expected true or false, found a number"));
  const LoadedConfig odd = load_config({.flags = words_of("--tp 4 --model.seq 1022")});  // auto: off, with a note
  CHECK_FALSE(odd.config.sequence_parallel());
  CHECK(std::find(odd.notes.begin(), odd.notes.end(),
                  "no sequence parallelism: model.seq 1022 is not divisible by tp 4, but 1020, 1024 would be") !=
        odd.notes.end());
}

TEST_CASE("a JSON value for a choice of words is one of them, or false for off") {
  {
    const TempFile file(R"({"device": {"graphs": false, "isa": "scalar"}, "checkpoint": {"direct_io": false}})");
    const Config c = load_config({.file = file.path}).config;
    CHECK(c.device.graphs == OnOff::kOff);
    CHECK(c.device.isa == CpuIsa::kScalar);
    CHECK(c.checkpoint.direct_io == DirectIo::kOff);
  }
  const TempFile file(
      R"({"checkpoint": {"commit": 3, "hash": true, "tag_validation": "warm"}, "device": {"graphs": true}})");
  const std::string found = problems_in({.file = file.path});
  CHECK_THAT(found, Catch::Contains("checkpoint.commit: expected rename or marker, found \"3\""));
  CHECK_THAT(found, Catch::Contains("checkpoint.hash: expected a string"));
  CHECK_THAT(found, Catch::Contains("expected warn or ignore or fail, found \"warm\" (did you mean warn?)"));
  CHECK_THAT(found, Catch::Contains("device.graphs: expected a string"));
}

TEST_CASE("the world of an external launcher determines dp or contradicts the layout") {
  const char* model = "--model.heads 8 --model.hidden 64 ";
  CHECK(load(model + std::string("--tp 2 --pp 2"), 8).parallel.dp == 2);
  CHECK(load(model + std::string("--tp 2 --pp 2")).parallel.dp == 1);
  CHECK(load(model + std::string("--tp 2 --pp 2 --dp 2"), 8).world() == 8);
  CHECK_THAT(
      problems_of(model + std::string("--tp 2 --pp 2 --dp 4"), 8),
      Catch::StartsWith(
          "--dp: the launcher started 8 ranks, but pp 2 x dp 4 x cp 1 x tp 2 = 16; start 16 ranks, or use dp 2"));
  CHECK_THAT(problems_of(model + std::string("--tp 2 --pp 3"), 8),
             Catch::StartsWith("--tp: the launcher started 8 ranks, not divisible by tp 2 x pp 3; start 6, 12 ranks, "
                               "or choose tp x pp among 1, 2, 4, 8"));
  CHECK_THAT(problems_of(model + std::string("--launch.ranks threads"), 8),
             Catch::Contains("one process holds all ranks"));
}

TEST_CASE("training requires existing data files") {
  CHECK_THAT(problems_in({.needs_data = true}), Catch::StartsWith("data.train: missing"));
  CHECK_THAT(problems_in({.flags = {"--data.train", "/no/such", "--data.tokenizer", "/no/tok"}, .needs_data = true}),
             Catch::Contains("--data.train: /no/such: no such file") &&
                 Catch::Contains("--data.tokenizer: /no/tok: no such file"));
  CHECK(problems_in({.flags = {"--data.train", "mock"}, .needs_data = true}) == "accepted");
  CHECK_THAT(problems_in({.file = "/no/such.json"}), Catch::Contains("/no/such.json: cannot be read: No such file"));
  // The demo's config before the demo has run: names the script that creates its files.
  CHECK_THAT(problems_in({.file = source_dir() + "/configs/demo.json",
                          .flags = {"--data.train", "/no/a", "--data.valid", "mock", "--data.tokenizer", "/no/tok"},
                          .needs_data = true}),
             !Catch::Contains("demo.sh"));
  namespace fs = std::filesystem;
  const fs::path empty = fs::temp_directory_path() / "gpttrain-empty-folder", before = fs::current_path();
  fs::create_directories(empty);
  fs::current_path(empty);
  CHECK_THAT(problems_in({.file = source_dir() + "/configs/demo.json", .needs_data = true}),
             Catch::Contains("no such file") && Catch::Contains("; ./launch/demo.sh makes it"));
  fs::current_path(before);
}

TEST_CASE("the effective config is read back unchanged, with all defaults") {
  const char* const lines[] = {
      "", "--dp 4 --train.global_batch 64 --optim.lr 1.2345678901234567e-4",
      "--data.train 0.25 a\"b 0.75 c\\d --data.valid x --optim.betas 0.5,0.25 --train.seed 9007199254740993"};
  for (const char* line : lines) {
    const std::string once = config_json(load(line));
    const TempFile file(once);
    const LoadedConfig again = load_config({.file = file.path});
    CHECK(config_json(again.config) == once);
    Config c = again.config;
    CHECK(again.origin.size() == list_options(c).size());  // every option has an origin
  }
}

TEST_CASE("every shipped config loads, and its name is the run's") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs")) {
    if (entry.path().extension() != ".json") continue;
    INFO(entry.path());
    LoadedConfig loaded;
    REQUIRE_NOTHROW(loaded = load_config({.file = entry.path().string()}));
    CHECK(loaded.config.log.name == entry.path().stem());
    ++count;
  }
  CHECK(count >= 6);
  CHECK_NOTHROW(load_config({.file = source_dir() + "/configs/demo.json", .flags = words_of("--tp 2 --pp 4 --dp 2")}));
}

namespace {

std::string unwrapped(const std::string& text) {  // any run of blanks is one
  std::string out;
  for (const char c : text)
    if (!std::isspace(static_cast<unsigned char>(c)))
      out += c;
    else if (!out.empty() && out.back() != ' ')
      out += ' ';
  return out;
}

}  // namespace

TEST_CASE("help lists every option once with type, default and meaning, and nothing that is refused") {
  Config c;
  const std::string help = unwrapped(config_help());
  std::map<std::string, std::string> limited;
  for (const Unimplemented& n : unimplemented_values()) limited[n.key] = n.working;
  for (const Option& o : list_options(c)) {
    INFO(o.key());
    CHECK_FALSE(o.meaning.empty());
    const bool listed = limited.count(o.key()) == 0 || limited[o.key()].find('|') != std::string::npos;
    CHECK((help.find(" --" + o.key() + " ") != std::string::npos) == listed);
    if (!listed) continue;
    CHECK_THAT(help, Catch::Contains(o.meaning));
    if (limited.count(o.key()) > 0) CHECK_THAT(help, Catch::Contains(" --" + o.key() + " " + limited[o.key()] + " "));
  }
  CHECK_THAT(help, Catch::Contains("--optim.lr <number >0..100> peak learning rate [3e-04]"));
}

TEST_CASE("edit distance counts swaps as one, and suggestions stay close") {
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("wieght", "weight") == 1);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(did_you_mean("trian", {"eval", "train"}) == "train");
  CHECK(did_you_mean("qqqqq", {"eval", "train"}) == "");
}

TEST_CASE("the last of several equal flags wins and is reported") {
  const LoadedConfig c = load_config(
      {.file = "", .flags = {"--train.steps", "5", "--tp", "2", "--train.steps", "7", "--parallel.tp", "1"}});
  CHECK(c.config.train.steps == 7);
  CHECK(c.config.parallel.tp == 1);
  CHECK(c.notes.size() >= 2);
}
