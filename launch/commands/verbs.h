// One function a verb of the command line. Each returns the exit code or throws gt::Error; main prints the error.
#pragma once
#include "kernels/core/check.h"
#include "launch/commands/cli.h"

namespace gt {

Exit run_train(const Command&);
Exit run_bench(const Command&);
Exit run_bench_ceilings(const Command&);
Exit run_bench_ops(const Command&);
Exit run_bench_gemm(const Command&);
Exit run_bench_peer(const Command&);
Exit run_bench_roofline(const Command&);
Exit run_bench_comm(const Command&);
Exit run_bench_data(const Command&);
Exit run_verify(const Command&);
Exit run_generate(const Command&);
Exit run_eval(const Command&);
Exit run_schedule(const Command&);
Exit run_lr(const Command&);
Exit run_tokenizer_train(const Command&);
Exit run_tokenizer_encode(const Command&);
Exit run_tokenizer_decode(const Command&);
Exit run_data_prepare(const Command&);
Exit run_data_inspect(const Command&);
Exit run_ckpt_ls(const Command&);
Exit run_ckpt_inspect(const Command&);
Exit run_export(const Command&);
Exit run_import(const Command&);
Exit run_ckpt_verify(const Command&);
Exit run_ckpt_diff(const Command&);
Exit run_ckpt_prune(const Command&);

}  // namespace gt
