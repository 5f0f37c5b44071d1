#!/usr/bin/env bash
# check_deploy_files.sh [PYTHON]: what linters say of docs/deploy/.
#
#   nanovllm.service   systemd-analyze verify, and an exposure of at most 2.5 by its own measure
#   kubernetes.yaml    kubernetes-validate of PYTHON, else kubeconform; and the grace period is
#                      longer than preStop and --drain-timeout together
#
# A file without a linter here is skipped, and with neither the whole test is (status 77).
set -uo pipefail

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../docs/deploy" && pwd)"
python=${1:-}
status=0 checked=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if command -v systemd-analyze > /dev/null; then
  # The program need not be installed here.
  sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "$folder/nanovllm.service" > "$work/nanovllm.service"
  said=$(systemd-analyze verify --man=no "$work/nanovllm.service" 2>&1) || status=1
  if [ -n "$said" ]; then
    echo "$said"
    status=1
  fi
  systemd-analyze security --offline=true --no-pager --threshold=25 "$work/nanovllm.service" \
    > "$work/security" 2>&1 || { tail -5 "$work/security"; status=1; }
  tail -1 "$work/security"
  checked=$((checked + 1))
else
  echo "skipped: nanovllm.service, there is no systemd-analyze"
fi

manifest=$folder/kubernetes.yaml
if [ -n "$python" ] && "$python" -c 'import kubernetes_validate' 2> /dev/null; then
  "$(dirname "$python")/kubernetes-validate" --strict "$manifest" || status=1
  checked=$((checked + 1))
elif command -v kubeconform > /dev/null; then
  kubeconform -strict -summary "$manifest" || status=1
  checked=$((checked + 1))
else
  echo "skipped: kubernetes.yaml, there is neither kubernetes-validate nor kubeconform"
fi

number() { grep -o "$1" "$manifest" | grep -o '[0-9]\+' | tail -1; }
grace=$(number 'terminationGracePeriodSeconds: [0-9]*')
drain=$(number 'drain-timeout, "[0-9]*"')
pre_stop=$(number 'sleep, "[0-9]*"')
if [ "$grace" -le $((drain + pre_stop)) ]; then
  echo "kubernetes.yaml: $grace s of grace, but $pre_stop s of preStop and $drain s of draining"
  status=1
fi

if [ "$status" -eq 0 ] && [ "$checked" -eq 0 ]; then exit 77; fi
exit "$status"
