#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sanitize_kernels.sh PROGRAM TOOL FILTER: those tests of the kernels under compute-sanitizer. Where there is none, or
# the machine does not let it near its device, it says so.
set -uo pipefail
program=$1 tool=$2 filter=$3

if ! command -v compute-sanitizer > /dev/null; then
  echo "$tool skipped: no compute-sanitizer"
  exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
compute-sanitizer --tool "$tool" --error-exitcode 1 "$program" --gtest_brief=1 --gtest_filter="$filter" 2>&1 | tee "$log"
status=$?
if ((status != 0)) && grep -q "^=========.*Device not supported" "$log"; then
  echo "$tool skipped: compute-sanitizer refuses this device"
  exit 0
fi
exit $status
