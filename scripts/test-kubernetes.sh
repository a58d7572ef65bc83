#!/usr/bin/env bash
# Validates the manifests of examples/kubernetes against the schemas of Kubernetes, with kubeconform or with the package
# kubernetes-validate of PyPI, which has the schemas in it.
#
#   scripts/test-kubernetes.sh
#
# Exit status: 0 all are valid, 1 one is not, 2 neither program is there.
set -eu
cd "$(dirname "$0")/.."
files=(examples/kubernetes/*.yaml)
if command -v kubeconform > /dev/null; then
    exec kubeconform -strict -summary "${files[@]}"
elif command -v kubernetes-validate > /dev/null; then
    exec kubernetes-validate --strict "${files[@]}"
fi
echo "test-kubernetes: kubeconform or kubernetes-validate was not found (pip install kubernetes-validate)" >&2
exit 2
