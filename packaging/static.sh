#!/usr/bin/env bash
# Builds a program that needs no library of its host, against musl, for this machine's architecture.
#
#   packaging/static.sh
#
# Prints its path. Needs the target of rustup (`rustup target add x86_64-unknown-linux-musl`) and
# musl's C compiler (package musl-tools of Debian).
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
machine=$(uname -m)
triple=$machine-unknown-linux-musl
cd "$tree"
command -v musl-gcc >/dev/null || { echo "musl-gcc is missing: apt install musl-tools" >&2; exit 1; }
export "CC_${triple//-/_}=musl-gcc"
cargo build --release -p tenuto --target "$triple" >&2
target=$(cargo metadata --no-deps --offline --format-version 1 |
    sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
binary=$target/$triple/release/tenuto
# A program with an interpreter is not static, and is no result.
if readelf --program-headers "$binary" | grep -q INTERP; then
    echo "$binary: needs a loader of its host" >&2
    exit 1
fi
echo "$binary"
