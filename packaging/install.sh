#!/usr/bin/env bash
# Puts the files of a package below a directory, for the packages of Debian and for rpm.
#
#   packaging/install.sh ROOT BINARY
#
# UNITS, ZSH and FISH are the directories of units and completions, as the distribution has them.
# Documents are laid out flat in usr/share/doc/tenuto; links to what is not installed are plain text
# there. What only one kind of package has (scripts, changelog, control file) is with that kind.
set -euo pipefail
[ $# = 2 ] || { echo "usage: packaging/install.sh ROOT BINARY" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
tree=$(dirname "$here")
root=$1
binary=$2
units=$root/${UNITS:-/lib/systemd/system}
share=$root/usr/share
doc=$share/doc/tenuto
umask 022

install -D -m 0755 "$binary" "$root/usr/bin/tenuto"
install -D -m 0644 "$here/tenuto.service" "$units/tenuto.service"
install -D -m 0644 "$here/tenuto-device@.service" "$units/tenuto-device@.service"
install -D -m 0644 "$here/tenuto.rules" "$root${RULES:-/lib/udev/rules.d}/60-tenuto.rules"
install -D -m 0644 "$here/tenuto.sysusers" "$root/usr/lib/sysusers.d/tenuto.conf"
install -D -m 0644 "$here/tenuto.tmpfiles" "$root/usr/lib/tmpfiles.d/tenuto.conf"
install -D -m 0644 "$here/tenuto.toml" "$root/etc/tenuto/tenuto.toml"
# Checked by `tenuto config --check` before there was a first start.
install -d -m 0755 "$root/var/lib/tenuto"
install -D -m 0755 "$here/debian/dirty" "$share/tenuto/dirty"
install -D -m 0755 "$here/debian/stage" "$share/tenuto/stage"

# From its place in the repository to its place among the installed documents.
page() {
    mkdir -p "$(dirname "$doc/$2")"
    sed -zE -e 's#\]\(docs/#](#g' -e 's#\]\(\.\./(README|ARCHITECTURE|STYLE)\.md#](\1.md#g' \
        -e 's/\[([^]]*)\]\([^):#]*\.rs(#[^)]*)?\)/\1/g' "$tree/$1" >"$doc/$2"
    chmod 0644 "$doc/$2"
}
for name in README ARCHITECTURE STYLE; do
    page "$name.md" "$name.md"
done
(cd "$tree/docs" && find . -name '*.md' -printf '%P\n') | while read -r name; do
    page "docs/$name" "$name"
done
install -m 0644 "$tree"/docs/*.png "$doc/"
install -D -m 0644 "$here/tenuto-origins.conf.example" "$doc/examples/tenuto-origins.conf"
install -D -m 0755 "$here/libvirt-hook" "$doc/examples/libvirt-hook"
install -D -m 0644 "$here/proxmox/TenutoPlugin.pm" "$doc/examples/TenutoPlugin.pm"
for board in grafana/tenuto.json prometheus/tenuto.rules.yml; do
    install -D -m 0644 "$here/$board" "$doc/examples/$board"
done

completions() {
    mkdir -p "$(dirname "$2")"
    "$binary" completions "$1" >"$2"
}
completions bash "$share/bash-completion/completions/tenuto"
completions zsh "$share/${ZSH:-zsh/vendor-completions}/_tenuto"
completions fish "$share/${FISH:-fish/vendor_completions.d}/tenuto.fish"
mkdir -p "$share/man/man1" "$share/man/man5"
# Standard output is for the name of the package alone.
"$binary" man --dir "$share/man/man1" >&2
mv "$share"/man/man1/*.5 "$share/man/man5/"
find "$share/man" -type f ! -name '*.gz' -exec gzip -9n {} +
