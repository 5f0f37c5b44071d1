#!/usr/bin/env bash
# release.sh [--parts "PART ..."] [FOLDER]: makes what a release has from a clean clone of HEAD, installs
# each artefact elsewhere, and runs it. FOLDER, build/release unless given, gets the artefacts and a log.
# The repository's owner sets the tag; .github/workflows/release.yml runs this on it.
#
#   source    nanovllm-VERSION.tar.gz, the weights that are not in it, and what a shallow clone takes
#   packages  an archive of all, and Debian packages, which are installed in a new Debian where this runs
#             as root and debootstrap is there, and else unpacked
#   conan     the Conan recipe of .packages/conan, made and tested; without ConanCenter the packages that
#             it needs are the system's
#   wheel     the Python package of .python
#   site      the pages of docs/
#
# Each part has a log of its own in FOLDER, and release.log has what is said. A part whose tools cannot be
# installed is 'left out'. If a part is left out or fails, the others go on, and the exit status is 1.
# CMAKE_CXX_COMPILER_LAUNCHER and CCACHE_*, if they are set, have their usual effect.
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
parts="source packages conan wheel site"
if [ "${1:-}" = --parts ]; then
  parts=$2
  shift 2
fi
out=${1:-$root/build/release}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
clone=$work/nanovllm
status=0

say() { echo "release: $*" | tee -a "$out/release.log"; }
size_of() { du -h --apparent-size "$1" | cut -f 1; }
leave_out() { say "$1 left out: $2"; exit 1; }

git clone -q --depth 1 "file://$root" "$clone"
say "a shallow clone of $(git -C "$clone" log -1 --format=%h) takes $(du -sh "$clone/.git" | cut -f 1), and $(du -sh --exclude=.git "$clone" | cut -f 1) of files"
version=$(sed -n 's/^#define NANOVLLM_VERSION_[A-Z]* //p' "$clone/include/nanovllm/version.hpp" | paste -sd .)
if ! grep -q "^## $version" "$clone/CHANGELOG.md"; then
  say "CHANGELOG.md has no section of $version"
  status=1
fi
if ! grep -q "\"version\": \"$version\"" "$clone/.packages/vcpkg/nanovllm/vcpkg.json"; then
  say "vcpkg.json has another version than version.hpp, $version"
  status=1
fi
model=$clone/examples/models/fairytale
request='{"id": "a", "prompt": "Once upon a time", "sampling": {"max_tokens": 8, "temperature": 0}}'

make_source() {
  git -C "$clone" archive --prefix="nanovllm-$version/" -o "$out/nanovllm-$version.tar.gz" HEAD
  say "source: nanovllm-$version.tar.gz, $(size_of "$out/nanovllm-$version.tar.gz")"
  (cd "$root" && bash examples/models/get.sh > /dev/null)
  tar czf "$out/nanovllm-models.tar.gz" -C "$root" \
    examples/models/{fairytale_embedding,fairytale_moe,tiny_gpt2}/model.safetensors
  say "source: nanovllm-models.tar.gz, $(size_of "$out/nanovllm-models.tar.gz")"
}

# build_program PREFIX FOLDER: README's program with find_package; prints how its text begins.
build_program() {
  mkdir -p "$2"
  cp "$clone/benchmarks/compile_time/readme.cpp" "$2/app.cpp"
  cp "$clone/.packages/conan/test_package/CMakeLists.txt" "$2/CMakeLists.txt"
  cmake -S "$2" -B "$2/build" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=$1" > /dev/null
  cmake --build "$2/build" > /dev/null
  local text
  text=$("$2/build/app" "$model")
  [ -n "$text" ]
  tr '\n' ' ' <<< "${text:0:60}"
}

# Installs the Debian packages in a new Debian, which knows nothing of this machine's settings, and uses them.
try_in_debian() {
  local debian=$work/debian
  debootstrap --variant=minbase bookworm "$debian"
  cp "$out"/*.deb "$debian/tmp/"
  cp -r "$model" "$debian/tmp/model"
  cp "$clone/benchmarks/compile_time/readme.cpp" "$debian/tmp/app.cpp"
  cp "$clone/.packages/conan/test_package/CMakeLists.txt" "$debian/tmp/CMakeLists.txt"
  chroot "$debian" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive bash -c "set -e
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends /tmp/nanovllm-server_*.deb /tmp/libnanovllm-c_*.deb
    nanovllm-generate --model /tmp/model --input - --output - <<< '$request'
    nanovllm-serve --help > /dev/null
    apt-get install -y -qq --no-install-recommends /tmp/libnanovllm-dev_*.deb g++ cmake make pkg-config
    cmake -S /tmp -B /tmp/build > /dev/null
    cmake --build /tmp/build > /dev/null
    /tmp/build/app /tmp/model
    g++ -std=c++20 /tmp/app.cpp \$(pkg-config --cflags --libs nanovllm) -o /tmp/app
    /tmp/app /tmp/model > /dev/null
    apt-get purge -y -qq nanovllm-server libnanovllm-c libnanovllm-dev
    ! ls -d /usr/include/nanovllm /usr/bin/nanovllm-* /usr/lib/*/*nanovllm* 2> /dev/null"
}

make_packages() {
  cmake -S "$clone" --preset package > "$out/packages.log" 2>&1
  cmake --build "$clone/build/package" --parallel "$(nproc)" >> "$out/packages.log" 2>&1
  (cd "$clone/build/package" && cpack -G "TGZ;DEB") >> "$out/packages.log" 2>&1
  local file
  for file in "$clone"/build/package/*.tar.gz "$clone"/build/package/*.deb; do
    cp "$file" "$out/"
    say "packages: $(basename "$file"), $(size_of "$file")"
  done

  mkdir -p "$work/archive"
  tar xzf "$out/nanovllm-$version-Linux-$(uname -m).tar.gz" -C "$work/archive" --strip-components 1
  local text
  text=$("$work/archive/bin/nanovllm-generate" --model "$model" --input - --output - <<< "$request")
  say "archive: its program says '$text'"
  text=$(build_program "$work/archive" "$work/archive_app")
  say "archive: README's program says '$text'"

  if [ "$(id -u)" -eq 0 ] && command -v debootstrap > /dev/null; then
    try_in_debian >> "$out/packages.log" 2>&1
    say "Debian packages: installed in a new Debian, both programs run, removed without a rest"
  else
    local file
    mkdir -p "$work/debs"
    for file in "$out"/*.deb; do dpkg-deb -x "$file" "$work/debs"; done
    text=$(build_program "$work/debs/usr" "$work/deb_app")
    say "Debian packages, unpacked: README's program says '$text'"
  fi
}

make_conan() {
  python3 -m venv "$work/conan" && "$work/conan/bin/pip" install -q "conan>=2,<3" ||
    leave_out conan "it cannot be installed by pip"
  export CONAN_HOME=$work/conan_home
  local conan=$work/conan/bin/conan
  "$conan" profile detect > "$out/conan.log" 2>&1
  if ! "$conan" list -r conancenter "pcre2/*" 2> /dev/null | grep -q 'pcre2/'; then
    "$conan" remote disable conancenter
    printf '\n[platform_requires]\npcre2/10.42\nutf8proc/2.8.0\nxxhash/0.8.1\n' \
      >> "$CONAN_HOME/profiles/default"
    say "conan: ConanCenter is not reached; the system's packages are taken"
  fi
  "$conan" create "$clone/.packages/conan" -s compiler.cppstd=20 >> "$out/conan.log" 2>&1
  local text
  text=$(grep -o '[0-9]* tokens' "$out/conan.log")
  say "conan: $text by the test package"
}

make_wheel() {
  python3 -m venv "$work/wheel"
  "$work/wheel/bin/pip" wheel -q --no-deps -w "$out" "$clone/.python" > "$out/wheel.log" 2>&1
  local wheel=("$out"/nanovllm-"$version"-*.whl)
  python3 -m venv "$work/python" && "$work/python/bin/pip" install -q "${wheel[0]}"
  local text
  text=$(cd "$work" && "$work/python/bin/python" -c "
import nanovllm
llm = nanovllm.LLM('$model')
form = nanovllm.StructuredOutputsParams(regex='[A-Z][a-z]+')
params = nanovllm.SamplingParams(temperature=0, max_tokens=8, structured_outputs=form)
print(llm.generate(['Once upon a time'], params)[0]['text'])")
  [ -n "$text" ]
  say "wheel: $(basename "${wheel[0]}"), $(size_of "${wheel[0]}"); a name by it is '$text'"
}

make_site() {
  bash "$clone/docs/site/build.sh" > "$out/site.log" 2>&1
  tar czf "$out/nanovllm-$version-docs.tar.gz" -C "$clone/build" site
  say "site: $(find "$clone/build/site" -name '*.html' | wc -l) pages, nanovllm-$version-docs.tar.gz, $(size_of "$out/nanovllm-$version-docs.tar.gz")"
}

for part in $parts; do
  begin=$SECONDS result=0
  # Within a condition 'set -e' would have no effect.
  set +e
  (set -e; "make_$part")
  result=$?
  set -e
  say "$part took $(((SECONDS - begin + 59) / 60)) min"
  [ "$result" -ne 0 ] || continue
  if [ -f "$out/$part.log" ]; then tail -n 20 "$out/$part.log"; fi
  say "$part failed or was left out"
  status=1
done
(cd "$out" && sha256sum -- *.tar.gz *.deb *.whl 2> /dev/null) > "$out/SHA256SUMS" || true
exit "$status"
