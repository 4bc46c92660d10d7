#!/usr/bin/env bash
# Virtual environments with third-party readers, for tests alone. build/readers: h5py, tensorboard, sentencepiece,
# numpy, clang-format. build/hf: transformers 4, PEFT and Megatron-core on PyTorch. build/hf5: transformers 5, whose
# folders have other keys, and PEFT.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=/usr/bin/python3
[ -x "$python" ] || python=python3

# environment NAME VERSION VENV_OPTIONS PACKAGE…: rebuilt when the installed VERSION differs
environment() {
  local venv=build/$1 stamp=build/$1/.ready-$2 options=$3
  shift 3
  [ -f "$stamp" ] && return 0
  rm -rf "$venv"
  # shellcheck disable=SC2086
  "$python" -m venv $options "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check "$@" && touch "$stamp"
}
rc=0
environment readers 2 "" numpy h5py tensorboard sentencepiece 'setuptools<81' clang-format==14.0.6 || rc=1
environment hf 5 "" --no-deps torch==2.6.0 transformers==4.53.3 megatron-core==0.16.1 tokenizers==0.21.2 huggingface-hub==0.33.4 \
  safetensors==0.5.3 numpy==1.26.4 regex==2024.11.6 requests==2.32.4 urllib3==2.5.0 certifi==2025.7.14 idna==3.10 \
  charset-normalizer==3.4.2 pyyaml==6.0.2 tqdm==4.67.1 packaging==24.2 typing_extensions==4.12.2 filelock==3.18.0 \
  networkx==3.4.2 jinja2==3.1.6 markupsafe==3.0.2 fsspec==2025.3.0 sympy==1.13.1 mpmath==1.3.0 peft==0.17.1 accelerate==1.10.1 psutil==7.0.0 tiktoken==0.9.0 &&
  tests/readers/without_cuda.sh build/hf || rc=1
environment hf5 1 "" --no-deps torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 huggingface-hub==2.4.0 \
  safetensors==0.8.0 numpy==2.4.6 regex==2026.11.19 pyyaml==6.0.4 tqdm==4.70.1 packaging==26.4 typing_extensions==4.16.0 \
  filelock==4.3.1 fsspec==2026.9.0 jinja2==3.1.6 markupsafe==3.0.4 networkx==3.6.1 sympy==1.14.0 mpmath==1.4.1 \
  peft==0.21.2 accelerate==1.15.0 psutil==7.2.2 httpx2==2.16.2 httpcore2==2.16.2 h11==0.16.0 anyio==4.16.0 idna==3.20 \
  truststore==0.10.5 click==8.5.1 &&
  tests/readers/without_cuda.sh build/hf5 || rc=1
exit $rc
