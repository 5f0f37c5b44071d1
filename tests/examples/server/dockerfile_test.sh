#!/usr/bin/env bash
# dockerfile_test.sh ROOT FOLDER [SERVE]: examples/server/Dockerfile without Docker. What it copies is
# enough to configure the build, by its own command; it installs what .ci/packages.sh names; the
# libraries that SERVE loads come from the packages of its last stage; its health check says yes to
# a server and no to none.
set -euo pipefail

root=$1 folder=$2 serve=${3:-}
dockerfile=$root/examples/server/Dockerfile
fail() {
  echo "$dockerfile: $1" >&2
  exit 1
}
has_word() { tr -s ' \n' '\n\n' <<< "$1" | grep -qxF -- "$2"; }
# Lines that end with a backslash, joined.
lines=$(sed -e ':join' -e '/\\$/ { N; s/\\\n//; b join' -e '}' "$dockerfile")
first=${lines%%FROM debian:12-slim*}
last=${lines#*FROM debian:12-slim}

source "$root/.ci/packages.sh"
for package in "${library_packages[@]}" "${server_packages[@]}" libcli11-dev; do
  has_word "$first" "${package%%:*}" || fail "${package%%:*} is missing"
done

rm -rf "$folder"
mkdir -p "$folder/source"
while read -r -a words; do
  unset 'words[0]'
  target=${words[-1]}
  for item in "${words[@]::${#words[@]}-1}"; do
    cp -r "$root/$item" "$folder/source/$target"
    top=${item%%/*}
    grep -qxF "!$top" "$dockerfile.dockerignore" || fail "$top is ignored by its .dockerignore"
  done
done < <(grep '^COPY ' <<< "$first")
configure=$(grep -o 'cmake -S .*' <<< "$first")
(cd "$folder/source" && $configure > "$folder/configure.log" 2>&1) ||
  { cat "$folder/configure.log" >&2; fail "its files are not enough to configure"; }
ninja -C "$folder/source/build" -t query serve > /dev/null || fail "there is no target 'serve'"

if [ -z "$serve" ] || [ ! -x "$serve" ]; then exit 0; fi
if command -v dpkg-query > /dev/null; then
  while read -r library; do
    file=$(realpath "$library")
    package=$({ dpkg-query -S "$file" || dpkg-query -S "${file#/usr}"; } 2> /dev/null | sed -n '1s/:.*//p')
    case $package in
      libc6 | libgcc-s1) continue ;;  # part of every Debian
      "") fail "no package has $file" ;;
    esac
    has_word "$last" "$package" || fail "$package, for $file, is not installed"
  done < <(ldd "$serve" | awk '$3 ~ /^\// { print $3 }')
fi

check=$(grep -oE '"exec 3.*"\]' <<< "$last" | sed -e 's/^"//' -e 's/"\]$//' -e 's/\\\\/\\/g')
"$serve" --model "$root/examples/models/fairytale" --port 0 > "$folder/out" 2> /dev/null &
process=$!
trap 'kill "$process" 2> /dev/null || true' EXIT
for _ in $(seq 300); do
  if grep -q listening "$folder/out"; then break; fi
  sleep 0.1
done
port=$(grep -oE '[0-9]+$' "$folder/out")
bash -c "${check//8000/$port}" || fail "its health check fails while the server is well"
kill "$process"
wait "$process" || true
if bash -c "${check//8000/$port}" 2> /dev/null; then fail "its health check succeeds without a server"; fi
