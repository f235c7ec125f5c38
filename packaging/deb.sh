#!/usr/bin/env bash
# Builds the Debian package of this machine's architecture, from a release build of this tree.
#
#   packaging/deb.sh [--binary PATH] [--version VERSION] [--out DIRECTORY]
#
# Prints the path of the package. Needs dpkg-deb, dpkg-shlibdeps (package dpkg-dev) and strip.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(dirname "$here")
binary=
out=$tree/target/debian
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
if [ -z "$binary" ]; then
    (cd "$tree" && cargo build --release -p tenuto >&2)
    binary=$tree/target/release/tenuto
fi
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
root=$work/debian/tenuto
doc=$root/usr/share/doc/tenuto
examples=$doc/examples
share=$root/usr/share

install -D -m 0755 "$binary" "$root/usr/bin/tenuto"
strip --strip-all --remove-section=.comment --remove-section=.note "$root/usr/bin/tenuto"
install -D -m 0644 "$here/tenuto.service" "$root/lib/systemd/system/tenuto.service"
install -D -m 0644 "$here/tenuto-device@.service" "$root/lib/systemd/system/tenuto-device@.service"
install -D -m 0644 "$here/tenuto.rules" "$root/lib/udev/rules.d/60-tenuto.rules"
install -D -m 0644 "$here/tenuto.sysusers" "$root/usr/lib/sysusers.d/tenuto.conf"
install -D -m 0644 "$here/tenuto.tmpfiles" "$root/usr/lib/tmpfiles.d/tenuto.conf"
install -D -m 0644 "$here/tenuto.toml" "$root/etc/tenuto/tenuto.toml"
# Checked by `tenuto config --check` before there was a first start.
install -d -m 0755 "$root/var/lib/tenuto"
install -D -m 0755 "$here/debian/dirty" "$share/tenuto/dirty"
install -D -m 0755 "$here/debian/stage" "$share/tenuto/stage"
for page in README.md docs/operations.md docs/guarantees.md docs/format.md; do
    install -D -m 0644 "$tree/$page" "$doc/$(basename "$page")"
done
install -D -m 0644 "$here/tenuto-origins.conf.example" "$examples/tenuto-origins.conf"
for board in grafana/tenuto.json prometheus/tenuto.rules.yml; do
    if [ -e "$here/$board" ]; then
        install -D -m 0644 "$here/$board" "$examples/$board"
    fi
done
install -D -m 0644 "$here/debian/copyright" "$doc/copyright"
printf 'tenuto (%s) unstable; urgency=medium\n\n  * See %s.\n\n -- %s  %s\n' "$version" \
    "/usr/share/doc/tenuto/README.md" "The Tenuto authors <maintainers@tenuto.invalid>" \
    "$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}")" | gzip -9n >"$work/changelog"
install -D -m 0644 "$work/changelog" "$doc/changelog.Debian.gz"

completions() {
    mkdir -p "$(dirname "$2")"
    "$binary" completions "$1" >"$2"
}
completions bash "$share/bash-completion/completions/tenuto"
completions zsh "$share/zsh/vendor-completions/_tenuto"
completions fish "$share/fish/vendor_completions.d/tenuto.fish"
# Pages come from the program, where it has the verb.
if "$binary" man --help >/dev/null 2>&1; then
    mkdir -p "$share/man/man1" "$share/man/man5"
    # Standard output is for the name of the package alone.
    "$binary" man --dir "$share/man/man1" >&2
    mv "$share"/man/man1/*.5 "$share/man/man5/"
    find "$share/man" -type f ! -name '*.gz' -exec gzip -9n {} +
fi

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
