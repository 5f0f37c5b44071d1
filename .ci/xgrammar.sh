# Sourced by tests/run.sh.

# find_xgrammar FOLDER prints where the sources of XGrammar are for CMake's
# NANOVLLM_XGRAMMAR_SOURCE_DIR: the environment variable of that name, or FOLDER, to which pip
# downloads the release that .cmake/xgrammar.cmake is written for. Fails where neither is to be had.
find_xgrammar() {
  local folder=$1 release=xgrammar-0.2.8
  local sum=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
  if [ -n "${NANOVLLM_XGRAMMAR_SOURCE_DIR:-}" ]; then
    echo "$NANOVLLM_XGRAMMAR_SOURCE_DIR"
    return 0
  fi
  if [ ! -d "$folder/$release" ]; then
    mkdir -p "$folder"
    timeout 120 python3 -m pip download --quiet --no-deps --no-binary xgrammar --dest "$folder" \
      xgrammar==0.2.8 > /dev/null 2>&1 || return 1
    echo "$sum  $folder/$release.tar.gz" | sha256sum --check --status || return 1
    tar -xzf "$folder/$release.tar.gz" -C "$folder" || return 1
  fi
  echo "$folder/$release"
}
