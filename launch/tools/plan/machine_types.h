// Device types that can be planned for without being present: data-sheet figures, and typical constants of the step
// model.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/tensor.h"
#include "launch/tools/plan/step_model.h"

namespace gt {

struct DeviceType {
  std::string name;       // value of --device_type
  double memory;          // bytes
  double f32, bf16, fp8;  // dense FLOP/s; 0: no such GEMMs, or not known
  double bandwidth;       // of device memory, bytes/s
  double link;            // bus bandwidth of an all-reduce inside a node, bytes/s
  double nic;             // of all ports of a node, bytes/s
  int64_t per_node;       // devices that `link` connects
  double gemms;           // fraction of the peak that large GEMMs reach within the power limit
};

// Sources: NVIDIA's data sheets of V100, A100, H100, H200, B200, B300, GB200 NVL72 and GB300 NVL72, without sparsity.
// Links as measured with nccl-tests, ports as in the DGX systems of these devices. RTX 3090, 4090 and 5090: the white
// papers of GA102, AD102 and Blackwell, 16 bits and FP8 with FP32 accumulation; A10, L4, L40S and RTX A6000: their data
// sheets. Their links are half of what PCI Express 4.0 or 5.0 x16 carries, because they reach each other through host
// memory; their ports (25 to 100 Gb/s) and the share of the peak that their power limits leave are assumptions, which
// no published step here has checked.
const std::vector<DeviceType>& device_types();
const char* device_type_names();                  // "V100-16|V100-32|...|cpu"; cpu: measured, not in the table
const DeviceType& device_type(std::string_view);  // throws kUsage for an unknown name, listing all

// Returns the device of --device_figures: "FLOPS,BYTES,BYTES/S[,LINK[,PORTS]]", each with k, M, G, T or P, as in
// "989T,80G,3.35T": dense 16-bit FLOP/s, memory and its bandwidth; then `link` and `nic`, of cards on PCI Express if
// left out. FP32 and FP8 are not known. Throws kUsage.
DeviceType device_of_figures(const std::string& figures);

// Returns the step model's constants for such devices in FP32, 16 bits or FP8 (`compute`), before calibration.
MachineModel machine_model(const DeviceType&, DType compute);

}  // namespace gt
