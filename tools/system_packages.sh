#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what is missing of the Debian packages that a step needs (`build`, `test` or `mpi`). Without root it names
# them, with the command that installs them, and fails.
set -eu

python=${PYTHON:-python3}
missing=

# A package is missing if the command that tells of it fails: a tool from elsewhere will do as well.
need() {
  package=$1
  shift
  if ! "$@" > /dev/null 2>&1; then missing="$missing $package"; fi
}

check() {
  missing=
  case $1 in
    build)
      need g++ sh -c 'command -v "${CXX:-g++}"'
      need cmake command -v cmake
      need python3 "$python" --version
      need python3-venv "$python" -c 'import ensurepip, venv'
      ;;
    test)
      need libgtest-dev sh -c 'echo "#include <gtest/gtest.h>" | "${CXX:-g++}" -x c++ -fsyntax-only -'
      need spin command -v spin
      need clang-14 command -v clang++-14
      need libclang-rt-14-dev sh -c 'test -e "$(clang++-14 -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a"'
      ;;
    mpi)
      need libopenmpi-dev command -v mpicxx.openmpi
      need openmpi-bin command -v mpirun.openmpi
      need libmpich-dev command -v mpicxx.mpich
      need mpich command -v mpirun.mpich
      ;;
    *)
      echo "usage: $0 build|test|mpi" >&2
      exit 2
      ;;
  esac
}

check "$1"
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
  echo "These system packages are missing:$missing" >&2
  echo "Install them, then run make again:" >&2
  echo "  sudo apt-get update && sudo $install" >&2
  exit 1
fi
echo "installing:$missing"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive $install
check "$1"
if [ -n "$missing" ]; then
  echo "Still missing after the installation:$missing (PYTHON=$python)" >&2
  exit 1
fi
