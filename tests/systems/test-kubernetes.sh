#!/usr/bin/env bash
# Tests examples/kubernetes: what the webhook does to pods, and all manifests, those that it makes among them, against the
# schemas of Kubernetes, with kubeconform or with the package kubernetes-validate of PyPI, which has the schemas in it.
#
#   tests/systems/test-kubernetes.sh
#
# Needs openssl and python3. Exit status: 0 all is right, 1 something is not, 2 a program is missing.
set -eu
cd "$(dirname "$0")/../.."
changed=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-kubernetes.XXXXXX")
trap 'rm -rf "$changed"' EXIT
command -v openssl > /dev/null || { echo "test-kubernetes: openssl was not found" >&2; exit 2; }
python3 tests/systems/kubernetes_inject.py "$changed"
files=(examples/kubernetes/*.yaml "$changed"/*.yaml)
if command -v kubeconform > /dev/null; then
    kubeconform -strict -summary "${files[@]}"
elif command -v kubernetes-validate > /dev/null; then
    kubernetes-validate --strict "${files[@]}"
else
    echo "test-kubernetes: kubeconform or kubernetes-validate was not found (pip install kubernetes-validate)" >&2
    exit 2
fi
