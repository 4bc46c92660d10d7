// `gpttrain export` and `import`: arguments and functions, rows of the table in launch/commands/subcommands.cpp.
#pragma once
#include <cstdint>
#include <string>

#include "launch/ranks/command.h"

namespace gt {

struct ExportArgs {
  std::string load, format = "safetensors", dtype, naming, output, max_shard = "5GB";
  int64_t step = -1;
  bool force = false;
  template <class V>
  void fields(V& v) {
    v("load", load, "required", "checkpoint folder, a step of it, or a run directory");
    v("step", step, "0..", "step of the folder; default: the newest valid one");
    v("format", format, "safetensors|hdf5|peft",
      "safetensors: a folder; hdf5: one file, native names; both with adapters merged. peft: the adapters alone, as "
      "PEFT "
      "reads them");
    v("dtype", dtype, "f32|bf16|f16|int8",
      "dtype of the weights; default: f32, for a Hugging Face folder that of the folder that the run began from; int8: "
      "matrices quantized per row, each with its .scale");
    v("naming", naming, "hf|native",
      "hf: Hugging Face folder of the model's family with tokenizer.json; default: hf for safetensors, native for int8 "
      "and hdf5");
    v("max-shard", max_shard, "SIZE",
      "safetensors: maximum file size, as in 500MB, 5GB; larger exports are split, with an index");
    v("output", output, "required", "folder (safetensors) or file (hdf5)");
    v("force", force, "", "replace existing output");
  }
};

struct ImportArgs {
  std::string from, output, tokenizer;
  int64_t heads = 0;
  bool allow_nonfinite = false, ignore_unknown = false;
  template <class V>
  void fields(V& v) {
    v("from", from, "required",
      "Hugging Face folder (safetensors) of a family of model.arch, PEFT folder of LoRA adapters, our HDF5 export, or "
      "llm.c GPT-2 .bin");
    v("output", output, "required", "checkpoint folder; step-000000000 is written there");
    v("tokenizer", tokenizer, "",
      "SentencePiece model, tokenizer.json, vocab.json, vocab.txt, tekken.json or tiktoken's ranks to keep with the "
      "weights, instead of the "
      "folder's");
    v("heads", heads, "0..65536",
      "attention heads, if the file does not contain them (foreign HDF5); 0: from the file");
    v("allow-nonfinite", allow_nonfinite, "", "accept weights with NaN or infinity");
    v("ignore-unknown", ignore_unknown, "", "ignore unknown keys of config.json, which may change the model");
  }
};

Exit run_export(const Command&);
Exit run_import(const Command&);

}  // namespace gt
