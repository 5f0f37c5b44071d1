#!/usr/bin/env bash
# check_program.sh COMPILER SOURCE FLAG...: whether a program compiles. Templates are instantiated, but
# no code is generated.
set -euo pipefail

compiler=$1 source=$2
shift 2
"$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Werror "$@" "$source"
