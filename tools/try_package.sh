#!/bin/bash
# Tries dist/'s wheel and sdist outside the checkout, in a new environment.
#
#     tools/try_package.sh PYTHON BACKEND TORCH
#
# The environment has the wheel, Keras, NumPy and the backend alone, where
# `python -m keras_lanton` has to pass; then tests that the sdist carries run.
# TORCH: the requirement of that backend. The environment is removed.
set -euo pipefail
dist=$(cd "$(dirname "$0")/../dist" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PYTHONPATH
export KERAS_BACKEND=$2
"$1" -m venv "$folder/env"
cd "$folder"
pip() { env/bin/python -m pip install --quiet "$@"; }

if [ "$2" = torch ]; then pip "$3"; fi
pip "$(echo "$dist"/*.whl)[$2]"
env/bin/python -m keras_lanton
tar -xzf "$dist"/*.tar.gz
pip pytest hypothesis pyyaml
# What else they import is skipped where it is missing.
cd keras_lanton-*/tests
../../env/bin/python -m pytest test_main.py test_lanton.py \
  project/test_package.py
