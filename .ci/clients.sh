# Sourced by tests/run.sh.

# find_client_python FOLDER REQUIREMENTS prints a Python that has the packages listed in REQUIREMENTS:
# the environment variable NANOVLLM_CLIENT_PYTHON, or one in FOLDER, which is made by pip and kept
# until the list changes. Fails, and prints nothing, where neither is to be had.
find_client_python() {
  local folder=$1 requirements=$2
  if [ "${NANOVLLM_CLIENT_PYTHON:-}" = none ]; then return 1; fi
  if [ -n "${NANOVLLM_CLIENT_PYTHON:-}" ]; then
    echo "$NANOVLLM_CLIENT_PYTHON"
    return 0
  fi
  if ! cmp -s "$requirements" "$folder/requirements.txt"; then
    rm -rf "$folder"
    python3 -m venv "$folder" > /dev/null 2>&1 &&
      timeout 300 "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
        --only-binary :all: --requirement "$requirements" > /dev/null 2>&1 &&
      cp "$requirements" "$folder/requirements.txt" || return 1
  fi
  echo "$folder/bin/python"
}
