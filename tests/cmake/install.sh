#!/usr/bin/env bash
# install.sh CMAKE BUILD_FOLDER SOURCE_FOLDER PREFIX: installs afresh and moves the result, so that
# only a package that can be moved is found. No file of it may name the source or the build folder.
set -euo pipefail

cmake=$1 build=$2 source=$3 prefix=$4
rm -rf "$prefix" "$prefix-staged"
"$cmake" --install "$build" --prefix "$prefix-staged" > /dev/null
mv "$prefix-staged" "$prefix"

if grep -rlF -e "$source/" -e "$build/" -e "$prefix-staged" "$prefix"; then
  echo "these installed files name folders of the build"
  exit 1
fi
if ! diff -rq "$source/include" "$prefix/include"; then
  echo "the installed headers are not the source tree's"
  exit 1
fi
find "$prefix" -type f | wc -l | sed 's/$/ files installed/'
