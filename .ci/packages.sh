# Sourced by tests/run.sh, examples/quickstart.sh and examples/serve.sh.

# The library's own needs, as Debian calls them; 'package:command' is met by the command as well.
library_packages=(cmake:cmake ninja-build:ninja g++:g++ pkg-config:pkg-config libpcre2-dev
  libutf8proc-dev libxxhash-dev)
# And those of examples/server.
server_packages=(libboost1.81-dev libssl-dev)

# install_packages PACKAGE[:COMMAND]... installs by apt-get what is missing, and touches nothing,
# the network included, when nothing is. Without apt-get it only says what to install.
install_packages() {
  local item package command missing=() as_root=() log
  for item in "$@"; do
    package=${item%%:*} command=${item#*:}
    if [ "$command" != "$item" ] && command -v "$command" > /dev/null; then continue; fi
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null)" = installed ]; then
      continue
    fi
    missing+=("$package")
  done
  if [ "${#missing[@]}" -eq 0 ]; then return 0; fi
  if ! command -v apt-get > /dev/null; then
    echo "No apt-get here. What CMake does not find it will download; Debian's names for it are:" \
         "${missing[*]}"
    return 0
  fi
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
  echo "Installing ${missing[*]}"
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update -qq &&
         "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
           apt-get install -y -qq --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    echo "could not install: ${missing[*]}" >&2
    return 1
  fi
  rm -f "$log"
}

# Puts the CUDA compiler of the usual place on the path.
find_nvcc() {
  if ! command -v nvcc > /dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
    PATH=$PATH:/usr/local/cuda/bin
  fi
  command -v nvcc > /dev/null
}

has_gpu() { command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; }

# quietly COMMAND...: its output appears only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" > "$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}
