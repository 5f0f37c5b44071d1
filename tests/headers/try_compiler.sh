#!/usr/bin/env bash
# try_compiler.sh NAME PATH [ARGUMENT...] runs the compiler at PATH. Where CMake found none, it says
# so and exits with 77, which CTest counts as skipped.
set -eu

name=$1 path=$2
shift 2
if [ ! -x "$path" ]; then
  echo "skipped: $name is not installed"
  exit 77
fi
exec "$path" "$@"
