#!/usr/bin/env bash
# A private virtual environment with readers that we did not write: h5py, tensorboard, sentencepiece, numpy. Only tests use it.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/readers
stamp=$venv/.ready-1
[ -f "$stamp" ] && exit 0
rm -rf "$venv"
python=/usr/bin/python3
[ -x "$python" ] || python=python3
"$python" -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check numpy h5py tensorboard sentencepiece setuptools'<81'
touch "$stamp"
