#!/usr/bin/env bash
# Builds the Debian package of this machine's architecture, from a release build of this tree.
#
#   packaging/deb.sh [--binary PATH] [--version VERSION] [--out DIRECTORY]
#
# Prints the path of the package, which lies in `debian` of cargo's target directory unless --out
# says otherwise. Needs dpkg-deb, dpkg-shlibdeps (package dpkg-dev) and strip.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(dirname "$here")
binary=
out=
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$tree/Cargo.toml")-1
while [ $# -gt 0 ]; do
    case $1 in
    --binary) binary=$2 ;;
    --version) version=$2 ;;
    --out) out=$2 ;;
    *)
        echo "usage: packaging/deb.sh [--binary PATH] [--version VERSION] [--out DIRECTORY]" >&2
        exit 2
        ;;
    esac
    shift 2
done
# Where cargo builds: CARGO_TARGET_DIR, or as its configuration says.
target() {
    (cd "$tree" && cargo metadata --no-deps --offline --format-version 1) |
        sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}
if [ -z "$binary" ]; then
    (cd "$tree" && cargo build --release -p tenuto >&2)
    binary=$(target)/release/tenuto
fi
[ -n "$out" ] || out=$(target)/debian
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
root=$work/debian/tenuto
doc=$root/usr/share/doc/tenuto
"$here/install.sh" "$root" "$binary"
strip --strip-all --remove-section=.comment --remove-section=.note "$root/usr/bin/tenuto"
install -D -m 0644 "$here/debian/copyright" "$doc/copyright"
printf 'tenuto (%s) unstable; urgency=medium\n\n  * See %s.\n\n -- %s  %s\n' "$version" \
    "/usr/share/doc/tenuto/README.md" "The Tenuto authors <maintainers@tenuto.invalid>" \
    "$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}")" | gzip -9n >"$work/changelog"
install -D -m 0644 "$work/changelog" "$doc/changelog.Debian.gz"

mkdir -p "$root/DEBIAN"
for script in postinst prerm postrm; do
    install -m 0755 "$here/debian/$script" "$root/DEBIAN/$script"
done
echo /etc/tenuto/tenuto.toml >"$root/DEBIAN/conffiles"
# The library versions that the program needs, as this machine's packages tell.
printf 'Source: tenuto\n\nPackage: tenuto\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O debian/tenuto/usr/bin/tenuto 2>/dev/null |
    sed -n 's/^shlibs:Depends=//p')
size=$(du -k -s --apparent-size "$root" | cut -f 1)
cat >"$root/DEBIAN/control" <<CONTROL
Package: tenuto
Version: $version
Architecture: $architecture
Maintainer: The Tenuto authors <maintainers@tenuto.invalid>
Installed-Size: $size
Depends: $depends
Suggests: qemu-system, prometheus
Section: admin
Priority: optional
Description: write-back cache between virtual disks and slow shared storage
 Tenuto is a daemon for KVM hosts. It stands, in user space, between the disks
 of virtual machines and shared storage, and keeps a write-back cache on a
 local SSD. Writes are acknowledged from shared memory, flushes from a log on
 the SSD; the data goes to the image later, in an order that leaves the image
 consistent at every instant.
CONTROL
(cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z |
    xargs -0 md5sum) >"$root/DEBIAN/md5sums"
mkdir -p "$out"
package=$out/tenuto_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zgzip --build "$root" "$package" >/dev/null
echo "$package"
