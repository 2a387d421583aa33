#!/usr/bin/env bash
# Runs trigraph on an emulated arm64 processor, with ONNX Runtime's own arm64 wheel. The first call sets a root up:
#
#     TRIGRAPH_ISA=neon tools/arm64.sh ROOT verify receipts/ package/
#
# Debian: debootstrap g++-aarch64-linux-gnu qemu-user. QEMU 7.2 crashes when it loads ONNX Runtime 1.31 or newer.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
root=$(mkdir -p "$1" && cd "$1" && pwd)
shift
bin=$checkout/.venv/bin
site=$root/opt/site

if [ ! -e "$root/usr/bin/python3.11" ]; then
  debootstrap --arch=arm64 --foreign --variant=minbase --include=python3,libstdc++6 bookworm "$root" >&2
  for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
fi
if [ ! -d "$site" ]; then
  platforms=()
  for version in 17 26 27 28 31 34 35 36; do platforms+=(--platform "manylinux_2_${version}_aarch64"); done
  "$bin/python" -m pip install -q --target "$site.new" "${platforms[@]}" --python-version 3.11 --implementation cp \
    --abi cp311 --abi abi3 --abi none --only-binary :all: \
    gguf jinja2 llguidance numpy onnx onnx-ir onnxruntime==1.24.4 onnxscript safetensors tokenizers typer >&2
  mkdir -p "$site.new/trigraph"
  for name in models exporter runtime custom_ops; do ln -s "$checkout/$name" "$site.new/trigraph/$name"; done
  mv "$site.new" "$site"
fi
"$bin/cmake" -S "$checkout/custom_ops" -B "$root/opt/library" -G Ninja -DCMAKE_MAKE_PROGRAM="$bin/ninja" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null
"$bin/cmake" --build "$root/opt/library" >&2
export PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1 TRIGRAPH_LIBRARY_DIR=$root/opt/library XDG_CACHE_HOME=$root/cache
exec qemu-aarch64 -cpu max -L "$root" "$root/usr/bin/python3.11" -m trigraph.runtime "$@"
