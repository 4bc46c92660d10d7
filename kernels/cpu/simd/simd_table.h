// Function table of one instruction set. Included only by simd_{scalar,avx2,avx512,avx512bf16}.cpp.
#pragma once
#include "kernels/cpu/simd/simd_activation.h"
#include "kernels/cpu/simd/simd_attention.h"
#include "kernels/cpu/simd/simd_attention_bf16.h"
#include "kernels/cpu/simd/simd_dropout.h"
#include "kernels/cpu/simd/simd_elementwise.h"
#include "kernels/cpu/simd/simd_gelu_erf.h"
#include "kernels/cpu/simd/simd_norm.h"
#include "kernels/cpu/simd/simd_optim.h"
#include "kernels/cpu/simd/simd_pairs.h"
#include "kernels/cpu/simd/simd_quant.h"
#include "kernels/cpu/simd/simd_rows.h"
#include "kernels/cpu/simd/simd_split.h"
#include "kernels/cpu/simd/simd_step.h"

namespace gt::cpu {
namespace {

constexpr Simd kTableHere{
    .add = add_n,
    .axpy = axpy_n,
    .exp = exp_n,
    .tanh = tanh_n,
    .multiply = multiply_n,
    .scale = scale_n,
    .add_scalar = add_scalar_n,
    .soft_cap = soft_cap_n,
    .soft_cap_grad = soft_cap_grad_n,
    .activate = {activate_n<gelu_parts>, activate_n<silu_parts>, activate_n<relu2_parts>, gelu_erf_n,
                 activate_n<tanh_parts>},
    .activate_grad = {activate_grad_n<gelu_parts>, activate_grad_n<silu_parts>, activate_grad_n<relu2_parts>,
                      gelu_erf_grad_n, activate_grad_n<tanh_parts>},
    .gelu_bf16 = gelu_bf16_n,
    .gelu_grad_bf16 = gelu_grad_bf16_n,
    .rotate = rotate_n,
    .dropout_factors = drop_factors_n,
    .column_sums = sum_rows_n<float>,
    .column_sums_bf16 = sum_rows_n<uint16_t>,
    .stochastic_bf16 = stochastic_bf16_n,
    .fake_quant = fake_quant_n,
    .fake_quant_grad = fake_quant_grad_n,
    .max_abs = max_abs_n,
    .quantize_int8 = quantize_int8_n,
    .dequantize_int8 = dequantize_int8_n,
    .f32_to_bf16 = f32_to_bf16_n,
    .stream_bf16 = stream_bf16_n,
    .bf16_to_f32 = bf16_to_f32_n,
    .f32_to_f16 = f32_to_f16_n,
    .f16_to_f32 = f16_to_f32_n,
    .layer_norm = norm_row<false>,
    .layer_norm_grad = norm_grad_row<false>,
    .rms_norm = norm_row<true>,
    .rms_norm_grad = norm_grad_row<true>,
    .attention_scratch = attention_scratch_floats,
    .attention = attention_block,
    .attention_query = attention_query,
    .attention_grad_scratch = attention_grad_scratch_floats,
    .attention_grad = attention_grad_heads,
    .attention_scratch_bf16 = attention_scratch_bf16,
    .values_floats = values_floats,
    .turn_values = turn_values,
    .attention_bf16 = attention_block_bf16,
    .attention_query_bf16 = attention_query_bf16,
    .attention_grad_scratch_bf16 = attention_grad_scratch_bf16,
    .attention_grad_bf16 = attention_grad_heads_bf16,
    .pair_gemm = pair_gemm_n,
    .turn_rows = turn_rows_n,
    .pair_rows = pair_rows_n,
    .turn_pairs = turn_pairs_n,
    .split_rows = split_rows_n,
    .split_columns = split_columns_n,
    .softmax_stats = softmax_stats_row,
    .softmax_exps = softmax_exps_row,
    .gemm_block = gemm_block_prefetching,
    .transpose_rows = transpose_rows_n,
    .gemm_rows = gemm_rows_n,
    .gemv_rows = gemv_rows_n,
    .softmax_scaled = softmax_scaled_row,
    .sum = sum_n,
    .sum_squares = sum_squares_n,
    .square_block = square_block_n,
    .stream_block = stream_block_n,
    .complete_streams = fence_streams,
    .adamw = adamw_n,
    .sgd = sgd_n,
    .lion = lion_n,
    .adagrad = adagrad_n,
    .lamb_moments = lamb_moments_n,
    .lamb_apply = lamb_apply_n,
};

}  // namespace
}  // namespace gt::cpu
