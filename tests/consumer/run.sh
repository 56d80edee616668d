#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds and runs the consumer, against the installed package, which must refuse another torch minor, or with Sheaf as a
# sub-directory. usage: run.sh PYTHON installed|subdirectory; installed needs a build/. Builds in build-consumer/.
set -eu
python=$1
case $2 in
  installed | subdirectory) ;;
  *)
    echo "usage: $0 PYTHON installed|subdirectory" >&2
    exit 2
    ;;
esac
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$root/build-consumer
mkdir -p "$work"

# steps NAME OPTION...: configure, build and run the consumer; its whole output only if it fails
steps() {
  name=$1
  shift
  echo "== consumer, $name"
  cmake -S "$root/tests/consumer" -B "$work/$name" "$@" > "$work/$name.log"
  cmake --build "$work/$name"
  ctest --test-dir "$work/$name" --output-on-failure --no-tests=error >> "$work/$name.log" || {
    cat "$work/$name.log"
    exit 1
  }
}

if [ "$2" = subdirectory ]; then
  steps subdirectory -DSHEAF_SOURCE="$root" -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE="$python"
  echo "consumer: a way to use the sources passed"
  exit 0
fi

rm -rf "$work/prefix" "$work/installed"
cmake --install "$root/build" --prefix "$work/prefix" > "$work/install.log"
steps installed -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE="$python"

echo "== consumer, another torch"
other=$work/torch
mkdir -p "$other/lib" "$other/include/ATen" "$other/include/torch/headeronly"
touch "$other/lib/libtorch_cpu.so" "$other/lib/libc10.so" "$other/include/ATen/ATen.h"

# refused MINOR SENTENCE: with torch 2.MINOR in place of its own the package says so and is not found
refused() {
  printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH 0\n' "$1" \
    > "$other/include/torch/headeronly/version.h"
  rm -rf "$work/refused"
  if cmake -S "$root/tests/consumer" -B "$work/refused" -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DSHEAF_TORCH_ROOT="$other" > "$work/refused.log" 2>&1; then
    echo "consumer: torch 2.$1 was not refused" >&2
    exit 1
  fi
  # CMake breaks lines as it likes.
  tr -s ' \n' ' ' < "$work/refused.log" | grep -qF "$2" || {
    cat "$work/refused.log"
    exit 1
  }
}

built=$(sed -E 's/.*"torch": "2\.([0-9]+)\..*/\1/' "$root/build/libsheaf.json")
another=$((built == 11 ? 12 : built - 1))
refused 10 "Sheaf needs torch 2.11 to 2.13, but"
refused $another "This Sheaf was built for torch 2.$built, but"
echo "consumer: a way to use the package and 2 refusals passed"
